"""Time from a fresh Python to the first step: from the cache, and when everything compiles."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from itertools import pairwise
from typing import Final

from llmroute_env.experiments.benchmark.machine import child_environment
from llmroute_env.experiments.benchmark.model import Batch, Group, Measure, Plan, Probe
from llmroute_env.experiments.benchmark.stepping import OVERRIDES, SCENARIO

# Stages as a user's script has them; the clocks start before the first import.
_STEP: Final = f"""\
import time
stamps = []
stamp = lambda: stamps.append((time.perf_counter(), time.process_time()))
stamp()
import llmroute_env
stamp()
import gymnasium as gym, numpy as np
env = gym.make("LLMRoute-v0", scenario={SCENARIO!r}, overrides={OVERRIDES!r})
stamp()
observation, _ = env.reset(seed=0)
stamp()
env.step(np.zeros({OVERRIDES["router.window"]}, np.int64))
stamp()
"""
_REPORT: Final = """\
from llmroute_env.experiments.benchmark.machine import memory_mb
for wall, processor in stamps[1:]:
    print(wall - stamps[0][0], processor - stamps[0][1])
print(memory_mb(peak=True))
"""
_DECIDE: Final = """\
import policies
policies.make("olp", env).predict(observation)
stamp()
"""


def _child(code: str, **environment: str) -> list[float]:
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=child_environment(**environment),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        reason = (done.stderr.strip() or "no message").splitlines()[-1]
        raise RuntimeError(f"a fresh Python failed: {reason}")
    return [float(word) for word in done.stdout.split()]


def _cached() -> tuple[float, ...]:
    *stamps, peak = _child(_STEP + _REPORT)
    wall, processor = stamps[::2], stamps[1::2]
    stages = (later - earlier for earlier, later in pairwise((0.0, *processor)))
    return wall[-1], processor[-1], *stages, peak


def _compiling() -> tuple[float, ...]:
    with tempfile.TemporaryDirectory(prefix="llmroute-cold-") as empty:
        *stamps, _ = _child(_STEP + _DECIDE + _REPORT, NUMBA_CACHE_DIR=empty)
    return tuple(stamps[-4:])  # of the first step, and of the first decision


def _measure(name: str, unit: str = "s") -> Measure:
    return Measure(f"start.{name}", unit)


def _batches(plan: Plan) -> Iterator[Batch]:
    """Time on the wall, and of the processor: they differ by what other programs took."""
    stages = ("import", "make", "reset", "first_step")
    measures = (
        _measure("cached_s"),
        _measure("cached_processor_s"),
        *(_measure(f"cached_processor_s.{stage}") for stage in stages),
        _measure("peak_mb", "MB"),
    )
    yield Batch(
        "fresh Python, compiled code from the cache",
        [Probe(measures, _cached)],
        repeats=2 if plan.quick else 5,
    )
    if plan.quick:
        return
    names = (
        "first_compile_s",
        "first_compile_processor_s",
        "first_compile_with_olp_s",
        "first_compile_with_olp_processor_s",
    )
    yield Batch(
        "fresh Python, empty cache: everything compiles",
        [Probe(tuple(map(_measure, names)), _compiling, warm_up=False)],
        repeats=1,
    )


GROUP: Final = Group("start", "import, make, reset and first step in a fresh Python", _batches)
