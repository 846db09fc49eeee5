"""Every file of ``../shared/cases`` through the whole project, against the outcome in its table.

The files carry faults that users of routers and simulators have reported in public.
"""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from comparison import make

import policies
from llmroute_env.evaluation import evaluate
from llmroute_env.scenario import Scenario
from llmroute_env.scenario.errors import ScenarioError


def replay(
    path: Path,
    *,
    devices: int,
    B: int,
    M: int,
    trace: dict[str, Any] | None = None,
    context_limit: int | None = None,
    window: int = 128,
    horizon: int | None = None,
) -> dict[str, Any]:
    """Replay of a file on a lock-step cluster: an iteration is 1 s, which is the period."""
    return {
        "name": path.stem,
        "period_s": 1.0,
        "horizon_periods": horizon,
        "drain": True,
        "cluster": {
            "devices": devices,
            "batch_limit": B,
            "kv_limit": M,
            "context_limit": context_limit,
            "timing": {"kind": "constant", "iteration_s": 1.0},
        },
        "router": {"window": window},
        "workload": {
            "arrivals": {"kind": "trace"},
            "lengths": {"kind": "trace"},
            "trace": {"path": str(path), **(trace or {})},
        },
        "prediction": {"kind": "perfect"},
        "objective": {"tail_eel_s": 400.0, "tail_ttft_s": 49.0},
    }


class Result(NamedTuple):
    """One episode: the request log and the summary."""

    log: dict[str, np.ndarray]
    summary: dict[str, float]


def run(scenario: dict[str, Any], policy: str, seed: int = 0, **params: Any) -> Result:
    """Play one whole episode."""
    env = make(scenario)
    result = evaluate(env, policies.make(policy, env, seed=seed, **params), seed)
    return Result(env.request_log(), result.summary)


def error(scenario: dict[str, Any]) -> str:
    """The message of the one clear error that the scenario must end in, before anything runs."""
    with pytest.raises(ScenarioError) as caught:
        make(scenario)
    message = str(caught.value)
    assert "\n" not in message
    return message


# --- the cluster's rules --------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["round_robin", "lor", "central_fifo", "sjf", "mc_sf", "olp"])
def test_oversized_head(cases: Path, policy: str) -> None:
    result = run(replay(cases / "oversized_head.csv", devices=1, B=8, M=784), policy)
    log = result.log
    assert log["status"].tolist() == [4, 3, 3]
    assert log["reject_reason"].tolist() == [1, 0, 0]
    assert log["finish_s"].tolist()[1:] == [21.0, 11.0]
    assert result.summary["rejected"] == 1
    assert result.summary["unfinished"] == 0


@pytest.mark.parametrize("policy", ["round_robin", "lor"])
def test_two_giants(cases: Path, policy: str) -> None:
    result = run(replay(cases / "two_giants.csv", devices=1, B=8, M=130_000), policy)
    assert result.log["finish_s"].tolist() == [200.0, 400.0, 220.0]
    assert result.summary["preemptions"] == 0


@pytest.mark.parametrize("policy", ["round_robin", "lor"])
def test_growth_overflow(cases: Path, policy: str) -> None:
    result = run(replay(cases / "growth_overflow.csv", devices=1, B=8, M=2_000), policy)
    log = result.log
    assert log["preemptions"].tolist() == [0, 0, 1, 1, 0]
    assert log["recomputed"].sum() == 1_166
    assert log["finish_s"].tolist() == [600.0, 600.0, 934.0, 1100.0, 15.0]
    assert result.summary["preemptions"] == 2
    assert result.summary["recomputed_tokens"] == 1_166
    assert result.summary["kv_utilization"] <= 1.0


def test_burst_lor_spreads_exactly(cases: Path) -> None:
    scenario = replay(cases / "burst_same_instant.csv", devices=8, B=64, M=100_000, window=512)
    log = run(scenario, "lor").log
    assert np.bincount(log["device"], minlength=8).tolist() == [64] * 8


@pytest.mark.parametrize("seed", range(5))
def test_burst_power_of_d_does_not_pile_up(cases: Path, seed: int) -> None:
    scenario = replay(cases / "burst_same_instant.csv", devices=8, B=64, M=100_000, window=512)
    counts = np.bincount(run(scenario, "power_of_d", seed).log["device"], minlength=8)
    # Two choices on fresh state leave a gap of a few requests; stale state sends hundreds to one.
    assert counts.max() - counts.min() <= 8


def test_burst_smaller_window_keeps_the_state_fresh(cases: Path) -> None:
    scenario = replay(cases / "burst_same_instant.csv", devices=8, B=64, M=100_000, window=40)
    log = run(scenario, "lor").log
    assert np.bincount(log["device"], minlength=8).tolist() == [64] * 8


@pytest.mark.parametrize("policy", ["round_robin", "lor"])
def test_trickle_differs_by_one_at_most(cases: Path, policy: str) -> None:
    scenario = replay(cases / "identical_trickle.csv", devices=4, B=8, M=10_000)
    logs = [run(scenario, policy, seed).log for seed in (1, 1, 2, 3, 4)]
    for log in logs:
        counts = np.bincount(log["device"], minlength=4)
        assert counts.max() - counts.min() <= 1
    np.testing.assert_equal(logs[0], logs[1])
    assert len({int(log["device"][0]) for log in logs}) > 1  # device 0 is not favoured


