"""Objectives: their text, their confidence bound, and the exact early end."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from llmroute_env.experiments.capacity.slo import (
    Slo,
    hopeless,
    judge,
    parse,
    parse_all,
    with_shares,
)


def test_text() -> None:
    assert parse("ttft_p99_s<=0.5") == Slo("ttft_p99_s", "<=", 0.5)
    assert parse(" slo_attainment >= 0.95 ") == Slo("slo_attainment", ">=", 0.95)
    assert str(parse("unfinished_share<=1e-3")) == "unfinished_share<=0.001"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("ttft_p99_s<0.5", "must have the form"),
        ("ttft_p99<=1", "did you mean ttft_p99_s"),
        ("eel_mean_s<=nan", "not a finite number"),
        ("eel_mean_s<=fast", "not a finite number"),
        ("wall_s<=1", "unknown key"),
    ],
)
def test_faults_are_one_line(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words) as fault:
        parse(text)
    assert "\n" not in str(fault.value)


def test_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="given twice"):
        parse_all(["qps>=1", "qps>=2"])
    assert len(parse_all(["qps>=1", "qps<=2"])) == 2


@pytest.mark.parametrize("seed", range(5))
def test_bound_is_students(seed: int) -> None:
    values = np.random.default_rng(seed).gamma(2.0, 1.0, 7)
    # A one-sided 95% bound is an end of the two-sided 90% interval.
    low, high = stats.t.interval(0.90, 6, loc=values.mean(), scale=stats.sem(values))
    assert judge(Slo("eel_mean_s", "<=", 1.0), values, 0.95).bound == pytest.approx(high)
    assert judge(Slo("eel_mean_s", ">=", 1.0), values, 0.95).bound == pytest.approx(low)


def test_met_means_the_bound_keeps_the_limit() -> None:
    values = [0.9, 1.0, 1.1, 1.0]
    bound = judge(Slo("eel_mean_s", "<=", 0.0), values, 0.95).bound
    assert bound > 1.0
    assert judge(Slo("eel_mean_s", "<=", bound), values, 0.95).met
    between = judge(Slo("eel_mean_s", "<=", (1.0 + bound) / 2), values, 0.95)
    assert not between.met
    assert between.mean_met


def test_equal_values_meet_their_own_limit() -> None:
    # 0.1 six times sums to 0.6 less an ulp; the limit must hold all the same.
    for sense in ("<=", ">="):
        assert judge(Slo("rejected_share", sense, 0.1), [0.1] * 6, 0.95).met


def test_nothing_to_measure_fails() -> None:
    verdict = judge(Slo("ttft_p99_s", "<=", 1e9), [1.0, float("nan")], 0.95)
    assert not verdict.met
    assert not verdict.mean_met
    assert hopeless(Slo("ttft_p99_s", "<=", 1e9), [float("nan")], 6)


def test_one_seed_has_no_bound() -> None:
    with pytest.raises(ValueError, match="at least 2"):
        judge(Slo("qps", ">=", 1.0), [1.0], 0.95)


@pytest.mark.parametrize("seed", range(40))
def test_hopeless_is_exact(seed: int) -> None:
    """What it says at once, all completions of the seeds say in the end; and it is no idle test."""
    rng = np.random.default_rng(seed)
    n, k = 6, int(rng.integers(1, 6))
    values = list(rng.uniform(0.0, 1.0, k))
    up = Slo("ttft_p99_s", "<=", float(rng.uniform(0.0, 0.8)))
    best = judge(up, values + [0.0] * (n - k), 0.95).mean_met
    assert hopeless(up, values, n) == (not best)
    down = Slo("slo_attainment", ">=", float(rng.uniform(0.2, 1.0)))
    best = judge(down, values + [1.0] * (n - k), 0.95).mean_met
    assert hopeless(down, values, n) == (not best)
    assert not hopeless(Slo("qps", ">=", 100.0), values, n)  # a rate has no ceiling


def test_shares() -> None:
    summary = {"arrived": 8, "rejected": 2, "unfinished": 1, "preemptions": 16}
    shares = with_shares(summary)
    assert shares["rejected_share"] == 0.25
    assert shares["unfinished_share"] == 0.125
    assert shares["preemptions_per_request"] == 2.0
    assert np.isnan(with_shares(summary | {"arrived": 0})["rejected_share"])
