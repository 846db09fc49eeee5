"""A decision through ``predict`` and without Python's part of it, and whole episodes."""

# ruff: noqa: D103  (names say what is timed)

from __future__ import annotations

from itertools import cycle
from typing import Any

import numpy as np
import pytest

import policies
from llmroute_env.env import LLMRouteEnv
from llmroute_env.experiments.benchmark.backlog import Tape, record
from llmroute_env.experiments.benchmark.decisions import OLP, all_policies


@pytest.fixture(scope="module")
def tape() -> Tape:
    """4 devices that are full, 128 requests waiting."""
    return record(4, 128, 100)


@pytest.mark.parametrize("name", [*all_policies(), OLP])
def test_predict(benchmark: Any, tape: Tape, name: str) -> None:
    router = policies.make(name, tape.spec)
    for observation in tape.before:
        router.predict(observation)
    seen = cycle(tape.timed)
    benchmark.pedantic(router.predict, setup=lambda: ((next(seen),), {}), rounds=100)


@pytest.mark.parametrize("name", ["round_robin", "sjf", "olp"])
def test_compiled_decision(benchmark: Any, tape: Tape, name: str) -> None:
    """What is left of it without checks, snapshots and lanes."""
    router = policies.make(name, tape.spec)
    for observation in tape.before:
        router.predict(observation)
    o = tape.timed[0]
    action = np.zeros(128, np.int64)
    seen = (o["queue"], o["queue_id"], o["devices"], o["active"], o["clock"])
    benchmark(router.kernels.decide, *seen, router.params, router.memory, router.scratch, action)


@pytest.mark.parametrize("name", ["round_robin", "lor", "sjf", "mc_sf", "olp"])
def test_episode(benchmark: Any, name: str) -> None:
    env = LLMRouteEnv("paper-overload", {"horizon_periods": 1000})
    router = policies.make(name, env)

    def fresh() -> tuple[tuple[Any, ...], dict[str, Any]]:
        env.reset(seed=0)
        router.reset(seed=0)
        return (env,), {"timed": False}

    benchmark.pedantic(router.run_episode, setup=fresh, rounds=10, warmup_rounds=1)
