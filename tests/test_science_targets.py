"""The section on targets: words from numbers, a page and plots from rows, one episode."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llmroute_env.experiments.science import registry, targets

SEEDS = range(4)


def row(part: str, kind: str, asked: float, seed: int, **values: Any) -> dict[str, Any]:
    found = {"part": part, "kind": kind, "asked": asked, "start": 0.0, "policy": targets.BASE}
    found |= {"seed": seed, "target_ttft_s": 100.0, "target_eel_s": 1500.0, "mean_eel": 200.0}
    found |= {"target_attainment": 0.8, "infeasible": False, "attainable": np.nan}
    return found | {"multiplier": 0.0} | values


@pytest.fixture
def rows() -> list[dict[str, Any]]:
    """P95 TTFT is 100 s without a target: 200 is loose, 60 is met, 20 gives 30."""
    found = []
    for seed in SEEDS:
        noise = seed - 1.5
        found += [
            row("plain", "", 0.0, seed, policy=policy) for policy in (targets.BASE, *targets.RIVALS)
        ]
        for kind in targets.NAMES:
            found += [row("target", kind, 1e5, seed)] if kind != "target_attainment" else []
        for asked, got in ((20.0, 30.0), (60.0, 55.0), (80.0, 80.0), (200.0, 100.0)):
            values = {"target_ttft_s": got + noise, "mean_eel": 210.0, "infeasible": asked == 20.0}
            values["attainable"] = 0.9 if asked == 20.0 else np.nan
            found.append(row("target", "target_ttft_s", asked, seed, **values))
        for asked, got in ((0.7, 0.8), (0.85, 0.86), (0.9, 0.87)):
            values = {"target_attainment": got + noise / 1000}
            found.append(row("target", "target_attainment", asked, seed, **values))
        for period in (0.0, 100.0):
            head = row("trace", "rate", 60.0, seed)
            found.append(head | {"period": period, "multiplier": 3.0, "inside": 0.9})
    return found


def test_words_follow_from_intervals(rows: list[dict[str, Any]]) -> None:
    found = targets.achieved(rows).set_index(["kind", "asked"])
    words = found["verdict"].to_dict()
    assert [words["target_ttft_s", asked] for asked in (20.0, 60.0, 80.0, 200.0)] == [
        "missed",
        "met",
        "at it",
        "loose",
    ]
    assert [words["target_attainment", asked] for asked in (0.7, 0.85, 0.9)] == [
        "loose",
        "met",
        "missed",
    ]
    one = found.loc[("target_ttft_s", 60.0)]
    assert one["cost"] == pytest.approx(5.0)
    assert (one["n"], one["plain"]) == (4, 100.0)
    assert found.loc[("target_ttft_s", 20.0), "infeasible"] == 1.0


def test_the_page_and_plots_come_from_the_rows_alone(
    rows: list[dict[str, Any]], tmp_path: Path
) -> None:
    page = targets.render(rows)
    assert page.startswith("## Tails as constraints")
    assert "4 of 4, 0.900" in page
    assert "Not reached" not in page
    for one in rows:  # a queue that is better than any target was
        if one["policy"] == "central_fifo":
            one["target_ttft_s"] = 20.0
    page = targets.render(rows)
    assert page.count("**Not reached:** the best P95 TTFT [s] under any target is 30") == 1
    assert "`central_fifo` has 20" in page
    targets.plot(rows, tmp_path)
    for name in ("targets.png", "target_traces.png"):
        assert f"(images/{name})" in page
        assert (tmp_path / name).stat().st_size > 10_000
    assert "of 5 targets" in targets.line(rows)
    assert "hold 3" in targets.line(rows)
    assert "2 are missed, 1 of them reported" in targets.line(rows)


def test_it_is_a_section_of_the_report() -> None:
    assert registry.section("targets") is targets


def test_one_episode_of_each_part() -> None:
    (plain,) = targets.play("plain", "", 0.0, 0.0, "sjf", 3, 2_400)
    assert plain["mean_eel"] < plain["target_eel_s"]
    assert not plain["infeasible"]
    samples = targets.play("trace", next(iter(targets.TRACES)), 60.0, 0.0, targets.BASE, 3, 2_400)
    assert len(samples) > 50
    assert samples[0]["period"] < samples[-1]["period"]
