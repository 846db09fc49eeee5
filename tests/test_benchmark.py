"""The benchmark: every group runs, its record is whole, its comparison says what is slower."""

from __future__ import annotations

import gc
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llmroute_env.experiments.benchmark import cli, plot, report, runner
from llmroute_env.experiments.benchmark.backlog import record
from llmroute_env.experiments.benchmark.clock import decision_us, slice_rates
from llmroute_env.experiments.benchmark.model import (
    Batch,
    Derived,
    Group,
    Measure,
    Plan,
    Probe,
    Summary,
    Unavailable,
)
from llmroute_env.experiments.benchmark.targets import QUOTED, TARGETS

#: Too long for a quick run, which says so by leaving them out.
ONLY_IN_FULL = {
    "vector.256.default", "vector.256.over_sync", "devices.64.p50_us", "devices.256.p50_us",
    "scale.256.memory_over_linear", "scale.1000.memory_over_linear", "start.first_compile_s",
}  # fmt: skip


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Record of a quick run of everything, with its picture beside it."""
    path = tmp_path_factory.mktemp("benchmark") / "quick.json"
    assert cli.main(["--quick", "--json", str(path), "--plot", str(path.parent)]) == 0
    return path


@pytest.fixture
def content(quick: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(quick.read_text(encoding="utf-8"))
    return found


def test_record_has_every_key(content: dict[str, Any]) -> None:
    assert set(content) == {
        "format", "created", "quick", "machine", "measures", "missing", "quoted"
    }  # fmt: skip
    assert content["quick"] is True
    assert set(content["machine"]) == {
        "cpu", "cores", "load_average", "system", "python", "numpy", "numba", "gymnasium",
        "revision",
    }  # fmt: skip


def test_every_group_is_measured(content: dict[str, Any]) -> None:
    groups = {name.partition(".")[0] for name in content["measures"]}
    assert groups | set(content["missing"]) == {group.name for group in cli.groups()}
    assert not content["missing"]


def test_measures_are_whole(content: dict[str, Any]) -> None:
    for name, entry in content["measures"].items():
        assert {"unit", "better", "median", "min", "max", "repeats"} <= set(entry), name
        if name == "vector.second_thread_pays_from":
            continue
        assert entry["min"] <= entry["median"] <= entry["max"], name
        assert entry["median"] > 0 or name.endswith("growth_mb"), name


def test_targets_stand_beside_their_measures(content: dict[str, Any]) -> None:
    assert set(TARGETS) - set(content["measures"]) == ONLY_IN_FULL
    for name in set(TARGETS) - ONLY_IN_FULL:
        for target in content["measures"][name]["targets"]:
            assert isinstance(target["met"], bool)
            assert target["stage"] in ("first", "speed")


def test_quoted_numbers_are_marked(content: dict[str, Any]) -> None:
    assert len(content["quoted"]) == len(QUOTED)
    assert all(entry["measured_here"] is False for entry in content["quoted"])


def test_plot_is_drawn(quick: Path) -> None:
    pytest.importorskip("matplotlib")
    assert (quick.parent / "benchmark.png").read_bytes()[:4] == b"\x89PNG"


def test_against_prints_ratios(
    quick: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new = tmp_path / "deep" / "new.json"
    arguments = ["--quick", "--only", "single", "--against", str(quick), "--json", str(new)]
    assert cli.main(arguments) == 0
    out = capsys.readouterr().out
    assert "ratio" in out
    assert out.count("single.holding") == 2  # measured, and compared
    assert "decision." not in out.partition("against")[2].partition("quoted")[0]
    assert set(json.loads(new.read_text())["measures"]) == {"single.holding", "single.round_robin"}
    assert [path.name for path in new.parent.iterdir()] == ["new.json"]  # no temporary file left


def _run(**medians: float) -> dict[str, Any]:
    better = {"fast": "higher", "cost": "lower", "odd": ""}
    measures = {
        name: Measure(name, "", better[name])  # type: ignore[arg-type]
        for name in medians
    }
    summaries = [runner.summarize(measures[name], [value]) for name, value in medians.items()]
    machine = dict.fromkeys(("cpu", "cores", "python", "numba", "numpy"), "x")
    return report.record(summaries, {}, machine, Plan())


def test_ratios_are_above_one_where_it_is_better() -> None:
    old, new = _run(fast=100.0, cost=10.0, odd=1.0), _run(fast=200.0, cost=12.5, odd=9.0)
    found = {change.name: change for change in report.changes(old, new)}
    assert set(found) == {"fast", "cost"}  # a measure without a better side has no ratio
    assert found["fast"].ratio == 2.0
    assert not found["fast"].slower
    assert found["cost"].ratio == pytest.approx(0.8)
    assert found["cost"].slower
    assert found["cost"].apart


def test_ranges_that_overlap_are_told_apart_from_those_that_do_not() -> None:
    old, new = _run(fast=100.0), _run(fast=80.0)
    old["measures"]["fast"]["min"] = 70.0
    change = report.changes(old, new)[0]
    assert change.slower
    assert not change.apart


def test_small_differences_are_not_flagged() -> None:
    change = report.changes(_run(fast=100.0), _run(fast=95.5))[0]
    assert not change.slower


def test_runs_that_differ_in_more_than_code_say_so() -> None:
    old, new = _run(fast=1.0), _run(fast=1.0)
    assert report.doubts(old, new) == []
    old["machine"]["cpu"], old["quick"] = "another", True
    assert len(report.doubts(old, new)) == 2


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("not json", "not JSON"),
        ("[1, 2]", "no measures"),
        ('{"measures": {}, "format": 99}', "format 99"),
        ('{"measures": {"x": 3}, "format": 1}', "no median"),
        (None, "No such file"),
    ],
)
def test_wrong_file_ends_in_one_line(
    text: str | None, word: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "old.json"
    if text is not None:
        path.write_text(text)
    assert cli.main(["--against", str(path), "--only", "single"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""  # refused before anything is measured
    assert len(captured.err.strip().splitlines()) == 1
    assert word in captured.err
    assert str(path) in captured.err


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--only", "vectors"], "did you mean vector?"),
        (["--only", ","], "names no group"),
        (["--repeats", "0"], "'0' is not an integer of at least 1"),
    ],
)
def test_wrong_arguments_end_in_one_line(
    arguments: list[str], word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main(arguments)
    assert stop.value.code == 2
    err = capsys.readouterr().err
    assert word in err
    assert len(err.strip().splitlines()) == 1


def test_repeats_take_turns_without_garbage_collection() -> None:
    turns: list[str] = []

    def probe(name: str, value: float) -> Probe:
        def run() -> tuple[float, ...]:
            turns.append(name if not gc.isenabled() else f"{name} warm")
            return (value,)

        return Probe((Measure(f"g.{name}", "s"),), run)

    double = Derived(Measure("g.ratio", "×"), lambda v: v["g.b"] / v["g.a"])
    batch = Batch("", [probe("a", 2.0), probe("b", 6.0)], [double])
    found = runner.run_batch(batch, Plan(repeats=2))
    assert turns == ["a warm", "b warm", "a", "b", "a", "b"]
    assert gc.isenabled()
    assert [(s.measure.name, s.median, s.repeats) for s in found] == [
        ("g.a", 2.0, 2), ("g.b", 6.0, 2), ("g.ratio", 3.0, 2)
    ]  # fmt: skip


def test_group_that_cannot_run_here_says_why() -> None:
    def batches(plan: Plan) -> Any:
        raise Unavailable("needs a thing")
        yield

    found, missing = runner.run([Group("g", "", batches)], Plan(), lambda _: None)
    assert (found, missing) == ([], {"g": "needs a thing"})


def test_measure_without_a_value_is_null(tmp_path: Path) -> None:
    content = _run(odd=math.inf)
    report.write(tmp_path / "a.json", content)
    assert report.read(tmp_path / "a.json")["measures"]["odd"]["median"] is None
    assert report.changes(content, content) == []


def test_stopwatches_return_one_value_per_slice_and_call() -> None:
    calls = []
    rates = slice_rates(lambda: calls.append(None), 5_000)
    assert (rates > 0).all()
    assert (np.diff(rates) >= 0).all()
    assert decision_us(lambda _: None, range(7)).shape == (7,)


def test_backlog_is_full_and_in_order() -> None:
    tape = record(devices=2, waiting=16, timed=5)
    periods = [float(o["clock"][1]) for o in tape.before + tape.timed]
    assert periods == sorted(set(periods))
    for observation in tape.timed:
        assert (observation["queue_id"] >= 0).all()
        assert observation["devices"][:, 0].min() >= 22  # of 24 slots


def test_plot_without_curves_draws_nothing(tmp_path: Path) -> None:
    point = Summary(Measure("single.holding", "steps/s"), 1.0, 1.0, 1.0, 1)
    assert plot.write([point], tmp_path) is None
    assert not list(tmp_path.iterdir())
