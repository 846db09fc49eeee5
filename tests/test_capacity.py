"""scripts/capacity.py from end to end: answer against brute force, files, resumption, faults."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pandas as pd
import pytest

from llmroute_env.env import LLMRouteEnv
from llmroute_env.evaluation import evaluate
from llmroute_env.experiments import runner
from llmroute_env.experiments.capacity import command, slo
from llmroute_env.experiments.capacity.fleets import gpu_hours, gpus, label, own, resized
from llmroute_env.experiments.capacity.trials import Case, Trials
from llmroute_env.scenario import Scenario

SMALL = {"horizon_periods": 200, "workload.arrivals.rate": 0.8, "drain": True}
SLOS = ("ttft_p95_s<=8", "slo_attainment>=0.75")
SEEDS = (1000, 1001, 1002)


def scenario() -> Scenario:
    return Scenario.load("paper-overload", SMALL)


def run(*arguments: str | Path) -> int:
    given = [f"--set={key}={value}" for key, value in SMALL.items()]
    given += [f"--slo={text}" for text in SLOS]
    fixed = ["--scenario=paper-overload", "--seeds=3", "--jobs=1", "--policies=round_robin,lor"]
    return command.main([*fixed, *given, *map(str, arguments)])


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("capacity") / "out"
    assert run("--out", path) == 0
    return path


@pytest.fixture
def playing(monkeypatch: pytest.MonkeyPatch) -> list[runner.Task]:
    """Episodes played from here on."""
    played: list[runner.Task] = []
    run_task = runner.run_task

    def noted(task: runner.Task) -> object:
        played.append(task)
        return run_task(task)

    monkeypatch.setattr(runner, "run_task", noted)
    return played


def passes(policy: str, devices: int) -> bool:
    """Every objective's bound by hand, over all seeds."""
    env = LLMRouteEnv(resized(scenario(), (devices,)))
    summaries = [slo.with_shares(evaluate(env, policy, seed).summary) for seed in SEEDS]
    verdicts = [
        slo.judge(aim, [summary[aim.key] for summary in summaries], 0.95)
        for aim in slo.parse_all(SLOS)
    ]
    return all(verdict.met for verdict in verdicts)


@pytest.mark.parametrize("policy", ["round_robin", "lor"])
def test_answer_is_that_of_brute_force(out: Path, policy: str) -> None:
    found = pd.read_csv(out / "capacity.csv").set_index("policy").loc[policy]
    good = [devices for devices in range(1, 14) if passes(policy, devices)]
    assert good == list(range(min(good), 14)), "the region is no half-line: choose another case"
    assert 2 < min(good) < 13
    assert found["devices"] == min(good)
    assert found["gpus"] == min(good)


def test_sizes_show_the_neighbours(out: Path) -> None:
    sizes = pd.read_csv(out / "sizes.csv")
    for _, answer in pd.read_csv(out / "capacity.csv").iterrows():
        own_rows = sizes[sizes["policy"] == answer["policy"]]
        passed = own_rows.groupby("devices")["passed"].all()
        assert not passed[answer["devices"] - 1]
        assert passed[answer["devices"]]
        assert passed[answer["devices"] + 1]
        assert set(own_rows["slo"]) == set(SLOS)


def test_episodes_csv(out: Path) -> None:
    table = pd.read_csv(out / "episodes.csv")
    head = ["scenario", "policy", "information", "fleet", "devices", "gpus", "seed", "gpu_hours"]
    assert list(table.columns[:8]) == head
    assert not table.duplicated(["policy", "fleet", "seed"]).any()
    assert table.groupby("seed")["arrived"].nunique().eq(1).all()  # common random numbers
    expected = table["gpus"] * table["horizon_s"] / 3600
    assert table["gpu_hours"].to_numpy() == pytest.approx(expected.to_numpy())
    passed = pd.read_csv(out / "sizes.csv").query("passed")[["policy", "fleet"]].drop_duplicates()
    whole = table.groupby(["policy", "fleet"])["seed"].apply(tuple)
    assert all(whole[policy, fleet] == SEEDS for policy, fleet in passed.itertuples(index=False))


def test_saving_is_in_gpu_hours_over_the_baseline(out: Path) -> None:
    answers = pd.read_csv(out / "capacity.csv").set_index("policy")
    hours = answers["gpu_hours"]
    assert answers.loc["round_robin", "saving"] == 0.0
    saved = 1 - hours["lor"] / hours["round_robin"]
    assert answers.loc["lor", "saving"] == pytest.approx(saved)
    assert answers.loc["lor", "saving_low"] <= saved <= answers.loc["lor", "saving_high"]


