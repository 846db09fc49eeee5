"""The compile cache: where it is, and what happens when it cannot be written."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SCRIPT = """
from llmroute_env import jit
print(jit.cache_directory())
jit.announce_compilation()
jit.announce_compilation()
"""


def run(**environment: str) -> tuple[str, str]:
    root = str(Path(__file__).resolve().parents[1])
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env={**os.environ, "PYTHONPATH": root, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip(), done.stderr


def test_a_fresh_cache_is_announced_once(tmp_path: Path) -> None:
    where, said = run(NUMBA_CACHE_DIR=str(tmp_path))
    assert Path(where).parent == tmp_path / "llmroute"
    assert said.count("compiling the simulator") == 1
    assert where in said
    (Path(where) / "one.nbi").touch()
    assert run(NUMBA_CACHE_DIR=str(tmp_path))[1] == ""


def test_an_unusable_place_falls_back_to_the_temporary_directory(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.touch()
    elsewhere = tmp_path / "tmp"
    elsewhere.mkdir()
    where, _ = run(NUMBA_CACHE_DIR=str(blocked), TMPDIR=str(elsewhere))
    assert Path(where).is_relative_to(elsewhere)
