"""Whole episodes inside one compiled call."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np

import policies
from llmroute_env.env import LLMRouteEnv
from llmroute_env.evaluation import evaluate
from llmroute_env.experiments.benchmark.clock import thread_s
from llmroute_env.experiments.benchmark.model import Batch, Group, Measure, Plan, Probe
from llmroute_env.experiments.benchmark.stepping import SCENARIO

POLICIES: Final = ("round_robin", "sjf", "mc_sf", "olp")

#: A timed repeat plays episodes until it has lasted this long, so that one interruption does not
#: decide it.
_LEAST_S: Final = 0.03


def device_iterations(env: Any) -> int:
    """Iterations that the devices of a single environment have finished in this episode."""
    return int(env.unwrapped._sim.state.devices["count"][0].sum())


def _measures(policy: str) -> tuple[Measure, ...]:
    units = ("iterations", "requests", "periods")
    return tuple(Measure(f"episode.{policy}.{u}_per_s", f"{u}/s", "higher") for u in units)


def _compiled(env: LLMRouteEnv, name: str) -> Probe:
    policy = policies.make(name, env)

    def run() -> tuple[float, ...]:
        counts, elapsed, seed = np.zeros(3), 0.0, 0
        while elapsed < _LEAST_S:
            env.reset(seed=seed)
            policy.reset(seed=seed)
            start = thread_s()
            policy.run_episode(env, timed=False)
            elapsed += thread_s() - start
            counts += device_iterations(env), len(env.requests), env.episode_stats().periods
            seed += 1
        return tuple(counts / elapsed)

    return Probe(_measures(name), run)


def _evaluated(env: LLMRouteEnv, name: str) -> Probe:
    """Reset, episode, log and metrics: what one row of a comparison costs."""
    policy = policies.make(name, env)

    def run() -> tuple[float, ...]:
        start = thread_s()
        evaluate(env, policy, seed=0)
        return ((thread_s() - start) * 1e3,)

    return Probe((Measure(f"episode.{name}.evaluate_ms", "ms"),), run)


def _batches(plan: Plan) -> Iterator[Batch]:
    overrides = {"horizon_periods": 400} if plan.quick else None
    env = LLMRouteEnv(SCENARIO, overrides)
    probes = [_compiled(env, name) for name in POLICIES]
    probes += [_evaluated(env, name) for name in POLICIES]
    yield Batch(", ".join(POLICIES), probes)


GROUP: Final = Group("episode", f"whole episodes in one compiled call, {SCENARIO}", _batches)
