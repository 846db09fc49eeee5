"""Exported instances: the files say what the episode is, and solvers read the programs back."""

from __future__ import annotations

import gzip
import json
import re
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hindsight_cases import scenario, table
from scipy import sparse
from scipy.optimize import Bounds, LinearConstraint, milp

from llmroute_env.env import LLMRouteEnv
from llmroute_env.scenario import Scenario
from policies import hindsight
from policies.hindsight.cli import main
from policies.hindsight.exports import cut, draw, export


def _episode() -> tuple[Scenario, object]:
    made = scenario(
        horizon_periods=10,
        cluster__devices=2,
        objective__alpha=0.1,
        objective__zeta2=1.25,
        objective__gamma=1 / 3,
    )
    # The last two are never in the program: too large, and seen at the horizon only.
    return made, table([0, 0, 0.5, 2, 3, 3, 9.5], [1, 2, 3, 4, 2, 9, 1], [5, 4, 3, 4, 2, 9, 1])


def _solve_mps(path: Path) -> float:
    """Optimum of a free MPS file with what `write_mps` uses, by HiGHS; an independent reader."""
    opened = gzip.open if path.suffix == ".gz" else open
    rows: dict[str, int] = {}
    columns: dict[str, int] = {}
    kinds, entries, integral = [], [], []
    limits: dict[str, float] = {}
    most: dict[str, float] = {}
    section, marked = "", False
    with opened(path, "rt") as file:
        for line in file:
            words = line.split()
            if line.startswith("*"):
                continue
            if not line.startswith(" "):
                section = words[0]
            elif section == "ROWS":
                kinds.append(words[0])
                rows[words[1]] = len(rows)
            elif section == "COLUMNS" and words[1] == "'MARKER'":
                marked = words[2] == "'INTORG'"
            elif section == "COLUMNS":
                if words[0] not in columns:
                    columns[words[0]] = len(columns)
                    integral.append(marked)
                entries.append((rows[words[1]], columns[words[0]], float(words[2])))
            elif section == "RHS":
                limits[words[1]] = float(words[2])
            elif section == "BOUNDS":
                assert words[0] == "UP"
                most[words[2]] = float(words[3])
    assert section == "ENDATA"
    i, j, value = (np.array(part) for part in zip(*entries, strict=True))
    matrix = sparse.csr_array((value, (i, j)), shape=(len(rows), len(columns)))
    objective = kinds.index("N")
    upper = np.array([limits.get(name, 0.0) for name in rows])
    lower = np.where(np.array(kinds) == "E", upper, -np.inf)
    keep = np.arange(len(rows)) != objective
    found = milp(
        matrix[[objective]].toarray()[0],
        constraints=LinearConstraint(matrix[keep], lower[keep], upper[keep]),
        bounds=Bounds(0.0, np.array([most[name] for name in columns])),
        integrality=np.array(integral, np.int64),
    )
    assert found.status == 0
    return -float(found.fun)


@pytest.mark.parametrize("model", ["milp", "lp"])
@pytest.mark.parametrize("options", [{}, {"per_device": False}, {"stride": 2}])
def test_the_mps_file_is_the_program(tmp_path: Path, model: str, options: dict) -> None:
    made, requests = _episode()
    files = export(made, requests, tmp_path, table="csv", model=model, compress=True, **options)
    one = hindsight.Instance.build(made, requests)
    program = hindsight.program(one, integral=model == "milp", **options)
    value, _ = hindsight.solve(program)
    assert files.model is not None
    assert files.model.name == f"{model}.mps.gz"
    assert _solve_mps(files.model) == pytest.approx(value, rel=1e-7)
    if model == "milp":
        assert value <= hindsight.bound(made, requests).unpreempted


