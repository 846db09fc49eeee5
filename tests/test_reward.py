"""The realized reward against the paper's decision reward r(j, g, k), and the cost's identity.

Paper (arXiv 2607.03948), fixed horizon T, periods 1..T, request j arriving in period t_j:

    r = α·min(ô, T−k+1) + β·(T−(k+ô−1))₊ + γ·(T−k+1) + σ + ζ1·1{k+ô−t_j < t1'} + ζ2·1{k−t_j < t2'}
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

hypothesis = pytest.importorskip("hypothesis")

from comparison import make  # noqa: E402
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from strategies import STYLES, Actor, Episode, episodes, objectives, workload  # noqa: E402

from llmroute_env.workload.table import RequestTable  # noqa: E402

WAYS = tuple(style for style in STYLES if style != "illegal")


def below(seconds: float, limit_s: float) -> bool:
    """Strictly below, to the nanosecond: 3 · 0.025 s is not below 0.075 s."""
    return round(seconds * 1e9) < round(limit_s * 1e9)


def paper_reward(
    objective: dict[str, float], T: int, period_s: float, k: int, o: int, t_j: int
) -> float:
    """r(j, g, k), every symbol in periods; k and t_j count from 1."""
    w = objective
    return (
        w["alpha"] * min(o, T - k + 1)
        + w["beta"] * max(T - (k + o - 1), 0)
        + w["gamma"] * (T - k + 1)
        + w["sigma"]
        + w["zeta1"] * below((k + o - t_j) * period_s, w["tail_eel_s"])
        + w["zeta2"] * below((k - t_j) * period_s, w["tail_ttft_s"])
    )


def play(env: Any, table: RequestTable, actor: Actor) -> tuple[list[float], list[dict[str, Any]]]:
    observation, info = env.reset(seed=0, options={"requests": table})
    rewards, infos = [], [info]
    while True:
        visible = int((observation["queue_id"] >= 0).sum())
        action = actor(visible, len(observation["queue_id"]))
        observation, reward, terminated, truncated, info = env.step(action)
        rewards.append(reward)
        infos.append(info)
        if terminated or truncated:
            return rewards, infos


@st.composite
def lock_step(draw: st.DrawFn) -> Episode:
    """Integral arrivals, perfect prediction, memory for all, a horizon that covers everything."""
    period_s = draw(st.sampled_from([1.0, 0.025, 0.5]))
    slots = draw(st.integers(1, 4))
    devices = draw(st.integers(1, 3))
    row = st.tuples(st.integers(0, 30), st.integers(1, 20), st.integers(1, 20))
    rows = sorted(draw(st.lists(row, min_size=1, max_size=25)))
    # Every style sends something out at least each eighth step; the last resort is a long horizon.
    horizon = 31 + sum(o for _, _, o in rows) + draw(st.integers(300, 400))
    scenario = {
        "name": "lock-step",
        "period_s": period_s,
        "horizon_periods": horizon,
        "drain": draw(st.booleans()),
        "cluster": {
            "devices": devices,
            "batch_limit": slots,
            "kv_limit": 1_000,
            "context_limit": None,
            "timing": {"kind": "constant", "iteration_s": period_s},
        },
        "router": {"window": draw(st.sampled_from([1, 4, 40]))},
        "workload": workload(),
        "prediction": {"kind": "perfect"},
        "objective": draw(objectives(period_s)),
    }
    table = tuple((at * period_s, s, o, float(o), 0) for at, s, o in rows)
    return Episode(scenario, table, draw(st.sampled_from(WAYS)), draw(st.integers(0, 999)))


@settings(max_examples=60)
@given(lock_step())
def test_return_is_the_sum_of_the_papers_rewards(episode: Episode) -> None:
    env = make(episode.scenario)
    rewards, infos = play(env, episode.table(), episode.actor())
    log = env.request_log()
    hypothesis.assume((log["status"] == 3).all())  # all completed
    period_s, T = episode.scenario["period_s"], episode.scenario["horizon_periods"]
    hypothesis.assume(log["finish_s"].max() <= T * period_s)
    starts = np.rint(log["start_s"] / period_s).astype(int)
    arrivals = np.rint(log["arrival_s"] / period_s).astype(int)
    expected = sum(
        paper_reward(episode.scenario["objective"], T, period_s, k + 1, o, t_j + 1)
        for k, o, t_j in zip(
            starts.tolist(), log["decode"].tolist(), arrivals.tolist(), strict=True
        )
    )
    np.testing.assert_allclose(sum(rewards), expected, rtol=1e-12)
    components = [sum(info["rewards"].values()) for info in infos[1:]]
    np.testing.assert_allclose(rewards, components, rtol=1e-12)


def test_the_identity_is_not_vacuous() -> None:
    """By hand: one slot, T = 20; requests of 3 and 4 tokens start in periods 1 and 4."""
    objective = {
        "alpha": 1.0,
        "beta": 10.0,
        "gamma": 100.0,
        "sigma": 1e3,
        "zeta1": 1e4,
        "zeta2": 1e5,
        "tail_eel_s": 7.0,
        "tail_ttft_s": 3.0,
    }
    assert paper_reward(objective, 20, 1.0, 1, 3, 1) == 3 + 170 + 2_000 + 1e3 + 1e4 + 1e5
    assert paper_reward(objective, 20, 1.0, 4, 4, 1) == 4 + 130 + 1_700 + 1e3
    scenario = {
        "name": "by-hand",
        "period_s": 1.0,
        "horizon_periods": 20,
        "cluster": {
            "devices": 1,
            "batch_limit": 1,
            "kv_limit": 100,
            "timing": {"kind": "constant", "iteration_s": 1.0},
        },
        "router": {"window": 4},
        "workload": workload(),
        "prediction": {"kind": "perfect"},
        "objective": objective,
    }
    env = make(scenario)
    rows = ((0.0, 5, 3, 3.0, 0), (0.0, 5, 4, 4.0, 0))
    episode = Episode(scenario, rows, "one_device", 0)
    rewards, infos = play(env, episode.table(), episode.actor())
    assert rewards[0] == 1 + 100 * 20 + 1e3 + 1e5
    assert sum(rewards) == (3 + 170 + 2_000 + 1e3 + 1e4 + 1e5) + (4 + 130 + 1_700 + 1e3)
    # The second one's start, 3 s after its arrival, is not below the limit; its end is not either,
    # but a request costs once.
    assert [info["cost"] for info in infos[1:]] == [0, 0, 0, 1, *[0] * 16]


@settings(max_examples=80)
@given(episodes())
def test_total_cost_is_arrived_minus_attained(episode: Episode) -> None:
    env = make(episode.scenario)
    _, infos = play(env, episode.table(), episode.actor())
    log = env.request_log()
    limits = episode.scenario["objective"]

    def in_time(moment: str, limit: float) -> np.ndarray:
        delay = np.rint(log[moment] * 1e9) - np.rint(log["arrival_s"] * 1e9)
        return np.nan_to_num(delay, nan=np.inf) < round(limit * 1e9)

    attained = (
        (log["status"] == 3)
        & in_time("finish_s", limits["tail_eel_s"])
        & in_time("start_s", limits["tail_ttft_s"])
    )
    arrived = log["status"] != 5
    total = sum(info.get("cost", 0.0) for info in infos)
    assert total == arrived.sum() - attained.sum()
