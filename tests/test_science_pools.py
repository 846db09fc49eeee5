"""The section on two pools: its routing counts by hand, its words from made-up rows, one run."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from llmroute_env.cluster.state import COMPLETED, REJECTED
from llmroute_env.experiments.science import pools, pools_report, registry


def test_it_is_a_section() -> None:
    assert "pools" in registry.SECTIONS
    assert registry.section("pools") is pools


def test_cells_share_their_requests() -> None:
    """All fleets of a cell have the same workload and objective, so seeds pair."""
    for cell in pools.CELLS:
        scenarios = [pools.scenario_of(cell, fleet, quick=False) for fleet in pools.FLEETS]
        for part in ("workload", "prediction", "objective", "period_s", "horizon_s", "drain"):
            assert len({str(getattr(scenario, part)) for scenario in scenarios}) == 1
        assert scenarios[0].drain
        assert [len(scenario.cluster.fleet) for scenario in scenarios] == [1, 1, 2]
        prefills = {scenario.cluster.prefill is None for scenario in scenarios}
        assert prefills == {"decode only" in cell.name}


def test_little_memory_reaches_both_pools() -> None:
    cell = next(cell for cell in pools.CELLS if "little memory" in cell.name)
    for fleet in pools.FLEETS:
        groups = pools.scenario_of(cell, fleet, quick=True).cluster.fleet
        assert {group.memory.utilization for group in groups if group.memory} == {0.54}


def test_routing_counts() -> None:
    """Two short devices (8,192) and one long one, seven requests."""
    cell = pools.CELLS[0]
    scenario = pools.fleets.resized(pools.scenario_of(cell, "two pools", quick=True), (2, 1))
    spec = SimpleNamespace(pool=("short", "short", "long"), largest=np.array([8192, 8192, 65536]))
    log = {
        "prompt": np.array([100, 8000, 8000, 20_000, 8191, 8192, 99_000]),
        "decode": np.array([100, 500, 192, 500, 1, 1, 1]),
        "device": np.array([0, 1, 2, 2, 2, 2, -1]),
        "status": np.array([COMPLETED, REJECTED, *[COMPLETED] * 4, REJECTED]),
    }
    result: Any = SimpleNamespace(log=log, stats=SimpleNamespace(invalid_actions=3))
    env: Any = SimpleNamespace(spec_cluster=spec)
    found = pools._routing(scenario, env, result)
    assert found == {
        "refused": 3 / 7,
        "rejected_there": 1 / 7,  # the one that no device could hold is nobody's fault
        "too_long_pool": 2 / 7,  # of 8,192 tokens in all, but not of 8,193
    }


@pytest.mark.parametrize(
    ("saving", "low", "high", "word"),
    [
        (0.35, 0.30, 0.40, "reproduces"),
        (0.60, 0.50, 0.70, "larger"),
        (0.45, 0.35, 0.50, "reproduces, or larger"),
        (0.10, 0.05, 0.15, "does not"),
        (0.25, 0.15, 0.35, "smaller, not decided"),
        (float("nan"), float("nan"), float("nan"), "no fleet found"),
    ],
)
def test_verdict_follows_from_the_numbers(
    saving: float, low: float, high: float, word: str
) -> None:
    row = {
        "kind": "capacity",
        "policy": "dual_pool",
        "cell": "code",
        "objective": "90% in time",
        "saving": saving,
        "low": low,
        "high": high,
        "best_equal": "equal lor",
    }
    row |= {f"{key}{end}": 0.1 for key in ("saving", "low", "high") for end in ("_paged", "_best")}
    (line,) = [text for text in pools_report._verdict([row]) if text.startswith("| code")]
    assert f" {word} |" in line


def test_quick_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(pools, "CELLS", pools.CELLS[1:2])
    monkeypatch.setattr(pools, "OBJECTIVES", {"90% in time": pools.OBJECTIVES["90% in time"]})
    monkeypatch.setattr(pools, "parallel", lambda function, jobs: [function(*job) for job in jobs])
    rows = pools.run(quick=True)
    kinds = {row["kind"] for row in rows}
    assert kinds == {"model", "capacity", "same"}
    by = {(r["fleet"], r["policy"]): r for r in rows if r["kind"] == "capacity"}
    assert by[pools.BASELINE]["saving"] == 0.0
    assert by["equal, 128 sequences", "lor"]["devices"] < by[pools.BASELINE]["devices"]
    (model,) = [row for row in rows if row["kind"] == "model"]
    assert 1.5 < model["rho"] < 2.5
    same = [row for row in rows if row["kind"] == "same"]
    for size, case in pools.SIZES.items():
        equal = [r for r in same if r["size"] == size and r["fleet"] != "two pools"]
        assert {row["split"] for row in equal} == {f"{by[case]['devices']}"}
    text = pools.render(rows)
    assert text.startswith("## Two pools")
    assert "nan" not in text
    assert "GPU-hours" in pools.line(rows)
    pools.plot(rows, tmp_path / "images")
    assert (tmp_path / "images" / "pools.png").stat().st_size > 10_000