def test_pictures(out: Path) -> None:
    assert (out / "capacity.png").stat().st_size > 10_000


def test_again_plays_nothing_and_says_the_same(out: Path, playing: list[runner.Task]) -> None:
    names = ("capacity.csv", "sizes.csv", "episodes.csv")
    before = {name: (out / name).read_bytes() for name in names}
    (out / "capacity.csv").unlink()
    assert run("--out", out, "--no-plots") == 0
    assert not [task for task in playing if task.stem is not None]
    assert {name: (out / name).read_bytes() for name in names} == before


def test_lost_episode_is_played_again_alone(out: Path, playing: list[runner.Task]) -> None:
    table = pd.read_csv(out / "episodes.csv", dtype=str)
    row = table[table["policy"] == "lor"].iloc[-1]
    stem = out / "paper-overload/sweep" / f"fleet-{row['fleet']}" / "lor" / f"seed{row['seed']}"
    stem.with_suffix(".json").unlink()
    assert run("--out", out, "--no-plots") == 0
    assert [task.stem for task in playing if task.stem is not None] == [stem]


def test_another_scenario_is_refused(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--out", out, "--set", "cluster.batch_limit=20") == 2
    error = capsys.readouterr().err
    assert "holds paper-overload" in error
    assert error.count("\n") == 1


def test_a_foreign_directory_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    assert run("--out", tmp_path, "--overwrite") == 2
    assert "not a directory of a capacity search" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--slo=ttft_p99<=1"], "did you mean ttft_p99_s"),
        (["--policies=lorr"], "did you mean lor"),
        (["--baseline=sjf"], "not among --policies"),
        (["--baseline-scenario=other"], "not among paper-overload"),
        (["--scenario=paper-overload"], "named twice"),
    ],
)
def test_faults_are_one_line(
    arguments: Sequence[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("--out", tmp_path / "out", *arguments) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_one_seed_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run("--seeds=1")
    assert "at least 2" in capsys.readouterr().err


def test_no_fleet_is_large_enough(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    impossible = ["--slo=eel_mean_s<=0.5", "--max-devices=9", "--no-plots"]
    assert run("--out", tmp_path / "out", *impossible) == 0
    shown = capsys.readouterr().out
    assert "none up to 9" in shown
    assert "miss eel_mean_s<=0.5" in shown
    answers = pd.read_csv(tmp_path / "out" / "capacity.csv")
    assert answers["devices"].isna().all()


def test_given_baseline_fleet(out: Path) -> None:
    assert run("--out", out, "--no-plots", "--baseline-gpus", "20") == 0
    answers = pd.read_csv(out / "capacity.csv")
    assert answers["saving"].tolist() == pytest.approx((1 - answers["gpus"] / 20).tolist())


def test_processes_change_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a chunk of seeds at a time, in any order of completion, a trial is the same."""
    case, aims = Case(scenario(), "lor"), slo.parse_all(SLOS)
    alone = Trials(case, None, aims, SEEDS)

    def backwards(
        tasks: Sequence[runner.Task], *, jobs: int, progress: Callable[[object], None]
    ) -> None:
        for task in reversed(tasks):
            progress(runner.run_task(task))

    together = Trials(case, None, aims, SEEDS, jobs=3)
    expected = [alone.trial((devices,)) for devices in (2, 5, 8)]
    monkeypatch.setattr(runner, "run", backwards)
    for trial in expected:
        other = together.trial(trial.fleet)
        for verdict, same in zip(other.verdicts, trial.verdicts, strict=True):
            assert verdict == pytest.approx(same, nan_ok=True)
        assert [r.seed for r in other.records] == [r.seed for r in trial.records]
    # The smallest is hopeless after one seed, the largest needs them all: both ways are covered.
    assert len(expected[0].records) == 1
    assert len(expected[2].records) == 3


def test_sizes_of_equal_devices() -> None:
    base = Scenario.load("azure-conv-a100", {"cluster.timing.model": "llama-3-70b",
                                             "cluster.timing.tp": 4})  # fmt: skip
    assert own(base) == (4,)
    assert resized(base, (7,)).cluster.devices == 7
    assert gpus(base, (7,)) == 28
    assert gpu_hours(28, 1800.0) == 14.0
    assert label((9, 3)) == "9+3"
