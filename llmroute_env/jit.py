"""The project's numba decorator: compiled once, cached on disk, never stale.

numba keeps a compiled function until *its own* file changes, so an edit to a callee in another
file would leave a stale caller in the cache. The cache directory therefore carries a hash of all
of the project's sources; ``NUMBA_CACHE_DIR`` overrides the parent directory.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import numba
from numba import config

F = TypeVar("F", bound=Callable[..., Any])

_STALE_AFTER_S = 14 * 24 * 3600.0


@cache
def cache_directory() -> Path:
    """Directory of this source tree's compiled functions, created on first use."""
    package = Path(__file__).resolve().parent
    digest = hashlib.sha256(numba.__version__.encode())
    for root in (package, package.parent / "policies"):
        for path in sorted(root.rglob("*.py")):
            digest.update(path.read_bytes())
    parent = os.environ.get("NUMBA_CACHE_DIR") or os.environ.get("XDG_CACHE_HOME")
    base = Path(parent) if parent else Path.home() / ".cache"
    directory = base / "llmroute" / digest.hexdigest()[:16]
    try:
        directory.mkdir(parents=True, exist_ok=True)
        os.utime(directory)
        _drop_stale(directory)
    except OSError:  # a read-only home: numba then compiles in memory
        pass
    return directory


def _drop_stale(current: Path) -> None:
    for other in current.parent.iterdir():
        if other != current and time.time() - other.stat().st_mtime > _STALE_AFTER_S:
            shutil.rmtree(other, ignore_errors=True)


def compiled(function: F) -> F:
    """Compile ``function`` in nopython mode without the GIL, with an on-disk cache."""
    before = config.CACHE_DIR
    config.CACHE_DIR = str(cache_directory())
    try:
        return numba.njit(cache=True, nogil=True)(function)  # type: ignore[no-any-return]
    finally:
        config.CACHE_DIR = before
