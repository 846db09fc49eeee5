"""Micro-benchmarks for development: ``python -m pytest benchmarks`` (not part of ``make test``).

    python -m pytest benchmarks --benchmark-autosave
    python -m pytest benchmarks --benchmark-compare --benchmark-compare-fail=median:10%

They time the parts that `scripts/benchmark.py` times together, to see which one a change hit.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator

import numpy as np
import pytest

pytest.importorskip("pytest_benchmark", reason="needs pytest-benchmark (the dev extra)")

from llmroute_env.env import LLMRouteEnv

WINDOW = 32


@pytest.fixture(autouse=True)
def no_garbage_collection() -> Iterator[None]:
    """A collection in the middle of a round is not what is timed."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def env() -> LLMRouteEnv:
    """The scenario of the step targets, with a queue that holding has filled."""
    made = LLMRouteEnv("paper-overload", {"router.window": WINDOW})
    made.reset(seed=0)
    hold = np.zeros(WINDOW, np.int64)
    for _ in range(100):
        made.step(hold)
    return made
