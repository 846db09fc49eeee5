"""Rules that turn measurements into words, episodes that resume, and a small arena."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from llmroute_env.experiments.science import (
    arena,
    arena_front,
    arena_gaps,
    arena_report,
    claims,
    curves,
    drift,
    standings,
    sweeps,
    verdicts,
)
from llmroute_env.experiments.science.arena_command import main as arena_main
from llmroute_env.experiments.science.bounds import Bounds
from llmroute_env.experiments.science.episodes import Cell, Episodes, weighted, weights
from llmroute_env.experiments.science.play import play
from llmroute_env.experiments.statistics import Interval
from llmroute_env.scenario import Scenario
from llmroute_env.scenario.loading import config_directory

SMALL = """\
first_seed: 1000
seeds: 3
family: olp
designated: ["olp:pricing=paper"]
policies: [round_robin, lor, central_fifo, sjf, "sjf:aging=5", "olp:pricing=paper"]
if_available: ["olp:pricing=no_such_pricing"]
weights:
  average: {beta: 1, gamma: 1}
scenarios:
  - {name: overload, base: paper-stable, load: 1.3, set: {horizon_periods: 1200}}
  - {name: memory, base: paper-stable, load: 1.3,
     set: {horizon_periods: 1200, cluster.batch_limit: 96, cluster.kv_limit: 7100}}
  - {name: light, base: paper-stable, load: 0.3, set: {horizon_periods: 1200}}
