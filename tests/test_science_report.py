"""The report against its own CSVs, from invented episodes: nothing is played."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from llmroute_env.experiments.science import curves, figures, registry, report, summary, sweeps
from llmroute_env.experiments.science.claims import OLP, paper_cell
from llmroute_env.experiments.science.episodes import COLUMNS, Episodes
from llmroute_env.metrics import METRICS

SEEDS = range(1000, 1004)


def _series(seeds: list[int], fluid: bool) -> pd.DataFrame:
    rows = [("here", policy, 0, len(seeds), 0.1, 0.2) for policy in sweeps.price_policies(fluid)]
    return pd.DataFrame(rows, columns=["where", "policy", "period", "n", "batch", "memory"])


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Episodes]:
    """A report over invented episodes."""
    out = tmp_path_factory.mktemp("paper")
    episodes = Episodes(out / "episodes.csv")
    rng = np.random.default_rng(11)
    jobs = episodes.missing([*sweeps.everything(True), *curves.plane_wanted(True)], SEEDS)
    level: dict[tuple[str, str], float] = {}
    for job in jobs:
        middle = level.setdefault((job.digest, job.policy), float(rng.uniform(80, 120)))
        row = {name: middle * float(rng.uniform(0.9, 1.1)) for name in METRICS}
        row |= {name: float(rng.uniform(0.1, 0.9)) for name in COLUMNS if name not in row}
        row |= {"digest": job.digest, "cell": job.cell, "policy": job.policy, "seed": job.seed}
        row |= {"arrived": 100.0, "information": "none", "code": "0" * 8}
        episodes._add(row)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(curves, "price_series", _series)
        patch.setattr(figures, "write", lambda directory, frames: [])
        patch.setattr(registry, "SECTIONS", ())
        study = report.Study(episodes, out, out, fluid=True, detections=20)
        return report.write(study), episodes


def test_ten_lines_follow_from_the_csv_files(page: tuple[Path, Episodes]) -> None:
    path, _ = page
    frames = {file.stem: pd.read_csv(file) for file in path.parent.glob("*.csv")}
    text = path.read_text(encoding="utf-8")
    top = text[text.index("## In ten lines") : text.index("## Published figures")]
    shown = [line.partition(". ")[2] for line in top.splitlines() if re.match(r"\d+\. ", line)]
    # A file has no NaN among words, and what was empty text is NaN there: of no use to the lines.
    assert shown == summary.lines(frames, None)
    assert len(shown) == 9  # the tenth is the arena's


def test_the_first_line_is_the_mean_improvement(page: tuple[Path, Episodes]) -> None:
    path, episodes = page
    cell = paper_cell("overload", "average")
    own, base = (episodes.values(cell, p, "eel_mean_s").mean() for p in (OLP, "round_robin"))
    gain = 100.0 * (base - own) / base
    found = re.search(r"latency is ([+-][\d.]+)% \[", path.read_text(encoding="utf-8"))
    assert found is not None
    assert float(found[1]) == pytest.approx(gain, abs=0.051)


def test_every_section_is_there_and_no_cell_says_nan(page: tuple[Path, Episodes]) -> None:
    text = page[0].read_text(encoding="utf-8")
    for title in ("Trade-off figure", "Tail weight ζ2", "Rate-shift detector", "Which rule makes"):
        assert f"## {title}" in text
    assert "plain forgetting" in text or "last 128 requests" in text
    assert not re.search(r"\bnan\b", text)
