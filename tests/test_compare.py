"""scripts/compare.py from end to end: files, resumption, one-line errors."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest

from llmroute_env.experiments import compare, records, runner
from llmroute_env.metrics import METRICS

ROOT = Path(__file__).parents[1]
SMALL = ["--set", "horizon_periods=300", "--set", "router.window=64"]
QUIET = ["--no-plots", "--no-tensorboard"]
POLICIES = "round_robin,lor,sjf:aging=0.5"


def run(*arguments: str | Path, jobs: int = 1) -> int:
    return compare.main([*SMALL, "--jobs", str(jobs), *map(str, arguments)])


def comparable(path: Path) -> pd.DataFrame:
    """episodes.csv as text, without what may depend on the machine."""
    table = pd.read_csv(path / "episodes.csv", dtype=str)
    timing = [name for name in table if name.startswith(("decision_us_", "wall_"))]
    assert timing
    return table.drop(columns=timing)


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("compare") / "out"
    assert run("--policies", POLICIES, "--seeds", "3", "--out", path) == 0
    return path


def test_files_are_all_there(out: Path) -> None:
    names = {path.name for path in out.iterdir()}
    assert {"run.json", "episodes", "episodes.csv", "comparison.csv", "tb", "plots"} <= names
    runs = sorted(p.relative_to(out / "tb").as_posix() for p in (out / "tb").glob("*/*/*"))
    assert "paper-overload/sjf.aging-0.5/seed2" in runs
    assert len(runs) == 9
    plots = {path.name for path in (out / "plots").iterdir()}
    assert {"metrics.png", "latency_cdf.png", "improvement.png", "time_series.png"} == plots


def test_episodes_csv(out: Path) -> None:
    table = pd.read_csv(out / "episodes.csv")
    assert list(table.columns[:4]) == ["scenario", "policy", "information", "seed"]
    assert set(METRICS) <= set(table.columns)
    expected = [(policy, seed) for policy in POLICIES.split(",") for seed in range(3)]
    assert list(zip(table["policy"], table["seed"], strict=True)) == expected
    assert set(table["scenario"]) == {"paper-overload"}
    assert table.groupby("seed")["arrived"].nunique().eq(1).all()  # paired
    assert (table["decision_us_p50"] > 0).all()
    assert not table["eel_mean_s"].isna().any()


def test_comparison_csv(out: Path) -> None:
    table = pd.read_csv(out / "comparison.csv")
    assert list(dict.fromkeys(table["policy"])) == POLICIES.split(",")
    assert set(table["baseline"]) == {"round_robin"}
    assert set(table["metric"]) == set(METRICS)
    counts = table.groupby("metric")["n"].agg(set)
    assert counts.pop("prefix_hit_rate") == {0}  # no caches here
    assert all(count == {3} for count in counts)
    episodes = pd.read_csv(out / "episodes.csv")
    row = table[(table["policy"] == "lor") & (table["metric"] == "eel_mean_s")].iloc[0]
    means = episodes.groupby("policy")["eel_mean_s"].mean()
    assert row["mean"] == pytest.approx(means["lor"], rel=1e-12)
    gain = 100 * (1 - means["lor"] / means["round_robin"])
    assert row["improvement_pct"] == pytest.approx(gain, rel=1e-9)
    assert row["improvement_ci_low"] <= gain <= row["improvement_ci_high"]


def test_results_do_not_depend_on_the_number_of_processes(out: Path, tmp_path: Path) -> None:
    arguments = ["--policies", POLICIES, "--seeds", "3", "--out", tmp_path / "b", *QUIET]
    assert run(*arguments, jobs=2) == 0
    pd.testing.assert_frame_equal(comparable(out), comparable(tmp_path / "b"))
    first, second = (path / "comparison.csv" for path in (out, tmp_path / "b"))
    assert first.read_bytes() == second.read_bytes()


def test_a_finished_run_is_shown_again_and_not_changed(
    out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {p: p.read_bytes() for p in out.rglob("*") if p.is_file()}
    assert run("--policies", POLICIES, "--seeds", "3", "--out", out) == 0
    after = {p: p.read_bytes() for p in out.rglob("*") if p.is_file()}
    assert after == before
    printed = capsys.readouterr()
    assert "9 of 9 episodes are there already" in printed.err
    assert "SLO attainment" in printed.out
    assert f"tensorboard --logdir {out}/tb" in printed.out


def test_only_what_is_missing_is_run(
    out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = tmp_path / "whole"
    assert run("--policies", "lor,sjf", "--seeds", "2", "--out", whole, *QUIET) == 0
    csv = (whole / "episodes.csv").read_bytes()
    (whole / "episodes" / "sjf" / "seed0001.json").unlink()
    (whole / "episodes.csv").unlink()
    ran: list[tuple[str, int]] = []
    original = runner.run_task

    def counted(task: runner.Task) -> records.EpisodeRecord:
        if task.stem is not None:
            ran.append((task.policy, task.seed))
        return original(task)

    monkeypatch.setattr(runner, "run_task", counted)
    assert run("--policies", "lor,sjf", "--seeds", "2", "--out", whole, *QUIET) == 0
    assert ran == [("sjf", 1)]
    assert len(csv) == pytest.approx(len((whole / "episodes.csv").read_bytes()), abs=60)

    ran.clear()  # more seeds and another policy join what is there
    assert run("--policies", "lor,round_robin", "--seeds", "3", "--out", whole, *QUIET) == 0
    assert sorted(ran) == [("lor", 2), *(("round_robin", seed) for seed in range(3))]
    table = pd.read_csv(whole / "episodes.csv")
    assert list(dict.fromkeys(table["policy"])) == ["lor", "sjf", "round_robin"]
    assert len(table) == 3 + 2 + 3


def test_another_scenario_is_refused_and_overwrite_replaces_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "out"
    arguments = ["--policies", "lor", "--seeds", "1", "--out", path, *QUIET]
    assert run(*arguments) == 0
    before = (path / "episodes.csv").read_bytes()
    capsys.readouterr()
    assert run(*arguments, "--scenario", "paper-stable") == 2
    assert run(*arguments, "--set", "cluster.devices=2") == 2
    assert run(*arguments, "--warmup", "50") == 2
    errors = capsys.readouterr().err.strip().split("\n")
    assert len(errors) == 3
    assert all(line.startswith("error: --out") for line in errors)
    assert (path / "episodes.csv").read_bytes() == before
    assert run(*arguments, "--scenario", "paper-stable", "--overwrite") == 0
    assert set(pd.read_csv(path / "episodes.csv")["scenario"]) == {"paper-stable"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--scenario", "paper-overlaod"], "did you mean 'paper-overload'"),
        (["--policies", "lor,sfj"], "unknown policy 'sfj'; did you mean sjf"),
        (["--policies", "sjf:agin=1"], "unknown parameter 'agin'; did you mean aging"),
        (["--policies", "no_such_module:Router"], "No module named 'no_such_module'"),
        (["--policies", "lor,lor"], "lor is named twice"),
        (["--policies", ","], "at least one policy"),
        (["--baseline", "olp", "--policies", "lor"], "--baseline olp: not among"),
        (["--set", "cluster.device=3"], "did you mean cluster.devices"),
        (["--set", "cluster.devices=-3"], "cluster.devices = -3"),
        (["--set", "nonsense"], "key=value"),
        (["--load-sweep", "0.5,zero"], "not a list of numbers"),
        (["--load-sweep", "-1"], "must be positive"),
        (["--metrics", "eel_p98_s"], "did you mean eel_p9"),
        (["--seeds", "0"], "at least 1"),
        (["--warmup", "-5"], "warmup_s"),
    ],
)
def test_wrong_input_ends_in_one_line_before_anything_runs(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        status = run("--out", tmp_path / "out", *arguments)
    except SystemExit as stop:
        status = stop.code
    assert status == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_load_sweep(tmp_path: Path) -> None:
    path = tmp_path / "out"
    arguments = ["--policies", "lor,sjf", "--seeds", "2", "--out", path, "--no-tensorboard"]
    assert run(*arguments, "--load-sweep", "0.4,1.3") == 0
    sweep = pd.read_csv(path / "sweep.csv")
    assert list(sweep.columns[:3]) == ["scenario", "load", "policy"]
    assert list(sweep["load"]) == [0.4] * 4 + [1.3] * 4
    means = sweep.groupby("load")[["arrived", "slo_attainment"]].mean()
    assert means.loc[1.3, "arrived"] > 2 * means.loc[0.4, "arrived"]
    assert means.loc[0.4, "slo_attainment"] >= means.loc[1.3, "slo_attainment"]
    assert (path / "plots" / "slo_vs_load.png").is_file()
    assert len(pd.read_csv(path / "episodes.csv")) == 4


def test_warm_up_and_hidden_queue(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--policies", "central_fifo", "--seeds", "1", *QUIET]
    assert run(*arguments, "--out", tmp_path / "a", "--set", "router.window=1") == 0
    assert "raise router.window" in capsys.readouterr().err.replace("\n", " ")
    assert run(*arguments, "--out", tmp_path / "b", "--warmup", "100") == 0
    assert "warning" not in capsys.readouterr().err
    whole, cut = (pd.read_csv(tmp_path / name / "episodes.csv") for name in "ab")
    assert cut["arrived"][0] < whole["arrived"][0]
    assert cut["horizon_s"][0] == 200.0


def test_a_router_of_ones_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "my_router.py").write_text(
        "import numpy as np\n"
        "class ToFirst:\n"
        "    information = 'none'\n"
        "    def __init__(self, device=0):\n"
        "        self.device = device\n"
        "    def predict(self, observation, state=None, episode_start=None, deterministic=False):\n"
        "        waiting = observation['queue_id'] >= 0\n"
        "        return np.where(waiting, self.device + 1, 0), state\n"
        "class Broken(ToFirst):\n"
        "    def predict(self, observation, **_):\n"
        "        raise RuntimeError('division of labour by zero')\n"
    )
    monkeypatch.chdir(tmp_path)
    policy = "my_router:ToFirst:device=2"
    arguments = ["--policies", f"lor,{policy}", "--seeds", "2", "--out", "out", *QUIET]
    assert run(*arguments, jobs=2) == 0
    table = pd.read_csv("out/episodes.csv")
    assert list(dict.fromkeys(table["policy"])) == ["lor", policy]
    assert list(dict.fromkeys(table["information"])) == ["none"]
    capsys.readouterr()
    broken = ["--policies", "lor,my_router:Broken", "--seeds", "2", "--out", "out2", *QUIET]
    assert run(*broken, jobs=2) == 1
    error = capsys.readouterr().err.rstrip().split("\n")
    assert error[-1].startswith("error: policy my_router:Broken, seed 0: RuntimeError: division")
    assert any(line.startswith("Traceback") for line in error)  # of the user's own code


def test_list_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert compare.main(["--list"]) == 0
    listing = capsys.readouterr().out
    for word in ("paper-overload", "G 4, B 24, M 16,000", "batch 1.11", "olp_oracle", "predicted"):
        assert word in listing
    with pytest.raises(SystemExit) as stop:
        compare.main(["--help"])
    assert stop.value.code == 0
    assert "examples:" in capsys.readouterr().out


def test_without_out_the_next_free_number_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        assert run("--policies", "lor", "--seeds", "1", *QUIET) == 0
    assert sorted(p.name for p in Path("results/compare").iterdir()) == ["001", "002"]


def test_plots_without_matplotlib_are_one_line_and_csv_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    path = tmp_path / "out"
    assert run("--policies", "lor", "--seeds", "1", "--out", path, "--no-tensorboard") == 0
    assert "matplotlib is not installed" in capsys.readouterr().err
    assert (path / "episodes.csv").is_file()
    assert not (path / "plots").exists()


def test_a_killed_run_loses_nothing_and_resumes(out: Path, tmp_path: Path) -> None:
    path = tmp_path / "out"
    command = [sys.executable, str(ROOT / "scripts" / "compare.py"), *SMALL, *QUIET]
    command += ["--policies", POLICIES, "--seeds", "3", "--jobs", "1", "--out", str(path)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 120
        while not list(path.glob("episodes/*/*.json")) and time.monotonic() < deadline:
            time.sleep(0.005)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    survived = list(path.glob("episodes/*/*.json"))
    assert survived
    for file in survived:
        json.loads(file.read_text())
    assert run("--policies", POLICIES, "--seeds", "3", "--out", path, *QUIET) == 0
    pd.testing.assert_frame_equal(comparable(path), comparable(out))
    assert not list(path.rglob(".*.tmp"))