@pytest.mark.parametrize("B", [1, 2])
def test_long_among_short(cases: Path, B: int) -> None:
    scenario = replay(cases / "long_among_short.csv", devices=1, B=B, M=100_000, window=4_096)
    fifo = run(scenario, "round_robin")
    central = run(scenario, "central_fifo")
    shortest = run(scenario, "sjf")
    aged = run(scenario, "sjf", aging=5.0)
    long = 12
    for result in (fifo, central, shortest, aged):
        assert (result.log["status"] == 3).all()
        assert result.summary["hidden_share"] == 0.0
    start = {
        name: result.log["start_s"]
        for name, result in (
            ("fifo", fifo),
            ("central", central),
            ("shortest", shortest),
            ("aged", aged),
        )
    }
    for name in ("fifo", "central"):
        assert (np.diff(start[name]) >= 0).all()
        assert start[name][long] <= 20 * long / B + 20
    assert start["shortest"][long] == start["shortest"].max()
    # Aged, its key of 2,000 is that of a request of 20 tokens that arrived 396 s later.
    arrivals = fifo.log["arrival_s"]
    ahead = int((arrivals < 10.5 + 396).sum()) - 1
    assert int((start["aged"] < start["aged"][long]).sum()) == pytest.approx(ahead, abs=B + 1)
    # The summary shows it: the longest wait is the long request's under shortest-first.
    wait = start["shortest"][long] - 10.5
    assert shortest.summary["wait_max_s"] == pytest.approx(wait, abs=1.0)
    assert start["aged"][long] < 0.2 * start["shortest"][long]


# --- reading files --------------------------------------------------------------------------


def test_zero_output_is_an_error_that_names_the_row(cases: Path) -> None:
    message = error(replay(cases / "zero_output.csv", devices=1, B=8, M=1_000))
    assert "zero_output.csv" in message
    assert "row 2" in message
    assert "num_decode_tokens = 0" in message


def test_zero_output_can_be_skipped_and_is_counted(cases: Path) -> None:
    from llmroute_env.workload.traces import load_trace

    scenario = replay(
        cases / "zero_output.csv", devices=1, B=8, M=1_000, trace={"zero_output": "skip"}
    )
    result = run(scenario, "round_robin")
    assert result.log["decode"].tolist() == [20, 10]
    trace = Scenario.load(scenario).workload.trace
    assert trace is not None
    assert load_trace(trace).report.skipped_zero_output == 1


@pytest.mark.parametrize(
    ("name", "value"), [("bad_negative", "-5"), ("bad_nan", "nan"), ("bad_text", "abc")]
)
def test_a_bad_value_is_named_with_its_place(cases: Path, name: str, value: str) -> None:
    message = error(replay(cases / f"{name}.csv", devices=1, B=8, M=1_000))
    assert f"{name}.csv" in message
    assert "row 2" in message
    assert "num_prefill_tokens" in message
    assert value in message


def test_unsorted_rows_are_sorted_with_a_count(cases: Path) -> None:
    with pytest.warns(UserWarning, match=r"unsorted\.csv.*\b3 rows"):
        result = run(replay(cases / "unsorted.csv", devices=1, B=8, M=1_000), "round_robin")
    assert result.log["arrival_s"].tolist() == [1.0, 3.0, 5.0]
    assert result.log["finish_s"].tolist() == [21.0, 23.0, 25.0]


def test_what_is_missing_is_named(cases: Path) -> None:
    message = error(replay(cases / "missing_column.csv", devices=1, B=8, M=1_000))
    assert "missing_column.csv" in message
    assert "num_decode_tokens" in message
    message = error(replay(cases / "empty.csv", devices=1, B=8, M=1_000))
    assert "empty.csv" in message
    assert re.search(r"no rows|is empty", message)


def test_over_the_context_limit_is_rejected_or_clipped(cases: Path) -> None:
    rejected = run(
        replay(cases / "clip_long.csv", devices=1, B=8, M=20_000, context_limit=4_096), "lor"
    )
    assert rejected.log["status"].tolist() == [4, 4]
    assert rejected.log["reject_reason"].tolist() == [2, 2]
    assert rejected.summary["rejected"] == 2
    clipped = run(
        replay(
            cases / "clip_long.csv",
            devices=1,
            B=8,
            M=20_000,
            context_limit=4_096,
            trace={"over_limit": "clip"},
        ),
        "lor",
    )
    assert clipped.log["decode"].tolist() == [4_086, 1_096]
    assert clipped.log["prompt"].tolist() == [10, 3_000]
    assert clipped.log["status"].tolist() == [3, 3]


def test_azure_2024_dates(cases: Path) -> None:
    result = run(replay(cases / "azure_2024_style.csv", devices=1, B=8, M=10_000), "round_robin")
    arrivals = result.log["arrival_s"].tolist()
    assert arrivals == pytest.approx([0.0, 0.007405, 0.99007], abs=1e-12)
    assert result.log["prompt"].tolist() == [2_162, 2_399, 76]
    assert result.log["decode"].tolist() == [5, 6, 15]


def test_azure_2023_loads_whole(shared: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        env = make(replay(shared / "traces/azure_2023_conv.csv", devices=4, B=64, M=100_000))
        env.reset(seed=0)
    log = env.request_log()
    assert len(log["prompt"]) == 19_366
    assert log["prompt"].min() >= 1
    assert log["decode"].min() >= 1
    assert (np.diff(log["arrival_s"]) >= 0).all()
