"""Result directories: whole records or none, never another run's, never overwritten unasked."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from experiment_records import fill, record

from llmroute_env.experiments import records
from llmroute_env.experiments.records import EpisodeRecord, ResultDirectory, ResultError
from llmroute_env.metrics import METRICS, TIMINGS
from llmroute_env.scenario import Scenario


@pytest.fixture(scope="module")
def scenario() -> Scenario:
    return Scenario.load("paper-overload")


def test_record_round_trip_with_nan_and_arrays(tmp_path: Path) -> None:
    made = record("olp:pricing=paper", 3)
    records.write_episode(tmp_path / "seed0003", made)
    text = (tmp_path / "seed0003.json").read_text()
    assert "NaN" not in text
    read = records.read_episode(tmp_path / "seed0003.json", arrays=True)
    assert replace(read, summary={}) == replace(made, summary={})
    for key, value in made.summary.items():
        assert read.summary[key] == value or (math.isnan(value) and math.isnan(read.summary[key]))
    assert read.arrays.keys() == made.arrays.keys()
    for name, array in made.arrays.items():
        np.testing.assert_array_equal(read.arrays[name], array)
    assert not list(tmp_path.glob(".*"))


def test_same_record_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        records.write_episode(tmp_path / name, record("lor", 1))
    for suffix in (".json", ".npz"):
        first, second = ((tmp_path / f"{name}{suffix}").read_bytes() for name in "ab")
        assert first == second


def test_json_comes_last_so_a_kill_leaves_no_half_record(
    tmp_path: Path, scenario: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = ResultDirectory(tmp_path / "out", scenario)
    results.add_policies(["lor"])
    stem = results.episode_path("lor", 0)

    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(records.np, "savez_compressed", killed)
        with pytest.raises(KeyboardInterrupt):
            records.write_episode(stem, record("lor"))
    assert not results.has("lor", 0)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            records.write_episode(stem, record("lor"))
    assert not results.has("lor", 0)
    assert list(stem.parent.glob(".*.tmp"))
    ResultDirectory(tmp_path / "out", scenario)  # the next run clears what was left
    assert not list(stem.parent.iterdir())


def test_order_is_by_policy_then_seed_whatever_the_order_of_writing(
    tmp_path: Path, scenario: Scenario
) -> None:
    results = ResultDirectory(tmp_path / "out", scenario)
    results.add_policies(["sjf", "lor"])
    for policy, seed in (("lor", 10_000), ("sjf", 2), ("lor", 9), ("sjf", 0)):
        records.write_episode(results.episode_path(policy, seed), record(policy, seed))
    found = [(r.policy, r.seed) for r in results.records()]
    assert found == [("sjf", 0), ("sjf", 2), ("lor", 9), ("lor", 10_000)]
    again = ResultDirectory(tmp_path / "out", scenario)
    assert [(r.policy, r.seed) for r in again.records()] == found


def test_another_scenario_is_refused_in_one_line(tmp_path: Path, scenario: Scenario) -> None:
    fill(ResultDirectory(tmp_path / "out", scenario), {"lor": 1.0}, seeds=1)
    for other in (
        Scenario.load("paper-stable"),
        scenario.with_overrides({"cluster.devices": 5}),
        scenario.with_overrides({"warmup_s": 10.0}),
    ):
        with pytest.raises(ResultError, match="asked for") as caught:
            ResultDirectory(tmp_path / "out", other)
        assert "\n" not in str(caught.value)
    assert ResultDirectory(tmp_path / "out", scenario).has("lor", 0)


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_directory_of_other_things_is_never_touched(
    tmp_path: Path, scenario: Scenario, overwrite: bool
) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(ResultError, match="not a result directory"):
        ResultDirectory(tmp_path, scenario, overwrite=overwrite)
    with pytest.raises(ResultError, match="is a file"):
        ResultDirectory(tmp_path / "thesis.tex", scenario, overwrite=overwrite)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_overwrite_deletes_results_and_nothing_else(tmp_path: Path, scenario: Scenario) -> None:
    results = ResultDirectory(tmp_path, scenario)
    fill(results, {"lor": 1.0}, seeds=1)
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "episodes.csv").write_text("old")
    fresh = ResultDirectory(tmp_path, Scenario.load("paper-stable"), overwrite=True)
    assert fresh.records() == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["notes.txt", "run.json"]


def test_folders_are_safe_and_distinct(tmp_path: Path, scenario: Scenario) -> None:
    results = ResultDirectory(tmp_path, scenario)
    policies = [
        "olp:pricing=paper",
        "olp.pricing-paper",
        "OLP.pricing-paper",
        "a/../b",
        "..",
        "é:x",
    ]
    results.add_policies(policies)
    folders = [results.folder(policy) for policy in policies]
    assert folders[0] == "olp.pricing-paper"
    assert len({folder.lower() for folder in folders}) == len(policies)
    for folder in folders:
        assert not set(folder) & set('/\\:=*?"<>| ')
        assert folder not in (".", "..", "")
    assert ResultDirectory(tmp_path, scenario).policies == tuple(policies)


def test_csv_columns_and_empty_cells(tmp_path: Path) -> None:
    table = records.frame([record("lor", 0), record("sjf", 1)])
    assert list(table.columns) == [*records.IDENTITY, *METRICS, *TIMINGS]
    records.write_csv(table, tmp_path / "episodes.csv")
    text = (tmp_path / "episodes.csv").read_bytes().decode()
    assert "nan" not in text.lower().replace("tenan", "")
    assert "\r" not in text
    row = dict(zip(text.split("\n")[0].split(","), text.split("\n")[1].split(","), strict=True))
    assert row["tpot_mean_s"] == ""
    assert row["arrived"] == "60"
    assert float(row["eel_mean_s"]) == record("lor", 0).summary["eel_mean_s"]


def test_run_file_tells_what_was_run(tmp_path: Path, scenario: Scenario) -> None:
    ResultDirectory(tmp_path, scenario).add_policies(["lor"])
    content = json.loads((tmp_path / "run.json").read_text())
    assert content["digest"] == scenario.digest()
    assert Scenario.load(content["definition"]) == scenario
    assert isinstance(record("lor"), EpisodeRecord)


def test_a_run_file_of_another_format_is_refused(tmp_path: Path, scenario: Scenario) -> None:
    (tmp_path / "run.json").write_text('{"format": 99}')
    with pytest.raises(ResultError, match="another version"):
        ResultDirectory(tmp_path, scenario)
    (tmp_path / "run.json").write_text("not json")
    with pytest.raises(ResultError, match="another version"):
        ResultDirectory(tmp_path, scenario)
