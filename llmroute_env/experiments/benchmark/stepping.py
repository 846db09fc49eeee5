"""Steps of the single environment through ``gymnasium.make``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import gymnasium as gym
import numpy as np

import llmroute_env  # noqa: F401  (registers the environment)
import policies
from llmroute_env.experiments.benchmark.clock import slice_rates
from llmroute_env.experiments.benchmark.model import Batch, Group, Measure, Plan, Probe

SCENARIO: Final = "paper-overload"
OVERRIDES: Final = {"router.window": 32}


def make_env(**options: Any) -> gym.Env[Any, Any]:
    """The scenario of all step measures, as a user makes it."""
    return gym.make("LLMRoute-v0", scenario=SCENARIO, overrides=OVERRIDES, **options)


def _holding(env: gym.Env[Any, Any], steps: int) -> Probe:
    hold = np.zeros(OVERRIDES["router.window"], np.int64)

    def run() -> tuple[float, ...]:
        env.reset(seed=0)
        return (float(np.median(slice_rates(lambda: env.step(hold), steps))),)

    return Probe((Measure("single.holding", "steps/s", "higher"),), run)


def _routed(env: gym.Env[Any, Any], steps: int, name: str) -> Probe:
    policy = policies.make(name, env)

    def run() -> tuple[float, ...]:
        observation, _ = env.reset(seed=0)

        def step() -> None:
            nonlocal observation
            action, _ = policy.predict(observation)
            observation, *_ = env.step(action)

        return (float(np.median(slice_rates(step, steps))),)

    return Probe((Measure(f"single.{name}", "steps/s", "higher"),), run)


def _batches(plan: Plan) -> Iterator[Batch]:
    env = make_env()
    # one short of an episode, which the stopwatch's first step takes
    steps = 300 if plan.quick else int(env.get_wrapper_attr("scenario").horizon_periods) - 1
    probes = [_holding(env, steps), _routed(env, steps, "round_robin")]
    yield Batch("gym.make, W = 32", probes)
    env.close()


GROUP: Final = Group(
    "single",
    f"single environment, gym.make, {SCENARIO}, W = {OVERRIDES['router.window']}",
    _batches,
)
