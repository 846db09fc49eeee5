"""The section on unlike devices and mixed mode: its cells, its verdicts, its page."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from llmroute_env.experiments.science import modes, modes_report
from llmroute_env.experiments.science.rows import Row

#: Mean EEL of each router; the second pricing is far ahead of all but MC-SF, which it equals.
EEL = dict(zip(modes.POLICIES, (100.0, 95.0, 80.0, 60.0, 50.0, 70.0, 50.0), strict=True))


def rows(seeds: int = 6) -> list[Row]:
    rng = np.random.default_rng(0)
    found = []
    for cell in ("first", "second"):
        for seed in range(seeds):
            path = rng.normal()
            for policy, eel in EEL.items():
                row: Row = dict.fromkeys(modes.METRICS, 0.0)
                row |= {"cell": cell, "policy": policy, "seed": seed, "invalid": 0}
                row |= {"load": 1.1, "binding": "batch", "arrived": 100.0, "unfinished": 5.0}
                row["eel_mean_s"] = eel + path + 0.01 * rng.normal()
                row["eel_p99_s"] = 300.0 + rng.normal()
                row["slo_attainment"] = 1.0 - eel / 200.0 + 1e-4 * rng.normal()
                row["ttft_p99_s"] = 10.0
                found.append(row)
    return found


def test_verdicts_are_of_paired_tests() -> None:
    tested = modes_report.tests(rows())
    assert len(tested) == 2 * 2 * 6 * 4  # cells, pricings, rivals, metrics
    mean = tested[(tested["metric"] == "eel_mean_s") & (tested["cell"] == "first")]
    verdicts = mean.set_index(["own", "rival"])["verdict"]
    fluid, paper = "olp:pricing=fluid", "olp:pricing=paper"
    assert verdicts[fluid, "mc_sf"] == "level"
    assert verdicts[fluid, "sjf"] == verdicts[fluid, paper] == "ahead"
    assert verdicts[paper, "sjf"] == verdicts[paper, fluid] == "behind"
    gain = mean.set_index(["own", "rival"]).loc[(fluid, "sjf"), "gain"]
    assert gain == pytest.approx(100 * (60 - 50) / 60, rel=0.1)
    assert set(tested[tested["metric"] == "eel_p99_s"]["verdict"]) == {"level"}


def test_page_and_plot(tmp_path: Path) -> None:
    made = rows()
    text = modes_report.render(made)
    assert text.startswith("## OLP on unlike devices")
    assert "| `mc_sf` |" in text
    assert "*mean EEL* ahead of `round_robin`" in text
    assert "second: best on mean EEL" in text
    assert "images/modes.png" in text
    assert "of 16 comparisons" in modes_report.line(made)
    modes_report.plot(made, tmp_path)
    assert (tmp_path / "modes.png").stat().st_size > 10_000


def test_cells_are_what_the_page_says() -> None:
    loads = {cell.name: modes.scenario_of(cell, quick=True).offered_load() for cell in modes.CELLS}
    for cell in modes.CELLS:
        if cell.load is not None:
            assert loads[cell.name].rho == pytest.approx(cell.load)
    assert loads["appendix A, stable"].rho < 1 < loads["appendix A, overloaded"].rho
    pools = modes.scenario_of(modes.CELLS[0], quick=True)
    assert [group.name for group in pools.cluster.fleet] == ["short", "long"]
    row = modes.play(modes.CELLS[1], "round_robin", 1000, quick=True)
    assert row["arrived"] == row["completed"] + row["unfinished"] > 100
    assert row["invalid"] == row["misrouted"] == 0
