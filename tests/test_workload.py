"""Drawn workloads against closed forms, with tolerances from their own sampling error."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import stats

from llmroute_env.scenario import Scenario, config_directory, list_scenarios
from llmroute_env.scenario.workload import (
    Biased,
    Bucketed,
    Gamma,
    Lognormal,
    LognormalError,
    LognormalLengths,
    Mean,
    OnOff,
    Perfect,
    Poisson,
    QuantileLengths,
    RateShift,
    Uniform,
)
from llmroute_env.workload import RequestTable, Streams, arrivals, generate, lengths, prediction
from llmroute_env.workload.prediction import LengthSample
from llmroute_env.workload.quantiles import load_table

DRAWN = [name for name in list_scenarios() if Scenario.load(name).workload.trace is None]
#: variance of the number of requests over its mean, at most: E[T^2] / E[T] for sessions of T turns
CLUSTERED = {"chat-prefix": 7.0, "agent-prefix": 19.0}
SIGMAS = 4.5  #: a check that holds fails by chance once in 150,000 seeds; the seeds are fixed


def streams(seed: int = 0) -> Streams:
    return Streams.spawn(np.random.default_rng(seed))


def near(value: float, expected: float, deviation: float) -> None:
    assert abs(value - expected) <= SIGMAS * deviation, (value, expected, deviation)


# --- the table -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", DRAWN)
def test_every_scenario_draws_a_valid_table(name: str) -> None:
    scenario = Scenario.load(name)
    table = generate(scenario, streams()).validate()
    assert table.arrival_s[-1] < scenario.horizon_s
    load = scenario.offered_load()
    near(len(table), load.requests, math.sqrt(load.requests * CLUSTERED.get(name, 1.0)))


@pytest.mark.parametrize("name", DRAWN)
def test_one_seed_one_table(name: str) -> None:
    scenario = Scenario.load(name)
    first, second, other = (generate(scenario, streams(seed)) for seed in (3, 3, 4))
    for column in ("arrival_s", "prompt", "decode", "predicted", "tier"):
        assert np.array_equal(getattr(first, column), getattr(second, column))
    assert not np.array_equal(first.decode[:100], other.decode[:100])


def test_streams_are_the_childrens_in_order() -> None:
    ours = Streams.spawn(np.random.default_rng(5))
    children = np.random.default_rng(5).spawn(4)
    names = ("arrivals", "lengths", "prediction", "episode")
    for name, child in zip(names, children, strict=True):
        assert getattr(ours, name).random() == child.random()


def test_another_prediction_leaves_the_requests() -> None:
    scenario = Scenario.load("paper-overload")
    table = generate(scenario, streams())
    for other in ("perfect", "mean", {"kind": "lognormal", "sigma": 1.0}):
        twin = generate(scenario.with_prediction(other), streams())
        assert np.array_equal(twin.arrival_s, table.arrival_s)
        assert np.array_equal(twin.prompt, table.prompt)
        assert np.array_equal(twin.decode, table.decode)
        assert not np.array_equal(twin.predicted, table.predicted)


def test_another_rate_leaves_the_lengths() -> None:
    slow = generate(Scenario.load("paper-stable"), streams())
    fast = generate(Scenario.load("paper-overload"), streams())
    assert len(fast) > len(slow)
    assert np.array_equal(fast.prompt[: len(slow)], slow.prompt)
    assert np.array_equal(fast.decode[: len(slow)], slow.decode)


def test_the_episode_stream_is_not_touched() -> None:
    used, fresh = streams(), streams()
    generate(Scenario.load("paper-overload"), used)
    assert used.episode.random() == fresh.episode.random()


def test_no_arrivals_give_an_empty_table() -> None:
    scenario = Scenario.load("paper-stable", {"workload.arrivals.rate": 1e-9})
    table = generate(scenario, streams()).validate()
    assert len(table) == 0
    assert table.predicted.dtype == np.float32


def hand_made(**columns: Any) -> RequestTable:
    base: dict[str, Any] = {
        "arrival_s": np.array([0.0, 1.0]),
        "prompt": np.array([1, 2]),
        "decode": np.array([1, 2]),
        "predicted": np.array([1.0, 2.0], np.float32),
        "tier": np.zeros(2, np.int64),
    }
    return RequestTable(**{**base, **columns})


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ({"arrival_s": np.array([1.0, 0.0])}, "not sorted at row 1"),
        ({"arrival_s": np.array([0.0, np.nan])}, r"arrival_s\[1\] = nan"),
        ({"prompt": np.array([1, 0])}, r"prompt\[1\] = 0, must be from 1 to 2147483647"),
        ({"decode": np.array([-1, 1])}, r"decode\[0\] = -1, must be from 1"),
        ({"prompt": np.array([1, 2**32 + 5])}, r"prompt\[1\] = 4294967301, must be from 1"),
        ({"arrival_s": np.array([0.0, 1e12])}, r"arrival_s\[1\] = 1e\+?12|1000000000000.0, must"),
        ({"decode": np.array([1.0, 1.0])}, "decode must be int64"),
        ({"tier": np.zeros(3, np.int64)}, r"tier must be int64 of shape \(2,\)"),
        ({"predicted": np.array([1.0, 0.0], np.float32)}, r"predicted\[1\] = 0.0"),
    ],
)
def test_a_table_made_by_hand_is_checked(columns: dict[str, Any], says: str) -> None:
    hand_made().validate()
    with pytest.raises(ValueError, match=says):
        hand_made(**columns).validate()


# --- arrivals --------------------------------------------------------------------------------


def test_poisson_gaps_are_exponential_and_counts_poisson() -> None:
    times = arrivals.draw(Poisson(rate=2.0), np.random.default_rng(0), 20_000.0)
    near(len(times), 40_000, 200)
    assert stats.kstest(np.diff(times, prepend=0.0), "expon", args=(0, 0.5)).pvalue > 1e-3
    counts = np.bincount(times.astype(int), minlength=20_000)
    # Variance/mean of n Poisson counts deviates by sqrt(2/n).
    near(counts.var() / counts.mean(), 1.0, math.sqrt(2 / 20_000))


@pytest.mark.parametrize("cv", [0.3, 1.0, 2.5])
def test_gamma_gaps_have_their_mean_and_cv(cv: float) -> None:
    times = arrivals.draw(Gamma(rate=4.0, cv=cv), np.random.default_rng(1), 25_000.0)
    gaps = np.diff(times)
    count = len(gaps)
    near(float(gaps.mean()), 0.25, 0.25 * cv / math.sqrt(count))
    # Differences of times are good to 1e-11 s; burst gaps below the cut are conditioned away.
    law, cut = stats.gamma(1 / cv**2, scale=0.25 * cv**2), 1e-6
    tail = gaps[gaps > cut]
    near(len(tail), count * law.sf(cut), math.sqrt(count * law.sf(cut) * law.cdf(cut)))
    beyond = lambda x: (law.cdf(x) - law.cdf(cut)) / law.sf(cut)  # noqa: E731
    assert stats.kstest(tail, beyond).pvalue > 1e-3


def test_gamma_of_cv_one_is_the_poisson_path() -> None:
    one = arrivals.draw(Gamma(rate=4.0, cv=1.0), np.random.default_rng(1), 100.0)
    assert np.array_equal(one, arrivals.draw(Poisson(rate=4.0), np.random.default_rng(1), 100.0))


def test_rate_shift_has_both_rates_at_the_shift() -> None:
    process = RateShift(rate=1.0, rate_after=3.0, shift_at=0.25)
    times = arrivals.draw(process, np.random.default_rng(2), 40_000.0)
    assert (np.diff(times) >= 0).all()
    before = int(np.searchsorted(times, 10_000.0))
    near(before, 10_000, 100)
    near(len(times) - before, 90_000, 300)
    for part in (times[:before] / 10_000, (times[before:] - 10_000) / 30_000):
        assert stats.kstest(part, "uniform").pvalue > 1e-3  # each part is homogeneous
    assert arrivals.mean_rate(process, 40_000.0) == pytest.approx(2.5)
    assert arrivals.peak_rate(process, 40_000.0) == 3.0


@pytest.mark.parametrize("rate_off", [0.0, 0.5])
def test_on_off_follows_its_phases(rate_off: float) -> None:
    process = OnOff(rate_on=5.0, rate_off=rate_off, on_s=10.0, off_s=30.0)
    horizon_s = 40_010.0  # a thousand cycles and one more on phase
    times = arrivals.draw(process, np.random.default_rng(3), horizon_s)
    assert (np.diff(times) >= 0).all()
    assert times[-1] < horizon_s
    phase = times % 40.0
    on, off = phase[phase < 10.0], phase[phase >= 10.0]
    near(len(on), 50_050, math.sqrt(50_050))
    near(len(off), 30_000 * rate_off, math.sqrt(30_000 * rate_off))
    assert stats.kstest(on / 10.0, "uniform").pvalue > 1e-3
    if rate_off:
        assert stats.kstest((off - 10.0) / 30.0, "uniform").pvalue > 1e-3
    mean = (5.0 * 10_010 + rate_off * 30_000) / horizon_s
    assert arrivals.mean_rate(process, horizon_s) == pytest.approx(mean)


class _Few:
    """A generator whose first block of gaps is too short for the horizon."""

    def __init__(self) -> None:
        self.rng, self.calls = np.random.default_rng(0), 0

    def standard_exponential(self, size: int) -> np.ndarray:
        self.calls += 1
        return np.full(size, 0.25) if self.calls == 1 else np.full(size, 1.0)


def test_arrivals_go_on_when_the_first_block_is_short() -> None:
    few: Any = _Few()
    times = arrivals.draw(Poisson(rate=1.0), few, 100.0)
    assert few.calls == 2
    assert (np.diff(times) > 0).all()
    assert 99.0 <= times[-1] < 100.0


# --- lengths ---------------------------------------------------------------------------------


def clipped_mean(mean: float, sigma: float, low: float, high: float) -> float:
    """Closed form of E[min(max(X, low), high)] for a lognormal of that mean and sigma."""
    mu = math.log(mean) - sigma**2 / 2
    cut = lambda x: (math.log(x) - mu) / sigma  # noqa: E731
    inside = mean * (stats.norm.cdf(cut(high) - sigma) - stats.norm.cdf(cut(low) - sigma))
    tails = low * stats.norm.cdf(cut(low)) + high * stats.norm.sf(cut(high))
    return float(inside + tails)


def test_lognormal_lengths_have_their_moments() -> None:
    spec = LognormalLengths(
        prompt=Lognormal(mean=5_000.0, sigma=0.7), decode=Lognormal(mean=9_000.0, sigma=0.4)
    )
    for tokens, part in zip(
        lengths.draw(spec, np.random.default_rng(4), 100_000),
        (spec.prompt, spec.decode),
        strict=True,
    ):
        log = np.log(tokens)
        near(float(log.std()), part.sigma, part.sigma / math.sqrt(2 * 100_000))
        near(
            float(log.mean()),
            math.log(part.mean) - part.sigma**2 / 2,
            part.sigma / math.sqrt(100_000),
        )
        deviation = part.mean * math.sqrt(math.expm1(part.sigma**2) / 100_000)
        near(float(tokens.mean()), part.mean, deviation)


def test_lognormal_lengths_are_clipped_rounded_and_independent() -> None:
    spec = Scenario.load("paper-stable").workload.lengths
    assert isinstance(spec, LognormalLengths)
    prompt, decode = lengths.draw(spec, np.random.default_rng(5), 200_000)
    assert (prompt.min(), prompt.max()) == (1, 4_000)  # 0.5% of the prompts are one token
    assert (decode.min(), decode.max()) == (3, 2_000)
    expected = clipped_mean(214.5, 0.9, 1, 2_000)  # rounding is symmetric at this size
    near(float(decode.mean()), expected, float(decode.std()) / math.sqrt(200_000))
    assert abs(stats.spearmanr(prompt, decode).statistic) < SIGMAS / math.sqrt(200_000)


@pytest.mark.parametrize("name", [name for name in DRAWN if name not in CLUSTERED])
def test_the_grid_stands_for_the_drawn_lengths(name: str) -> None:
    spec = Scenario.load(name).workload.lengths
    prompt, decode = lengths.draw(spec, np.random.default_rng(6), 400_000)
    points = lengths.grid(spec)
    for drawn, grid in zip((prompt, decode, prompt * decode), (*points, points[0] * points[1]),
                           strict=True):  # fmt: skip
        error = SIGMAS * drawn.std() / math.sqrt(400_000)
        assert float(grid.mean()) == pytest.approx(float(drawn.mean()), abs=error, rel=3e-3)


# Means, standard deviations and tails of the published traces (computed from the files; see the
# tables' own `source`). A table of 57 quantiles must give them back.
PUBLISHED = {
    "azure-2023-conv": {
        "prompt": (1154.70, 1108.82, 4142.0),
        "decode": (211.13, 162.87, 601.0),
        "over_4096": 0.0832,
    },
    "azure-2023-code": {
        "prompt": (2047.85, 1973.88, 7436.0),
        "decode": (27.88, 59.86, 251.5),
        "over_4096": 0.1427,
    },
}


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_tables_give_back_the_traces_marginals(name: str) -> None:
    prompt, decode = lengths.draw(QuantileLengths(table=name), np.random.default_rng(7), 400_000)
    for key, tokens in (("prompt", prompt), ("decode", decode)):
        mean, deviation, p99 = PUBLISHED[name][key]
        assert tokens.mean() == pytest.approx(mean, rel=0.01)
        assert tokens.std() == pytest.approx(deviation, rel=0.03)
        assert np.quantile(tokens, 0.99) == pytest.approx(p99, rel=0.01)
        assert tokens.min() >= 1
    over = float((prompt + decode > 4_096).mean())
    assert over == pytest.approx(PUBLISHED[name]["over_4096"], abs=0.01)


@pytest.mark.parametrize("correlation", [None, 0.6, -0.5])
def test_the_copula_has_the_rank_correlation(correlation: float | None) -> None:
    spec = QuantileLengths(table="azure-2023-conv", correlation=correlation)
    prompt, decode = lengths.draw(spec, np.random.default_rng(8), 100_000)
    wanted = load_table("azure-2023-conv").spearman if correlation is None else correlation
    assert stats.spearmanr(prompt, decode).statistic == pytest.approx(wanted, abs=0.012)


def test_tables_name_their_source() -> None:
    for path in (config_directory() / "lengths").glob("*.yaml"):
        table = load_table(path.stem)
        assert table.source.startswith("https://")
        assert table.rows > 1_000
        assert -1 < table.spearman < 1


# --- prediction ------------------------------------------------------------------------------

COUNT = 50_000


@pytest.fixture(scope="module")
def decode() -> np.ndarray:
    return lengths.draw(
        Scenario.load("paper-stable").workload.lengths, np.random.default_rng(9), COUNT
    )[1]


@pytest.fixture(scope="module")
def predict(decode: np.ndarray) -> Callable[[Any], np.ndarray]:
    def run(model: Any) -> np.ndarray:
        drawn = prediction.draw(model, np.random.default_rng(10), decode, LengthSample(decode))
        assert drawn.dtype == np.float32
        assert drawn.shape == decode.shape
        assert (drawn > 0).all()
        return drawn.astype(np.float64)

    return run


def test_perfect(predict: Callable[[Any], np.ndarray], decode: np.ndarray) -> None:
    assert np.array_equal(predict(Perfect()), decode)


@pytest.mark.parametrize(
    ("model", "factor", "spread"),
    [(Uniform(spread=0.2), 1.0, 0.2), (Biased(factor=0.5, spread=0.3), 0.5, 0.3)],
)
def test_uniform_and_biased(
    predict: Callable[[Any], np.ndarray],
    decode: np.ndarray,
    model: Any,
    factor: float,
    spread: float,
) -> None:
    ratio = predict(model) / decode / factor
    assert stats.kstest(ratio, "uniform", args=(1 - spread, 2 * spread)).pvalue > 1e-3


def test_biased_without_spread_is_exact(
    predict: Callable[[Any], np.ndarray], decode: np.ndarray
) -> None:
    assert np.array_equal(predict(Biased(factor=0.5)), decode * 0.5)


def test_lognormal_error_is_right_on_average(
    predict: Callable[[Any], np.ndarray], decode: np.ndarray
) -> None:
    ratio = predict(LognormalError(sigma=0.5)) / decode
    assert stats.kstest(np.log(ratio), "norm", args=(-0.125, 0.5)).pvalue > 1e-3
    near(float(ratio.mean()), 1.0, math.sqrt(math.expm1(0.25) / COUNT))


def test_lognormal_error_stays_finite_and_positive() -> None:
    wide = LognormalError(sigma=10.0)
    drawn = prediction.draw(wide, np.random.default_rng(0), np.full(100_000, 10**6, np.int64), None)
    assert np.isfinite(drawn).all()
    assert (drawn > 0).all()


def test_mean_predicts_one_number(predict: Callable[[Any], np.ndarray], decode: np.ndarray) -> None:
    assert np.unique(predict(Mean())) == pytest.approx([decode.mean()], rel=1e-6)


@pytest.mark.parametrize("model", [Bucketed(edges=(50.0, 200.0, 800.0)), Bucketed(width=128.0)])
def test_buckets_predict_their_means(
    predict: Callable[[Any], np.ndarray], decode: np.ndarray, model: Bucketed
) -> None:
    drawn = predict(model)
    edges = model.edges or np.arange(128.0, 2_001.0, 128.0)
    bucket = np.searchsorted(edges, decode, side="right")
    for index in np.unique(bucket):
        inside = bucket == index
        assert np.ptp(drawn[inside]) == 0
        assert drawn[inside][0] == pytest.approx(decode[inside].mean(), rel=1e-6)


def test_an_edge_belongs_to_the_bucket_above() -> None:
    decode = np.array([9, 10, 11, 30], np.int64)
    known = prediction.buckets(Bucketed(edges=(10.0,)), decode)
    assert known.means.tolist() == [9.0, 17.0]


def test_an_empty_bucket_still_predicts_something_positive() -> None:
    known = prediction.buckets(Bucketed(edges=(10.0, 20.0, 40.0)), np.array([5], np.int64))
    assert known.means.tolist() == [5.0, 15.0, 30.0, 40.0]


def test_scenario_statistics_do_not_depend_on_the_episode() -> None:
    scenario = Scenario.load("paper-stable").with_prediction("mean")
    first, second = generate(scenario, streams(0)), generate(scenario, streams(1))
    assert first.predicted[0] == second.predicted[0]
    assert float(first.predicted[0]) == pytest.approx(clipped_mean(214.5, 0.9, 1, 2_000), rel=2e-3)
