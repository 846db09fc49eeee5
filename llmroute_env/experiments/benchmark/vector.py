"""Steps of the native vector environment by lanes, copies and threads, and of SyncVectorEnv."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, Final

import gymnasium as gym
import numpy as np

import policies
from llmroute_env.experiments.benchmark.clock import slice_rates, thread_s
from llmroute_env.experiments.benchmark.model import (
    Batch,
    Derived,
    Group,
    Measure,
    Plan,
    Probe,
    Values,
)
from llmroute_env.experiments.benchmark.stepping import OVERRIDES, SCENARIO
from llmroute_env.scenario import Scenario

LANES: Final = (1, 4, 16, 32, 64, 128, 256, 512)
_SHARED: Final = (1, 16, 64, 256)  #: lanes at which copy=False is measured too
_SYNC: Final = 64
_WARM_STEPS: Final = 100  #: by then holding has filled the window of 32
#: A second thread that gains less than this is not worth the core it takes.
_PAYS: Final = 1.1
_HORIZON: Final = Scenario.load(SCENARIO).horizon_periods


def _make(lanes: int, **options: Any) -> Any:
    return gym.make_vec(
        "LLMRoute-v0", num_envs=lanes, scenario=SCENARIO, overrides=OVERRIDES, **options
    )


class _Stepping:
    """Env-steps per second with every request held, or with the actions of a policy."""

    def __init__(self, envs: Any, budget: int, policy: str = "") -> None:
        self.best = 0.0  #: rate of the fastest tenth of the slices: as on a quiet machine
        self._envs, lanes = envs, int(envs.num_envs)
        self._hold = np.zeros((lanes, OVERRIDES["router.window"]), np.int64)
        self._steps = min(max(budget // lanes, 20), 2_000)
        self._policy = policies.make(policy, envs) if policy else None
        self._observation, _ = envs.reset(seed=0)
        for _ in range(_WARM_STEPS):
            self._step()

    def __call__(self) -> tuple[float, ...]:
        step = self._step if self._policy is None else self._routed_step
        rates = slice_rates(step, self._steps) * self._envs.num_envs
        self.best = float(np.quantile(rates, 0.9))
        return (float(np.median(rates)),)

    def _step(self) -> None:
        self._envs.step(self._hold)

    def _routed_step(self) -> None:
        assert self._policy is not None
        action, _ = self._policy.predict(self._observation)
        self._observation, *_ = self._envs.step(action)


def _resetting(envs: Any) -> Probe:
    """Time to draw and start a new episode, per lane."""

    def run() -> tuple[float, ...]:
        start = thread_s()
        envs.reset()
        return ((thread_s() - start) / envs.num_envs * 1e6,)

    return Probe((Measure("vector.reset_us", "µs/lane"),), run)


def _name(lanes: int, kind: str) -> str:
    return f"vector.{lanes}.{kind}"


def _measure(lanes: int, kind: str, curve: str = "") -> Measure:
    return Measure(_name(lanes, kind), "env-steps/s", "higher", curve, lanes)


def _gain(lanes: int, one: _Stepping, two: _Stepping) -> Derived:
    """What a second thread gains when both cores are free, which a busy machine seldom grants."""

    def of(values: Values) -> float:  # noqa: ARG001
        return two.best / one.best

    curve = "vector.threads_gain"
    return Derived(Measure(_name(lanes, "threads_gain"), "×", "", curve, lanes), of)


def _over_sync(kind: str, values: Values) -> float:
    return values[kind] / values[_name(_SYNC, "sync")]


def _batch(lanes: int, budget: int) -> tuple[Batch, list[Any]]:
    made: list[Any] = []
    probes: list[Probe] = []

    def add(kind: str, curve: str = "", **options: Any) -> _Stepping:
        made.append(_make(lanes, **options))
        stepping = _Stepping(made[-1], budget)
        probes.append(Probe((_measure(lanes, kind, curve),), stepping))
        return stepping

    add("default", "vector.default")
    by_threads = []
    for threads in (1, 2) if lanes > 1 else (1,):
        curve = f"vector.copy.{threads}"
        by_threads.append(add(f"copy.{threads}", curve, threads=threads))
        if lanes in _SHARED:
            add(f"shared.{threads}", threads=threads, copy=False)
    gains = [_gain(lanes, *by_threads)] if lanes > 1 else []
    return Batch(f"{lanes} lanes", probes, gains), made


def _batches(plan: Plan) -> Iterator[Batch]:
    budget = 1_000 if plan.quick else 20_000
    for lanes in (1, 16) if plan.quick else LANES:
        batch, made = _batch(lanes, budget)
        yield batch
        for envs in made:
            envs.close()
    yield from _against_sync(budget // 4, 16 if plan.quick else 256)


def _against_sync(budget: int, most: int) -> Iterator[Batch]:
    sync, small = _make(_SYNC, vectorization_mode="sync"), _make(_SYNC)
    large, routed = _make(most), _make(most)
    router = "round_robin"
    beside = "beside_sync"
    yield Batch(
        f"SyncVectorEnv of {_SYNC} lanes",
        [
            Probe((_measure(_SYNC, "sync"),), _Stepping(sync, budget)),
            Probe((_measure(_SYNC, beside),), _Stepping(small, 4 * budget)),
            Probe((_measure(most, beside),), _Stepping(large, 4 * budget)),
            Probe((_measure(most, router),), _Stepping(routed, 4 * budget, router)),
        ],
        [
            Derived(
                Measure(_name(lanes, "over_sync"), "×", "higher"),
                partial(_over_sync, _name(lanes, beside)),
            )
            for lanes in (_SYNC, most)
        ],
    )
    yield Batch("resets", [_resetting(small)])
    for envs in (sync, small, large, routed):
        envs.close()


def _conclude(medians: Values) -> list[tuple[Measure, float]]:
    """Lanes from which a second thread pays, and what a reset costs in steps."""
    gains = {lanes: medians.get(_name(lanes, "threads_gain")) for lanes in LANES}
    pays = float("inf")
    for lanes in reversed(LANES):
        gain = gains[lanes]
        if gain is None:
            continue
        if gain < _PAYS:
            break
        pays = lanes
    found = [(Measure("vector.second_thread_pays_from", "lanes", ""), pays)]
    step_us = 1e6 / medians[_name(_SYNC, "beside_sync")]
    reset_us = medians["vector.reset_us"]
    # neither side is better: it grows when steps get faster
    found.append((Measure("vector.reset_steps", "steps", ""), reset_us / step_us))
    whole = _HORIZON / (_HORIZON * step_us + reset_us) * 1e6
    found.append((Measure(f"vector.{_SYNC}.with_resets", "env-steps/s", "higher"), whole))
    return found


GROUP: Final = Group(
    "vector",
    f"native vector environment, holding, {SCENARIO}, W = {OVERRIDES['router.window']} "
    "(lanes . copy or shared buffers . threads)",
    _batches,
    _conclude,
)
