"""ServeGen's chunks: what is read, and whether what is drawn has the recorded statistics."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from llmroute_env.experiments.load import at_load
from llmroute_env.scenario import Scenario, ScenarioError
from llmroute_env.scenario.workload import ServeGenArrivals
from llmroute_env.workload import Streams, generate, prepare, servegen
from llmroute_env.workload.demand import demand
from llmroute_env.workload.servegen.chunks import clients_of
from llmroute_env.workload.servegen.generator import renewal
from llmroute_env.workload.traces import TraceError, TraceMissingError

SIGMAS = 4.5

TRACE = (
    "0,2.0,1.0,Gamma,1.0,0.5\n"
    "600,0,0,,0,0\n"
    "1200,4.0,1.4,Weibull,0.7,0.2\n"
    "1800,1.0,0.5,Gamma,4.0,0.25\n"
)
LENGTHS = {
    "0": {"input_tokens": "{10: 0.25, 20: 0.75}", "output_tokens": "{1: 0.5, 5: 0.5}"},
    "1200": {"input_tokens": "{300: 1.0}", "output_tokens": "{7: 1.0}"},
}


@pytest.fixture
def write(tmp_path: Path) -> Any:
    def run(
        number: int = 0, trace: str | bytes = TRACE, lengths: Any = LENGTHS
    ) -> ServeGenArrivals:
        text = trace.encode() if isinstance(trace, str) else trace
        (tmp_path / f"chunk-{number}-trace.csv").write_bytes(text)
        if lengths is not None:
            text = lengths if isinstance(lengths, str) else json.dumps(lengths)
            (tmp_path / f"chunk-{number}-dataset.json").write_text(text)
        return ServeGenArrivals(path=str(tmp_path))

    return run


def draw(options: ServeGenArrivals, horizon_s: float, seed: int = 0) -> Any:
    return servegen.draw(options, *np.random.default_rng(seed).spawn(2), horizon_s)


def fault(options: ServeGenArrivals) -> str:
    with pytest.raises(TraceError) as caught:
        servegen.sample(options, 100.0)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# --- the shared files ------------------------------------------------------------------------


def test_the_shared_chunks_load_whole(shared: Path) -> None:
    options = ServeGenArrivals(path=str(shared / "traces" / "servegen"))
    first, second = clients_of(options)
    assert (first.number, second.number) == (0, 2)
    for client, active, weibull in ((first, 5, 2), (second, 1_434, 387)):
        assert len(client.rate) == 2_016  # two weeks of ten minutes
        assert client.start_s[-1] == 14 * 86_400
        assert np.count_nonzero(client.rate) == active
        assert np.count_nonzero(client.weibull) == weibull
    assert [len(client.lengths) for client in (first, second)] == [2, 56]  # the others are empty
    for _, prompt, decode in second.lengths:
        assert prompt.share[-1] == decode.share[-1] == 1.0
        assert min(prompt.value[0], decode.value[0]) >= 1


def test_a_busy_hour_of_both_clients(shared: Path) -> None:
    options = ServeGenArrivals(path=str(shared / "traces" / "servegen"), start_s=338_400.0)
    rows = draw(options, 1_200.0)
    chunk = (shared / "traces" / "servegen" / "chunk-0-trace.csv").read_text().splitlines()
    rates = {float(row.split(",")[0]): float(row.split(",")[1]) for row in chunk}
    expected = 600.0 * (rates[338_400.0] + rates[339_000.0])
    # Gaps of the second ten minutes are of Weibull shape 0.2: far burstier than Poisson.
    assert np.count_nonzero(rows.client == 0) == pytest.approx(expected, rel=0.1)
    prompt, decode = servegen.sample(options, 1_200.0)
    assert rows.prompt.mean() == pytest.approx(prompt.mean(), rel=0.03)
    assert rows.decode.mean() == pytest.approx(decode.mean(), rel=0.03)


# --- statistics ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("weibull", "shape", "gaps"),
    [
        (False, 1.0, stats.expon()),
        (False, 0.3, stats.gamma(0.3, scale=1 / 0.3)),
        (False, 4.0, stats.gamma(4.0, scale=0.25)),
        (True, 0.5, stats.weibull_min(0.5, scale=1 / math.gamma(3.0))),
        (True, 2.0, stats.weibull_min(2.0, scale=1 / math.gamma(1.5))),
    ],
)
def test_gaps_are_of_the_distribution_and_stationary(
    weibull: bool, shape: float, gaps: Any
) -> None:
    times = renewal(np.random.default_rng(0), 5.0, 4_000.0, weibull=weibull, shape=shape)
    assert stats.kstest(np.diff(times) * 5.0, gaps.cdf).pvalue > 1e-3
    assert times[0] >= 0.0
    assert times[-1] < 4_000.0
    # Stationary: short stretches have their share of arrivals, in the mean, from the first second.
    streams = np.random.default_rng(1).spawn(4_000)
    first, counts = [], []
    for rng in streams:
        part = renewal(rng, 2.0, 3.0, weibull=weibull, shape=shape)
        counts.append(len(part))
        first.append(part[0] if len(part) else 3.0)
    deviation = np.std(counts, ddof=1) / math.sqrt(len(counts))
    assert abs(np.mean(counts) - 6.0) < SIGMAS * deviation
    # The first arrival is within x with probability (1/mean) * integral of P(gap > u) to x.
    for x in (0.1, 0.5, 1.5):
        reached = gaps.expect(lambda gap, x=x: np.minimum(gap, 2.0 * x))
        share = np.mean(np.array(first) <= x)
        assert (
            abs(share - reached) < SIGMAS * math.sqrt(reached * (1 - reached) / len(first)) + 1e-6
        )


def test_counts_follow_the_windows(write: Any) -> None:
    options = write()
    assert servegen.mean_rate(options, 2_400.0) == pytest.approx((2 + 0 + 4 + 1) / 4)
    assert servegen.peak_rate(options, 2_400.0) == 4.0
    assert servegen.mean_rate(options, 900.0) == pytest.approx(2 * 600 / 900)
    counts = np.array(
        [np.histogram(draw(options, 2_400.0, s).arrival_s, 4, (0, 2_400))[0] for s in range(40)]
    )
    for window, rate in enumerate((2.0, 0.0, 4.0, 1.0)):
        deviation = counts[:, window].std(ddof=1) / math.sqrt(40)
        assert abs(counts[:, window].mean() - 600 * rate) <= SIGMAS * deviation
    assert counts[:, 0].var() / counts[:, 0].mean() == pytest.approx(1.0, abs=0.7)  # Poisson
    assert counts[:, 2].var() > 1.3 * counts[:, 2].mean()
    assert counts[:, 3].var() < 0.6 * counts[:, 3].mean()


def test_an_episode_may_begin_inside_a_window(write: Any) -> None:
    options = write().model_copy(update={"start_s": 1_500.0, "rate_scale": 2.0})
    assert servegen.mean_rate(options, 600.0) == pytest.approx(2 * (4 + 1) / 2)
    times = draw(options, 600.0).arrival_s
    assert (np.diff(times) >= 0).all()
    assert np.count_nonzero(times < 300) == pytest.approx(8 * 300, rel=0.15)
    assert np.count_nonzero(times >= 300) == pytest.approx(2 * 300, rel=0.15)


def test_lengths_are_those_of_the_hour(write: Any) -> None:
    rows = draw(write(), 2_400.0)
    early = rows.arrival_s < 600.0
    assert set(rows.prompt[early].tolist()) == {10, 20}
    assert np.mean(rows.prompt[early] == 20) == pytest.approx(0.75, abs=0.06)
    assert np.mean(rows.decode[early] == 5) == pytest.approx(0.5, abs=0.07)
    independent = np.mean((rows.prompt[early] == 20) & (rows.decode[early] == 5))
    assert independent == pytest.approx(0.375, abs=0.07)
    assert set(rows.prompt[~early].tolist()) == {300}
    prompt, decode = servegen.sample(write(), 2_400.0)
    assert prompt.mean() == pytest.approx((2 * 17.5 + 5 * 300) / 7, rel=1e-3)
    assert decode.mean() == pytest.approx((2 * 3.0 + 5 * 7) / 7, rel=1e-3)


def test_empty_windows_take_the_nearest_lengths(write: Any) -> None:
    empty = {"input_tokens": "{}", "output_tokens": "{}"}
    rows = draw(
        write(lengths={"0": empty, **{k: v for k, v in LENGTHS.items() if k != "0"}}), 600.0
    )
    assert set(rows.prompt.tolist()) == {300}  # a later one, where none is earlier
    rows = draw(write(lengths={"0": LENGTHS["0"], "1200": empty}), 2_400.0)
    assert set(rows.prompt[rows.arrival_s > 1_200].tolist()) == {10, 20}


def test_zero_tokens_are_left_out(write: Any) -> None:
    odd = {"0": {"input_tokens": "{0: 0.5, 8: 0.5,}", "output_tokens": " { 3.0 : 1e0 } "}}
    rows = draw(write(lengths=odd), 600.0)
    assert set(rows.prompt.tolist()) == {8}
    assert set(rows.decode.tolist()) == {3}


def test_clients_are_superposed_and_keep_their_requests(write: Any) -> None:
    alone = draw(write(3), 600.0)
    both = draw(
        write(5, TRACE, {"0": {"input_tokens": "{9: 1}", "output_tokens": "{9: 1}"}}), 600.0
    )
    assert both.arrival_s[both.client == 0].tolist() == alone.arrival_s.tolist()
    assert both.prompt[both.client == 0].tolist() == alone.prompt.tolist()
    assert set(both.prompt[both.client == 1].tolist()) == {9}
    assert (np.diff(both.arrival_s) >= 0).all()
    options = ServeGenArrivals(path=write(5).path, clients=(5,))
    assert set(draw(options, 600.0).prompt.tolist()) <= {10, 20}
    one = ServeGenArrivals(path=str(Path(write(5).path) / "chunk-3-trace.csv"))
    assert draw(one, 600.0).arrival_s.tolist() == alone.arrival_s.tolist()


def test_bom_crlf_blank_lines_and_a_name_in_any_case(write: Any) -> None:
    text = b"\xef\xbb\xbf0, 2.0,1,gamma,1,1\r\n\r\n600,1,1,EXPONENTIAL,0,0\r\n"
    (client,) = clients_of(write(trace=text))
    assert client.rate.tolist() == [2.0, 1.0]
    assert client.shape.tolist() == [1.0, 1.0]
    assert client.start_s.tolist() == [0.0, 600.0, 1_200.0]


# --- faults ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("trace", "says"),
    [
        ("0,2,1,Gamma,1,1\n600,x,1,Gamma,1,1\n", "row 2 (line 2): rate = 'x': must be a number"),
        ("0,2,1,Gamma,1,1\n\n600,-1,1,,1,1\n", "row 2 (line 3): rate = '-1': must be a number of"),
        ("0,nan,1,,1,1\n", "row 1 (line 1): rate = 'nan'"),
        ("0,2,1,Gamma,0,1\n", "row 1 (line 1): shape = '0': must be from 0.01"),
        ("0,2,1,Pareto,1,1\n", "row 1 (line 1): distribution = 'Pareto': must be Gamma, Weibull"),
        ("600,2,1,,1,1\n0,2,1,,1,1\n", "row 2 (line 2): start = '0': must be after the row before"),
        ("0,2,1,Gamma\n", "row 1 (line 1): has 4 fields, must have 6: start, rate, cv"),
        ("start,rate,cv,name,a,b\n", "row 1 (line 1): start = 'start': must be a number"),
        ("", "is empty"),
        (b"\xff\xfe", "not UTF-8"),
    ],
)
def test_bad_arrivals(write: Any, trace: str | bytes, says: str) -> None:
    text = fault(write(trace=trace))
    assert "chunk-0-trace.csv" in text
    assert says in text


@pytest.mark.parametrize(
    ("lengths", "says"),
    [
        ("{", "not JSON"),
        ([], "must be a JSON object"),
        ({"a": LENGTHS["0"]}, "window 'a': must be its beginning in seconds"),
        ({"0": {"input_tokens": "{1: 1}"}}, "window '0': output_tokens is missing"),
        (
            {"0": {"input_tokens": "{1}", "output_tokens": "{1: 1}"}},
            "input_tokens = '{1}': must be",
        ),
        ({"0": {"input_tokens": "{a: 1}", "output_tokens": "{}"}}, "input_tokens = '{a: 1}': must"),
        ({"0": {"input_tokens": "{1: 0.5}", "output_tokens": "{}"}}, "they sum to 0.5"),
        ({"0": {"input_tokens": "{1: 2, 2: -1}", "output_tokens": "{}"}}, "must be at least 0"),
        ({"0": {"input_tokens": "{1.5: 1}", "output_tokens": "{}"}}, "1.5: must be a whole number"),
        ({"0": {"input_tokens": "{}", "output_tokens": "{}"}}, "no window has both"),
    ],
)
def test_bad_lengths(write: Any, lengths: Any, says: str) -> None:
    text = fault(write(lengths=lengths))
    assert "chunk-0-dataset.json" in text
    assert says in text


def test_missing_files_are_named(write: Any, tmp_path: Path) -> None:
    nowhere = ServeGenArrivals(path=str(tmp_path / "none"), source="https://example.org/s")
    with pytest.raises(TraceMissingError, match=r"get them from https://example\.org/s.*path"):
        servegen.sample(nowhere, 100.0)
    assert math.isnan(servegen.mean_rate(nowhere, 100.0))
    with pytest.raises(TraceMissingError, match=r"chunk-0-dataset\.json: not found"):
        servegen.sample(write(lengths=None), 100.0)
    with pytest.raises(TraceError, match=r"clients: .* has no chunk-4-trace\.csv; there are 0"):
        servegen.sample(ServeGenArrivals(path=write().path, clients=(0, 4)), 100.0)
    other = tmp_path / "rates.csv"
    other.write_text(TRACE)
    with pytest.raises(TraceError, match=r"must be named chunk-N-trace\.csv"):
        servegen.sample(ServeGenArrivals(path=str(other)), 100.0)


def test_an_episode_must_lie_in_the_recording(write: Any) -> None:
    with pytest.raises(ScenarioError, match=r"start_s = 0: with a horizon of 2401 s .* 0 to 2400"):
        servegen.mean_rate(write(), 2_401.0)
    quiet = write().model_copy(update={"start_s": 600.0})
    with pytest.raises(ScenarioError, match=r"start_s = 600: no client .* in the 500 s from there"):
        draw(quiet, 500.0)


def test_a_changed_file_is_read_again(write: Any) -> None:
    options = write()
    assert servegen.mean_rate(options, 600.0) == 2.0
    write(trace=TRACE.replace("0,2.0", "0,3.0", 1))
    os.utime(Path(options.path) / "chunk-0-trace.csv", ns=(1, 1))
    assert servegen.mean_rate(options, 600.0) == 3.0


# --- through a scenario ----------------------------------------------------------------------


def scenario(path: str, **overrides: Any) -> Scenario:
    return Scenario.load(
        "paper-stable",
        {
            "horizon_periods": 600,
            "workload.arrivals": {"kind": "servegen", "path": path},
            "workload.lengths": {"kind": "servegen"},
            **{key.replace("__", "."): value for key, value in overrides.items()},
        },
    )


def streams(seed: int = 0) -> Streams:
    return Streams.spawn(np.random.default_rng(seed))


def test_a_scenario_draws_clients(write: Any) -> None:
    chosen = scenario(write().path)
    prepare(chosen)
    table = generate(chosen, streams()).validate()
    expected = demand(chosen)
    assert len(table) == pytest.approx(expected.requests, rel=0.1)
    assert expected.requests == pytest.approx(1_200)
    assert np.array_equal(generate(chosen, streams()).prompt, table.prompt)
    assert not np.array_equal(generate(chosen, streams(1)).arrival_s[:50], table.arrival_s[:50])
    mean = generate(chosen.with_prediction("mean"), streams()).predicted
    assert set(mean.tolist()) == {3.0}


def test_clients_may_come_with_other_lengths(write: Any) -> None:
    quantiles = {"kind": "quantiles", "table": "azure-2023-conv"}
    path = write(lengths=None).path
    table = generate(scenario(path, workload__lengths=quantiles), streams()).validate()
    assert len(set(table.prompt.tolist())) > 100


def test_lengths_of_clients_need_the_clients() -> None:
    with pytest.raises(ScenarioError, match=r"arrivals\.kind = 'poisson': must be 'servegen' with"):
        Scenario.load("paper-stable", {"workload.lengths": {"kind": "servegen"}})


def test_a_missing_folder_shows_before_anything_runs(tmp_path: Path) -> None:
    chosen = scenario(str(tmp_path / "none"))  # loads: the files are wanted later
    with pytest.raises(ScenarioError, match="no ServeGen chunks"):
        prepare(chosen)


def test_offered_load_is_that_of_the_windows(write: Any, tmp_path: Path) -> None:
    load = scenario(write().path).offered_load()
    assert load.requests == pytest.approx(1_200)
    assert load.batch == pytest.approx(2.0 * 3.0 / (4 * 24))  # o is 3 in the mean
    assert math.isnan(scenario(str(tmp_path / "none")).offered_load().batch)


def test_another_load_scales_the_clients(write: Any) -> None:
    chosen = scenario(write().path)
    twice = at_load(chosen, 2.0 * chosen.offered_load().rho)
    assert demand(twice).rate == pytest.approx(2.0 * demand(chosen).rate)
