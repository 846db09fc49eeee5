"""Closed-form checks of every summary key on logs written by hand."""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from llmroute_env import metrics

QUEUED, DISPATCHED, ACTIVE, COMPLETED, REJECTED, NOT_ARRIVED = range(6)
NAN = float("nan")


@dataclass
class Limits:
    tail_eel_s: float = 100.0
    tail_ttft_s: float = 10.0


@dataclass
class Stats:
    end_s: float = 100.0
    warmup_s: float = 0.0
    decoded_tokens: int = 0
    busy_slot_s: np.ndarray = field(default_factory=lambda: np.zeros(2))
    kv_token_s: np.ndarray = field(default_factory=lambda: np.zeros(2))
    batch_limit: np.ndarray = field(default_factory=lambda: np.array([4, 4]))
    kv_limit: np.ndarray = field(default_factory=lambda: np.array([1000, 1000]))
    imbalance: float = 0.0
    reward: float = 0.0
    hidden_periods: int = 0
    periods: int = 100


def log(*rows: dict[str, Any]) -> dict[str, np.ndarray]:
    blank = {
        "arrival_s": 0.0,
        "prompt": 5,
        "decode": 10,
        "device": -1,
        "status": QUEUED,
        "start_s": NAN,
        "first_token_s": NAN,
        "finish_s": NAN,
        "preemptions": 0,
        "recomputed": 0,
    }
    filled = [blank | row for row in rows]
    kinds = {"arrival_s": float, "start_s": float, "first_token_s": float, "finish_s": float}
    return {
        name: np.array([row[name] for row in filled], dtype=kinds.get(name, np.int64))
        for name in blank
    }


def completed(arrival: float, start: float, finish: float, **more: Any) -> dict[str, Any]:
    return {
        "arrival_s": arrival,
        "start_s": start,
        "first_token_s": start + 1.0,
        "finish_s": finish,
        "status": COMPLETED,
    } | more


def test_latencies_of_completed_requests_are_exact() -> None:
    starts = (0.0, 10.0, 20.0)
    rows = [completed(t, t + 2, t + eel) for t, eel in zip(starts, (12, 22, 52), strict=True)]
    summary = metrics.summarize(log(*rows), Stats(), Limits())

    assert summary["eel_mean_s"] == pytest.approx((12 + 22 + 52) / 3, rel=1e-15)
    assert summary["eel_p50_s"] == 22
    assert summary["eel_p95_s"] == pytest.approx(np.percentile([12, 22, 52], 95), rel=1e-15)
    assert summary["eel_p99_s"] == pytest.approx(np.percentile([12, 22, 52], 99), rel=1e-15)
    assert summary["ttft_mean_s"] == summary["ttft_p95_s"] == summary["ttft_p99_s"] == 3
    assert summary["tpot_mean_s"] == pytest.approx((9 + 19 + 49) / 3 / 9, rel=1e-15)
    assert summary["qps"] == pytest.approx(0.03)
    for key in ("eel_mean_s", "eel_p50_s", "eel_p95_s", "eel_p99_s", "ttft_mean_s", "ttft_p99_s"):
        assert summary[f"{key}_completed"] == summary[key]


def test_unfinished_requests_count_at_their_age_and_are_left_out_of_completed() -> None:
    summary = metrics.summarize(
        log(
            completed(0.0, 0.0, 10.0),
            {"arrival_s": 20.0, "status": QUEUED},
            {"arrival_s": 40.0, "status": DISPATCHED},
            {"arrival_s": 60.0, "status": ACTIVE, "start_s": 65.0, "first_token_s": 66.0},
        ),
        Stats(end_s=100.0),
        Limits(),
    )
    assert summary["eel_mean_s"] == np.mean([10, 80, 60, 40])
    assert summary["eel_p99_s"] == pytest.approx(np.percentile([10, 80, 60, 40], 99))
    assert summary["ttft_mean_s"] == np.mean([1, 80, 60, 6])
    assert summary["eel_mean_s_completed"] == 10
    assert summary["ttft_p99_s_completed"] == 1
    assert summary["wait_max_s"] == 80
    assert (summary["arrived"], summary["completed"], summary["unfinished"]) == (4, 1, 3)
    assert summary["slo_attainment"] == 0.25
    assert summary["goodput_qps"] == 0.01


def test_preempted_before_its_end_keeps_its_first_start() -> None:
    row = {"arrival_s": 0.0, "status": DISPATCHED, "start_s": 3.0, "first_token_s": 4.0}
    summary = metrics.summarize(log(row | {"preemptions": 2, "recomputed": 90}), Stats(), Limits())
    assert summary["wait_max_s"] == 3
    assert summary["ttft_mean_s"] == 4
    assert summary["eel_mean_s"] == 100
    assert (summary["preemptions"], summary["recomputed_tokens"]) == (2, 90)