"""


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[arena.Arena, Episodes, Path]:
    directory = tmp_path_factory.mktemp("arena")
    path = directory / "small.yaml"
    path.write_text(SMALL, encoding="utf-8")
    held = arena.load(path)
    episodes = Episodes(directory / "episodes.csv")
    seeds = range(held.first_seed, held.first_seed + held.seeds)
    assert episodes.run(episodes.missing(held.wanted(), seeds), processes=1)
    return held, episodes, directory


# --- verdicts --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("published", "ours", "word"),
    [
        (40.0, Interval(41.0, 38.0, 44.0), verdicts.REPRODUCES),
        (40.0, Interval(31.0, 29.0, 33.0), verdicts.REPRODUCES),
        (40.0, Interval(25.0, 5.0, 45.0), verdicts.REPRODUCES),
        (40.0, Interval(20.0, 15.0, 25.0), verdicts.PARTLY),
        (40.0, Interval(90.0, 85.0, 95.0), verdicts.LARGER),
        (40.0, Interval(41.0, -2.0, 84.0), verdicts.FAILS),
        (40.0, Interval(-5.0, -8.0, -2.0), verdicts.FAILS),
        (40.0, Interval(41.0, math.nan, math.nan), verdicts.FAILS),
    ],
)
def test_verdict_on_a_published_figure(published: float, ours: Interval, word: str) -> None:
    assert verdicts.of_figure(published, ours) == word


def test_verdict_on_better_than() -> None:
    assert verdicts.of_gain(Interval(1.0, 0.5, 1.5)) == verdicts.REPRODUCES
    assert verdicts.of_gain(Interval(-1.0, -1.5, -0.5)) == verdicts.FAILS
    assert verdicts.of_gain(Interval(0.5, -0.5, 1.5)) == verdicts.UNDECIDED
    assert verdicts.of_gain(Interval(0.01, 0.009, 0.02), verdicts.LEAST) == verdicts.UNDECIDED


def test_holm_is_the_step_down_of_the_textbook() -> None:
    # Holm (1979): 0.01 x 4, 0.02 x 3, 0.03 x 2, 0.04 x 1, then the running maximum.
    adjusted = verdicts.holm([0.03, 0.01, 0.04, 0.02])
    assert adjusted == pytest.approx([0.06, 0.04, 0.06, 0.06])
    assert verdicts.holm([0.9, 0.8]).max() == 1.0


def test_paired_test_has_both_sides_and_no_verdict_without_variance() -> None:
    def test(own: list[float], rival: list[float]) -> verdicts.Test:
        values = [pd.Series(v, index=range(len(v)), dtype=float) for v in (own, rival)]
        return verdicts.paired_test("cell", "weights", ("a", "b"), values[0], values[1])

    ahead = test([2.0, 3.1, 4.2, 5.0], [1.0, 2.0, 3.0, 4.0])
    assert ahead.p_ahead < 0.001
    assert ahead.p_behind > 0.999
    same = test([1.0, 2.0], [1.0, 2.0])
    assert (same.p_ahead, same.p_behind) == (1.0, 1.0)
    sure = test([2.0, 3.0], [1.0, 2.0])
    assert (sure.p_ahead, sure.p_behind) == (0.0, 1.0)


# --- episodes --------------------------------------------------------------------------------


def test_objective_of_a_blind_policy_is_that_of_its_own_episode_under_any_weights() -> None:
    scenario = Scenario.load("paper-overload", {"horizon_periods": 600})
    cell = Cell("cell", scenario, weights({"beta": 0.5, "sigma": 3.0, "zeta2": 100.0}))
    directly = Cell("direct", weighted(scenario, cell.weights), cell.weights)
    episodes = Episodes.__new__(Episodes)
    episodes.rows = {}
    unit = play(_job(cell.played_by("sjf"), "sjf"))
    episodes._add(unit)
    own = play(_job(directly.of_readers, "sjf"))
    assert float(episodes.values(cell, "sjf", "reward").iloc[0]) == pytest.approx(own["reward"])
    inside = float(episodes.values(cell, "sjf", "inside_start").iloc[0])
    assert inside == pytest.approx(own["r_zeta2"] / 100.0 / own["arrived"])


def _job(scenario: Scenario, policy: str):
    from llmroute_env.experiments.science.play import Job

    return Job(scenario.digest(), "cell", scenario, policy, 7)


def test_rows_survive_a_torn_last_line_and_are_not_played_again(small, tmp_path: Path) -> None:
    held, episodes, directory = small
    text = (directory / "episodes.csv").read_text(encoding="utf-8")
    torn = tmp_path / "episodes.csv"
    torn.write_text(text[: len(text) - 40], encoding="utf-8")
    again = Episodes(torn)
    seeds = range(held.first_seed, held.first_seed + held.seeds)
    assert len(again.missing(held.wanted(), seeds)) == 1
    assert episodes.missing(held.wanted(), seeds) == []
    whole = Episodes(directory / "episodes.csv")
    pd.testing.assert_frame_equal(whole.frame(), episodes.frame(), check_dtype=False)
    frame = pd.read_csv(directory / "episodes.csv", dtype=str, keep_default_na=False)
    frame.drop(columns="misrouted").to_csv(torn, index=False)  # before there was that key
    older = Episodes(torn)
    assert older.frame()["misrouted"].isna().all()
    assert older.missing(held.wanted(), seeds) == []
    pd.testing.assert_frame_equal(Episodes(torn).frame(), older.frame())
    frame.drop(columns="r_beta").to_csv(torn, index=False)
    with pytest.raises(ValueError, match="another version"):
        Episodes(torn)
    torn.write_text("a,b\n1,2\n", encoding="utf-8")
    with pytest.raises(ValueError, match="another version"):
        Episodes(torn)


def test_running_out_of_time_leaves_whole_seeds(tmp_path: Path) -> None:
    scenario = Scenario.load("paper-stable", {"horizon_periods": 50})
    cell = Cell("cell", scenario, weights({"beta": 1}))
    episodes = Episodes(tmp_path / "episodes.csv")
    jobs = episodes.missing([(cell, "lor"), (cell, "sjf")], range(3))
    assert not episodes.run(jobs, processes=1, minutes=1e-9)
    assert {len(rows) for rows in episodes.rows.values()} <= {1}


# --- arena -----------------------------------------------------------------------------------


def test_small_arena_orders_the_policies(small) -> None:
    held, episodes, _ = small
    cells = standings.objectives(held, episodes)
    order = {
        name: [held.policies[i] for i in np.argsort(-cells[name, "average"].reward.mean(axis=1))]
        for name in held.scenarios
    }
    # Overloaded: shortest-first orders beat arrival orders, and these beat round robin.
    for name in ("overload", "memory"):
        assert set(order[name][:2]) == {"sjf", "olp:pricing=paper"}
        assert order[name][-1] == "round_robin"
    scores = standings.scores(held, cells).set_index("policy")
    assert scores.loc["round_robin", "score"] <= scores.loc["lor", "score"]
    assert scores.loc["sjf", "score"] > 0.9
    assert (scores["low"] <= scores["score"]).all()
    assert (scores["high"] >= scores["score"]).all()


def test_small_arena_tests_and_report(small, tmp_path: Path) -> None:
    held, episodes, _ = small
    assert held.skipped.keys() == {"olp:pricing=no_such_pricing"}
    cells = standings.objectives(held, episodes)
    won = standings.won_by(held, cells)
    assert len(won) == 3
    assert won["confidence"].between(0.0, 1.0 + 1e-12).all()
    tests = standings.family_tests(held, cells)
    assert len(tests) == 3 * 5
    assert set(tests["verdict"]) <= {"ahead", "level", "behind"}
    assert (tests["p_ahead_holm"] >= tests["p_ahead"] - 1e-15).all()
    bounds = Bounds(tmp_path / "bounds.csv")
    text = arena_report.write(held, episodes, bounds, tmp_path)
    assert "3 scenarios × 1 weight settings × 6 policies, 3 paired seeds" in text
    assert "Mean against P99" in text
    for name in ("summary", "won_by", "scores", "tests", "shares", "front"):
        assert len(pd.read_csv(tmp_path / f"{name}.csv")) > 0


def test_shipped_arena_is_broad_and_faults_are_one_line(tmp_path: Path, capsys) -> None:
    held = arena.load(config_directory() / "arena" / "default.yaml")
    assert len(held.scenarios) >= 16
    assert len(held.settings) >= 4
    assert held.first_seed >= 1000
    assert held.of_family(held.designated)
    path = tmp_path / "wrong.yaml"
    for text, said in (
        (SMALL.replace("load: 0.3", "loud: 0.3"), "unknown key 'loud'"),
        (SMALL.replace("load: 0.3", "load: abc"), "load 'abc' must be a number above 0"),
        (SMALL.replace("weights:", "seeds: 3\nfamily:"), "weights is missing or empty"),
        ("a: [", "not YAML"),
        ("- a", "must be a mapping"),
    ):
        path.write_text(text, encoding="utf-8")
        assert arena_main(["--config", str(path), "--out", str(tmp_path / "out")]) == 2
        heard = capsys.readouterr().err
        assert said in heard
        assert heard.count("\n") == 1


# --- the paper -------------------------------------------------------------------------------


def test_cells_are_the_papers_settings() -> None:
    stable, overload = claims.paper_cell("stable"), claims.paper_cell("overload")
    assert stable.scenario.offered_load().batch < 1 < overload.scenario.offered_load().batch
    assert claims.paper_cell("shift").scenario.workload.arrivals.kind == "rate_shift"
    memory = claims.paper_cell(**sweeps.PRICE_CELLS["overload, memory binds (B 96, M 7,100)"])
    load = memory.scenario.offered_load()
    assert load.batch < 1 < load.kv
    assert claims.paper_cell(prediction="perfect").scenario.prediction.kind == "perfect"
    policies = {policy for _, policy in sweeps.everything(False)}
    assert {"round_robin", "random", "lor", "power_of_d", "sjf", "mc_sf"} <= policies


def test_detector_is_quiet_without_a_shift_and_finds_a_large_one() -> None:
    table = drift.table(60, 400, 3.72).set_index(["arrivals", "factor"])
    assert table.loc[("Poisson", 1.0), "found"] < 0.1
    assert table.loc[("Poisson", 2.0), "found"] > 0.9
    assert table.loc[("Poisson", 2.0), "delay_p50"] < table.loc[("Poisson", 1.5), "delay_p50"]


def test_rising_needs_a_rise_and_no_fall() -> None:
    def curve(steps: list[tuple[float, float]], whole: tuple[float, float]) -> pd.DataFrame:
        rows = [{"policy": "olp", "step_low": a, "step_high": b} for a, b in steps]
        table = pd.DataFrame(rows)
        table["whole"], table["whole_low"], table["whole_high"] = sum(whole) / 2, *whole
        return table

    up = curve([(0.0, 0.0), (0.1, 0.2), (-0.1, 0.1)], (0.1, 0.3))
    assert curves.rises(up, "olp") == verdicts.REPRODUCES
    dip = curve([(0.0, 0.0), (0.1, 0.3), (-0.2, -0.1)], (0.1, 0.3))
    assert curves.rises(dip, "olp") == verdicts.PARTLY
    flat = curve([(0.0, 0.0), (-0.1, 0.1)], (-0.1, 0.1))
    assert curves.rises(flat, "olp") == verdicts.UNDECIDED


def test_front_is_the_textbooks(small) -> None:
    """Nobody's means are better on both axes than a point of the front; the dominated lose."""
    held, episodes, _ = small
    found = arena_front.front(held, episodes)
    for name, part in found.groupby("scenario"):
        rivals = part[~part["family"]]
        for row in part.itertuples():
            others = rivals[rivals["policy"] != row.policy]
            better = (others["mean"] <= row.mean) & (others["p99"] <= row.p99)
            strictly = (others["mean"] < row.mean) | (others["p99"] < row.p99)
            assert row.on_front == (not (better & strictly).any()), (name, row.policy)
            for rival in filter(None, row.dominated_by.split(", ")):
                other = rivals.set_index("policy").loc[rival]
                assert other["mean"] < row.mean or other["p99"] < row.p99
    overload = found[found["scenario"] == "overload"].set_index("policy")
    # Heavy aging is arrival order nearly: a worse mean than shortest-first, a better tail.
    assert overload.loc["sjf:aging=5", "mean"] > overload.loc["sjf", "mean"]
    assert overload.loc["sjf:aging=5", "p99"] < overload.loc["sjf", "p99"]