def test_another_solver_reads_it(tmp_path: Path) -> None:
    highspy = pytest.importorskip("highspy", reason="pip install highspy")
    made, requests = _episode()
    files = export(made, requests, tmp_path, table="csv")
    solver = highspy.Highs()
    solver.silent()
    assert solver.readModel(str(files.model)) == highspy.HighsStatus.kOk
    solver.run()
    value, _ = hindsight.solve(hindsight.program(hindsight.Instance.build(made, requests)))
    assert -solver.getInfo().objective_function_value == pytest.approx(value, rel=1e-7)


def test_the_table_is_the_episode(tmp_path: Path) -> None:
    made, requests = _episode()
    files = export(made, requests, tmp_path / "new" / "folder", table="csv", seed=7, model=None)
    frame = pd.read_csv(files.requests, index_col="request")
    for name in ("arrival_s", "prompt", "decode", "predicted", "tier"):
        assert (frame[name].to_numpy() == getattr(requests, name)).all(), name
    assert frame["first_slot"].tolist() == [0, 0, 1, 2, 3, -1, -1]
    facts = json.loads(files.description.read_text())
    assert facts["seed"] == 7
    assert facts["slots"] == 10
    assert facts["requests_that_can_start"] == 5
    assert Scenario.load(facts["scenario"]).digest() == made.digest() == facts["digest"]


def test_parquet(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason="pip install pyarrow")
    made, requests = _episode()
    frame = pd.read_parquet(export(made, requests, tmp_path, model=None).requests)
    assert frame["predicted"].to_numpy().dtype == np.float32
    assert (frame["decode"] == requests.decode).all()


def test_faults_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, requests = _episode()
    monkeypatch.setattr("policies.hindsight.exports.find_spec", lambda _: None)
    for options, message in (
        ({}, "needs pyarrow .*or take 'csv'"),
        ({"table": "xlsx"}, "format 'xlsx': must be one of parquet, csv"),
        ({"table": "csv", "model": "qp"}, "model 'qp': must be one of milp, lp"),
        ({"table": "csv", "stride": 0}, "stride = 0"),
        ({"table": "csv", "most_columns": 9}, "more than 9: shorten"),
    ):
        with pytest.raises(ValueError, match=message):
            export(made, requests, tmp_path / "none", **options)
    assert not (tmp_path / "none").exists()
    with pytest.raises(ValueError, match="horizon = 0"):
        cut(made, requests, horizon=0, first=None)


def test_the_beginning_of_an_episode() -> None:
    made = Scenario.load("paper-overload")
    whole = draw(made, 5)
    env = LLMRouteEnv(made)
    env.reset(seed=5)
    assert (whole.decode == env.requests.decode).all()
    short, requests = cut(made, whole, horizon=100, first=None)
    assert short.horizon_periods == 100
    assert requests.arrival_s[-1] < 100 <= whole.arrival_s[len(requests)]
    _, few = cut(made, whole, horizon=None, first=3)
    assert len(few) == 3


def test_one_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    common = ["--out", str(tmp_path), "--horizon", "40", "--set", "horizon_periods=60"]
    assert main([*common, "--bound", "--policies", "central_fifo", "--seeds", "2"]) == 0
    printed = capsys.readouterr().out
    assert "without preemption" in printed
    gap = re.search(r"gap: a clairvoyant schedule earns \S+, (\S+)% below the bound", printed)
    assert gap is not None
    assert 0.0 <= float(gap[1]) < 5.0
    gaps = pd.read_csv(tmp_path / "gaps.csv")
    assert gaps["policy"].tolist() == ["hindsight plan", "central_fifo"] * 2
    assert (gaps["share"] <= 1.0).all()
    if find_spec("matplotlib") is not None:
        assert (tmp_path / "gaps.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "milp.mps").read_text().endswith("ENDATA\n")
    assert main([*common, "--set", "cluster.devices=none"]) == 2
    assert capsys.readouterr().err.startswith("error: ")
    with pytest.raises(SystemExit):
        main([*common, "--seed", "-1"])
    assert "not a whole number" in capsys.readouterr().err