def test_rejected_have_no_latency_and_miss_the_objective() -> None:
    rows = [completed(0.0, 1.0, 20.0), {"arrival_s": 5.0, "status": REJECTED}]
    summary = metrics.summarize(log(*rows), Stats(), Limits())
    assert summary["eel_mean_s"] == summary["eel_p99_s"] == 20
    assert summary["wait_max_s"] == 1
    assert summary["slo_attainment"] == 0.5
    assert (summary["arrived"], summary["rejected"], summary["unfinished"]) == (2, 1, 0)


@pytest.mark.parametrize(
    ("start", "finish", "met"),
    [(9.99, 99.9, 1.0), (10.0, 50.0, 0.0), (1.0, 100.0, 0.0), (0.0, 99.0, 1.0)],
)
def test_both_limits_are_strict(start: float, finish: float, met: float) -> None:
    summary = metrics.summarize(log(completed(0.0, start, finish)), Stats(), Limits())
    assert summary["slo_attainment"] == met


def test_tpot_skips_single_token_requests() -> None:
    rows = [
        completed(0.0, 0.0, 1.0, decode=1),
        completed(0.0, 0.0, 9.0, decode=5),
    ]
    assert metrics.summarize(log(*rows), Stats(), Limits())["tpot_mean_s"] == 8.0 / 4
    only_single = metrics.summarize(log(rows[0]), Stats(), Limits())
    assert np.isnan(only_single["tpot_mean_s"])


def test_warm_up_is_cut_by_arrival_time() -> None:
    rows = [
        completed(10.0, 10.0, 99.0, preemptions=7, recomputed=7),
        completed(50.0, 50.0, 60.0),
        completed(60.0, 60.0, 80.0),
        {"arrival_s": 200.0, "status": NOT_ARRIVED},
    ]
    stats = Stats(end_s=150.0, warmup_s=50.0, decoded_tokens=500, periods=10, hidden_periods=4)
    summary = metrics.summarize(log(*rows), stats, Limits())
    assert summary["arrived"] == summary["completed"] == 2
    assert summary["eel_mean_s"] == 15
    assert summary["preemptions"] == summary["recomputed_tokens"] == 0
    assert summary["horizon_s"] == 100
    assert summary["qps"] == 0.02
    assert summary["throughput_tok_s"] == 5
    assert summary["hidden_share"] == 0.4


def test_utilization_includes_idle_time() -> None:
    stats = Stats(
        end_s=110.0,
        warmup_s=10.0,
        busy_slot_s=np.array([200.0, 0.0]),
        kv_token_s=np.array([0.0, 50_000.0]),
        imbalance=0.7,
        reward=12.5,
    )
    summary = metrics.summarize(log(completed(10.0, 10.0, 20.0)), stats, Limits())
    assert summary["batch_utilization"] == 200 / (8 * 100)
    assert summary["kv_utilization"] == 50_000 / (2000 * 100)
    assert (summary["imbalance"], summary["reward"]) == (0.7, 12.5)


def test_jain_index_over_length_classes() -> None:
    def jain(slowdowns: list[float]) -> float:
        lengths = (10, 20, 40, 80)
        rows = [
            completed(0.0, 0.0, slowdown * o, decode=o)
            for o, slowdown in zip(lengths, slowdowns, strict=True)
            for _ in range(5)
        ]
        return metrics.summarize(log(*rows), Stats(end_s=1e4), Limits())["jain_length"]

    assert jain([3, 3, 3, 3]) == pytest.approx(1.0)
    assert jain([0, 0, 0, 5]) == pytest.approx(0.25)
    assert jain([1, 2, 3, 4]) == pytest.approx(100 / (4 * 30))
    same = [completed(0.0, 0.0, 30.0 + i) for i in range(6)]  # one length: one class
    assert metrics.summarize(log(*same), Stats(), Limits())["jain_length"] == pytest.approx(1.0)


def test_fairness_sees_who_never_finishes() -> None:
    short = [completed(0.0, 0.0, 10.0, decode=10) for _ in range(4)]
    starved = [{"arrival_s": 0.0, "decode": 20} for _ in range(4)]
    summary = metrics.summarize(log(*short, *starved), Stats(end_s=1000.0), Limits())
    assert summary["jain_length"] == pytest.approx((1 + 50) ** 2 / (2 * (1 + 50**2)))


