"""Random episodes for property tests: a scenario, a table of requests, and a way to act.

Sizes are small on purpose: with a KV limit of a few dozen tokens every rule (preemption, blocked
heads, rejection, hidden queues) fires within a few periods.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st
from reference_cluster import Objective, ReferenceCluster
from reference_device import Device, Request, Timing

from llmroute_env.cluster import timing as timings
from llmroute_env.workload.table import RequestTable

Row = tuple[float, int, int, float, int]  # arrival_s, prompt, decode, predicted, tier

STYLES = ("spread", "flood", "trickle", "one_device", "late", "illegal")


@dataclass(frozen=True)
class Episode:
    """Everything that fixes one episode."""

    scenario: dict[str, Any]
    rows: tuple[Row, ...]
    style: str
    seed: int

    def table(self) -> RequestTable:
        return self.columns().validate()

    def columns(self) -> RequestTable:
        at, prompt, decode, predicted, tier = (
            [row[i] for row in self.rows] if self.rows else [] for i in range(5)
        )
        return RequestTable(
            np.array(at, np.float64),
            np.array(prompt, np.int64),
            np.array(decode, np.int64),
            np.array(predicted, np.float32),
            np.array(tier, np.int64),
        )

    def reference(self) -> ReferenceCluster:
        requests = [
            Request(i, at, s, o, float(np.float32(predicted)), tier)
            for i, (at, s, o, predicted, tier) in enumerate(self.rows)
        ]
        return ReferenceCluster(
            requests,
            self.devices(),
            period_s=self.scenario["period_s"],
            horizon=self.scenario["horizon_periods"],
            drain=self.scenario["drain"],
            max_drain=self.scenario["max_drain_periods"],
            window=self.scenario["router"]["window"],
            warmup_s=self.scenario.get("warmup_s", 0.0),
            objective=Objective(**self.scenario["objective"]),
            texts=self.scenario["workload"].get("text") is not None,
        )

    def devices(self) -> list[Device]:
        cluster = self.scenario["cluster"]
        whole_blocks = cluster["kv_limit"] - cluster["kv_limit"] % cluster["kv_block"]
        return [
            Device(
                cluster["batch_limit"],
                whole_blocks,
                reference_timing(cluster),
                context_limit=cluster["context_limit"],
                block=cluster["kv_block"],
                watermark=cluster["kv_watermark"],
                skip=cluster["head_of_line_skip"],
            )
            for _ in range(cluster["devices"])
        ]

    def actor(self) -> Actor:
        return Actor(self.style, self.scenario["cluster"]["devices"], self.seed)


class Actor:
    """Chooses actions, from the number of visible requests alone."""

    def __init__(self, style: str, devices: int, seed: int) -> None:
        self.style = style
        self.devices = devices
        self.rng = np.random.default_rng(seed)
        self.steps = 0

    def __call__(self, visible: int, window: int) -> np.ndarray:
        rng, top = self.rng, self.devices + 1
        self.steps += 1
        action = np.zeros(window, np.int64)
        rows = action[:visible]
        if self.style == "spread":
            rows[:] = rng.integers(0, top, visible)
        elif self.style == "flood":
            rows[:] = rng.integers(1, top, visible)
        elif self.style == "trickle":
            rows[:] = rng.integers(1, top, visible) * (rng.random(visible) < 0.2)
        elif self.style == "one_device":
            rows[:] = self.devices
        elif self.style == "late":  # a queue builds up, then everything goes at once
            rows[:] = rng.integers(1, top, visible) * (self.steps % 8 == 0)
        else:  # illegal: past the devices, below zero, rows that hold nobody
            action[:] = rng.integers(-2, top + 3, window)
        return action


def reference_timing(cluster: dict[str, Any]) -> Timing:
    timing = cluster["timing"]
    limit = cluster["batch_limit"]
    if timing["kind"] == "constant":
        return Timing([timing["iteration_s"]] * (limit + 1))
    fitted = timings.from_profile(timing["device"], timing["model"], timing["tp"], limit)
    return Timing([float(x) for x in fitted.base_s], fitted.kv_s, fitted.prefill_s)


def workload() -> dict[str, Any]:
    """A valid workload section; episodes bring their own table, so it is never drawn from."""
    one = {"mean": 1.0, "sigma": 0.0}
    return {
        "arrivals": {"kind": "poisson", "rate": 1.0},
        "lengths": {"kind": "lognormal", "prompt": dict(one), "decode": dict(one)},
    }


WEIGHT = st.sampled_from([0.0, 1.0, 0.3, 7.25])


@st.composite
def objectives(draw: st.DrawFn, period_s: float) -> dict[str, float]:
    weights = {key: draw(WEIGHT) for key in ("alpha", "beta", "gamma", "sigma", "zeta1", "zeta2")}
    # Limits that fall on event times often: "strictly below" must be exact.
    weights["tail_eel_s"] = draw(st.sampled_from([3, 5, 8.5, 1000])) * period_s
    weights["tail_ttft_s"] = draw(st.sampled_from([1, 2, 3.5, 1000])) * period_s
    return weights


@st.composite
def scenarios(draw: st.DrawFn) -> dict[str, Any]:
    block = draw(st.sampled_from([1, 1, 1, 4, 16]))
    kv_limit = draw(st.integers(2 * block + 6, 4 * block + 60))
    if draw(st.integers(0, 3)) == 0:
        period_s = draw(st.sampled_from([0.025, 0.01, 0.1]))
        timing: dict[str, Any] = {
            "kind": "profile",
            "device": "a100-80gb",
            "model": "llama-2-7b",
            "tp": 1,
        }
    else:
        period_s = draw(st.sampled_from([1.0, 0.025, 0.5, 0.3, 1 / 3]))
        # Lock-step, dividing the period, longer than it, and in no ratio to it.
        ratio = draw(st.sampled_from([1.0, 1.0, 0.5, 0.25, 0.1, 2.0, 1.5, 0.7, 1 / 3, 3.17]))
        timing = {"kind": "constant", "iteration_s": period_s * ratio}
    horizon = draw(st.integers(1, 40))
    return {
        "name": "random",
        "period_s": period_s,
        "horizon_periods": horizon,
        "warmup_s": draw(st.sampled_from([0.0, 0.0, 0.5, 0.3])) * horizon * period_s,
        "drain": draw(st.booleans()),
        "max_drain_periods": draw(st.sampled_from([1, 10, 10_000])),
        "cluster": {
            "devices": draw(st.integers(1, 3)),
            "batch_limit": draw(st.integers(1, 6)),
            "kv_limit": kv_limit,
            "context_limit": draw(st.sampled_from([None, None, kv_limit, 20, 100])),
            "kv_block": block,
            "kv_watermark": draw(st.sampled_from([0.0, 0.0, 0.1, 0.25, 0.6])),
            "head_of_line_skip": draw(st.booleans()),
            "timing": timing,
        },
        "router": {"window": draw(st.sampled_from([1, 2, 3, 8, 40]))},
        "workload": workload(),
        "prediction": {"kind": "perfect"},
        "objective": draw(objectives(period_s)),
    }


@st.composite
def tables(draw: st.DrawFn, scenario: dict[str, Any]) -> tuple[Row, ...]:
    period_s, horizon = scenario["period_s"], scenario["horizon_periods"]
    limit = scenario["cluster"]["kv_limit"]
    # Whole periods (ties, lock-step), parts of one, any float; most arrive early.
    whole = st.integers(0, horizon - 1).map(lambda k: k * period_s)
    part = st.integers(0, 4 * horizon - 1).map(lambda k: k * period_s / 4)
    anything = st.floats(0, horizon * period_s, exclude_max=True, allow_subnormal=False)
    arrival = st.one_of(st.just(0.0), whole, part, anything).filter(
        lambda at: round(at * 1e9) < round(period_s * 1e9) * horizon
    )
    # Small prompts that grow together break M; large ones block heads and are rejected.
    prompt = st.one_of(st.integers(1, 8), st.integers(1, limit // 2), st.integers(1, limit))
    decode = st.one_of(st.integers(1, 6), st.integers(1, limit // 2), st.integers(8, limit))
    row = st.tuples(
        arrival, prompt, decode, st.sampled_from([0.25, 1.0, 0.6, 1.7, 12.0]), st.integers(0, 2)
    )
    count = draw(st.integers(0, 30))
    rows = draw(st.lists(row, min_size=count, max_size=count))
    table = [(at, s, o, max(0.5, o * error), tier) for at, s, o, error, tier in rows]
    return tuple(sorted(table, key=lambda row: row[0]))


@st.composite
def episodes(draw: st.DrawFn) -> Episode:
    scenario = draw(scenarios())
    return Episode(
        scenario,
        draw(tables(scenario)),
        draw(st.sampled_from(STYLES)),
        draw(st.integers(0, 2**16)),
    )
