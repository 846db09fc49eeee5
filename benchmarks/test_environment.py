"""A step, and the parts of it; a reset, and the parts of it."""

# ruff: noqa: D103  (names say what is timed)

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from llmroute_env import metrics
from llmroute_env.env import LLMRouteEnv
from llmroute_env.vector import LLMRouteVectorEnv

ROUNDS = 1_000  #: fewer than an episode has periods left


def test_step_holding(benchmark: Any, env: LLMRouteEnv) -> None:
    hold = np.zeros(env.scenario.router.window, np.int64)
    benchmark.pedantic(env.step, (hold,), rounds=ROUNDS, warmup_rounds=10)


def test_step_of_the_kernel_alone(benchmark: Any, env: LLMRouteEnv) -> None:
    hold = np.zeros((1, env.scenario.router.window), np.int64)
    nobody = np.zeros(1, np.bool_)
    benchmark.pedantic(env._sim.step, (hold, nobody), rounds=ROUNDS, warmup_rounds=10)


def test_copies_of_the_observation(benchmark: Any, env: LLMRouteEnv) -> None:
    benchmark(env._observation)


def test_reset(benchmark: Any, env: LLMRouteEnv) -> None:
    benchmark(env.reset)


def test_draw_of_a_workload(benchmark: Any, env: LLMRouteEnv) -> None:
    benchmark(env._sim.draw, np.random.default_rng(0))


def test_summary_of_an_episode(benchmark: Any, env: LLMRouteEnv) -> None:
    log, stats = env.request_log(), env.episode_stats()
    benchmark(metrics.summarize, log, stats, env.scenario.objective)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("lanes", [16, 256])
def test_vector_step(benchmark: Any, lanes: int, threads: int) -> None:
    envs = LLMRouteVectorEnv(lanes, "paper-overload", {"router.window": 32}, threads=threads)
    envs.reset(seed=0)
    hold = np.zeros((lanes, 32), np.int64)
    benchmark.pedantic(envs.step, (hold,), rounds=300, warmup_rounds=100)
    envs.close()


def test_vector_step_of_the_kernel_alone(benchmark: Any) -> None:
    envs = LLMRouteVectorEnv(256, "paper-overload", {"router.window": 32}, threads=1)
    envs.reset(seed=0)
    hold, nobody = np.zeros((256, 32), np.int64), np.zeros(256, np.bool_)
    benchmark.pedantic(envs._sim.step, (hold, nobody), rounds=300, warmup_rounds=100)