@pytest.mark.parametrize("case", ["no rows", "nothing arrived", "all in the warm-up", "no time"])
def test_nothing_to_average_is_nan_and_raises_no_warning(case: str) -> None:
    rows: list[dict[str, Any]] = []
    stats = Stats()
    if case == "nothing arrived":
        rows = [{"arrival_s": 500.0, "status": NOT_ARRIVED}]
    if case == "all in the warm-up":
        rows, stats = [completed(0.0, 0.0, 5.0)], Stats(warmup_s=90.0)
    if case == "no time":
        stats = Stats(end_s=0.0, periods=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        summary = metrics.summarize(log(*rows), stats, Limits())
    undefined = {key for key, value in summary.items() if np.isnan(value)}
    assert undefined == {key for key in summary if key.startswith(("eel_", "ttft_", "tpot_"))} | {
        "slo_attainment",
        "jain_length",
        "prefix_hit_rate",
        "misrouted",
    }
    assert summary["qps"] == summary["arrived"] == summary["wait_max_s"] == 0


def test_all_rejected() -> None:
    rows = [{"arrival_s": 1.0, "status": REJECTED}] * 3
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        summary = metrics.summarize(log(*rows), Stats(), Limits())
    assert summary["slo_attainment"] == 0.0
    assert summary["rejected"] == 3
    assert np.isnan(summary["eel_mean_s"])
    assert summary["wait_max_s"] == 0.0


def test_prefix_hits_are_a_share_of_the_prompt_tokens_that_joined_a_batch() -> None:
    rows = [
        completed(0.0, 0.0, 5.0, prompt=100),
        completed(0.0, 0.0, 5.0, prompt=300),
        {"start_s": 1.0, "prompt": 100},  # still running
        {"prompt": 1000},  # waits
        {"prompt": 2000, "status": REJECTED},
        completed(-1.0, 0.0, 5.0, prompt=4000),  # arrived in the warm-up
    ]
    columns = log(*rows) | {"cached": np.array([0, 160, 90, 0, 0, 4000])}
    summary = metrics.summarize(columns, Stats(), Limits())
    assert summary["prefix_hit_rate"] == 250 / 500
    columns["start_s"][:] = NAN
    assert np.isnan(metrics.summarize(columns, Stats(), Limits())["prefix_hit_rate"])
    del columns["cached"]
    assert np.isnan(metrics.summarize(columns, Stats(), Limits())["prefix_hit_rate"])


def test_misrouted_are_those_that_their_own_device_rejected() -> None:
    rows = [
        {"status": REJECTED},  # no device can hold it
        {"status": REJECTED, "device": 0},
        {"status": REJECTED, "device": 1},
        completed(0.0, 0.0, 5.0, device=1),
        {"device": 0},
    ]
    summary = metrics.summarize(log(*rows), Stats(), Limits())
    assert summary["misrouted"] == 2 / 5
    assert summary["rejected"] == 3


def test_keys_and_their_order_are_those_of_the_table() -> None:
    summary = metrics.summarize(log(completed(0.0, 0.0, 5.0)), Stats(), Limits())
    assert list(summary) == list(metrics.METRICS)
    assert all(isinstance(value, int | float) for value in summary.values())


def test_quantile_is_numpy_linear() -> None:
    rng = np.random.default_rng(0)
    for size in (1, 2, 3, 10, 101):
        values = np.sort(rng.exponential(size=size))
        for share in (0.0, 0.5, 0.95, 0.99, 1.0):
            assert metrics.quantile(values, share) == pytest.approx(
                np.quantile(values, share), rel=1e-12
            )


def test_improvement_knows_the_better_side() -> None:
    assert metrics.improvement("eel_mean_s", 100.0, 75.0) == 25.0
    assert metrics.improvement("slo_attainment", 0.5, 0.75) == 50.0
    assert metrics.improvement("reward", -10.0, -5.0) == 50.0
    for key, base, value in (("arrived", 5, 6), ("eel_mean_s", 0, 1), ("eel_mean_s", NAN, 1)):
        assert np.isnan(metrics.improvement(key, base, value))


def test_fast_enough_for_the_end_of_every_episode() -> None:
    rng = np.random.default_rng(1)
    arrival = np.sort(rng.uniform(0, 4000, 2000))
    big = log(*[completed(t, t + 1, t + 200, decode=200) for t in arrival])
    best = np.inf
    for _ in range(20):
        start = time.perf_counter()
        metrics.summarize(big, Stats(end_s=4000.0), Limits())
        best = min(best, time.perf_counter() - start)
    assert best < 1e-2  # 0.3 ms on a laptop; the slack is for a busy machine
