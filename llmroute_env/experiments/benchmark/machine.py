"""Facts of the machine, and memory of this process."""

from __future__ import annotations

import os
import platform
import resource
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

_PACKAGE: Final = Path(__file__).resolve().parents[2]
_PROC: Final = Path("/proc/self/status")


def facts() -> dict[str, Any]:
    """What a reader needs to judge a number: processor, versions, revision, load."""
    return {
        "cpu": _processor(),
        "cores": _cores(),
        "load_average": [round(load, 2) for load in os.getloadavg()],
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        **{name: version(name) for name in ("numpy", "numba", "gymnasium")},
        "revision": _revision(),
    }


def memory_mb(*, peak: bool = False) -> float:
    """Resident memory of this process, now or at its peak [MB]; macOS knows the peak alone."""
    if _PROC.is_file():
        # Not getrusage: on Linux its peak includes that of the process that started this one.
        key = "VmHWM:" if peak else "VmRSS:"
        for line in _PROC.read_text().splitlines():
            if line.startswith(key):
                return int(line.split()[1]) * 1024 / 1e6
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most / 1e6 if sys.platform == "darwin" else most * 1024 / 1e6


def child_environment(**extra: str) -> dict[str, str]:
    """Environment of a fresh Python that imports this very package."""
    paths = [str(_PACKAGE.parent), os.environ.get("PYTHONPATH", "")]
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))} | extra


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _revision() -> str:
    """The commit, with ``+`` for uncommitted changes; empty outside a repository."""
    git = ["git", "-C", str(_PACKAGE.parent)]
    try:
        head = subprocess.run([*git, "rev-parse", "--short=12", "HEAD"], **_CAPTURE)
        changed = subprocess.run([*git, "status", "--porcelain", "-uno"], **_CAPTURE)
    except (OSError, subprocess.SubprocessError):
        return ""
    return f"{head.stdout.strip()}{'+' if changed.stdout.strip() else ''}"


_CAPTURE: Final[dict[str, Any]] = {
    "check": True,
    "capture_output": True,
    "text": True,
    "timeout": 10,
}
