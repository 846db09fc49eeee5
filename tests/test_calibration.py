"""Calibration: fits on data with a known answer, errors on the real profiles, the script."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path
from types import ModuleType

import numpy as np
import pandas as pd
import pytest

from llmroute_env.cluster.calibration import calibrate, csvs, differences, fitting
from llmroute_env.cluster.calibration.build import Calibration
from llmroute_env.cluster.calibration.facts import A100, MODELS
from llmroute_env.cluster.calibration.report import AIMS, error_rows, splitwise_comparison
from llmroute_env.scenario import config_directory

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def profiles(shared: Path) -> Path:
    folder = shared / "profiles"
    if not folder.is_dir():
        pytest.skip(f"{folder} is absent: the profiles are published in microsoft/vidur")
    return folder


@pytest.fixture(scope="module")
def calibration(profiles: Path) -> Calibration:
    return calibrate(profiles)


@pytest.fixture(scope="module")
def script() -> ModuleType:
    path = ROOT / "scripts" / "calibrate_timing.py"
    spec = importlib.util.spec_from_file_location("calibrate_timing", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# --- fits with a known answer ---------------------------------------------------------------


def test_table_keeps_a_step_and_drops_what_is_flat() -> None:
    size = np.arange(1, 101, dtype=np.float64)
    table = fitting.monotone_table(size, np.where(size <= 64, 300.0, 400.0), tolerance=0.01)
    np.testing.assert_allclose(1e6 * table.seconds(np.array([1, 40, 64, 65, 100])),
                               [300, 300, 300, 400, 400])  # fmt: skip
    assert table.sizes == [1, 64, 65, 100]


def test_table_pools_what_is_not_monotone() -> None:
    table = fitting.monotone_table(
        np.array([1.0, 2, 3, 3]), np.array([10.0, 30, 10, 20]), tolerance=0
    )
    # Size 3 averages to 15 with weight 2 and is pooled with the 30 of size 2: 60 / 3.
    np.testing.assert_allclose(1e6 * table.seconds(np.array([1, 2, 3])), [10, 20, 20])


def test_table_stops_at_its_knots() -> None:
    size = np.arange(1, 1000, dtype=np.float64)
    assert len(fitting.monotone_table(size, size**2, tolerance=0, max_knots=12).sizes) == 12


@pytest.mark.parametrize("relative", [False, True])
def test_least_squares_recovers_coefficients_of_any_scale(relative: bool) -> None:
    x = np.column_stack([np.ones(50), np.linspace(1e6, 1e9, 50)])
    solution = fitting.least_squares(x, x @ [20.0, 6e-7], relative=relative)
    np.testing.assert_allclose(solution, [20.0, 6e-7], rtol=1e-9)


def test_split_holds_out_whole_sizes_and_repeats() -> None:
    groups = np.repeat(np.arange(100), 3)
    fit = fitting.split(groups, seed=1)
    np.testing.assert_array_equal(fit, fitting.split(groups, seed=1))
    assert not np.array_equal(fit, fitting.split(groups, seed=2))
    assert not set(groups[fit]) & set(groups[~fit])
    assert len(set(groups[~fit])) == round(0.2 * 98)
    assert fit[0]
    assert fit[-1]


def test_relative_errors_by_range() -> None:
    errors = fitting.relative_errors(
        np.array([10.0, 10, 100]), np.array([11.0, 10, 150]), np.array([1, 64, 65]), (0, 64, np.inf)
    )
    assert errors["rows"] == 3
    assert errors["median"] == pytest.approx(0.1)
    assert errors["ranges"]["0-64"] == {"rows": 2, "median": 0.05, "median_us": 0.5}
    assert errors["ranges"]["64+"] == {"rows": 1, "median": 0.5, "median_us": 50.0}


# --- the real profiles ----------------------------------------------------------------------


def test_committed_files_are_what_the_profiles_give(calibration: Calibration) -> None:
    assert differences(calibration, config_directory()) == []


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_held_out_errors_meet_the_aims(profiles: Path, seed: int) -> None:
    judged = 0
    for name, kind, error in error_rows(calibrate(profiles, seed=seed)):
        if kind in AIMS:
            judged += 1
            assert error["median"] < AIMS[kind], name
            assert error["rows"] > 40, name
    assert judged == len(MODELS) * 4 + 1


def test_attention_is_linear_in_kv_at_the_known_bandwidth(calibration: Calibration) -> None:
    errors = calibration.device.errors["attention_decode"]
    assert errors["r_squared"] == pytest.approx(0.98, abs=0.005)
    assert errors["effective_tb_per_s"] == pytest.approx(1.64, abs=0.02)


def test_layers_sum_vidurs_nine_operators(profiles: Path, calibration: Calibration) -> None:
    raw = pd.read_csv(profiles / MODELS[0].operators_csv)
    rows = raw[(raw["num_tensor_parallel_workers"] == 1) & (raw["num_tokens"] == 64)]
    expected = 1e3 * rows[[csvs.time_column(name) for name in csvs.LAYER_OPERATORS]].sum(axis=1)
    layer = calibration.models[0].profiles["a100-80gb"][1].layer
    assert 1e6 * float(layer.seconds(64)) == pytest.approx(expected.mean(), rel=0.015)


def test_splitwise_is_slower_and_the_gap_grows_with_tp(calibration: Calibration) -> None:
    """The measured stack hides no launch overhead: 45 ms at TP 8, where our kernels take half."""
    comparison = splitwise_comparison(calibration)
    assert sorted(comparison) == [2, 4, 8]
    assert comparison[8]["measured_ms"] == pytest.approx(45, abs=1)
    ratios = [comparison[tp]["ratio"] for tp in (2, 4, 8)]
    assert ratios == sorted(ratios, reverse=True)
    assert 0.4 < ratios[2] < ratios[0] < 1


# --- bad input ------------------------------------------------------------------------------


@pytest.fixture
def copy(profiles: Path, tmp_path: Path) -> Path:
    for path in profiles.glob("*.csv"):
        (tmp_path / path.name).symlink_to(path)
    return tmp_path


def _edit(folder: Path, name: str, change: object) -> None:
    path = folder / name
    frame = pd.read_csv(path)
    path.unlink()
    change(frame).to_csv(path, index=False)  # type: ignore[operator]


def _set(column: str, value: object):  # type: ignore[no-untyped-def]
    def change(frame: pd.DataFrame) -> pd.DataFrame:
        frame = frame.astype({column: object})
        frame.loc[3, column] = value
        return frame

    return change


OPERATORS = MODELS[0].operators_csv


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        (OPERATORS, lambda f: f.drop(columns="time_stats.add.median"),
         r"missing column time_stats\.add\.median"),
        (OPERATORS, lambda f: f.iloc[:0], "no rows"),
        (OPERATORS, _set("time_stats.add.median", "fast"),
         r"line 5: time_stats\.add\.median = fast must be a number"),
        (OPERATORS, _set("time_stats.add.median", -1),
         r"line 5: time_stats\.add\.median = -1\.0 must be 0 or more"),
        (OPERATORS, _set("num_tokens", 0), r"line 5: num_tokens = 0 must be above 0"),
        (OPERATORS, lambda f: f.assign(n_embd=5120), r"n_embd is \[5120\], but .* has 4096"),
        (A100.attention_csv, lambda f: f.drop(columns="kv_cache_size"),
         "missing column kv_cache_size"),
        (A100.attention_csv, lambda f: f.assign(n_kv_head=64), "no row with n_kv_head = 8"),
        (A100.attention_csv, _set("time_stats.attn_decode.median", None),
         r"line 5: time_stats\.attn_decode\.median = (nan|None) must be 0 or more"),
        (A100.all_reduce_csv, lambda f: f.assign(collective="all_gather"), "no all_reduce row"),
        (A100.splitwise_csv, lambda f: f.assign(hardware="tpu"), "no row of llama2-70b"),
    ],
)  # fmt: skip
def test_a_malformed_profile_ends_in_one_line(
    copy: Path, name: str, change: object, message: str
) -> None:
    _edit(copy, name, change)
    with pytest.raises(ValueError, match=message) as caught:
        calibrate(copy, models=MODELS[:1])
    assert "\n" not in str(caught.value)
    assert name in str(caught.value)


def test_a_file_that_is_no_table(copy: Path) -> None:
    (copy / OPERATORS).unlink()
    (copy / OPERATORS).write_bytes(b"\xff\xfe\x00\x01")
    with pytest.raises(ValueError, match=r"not a CSV table|missing column"):
        calibrate(copy, models=MODELS[:1])


def test_an_absent_profile_says_where_it_is_published(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no such profile: .*microsoft/vidur"):
        calibrate(tmp_path)


def test_the_second_profile_is_optional(copy: Path) -> None:
    (copy / A100.splitwise_csv).unlink()
    fitted = calibrate(copy, models=MODELS[:1])
    assert fitted.splitwise is None
    assert splitwise_comparison(fitted) == {}


# --- the script -----------------------------------------------------------------------------


def test_script_writes_checks_and_does_not_overwrite(
    script: ModuleType, profiles: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--profiles", str(profiles), "--out", str(tmp_path), "--models", "llama-2-7b"]
    assert script.main(arguments) == 0
    printed = capsys.readouterr().out
    assert "Iteration time of llama-2-7b" in printed
    assert "held-out" in printed
    written = tmp_path / "models" / "llama-2-7b.yaml"
    assert written.read_bytes() == (config_directory() / "models/llama-2-7b.yaml").read_bytes()

    assert script.main(arguments) == 2
    error = capsys.readouterr().err
    assert "exists: --force overwrites" in error
    assert error.count("\n") == 1

    assert script.main([*arguments, "--check"]) == 0
    text = written.read_text()
    written.write_text(text.replace("context_limit: 4096", "context_limit: 2048"))
    assert script.main([*arguments, "--check"]) == 1
    assert "context_limit = 2048, fitted 4096" in capsys.readouterr().out

    assert script.main([*arguments, "--force"]) == 0
    assert written.read_text() == text
    shutil.rmtree(tmp_path / "models")
    assert script.main([*arguments, "--check"]) == 1
    assert "missing" in capsys.readouterr().out


def test_script_names_an_unknown_model(
    script: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    assert script.main(["--models", "gpt"]) == 2
    assert "known are llama-2-7b" in capsys.readouterr().err


def test_script_needs_profiles(
    script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert script.main(["--profiles", str(tmp_path), "--check"]) == 2
    assert "no such profile" in capsys.readouterr().err