def test_shares_of_the_bound_are_below_one_and_bounds_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "one.yaml"
    text = SMALL[: SMALL.index("  - {name: memory")].replace("1200", "120")
    text += """\
  - {name: exact, base: paper-stable, load: 1.3,
     set: {horizon_periods: 120, prediction: {kind: perfect}}}
"""
    path.write_text(text, encoding="utf-8")
    held = arena.load(path)
    episodes = Episodes(tmp_path / "episodes.csv")
    episodes.run(episodes.missing(held.wanted(), [1000]), processes=1)
    bounds = Bounds(tmp_path / "bounds.csv")
    bounds.run(held, [1000], processes=1)
    for cell in held.cells.values():
        assert 0.9 < bounds.plan_share(cell) <= 1.0
        for policy in held.policies:
            share, seeds = bounds.share(episodes, cell, policy)
            assert seeds == 1
            assert 0.5 < share.estimate <= 1.0
    # Predictions change no bound, so the second cell's is the first one's.
    first, second = bounds.rows.values()
    assert (first.instance, first.bound, first.plan) == (second.instance, second.bound, second.plan)
    assert second.wall_cpu_s == 0.0
    shares = arena_gaps.shares(held, episodes, bounds)
    assert len(shares) == 2 * (len(held.policies) + 1)  # every row, and the plan's
    assert "2 of 2 cells" in " ".join(arena_gaps.section(held, bounds, shares))
    made: list[int] = []
    again = Bounds(tmp_path / "bounds.csv")
    again.run(held, [1000], processes=1, progress=lambda: made.append(1))
    assert again.rows == bounds.rows
    assert not made
    (tmp_path / "old.csv").write_text("digest,bound\na,1\n", encoding="utf-8")
    with pytest.raises(ValueError, match="another version"):
        Bounds(tmp_path / "old.csv")
