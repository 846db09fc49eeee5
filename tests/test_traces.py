"""Trace files: formats by content, faults by place, options, and replay through a scenario."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llmroute_env.scenario import Scenario, ScenarioError
from llmroute_env.scenario.workload import Columns, Trace
from llmroute_env.workload import Streams, generate, prepare
from llmroute_env.workload.traces import (
    FORMATS,
    TraceData,
    TraceError,
    TraceMissingError,
    load_trace,
)

VIDUR = "arrived_at,num_prefill_tokens,num_decode_tokens\n"
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"


@pytest.fixture
def write(tmp_path: Path) -> Any:
    def run(text: str | bytes, name: str = "trace.csv") -> str:
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return str(path)

    return run


def load(path: str | Path, limit: int | None = None, **options: Any) -> TraceData:
    return load_trace(Trace(path=str(path), **options), limit)


def fault(path: str | Path, **options: Any) -> str:
    """The one line that reading ends with."""
    with pytest.raises(TraceError) as caught:
        load(path, **options)
    text = str(caught.value)
    assert "\n" not in text
    return text


# --- the shared files ------------------------------------------------------------------------


def test_azure_2023_loads_whole(shared: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trace = load(shared / "traces" / "azure_2023_conv.csv", 4_096)
    report = trace.report
    assert (report.format, report.rows, report.requests) == ("azure", 19_366, 19_366)
    assert (report.reordered, report.skipped_zero_output, report.beyond_max) == (0, 0, 0)
    assert trace.arrival_s[0] == 0.0
    assert trace.arrival_s[1] == pytest.approx(4.314579, abs=1e-12)  # 50.9951690 - 46.6805900
    assert trace.prompt[[0, 1, -1]].tolist() == [374, 396, 197]
    assert trace.decode[[0, 1, -1]].tolist() == [44, 109, 183]  # the last line has no newline
    assert report.over_limit / report.requests == pytest.approx(0.083, abs=0.001)
    assert "19366 of 19366 rows, 1612 over the context limit" in report.describe()


def test_azure_code_loads_whole(shared: Path) -> None:
    report = load(shared / "traces" / "azure_2023_code.csv", 4_096).report
    assert report.requests == 8_819
    assert report.over_limit / report.requests == pytest.approx(0.143, abs=0.001)


def test_vidurs_copy_is_the_same_trace(shared: Path) -> None:
    azure = load(shared / "traces" / "azure_2023_conv.csv")
    vidur = load(shared / "traces" / "vidur_splitwise_conv.csv")
    assert vidur.report.format == "vidur"
    assert np.array_equal(azure.prompt, vidur.prompt)
    assert np.array_equal(azure.decode, vidur.decode)
    assert np.abs(azure.arrival_s - vidur.arrival_s).max() < 1e-6  # Vidur keeps 6 digits


def test_the_embedded_tables_come_from_these_traces(shared: Path) -> None:
    from scipy.stats import spearmanr

    from llmroute_env.workload.quantiles import load_table

    for name in ("conv", "code"):
        trace = load(shared / "traces" / f"azure_2023_{name}.csv")
        table = load_table(f"azure-2023-{name}")
        assert table.rows == trace.report.requests
        spearman = spearmanr(trace.prompt, trace.decode).statistic
        assert table.spearman == pytest.approx(spearman, abs=1e-4)
        for tokens, marginal in ((trace.prompt, table.prompt), (trace.decode, table.decode)):
            assert (marginal.value[0], marginal.value[-1]) == (tokens.min(), tokens.max())


@pytest.mark.parametrize("name", ["conv", "code"])
def test_the_script_reproduces_the_embedded_table(shared: Path, tmp_path: Path, name: str) -> None:
    root = Path(__file__).parents[1]
    trace = shared / "traces" / f"azure_2023_{name}.csv"
    command = ["scripts/build_lengths.py", str(trace), "--name", f"azure-2023-{name}"]
    done = subprocess.run(
        [sys.executable, *command, "--out", str(tmp_path)],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "prompt trace / table: mean" in done.stdout
    built = (tmp_path / f"azure-2023-{name}.yaml").read_text()
    assert built == (root / "configs" / "lengths" / f"azure-2023-{name}.yaml").read_text()


def test_azure_2024_dates(cases: Path) -> None:
    trace = load(cases / "azure_2024_style.csv")
    assert trace.report.format == "azure"
    assert trace.arrival_s.tolist() == pytest.approx([0.0, 0.007405, 0.99007], abs=1e-12)
    assert trace.prompt.tolist() == [2162, 2399, 76]


def test_zero_output_is_refused_or_skipped(cases: Path) -> None:
    path = cases / "zero_output.csv"
    text = fault(path)
    assert "zero_output.csv: row 2 (line 3): num_decode_tokens = 0" in text
    assert "workload.trace.zero_output = skip" in text
    trace = load(path, zero_output="skip")
    assert trace.decode.tolist() == [20, 10]
    assert (trace.report.rows, trace.report.skipped_zero_output) == (3, 1)
    assert "1 without output skipped" in trace.report.describe()


@pytest.mark.parametrize(
    ("name", "value"), [("bad_negative", "-5"), ("bad_nan", "nan"), ("bad_text", "abc")]
)
def test_a_bad_value_is_named_with_its_place(cases: Path, name: str, value: str) -> None:
    text = fault(cases / f"{name}.csv")
    assert f"{name}.csv: row 2 (line 3): num_prefill_tokens = '{value}'" in text


def test_unsorted_rows_are_sorted_with_one_warning(cases: Path) -> None:
    with pytest.warns(UserWarning, match=r"unsorted\.csv.* 3 rows changed") as caught:
        trace = load(cases / "unsorted.csv")
    assert len(caught) == 1
    assert trace.arrival_s.tolist() == [1.0, 3.0, 5.0]
    assert trace.report.reordered == 3


def test_what_is_missing_is_named(cases: Path) -> None:
    assert "column num_decode_tokens is missing (format vidur)" in fault(
        cases / "missing_column.csv"
    )
    assert "empty.csv: has a header but no rows" in fault(cases / "empty.csv")


def test_long_rows_are_left_or_clipped(cases: Path) -> None:
    kept = load(cases / "clip_long.csv", 4_096)
    assert kept.decode.tolist() == [5_000, 3_000]
    assert (kept.report.over_limit, kept.report.clipped_decode) == (2, 0)
    clipped = load(cases / "clip_long.csv", 4_096, over_limit="clip")
    assert clipped.prompt.tolist() == [10, 3_000]
    assert clipped.decode.tolist() == [4_086, 1_096]
    assert (clipped.report.over_limit, clipped.report.clipped_decode) == (2, 2)


@pytest.mark.parametrize("name", ["growth_overflow", "identical_trickle", "long_among_short"])
def test_arrivals_in_seconds_stay_as_written(cases: Path, name: str) -> None:
    trace = load(cases / f"{name}.csv")
    first = float((cases / f"{name}.csv").read_text().splitlines()[1].split(",")[0])
    assert trace.arrival_s[0] == first


# --- formats ---------------------------------------------------------------------------------


def test_a_plain_csv_needs_no_options(write: Any) -> None:
    trace = load(write("decode,prompt,arrival_s,user\n5,7,0.5,a\n6,8,0.5,b\n"))
    assert trace.report.format == "csv"
    assert trace.arrival_s.tolist() == [0.5, 0.5]
    assert (trace.prompt.tolist(), trace.decode.tolist()) == ([7, 8], [5, 6])


def test_a_plain_csv_with_mapped_columns_and_units(write: Any) -> None:
    path = write("ts,in,out\n1500,7,5\n2500,8,6\n")
    columns = Columns(arrival="ts", prompt="in", decode="out")
    trace = load(path, columns=columns, time_unit="ms")
    assert trace.arrival_s.tolist() == [1.5, 2.5]
    assert "column outs is missing; the header has ts, in, out" in fault(
        path, columns=Columns(arrival="ts", prompt="in", decode="outs")
    )
    assert "is of no known format" in fault(path)
    assert "workload.trace.columns" in fault(path)


def test_a_plain_csv_may_hold_dates(write: Any) -> None:
    text = "arrival_s,prompt,decode\n2024-01-01T00:00:00Z,1,1\n2024-01-01T00:00:01.5Z,1,1\n"
    assert load(write(text)).arrival_s.tolist() == [0.0, 1.5]
    text = "arrival_s,prompt,decode\n0.0,1,1\nsoon,1,1\n"
    assert "row 2 (line 3): arrival_s = 'soon': must be a number" in fault(write(text))


def test_the_format_may_be_forced(write: Any) -> None:
    path = write(VIDUR + "0,1,1\n")
    assert load(path, format="vidur").report.format == "vidur"
    assert "column TIMESTAMP is missing" in fault(path, format="azure")
    text = fault(path, format="vidor")
    assert f"must be one of auto, {', '.join(FORMATS)}; did you mean 'vidur'?" in text


def test_dates_keep_seven_digits_and_zones(write: Any) -> None:
    rows = (
        "2024-05-10 00:00:00.0000001,1,1\n"
        "2024-05-10 00:00:00.0000004+00:00,1,1\n"
        "2024-05-10 02:00:01+02:00,1,1\n"
    )
    trace = load(write(AZURE + rows))
    assert trace.arrival_s.tolist() == pytest.approx([0.0, 3e-7, 0.9999999], abs=1e-12)
    text = fault(write(AZURE + "2024-05-10 00:00:00,1,1\n2024-13-10 00:00:00,1,1\n"))
    assert "row 2 (line 3): TIMESTAMP = '2024-13-10 00:00:00': must be a date and time" in text


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_every_format_says_where_its_files_are(name: str, tmp_path: Path) -> None:
    with pytest.raises(TraceMissingError, match=r"not found: get it from .*workload\.trace\.path"):
        load(tmp_path / "absent.csv", format=name)


def test_a_missing_file_names_the_scenarios_source(tmp_path: Path) -> None:
    with pytest.raises(TraceMissingError, match="get it from https://example"):
        load(tmp_path / "absent.csv", source="https://example.org/t.csv")


# --- files as they come ----------------------------------------------------------------------


def test_bom_blank_lines_blanks_and_crlf(write: Any) -> None:
    text = b"\xef\xbb\xbfarrived_at, num_prefill_tokens ,num_decode_tokens\r\n0,1,2\r\n\r\n1, 3,4.0"
    trace = load(write(text))
    assert (trace.prompt.tolist(), trace.decode.tolist()) == ([1, 3], [2, 4])


def test_lines_count_blank_ones(write: Any) -> None:
    assert "row 2 (line 4): num_decode_tokens = 'x'" in fault(write(VIDUR + "0,1,2\n\n1,3,x\n"))


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ("1,2.5,4", "num_prefill_tokens = '2.5': must be a whole number"),
        ("1,0,4", "num_prefill_tokens = '0': must be a number of at least 1"),
        ("1,3000000000,4", "num_prefill_tokens = '3000000000': must be a whole number of tokens"),
        ("1,2,-1", "num_decode_tokens = '-1': must be a number of at least 0"),
        ("1,2,inf", "num_decode_tokens = 'inf'"),
        ("-1,2,4", "arrived_at = '-1': must be a number of at least 0"),
        ("1,2,", "num_decode_tokens = ''"),
        ("1,2", "num_decode_tokens = "),
        ("1,2,3,4", "not a CSV of one row per request"),
    ],
)
def test_bad_rows(write: Any, row: str, says: str) -> None:
    text = fault(write(VIDUR + "0,1,2\n" + row + "\n"))
    assert says in text
    assert "3" in text  # the line


def test_not_a_trace_at_all(write: Any) -> None:
    assert "is empty, not even a header" in fault(write(""))
    assert "is empty, not even a header" in fault(write("\n\n"))
    assert "Git LFS pointer" in fault(write("version https://git-lfs.github.com/spec/v1\noid x\n"))
    assert "is of no known format" in fault(write(b"\x00\x01\x02\xff"))
    assert "no row has an output token" in fault(write(VIDUR + "0,1,0\n"), zero_output="skip")
    assert "not UTF-8" in fault(write(VIDUR.encode() + b"0,1,\xff\n"))
    assert "more fields than the header" in fault(write(VIDUR + "0,1,2,3\n1,2,3,4\n"))


# --- options ---------------------------------------------------------------------------------


def test_ties_keep_their_order(write: Any) -> None:
    with pytest.warns(UserWarning, match=" 3 rows changed"):
        trace = load(write(VIDUR + "1,1,1\n1,2,1\n0,3,1\n1,4,1\n"))
    assert trace.prompt.tolist() == [3, 1, 2, 4]


def test_skipped_rows_do_not_count_as_reordered(write: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trace = load(write(VIDUR + "5,1,0\n0,2,1\n1,3,1\n"), zero_output="skip")
    assert trace.prompt.tolist() == [2, 3]


def test_rate_scale_and_max_requests(write: Any) -> None:
    path = write(VIDUR + "".join(f"{i},1,{i + 1}\n" for i in range(10)))
    trace = load(path, rate_scale=4.0, max_requests=3)
    assert trace.arrival_s.tolist() == [0.0, 0.25, 0.5]
    assert (trace.report.requests, trace.report.beyond_max) == (3, 7)
    assert trace.report.last_arrival_s == 0.5
    assert load(path, max_requests=99).report.beyond_max == 0


def test_a_prompt_over_the_limit_leaves_one_output_token(write: Any) -> None:
    path = write(VIDUR + "0,5000,10\n1,4096,10\n2,4095,1\n3,4000,96\n")
    trace = load(path, 4_096, over_limit="clip")
    assert trace.prompt.tolist() == [4_095, 4_095, 4_095, 4_000]
    assert trace.decode.tolist() == [1, 1, 1, 96]
    report = trace.report
    assert (report.over_limit, report.clipped_prompt, report.clipped_decode) == (2, 2, 2)


# --- replay ----------------------------------------------------------------------------------


def scenario(path: str, **overrides: Any) -> Scenario:
    return Scenario.load(
        "trace",
        {
            "workload.trace.path": path,
            "period_s": 1.0,
            "cluster.timing": {"kind": "constant", "iteration_s": 1.0},
            "cluster.memory": None,
            "cluster.batch_limit": 8,
            "cluster.kv_limit": 10_000,
            **{key.replace("__", "."): value for key, value in overrides.items()},
        },
    )


def streams(seed: int = 0) -> Streams:
    return Streams.spawn(np.random.default_rng(seed))


ROWS = VIDUR + "0,10,5\n0.5,20,6\n7.25,30,7\n9,40,8\n"


def test_a_trace_is_replayed_whole(write: Any) -> None:
    chosen = scenario(write(ROWS))
    prepare(chosen)
    assert chosen.horizon_periods == 10  # 9.0 s is inside [0, 10)
    table = generate(chosen, streams()).validate()
    assert table.arrival_s.tolist() == [0.0, 0.5, 7.25, 9.0]
    assert table.prompt.tolist() == [10, 20, 30, 40]
    assert table.decode.tolist() == [5, 6, 7, 8]
    table.decode[:] = 99  # an episode's own copy
    assert generate(chosen, streams()).decode.tolist() == [5, 6, 7, 8]
    load_now = chosen.offered_load()
    assert load_now.requests == 4
    assert load_now.batch == pytest.approx((5 + 6 + 7 + 8) / (10 * 4 * 8))


def test_a_shorter_horizon_cuts_with_a_warning(write: Any) -> None:
    chosen = scenario(write(ROWS), horizon_periods=9)
    with pytest.warns(UserWarning, match=r"1 of 4 requests arrive at or after the horizon"):
        table = generate(chosen, streams())
    assert table.prompt.tolist() == [10, 20, 30]


def test_a_changed_file_is_read_again(write: Any) -> None:
    path = write(ROWS)
    chosen = scenario(path)
    assert len(generate(chosen, streams())) == 4
    write(ROWS + "11,50,9\n")
    os.utime(path, ns=(1, 1))
    assert len(generate(chosen, streams())) == 5
    assert chosen.horizon_periods == 12


def test_trace_arrivals_with_drawn_lengths(write: Any) -> None:
    chosen = scenario(
        write(ROWS), workload__lengths={"kind": "quantiles", "table": "azure-2023-conv"}
    )
    first, second = generate(chosen, streams(0)), generate(chosen, streams(1))
    assert np.array_equal(first.arrival_s, second.arrival_s)
    assert not np.array_equal(first.prompt, second.prompt)


def test_drawn_arrivals_with_rows_of_the_trace(write: Any) -> None:
    chosen = scenario(
        write(ROWS),
        workload__arrivals={"kind": "poisson", "rate": 5.0},
        horizon_periods=2_000,
    )
    table = generate(chosen, streams()).validate()
    rows, counts = np.unique(np.stack([table.prompt, table.decode]), axis=1, return_counts=True)
    assert rows.T.tolist() == [[10, 5], [20, 6], [30, 7], [40, 8]]  # rows stay together
    assert counts / len(table) == pytest.approx(0.25, abs=0.02)
    assert chosen.offered_load().batch == pytest.approx(5.0 * 6.5 / 32)


def test_learned_predictors_know_the_trace(write: Any) -> None:
    chosen = scenario(write(ROWS)).with_prediction("mean")
    assert generate(chosen, streams()).predicted.tolist() == [6.5] * 4
    chosen = chosen.with_prediction({"kind": "bucketed", "edges": [7]})
    assert generate(chosen, streams()).predicted.tolist() == [5.5, 5.5, 7.5, 7.5]


def test_the_limit_to_clip_to_is_the_models(write: Any) -> None:
    path = write(VIDUR + "0,10,5000\n")
    chosen = Scenario.load(
        "trace", {"workload.trace.path": path, "workload.trace.over_limit": "clip"}
    )
    assert generate(chosen, streams()).decode.tolist() == [4_086]


def test_prepare_names_what_is_wrong_before_anything_runs(write: Any, tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="row 1"):
        prepare(scenario(write(VIDUR + "0,1,x\n")))
    with pytest.raises(ScenarioError, match="not found"):
        prepare(scenario(str(tmp_path / "absent.csv")))
    with pytest.raises(ScenarioError, match="does not fit"):
        prepare(Scenario.load("azure-conv-a100", {"cluster.timing.model": "llama-2-70b"}))
