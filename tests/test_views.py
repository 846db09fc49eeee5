"""Tables, plots and TensorBoard runs, from made-up records."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from experiment_records import PERIODS, fill, record
from rich.console import Console

from llmroute_env.experiments import load, runner, statistics, style, table
from llmroute_env.experiments.records import ResultDirectory, frame
from llmroute_env.scenario import Scenario

POLICIES = {"round_robin": 2.0, "lor": 1.5, "olp:pricing=paper": 1.0}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> ResultDirectory:
    made = ResultDirectory(tmp_path_factory.mktemp("out"), Scenario.load("paper-overload"))
    fill(made, POLICIES)
    return made


def rendered(episodes: pd.DataFrame, width: int, **options: object) -> str:
    comparison = statistics.compare(episodes, "round_robin")
    console = Console(width=width, record=True, file=open("/dev/null", "w"))  # noqa: SIM115, PTH123
    for part in table.comparison_tables(episodes, comparison, width=width, **options):
        console.print(part)
    return console.export_text()


@pytest.mark.parametrize("width", [70, 100, 180])
def test_table_breaks_no_cell_and_fits(results: ResultDirectory, width: int) -> None:
    text = rendered(frame(results.records()), width)
    assert "…" not in text
    assert max(len(line) for line in text.split("\n")) <= width
    for word in ("olp:pricing=paper", "baseline", "unfinished", "rejected", "predicted"):
        assert word in text
    gains = [line for line in text.split("\n") if "%" in line and "[" in line]
    assert gains


def test_table_shows_asked_metrics_and_timings(results: ResultDirectory) -> None:
    text = rendered(frame(results.records()), 200, metrics=("tpot_mean_s", "decision_us_p99"))
    assert "TPOT" in text
    assert "–" in text  # tpot is NaN in these records
    assert "4.000 ± 0.000" in text
    assert "EEL" not in text


def test_table_shows_prefix_hits_and_misrouted_where_there_are_any(
    results: ResultDirectory,
) -> None:
    episodes = frame(results.records())
    text = rendered(episodes, 200)
    assert "Prefix hits" not in text
    assert "Misrouted" not in text
    text = rendered(episodes.assign(prefix_hit_rate=0.25, misrouted=[0.0] * 8 + [0.5]), 240)
    assert "Prefix hits" in text
    assert "0.2500" in text
    assert "Misrouted" in text


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.0, "0"),
        (float("nan"), "–"),
        (12345.6, "12,346"),
        (1.5, "1.500"),
        (0.012346, "0.01235"),
        (-250.04, "-250.0"),
        (3e-12, "3e-12"),
    ],
)
def test_numbers_are_short(value: float, shown: str) -> None:
    assert table.number(value) == shown


def test_hidden_queue_is_named_with_its_share() -> None:
    rows = [record("lor", 0), record("sjf", 0), record("sjf", 1)]
    assert table.hidden_warning(frame(rows)) is None
    rows[1].summary["hidden_share"] = 0.5
    warning = table.hidden_warning(frame(rows))
    assert warning is not None
    assert "sjf 25.0%" in warning
    assert "lor" not in warning


def test_every_plot_is_drawn_and_shows_something(results: ResultDirectory, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from matplotlib.image import imread

    from llmroute_env.experiments import plots

    comparison = statistics.compare(frame(results.records()), "round_robin")
    sweep = [record(p, s, load=x) for p in POLICIES for s in range(3) for x in (0.5, 1.0)]
    files = plots.write_plots(
        tmp_path, results.scenario, results.records(arrays=True), comparison, sweep
    )
    assert {path.name for path in files} == {
        "metrics.png",
        "latency_cdf.png",
        "improvement.png",
        "time_series.png",
        "prices.png",
        "slo_vs_load.png",
    }
    for path in files:
        pixels = imread(path)
        assert pixels.shape[0] > 200
        assert pixels.std() > 0.02
    assert sorted(tmp_path.iterdir()) == sorted(files)


def test_plots_of_one_policy_one_seed_and_long_names(
    tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    pytest.importorskip("matplotlib")
    from llmroute_env.experiments import plots

    results = ResultDirectory(tmp_path / "out", Scenario.load("paper-overload"))
    fill(results, {"my_package.routers:Router:window=512:price=0.25:mode=strict": 1.0}, seeds=1)
    found = results.records(arrays=True)
    comparison = statistics.compare(frame(found), found[0].policy)
    files = plots.write_plots(tmp_path / "plots", results.scenario, found, comparison)
    assert {path.name for path in files} == {"metrics.png", "latency_cdf.png", "time_series.png"}
    assert [str(w.message) for w in recwarn] == []


def test_curves_of_many_policies_can_be_told_apart() -> None:
    strokes = style.strokes([f"p{i}" for i in range(32)])
    assert len({(s.color, str(s.dashes)) for s in strokes.values()}) == 32
    assert style.short("olp:pricing=paper:window=512", 20) == "olp:pricing=paper\n  :window=512"


def test_tensorboard_runs_hold_curves_metrics_and_hparams(results: ResultDirectory) -> None:
    accumulator = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator"
    ).EventAccumulator
    from llmroute_env.experiments import tensorboard

    directory = tensorboard.write_runs(results, 1.12)
    runs = sorted(path.relative_to(directory) for path in directory.glob("*/*/seed*"))
    assert len(runs) == 9
    assert Path("paper-overload/olp.pricing-paper/seed2") in runs
    run = accumulator(str(directory / "paper-overload" / "olp.pricing-paper" / "seed2"))
    run.Reload()
    tags = set(run.Tags()["scalars"])
    assert {
        "cluster/queue",
        "cluster/kv_share",
        "cluster/batch_share",
        "metrics/eel_p99_s",
        "reward/beta",
        "policy/price_batch",
    } <= tags
    assert "metrics/tpot_mean_s" not in tags  # NaN has no point
    steps = [event.step for event in run.Scalars("cluster/queue")]
    assert steps[0] == 0
    assert steps[-1] == PERIODS
    assert steps == sorted(set(steps))
    assert run.Scalars("cluster/kv_share")[-1].value == pytest.approx(2.0 / 2000)
    session = run.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    for word in (b"olp:pricing=paper", b"load", b"zeta2", b"scenario"):
        assert word in session
    assert "custom_scalars__config__" in run.Tags()["tensors"]


def test_tensorboard_runs_are_kept_and_completed(results: ResultDirectory) -> None:
    from llmroute_env.experiments import tensorboard

    directory = tensorboard.write_runs(results, 1.12)
    before = {path: path.read_bytes() for path in directory.rglob("events.*")}
    lost, *_ = before
    lost.unlink()
    (lost.parent.with_name(f".{lost.parent.name}.partial")).mkdir()
    tensorboard.write_runs(results, 1.12)
    after = {path: path.read_bytes() for path in directory.rglob("events.*")}
    assert len(after) == len(before)
    assert not list(directory.rglob("*.partial"))
    for path in before.keys() & after.keys() - {lost}:
        assert after[path] == before[path]


def test_tensorboard_needs_no_torch(results: ResultDirectory, tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from llmroute_env.experiments import records, tensorboard\n"
        "from llmroute_env.scenario import Scenario\n"
        "results = records.ResultDirectory(sys.argv[1], Scenario.load('paper-overload'))\n"
        "results.add_policies(['lor'])\n"
        "sys.path.insert(0, sys.argv[2])\n"
        "from experiment_records import record\n"
        "records.write_episode(results.episode_path('lor', 0), record('lor'))\n"
        "tensorboard.write_runs(results, float('nan'))\n"
    )
    out, here = tmp_path / "out", Path(__file__).parent
    subprocess.run(
        [sys.executable, "-c", code, str(out), str(here)], check=True, cwd=here.parent, timeout=120
    )
    assert list(out.rglob("events.*"))


def test_load_sweep_scales_every_rate_to_the_asked_load() -> None:
    for name in ("paper-overload", "paper-rate-shift"):
        scenario = Scenario.load(name)
        scaled = load.at_load(scenario, 0.5)
        assert load.binding_load(scaled) == pytest.approx(0.5, rel=0.02)
        ratio = scaled.workload.arrivals.rate / scenario.workload.arrivals.rate
        if name == "paper-rate-shift":
            after = scaled.workload.arrivals.rate_after / scenario.workload.arrivals.rate_after
            assert after == pytest.approx(ratio)
        assert scaled.name == f"{name}-load-0.5"
    with pytest.raises(ValueError, match="positive"):
        load.at_load(scenario, -1.0)


def test_stored_series_are_thinned_but_keep_both_ends() -> None:
    thinned = runner._thinned(np.arange(12_345))
    assert len(thinned) == runner.SERIES_POINTS
    assert (thinned[0], thinned[-1]) == (0, 12_344)
    assert (np.diff(thinned) > 0).all()
