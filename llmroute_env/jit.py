"""The project's numba decorator: compiled once, cached on disk, never stale.

numba keeps a compiled function until *its own* file changes, so an edit to a callee in another
file would leave a stale caller in the cache. The cache directory therefore carries a hash of all
sources that compiled code is made from; ``NUMBA_CACHE_DIR`` overrides the parent directory.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import numba
from numba import config

F = TypeVar("F", bound=Callable[..., Any])

_STALE_AFTER_S = 14 * 24 * 3600.0


def _digest() -> str:
    """Hash of numba's version and of the sources that compiled code is made from.

    These are the kernel, the policies, the observation fields and whatever else compiles something;
    an edit of a plot or of a scenario's validation leaves the cache as it is.
    """
    package = Path(__file__).resolve().parent
    digest = hashlib.sha256(numba.__version__.encode())
    for root in (package, package.parent / "policies"):
        for path in sorted(root.rglob("*.py")):
            source = path.read_bytes()
            kernel = "cluster" in path.parts or root != package or path.name == "spaces.py"
            if kernel or b"llmroute_env.jit" in source:
                digest.update(source)
    return digest.hexdigest()[:16]


@cache
def cache_directory() -> Path | None:
    """Directory of this source tree's compiled functions, made on first use.

    Where the usual place is read-only it is below the temporary directory; None when nothing can
    be written, and every process then compiles for itself.
    """
    given = os.environ.get("NUMBA_CACHE_DIR") or os.environ.get("XDG_CACHE_HOME")
    for base in (Path(given or Path.home() / ".cache"), Path(tempfile.gettempdir())):
        directory = base / "llmroute" / _digest()
        try:
            directory.mkdir(parents=True, exist_ok=True)
            os.utime(directory)
            _drop_stale(directory)
        except OSError:
            continue
        if os.access(directory, os.W_OK):
            return directory
    return None


def _drop_stale(current: Path) -> None:
    for other in current.parent.iterdir():
        if other != current and time.time() - other.stat().st_mtime > _STALE_AFTER_S:
            shutil.rmtree(other, ignore_errors=True)


def compiled(function: F) -> F:
    """Compile ``function`` in nopython mode without the GIL, with an on-disk cache."""
    return _compile(function)


def inlined(function: F) -> F:
    """Compile likewise, and put the function into each of its callers.

    For what takes the whole `State`: a call pushes its arrays as some two hundred arguments.
    """
    return _compile(function, forceinline=True)


def _compile(function: F, **options: bool) -> F:
    directory = cache_directory()
    if directory is None:
        return numba.njit(nogil=True, **options)(function)  # type: ignore[no-any-return]
    before = config.CACHE_DIR
    config.CACHE_DIR = str(directory)
    try:
        return numba.njit(cache=True, nogil=True, **options)(function)  # type: ignore[no-any-return]
    finally:
        config.CACHE_DIR = before


@cache
def announce_compilation() -> None:
    """Say once on stderr that compiling takes time, when nothing is in the cache yet."""
    directory = cache_directory()
    if directory is None or next(directory.rglob("*.nbi"), None) is None:
        later = f"; later starts load it from {directory}" if directory else ""
        print(f"llmroute: compiling the simulator, about 20 s{later}", file=sys.stderr)
