"""Bootstrap intervals and paired improvement, against closed forms and by their coverage."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import pytest

from llmroute_env.experiments import statistics
from llmroute_env.metrics import METRICS


def episodes(values: dict[str, list[float]], key: str = "eel_mean_s") -> pd.DataFrame:
    rows = []
    for policy, sample in values.items():
        for seed, value in enumerate(sample):
            row = dict.fromkeys(METRICS, 1.0) | {key: value}
            rows.append(
                {"scenario": "tiny", "policy": policy, "information": "none", "seed": seed} | row
            )
    return pd.DataFrame(rows)


@pytest.mark.parametrize("size", [5, 10, 30])
def test_intervals_cover_what_they_say(size: int) -> None:
    rng = np.random.default_rng(size)
    rounds, hits = 300, 0
    for _ in range(rounds):
        interval = statistics.mean_interval(rng.normal(7.0, 2.0, size))
        hits += interval.low <= 7.0 <= interval.high
    assert 0.89 <= hits / rounds <= 0.985


def test_interval_is_seeded_and_brackets_the_mean() -> None:
    sample = [3.1, 1.4, 4.2, 1.9, 5.3, 9.7, 2.8]
    first, again = (statistics.mean_interval(sample) for _ in range(2))
    assert first == again
    assert first.estimate == pytest.approx(np.mean(sample))
    assert first.low < first.estimate < first.high
    assert statistics.mean_interval(sample, seed=1) != first


def test_constant_sample_has_a_point_interval() -> None:
    assert statistics.mean_interval([2.0] * 4) == (2.0, 2.0, 2.0)


def test_too_few_values_have_no_interval_and_no_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert np.isnan(statistics.mean_interval([])).all()
        assert np.isnan(statistics.mean_interval([np.nan])).all()
        one = statistics.mean_interval([np.nan, 5.0])
        gain = statistics.paired_improvement("eel_mean_s", [4.0], [3.0])
        zero = statistics.paired_improvement("preemptions", [0.0, 0.0], [1.0, 2.0])
        neutral = statistics.paired_improvement("arrived", [5.0, 5.0], [6.0, 6.0])
    assert one.estimate == 5.0
    assert np.isnan([one.low, one.high]).all()
    assert gain.estimate == 25.0
    assert np.isnan(gain.low)
    assert np.isnan(zero).all()
    assert np.isnan(neutral).all()


def test_pairing_removes_what_the_sample_paths_share() -> None:
    rng = np.random.default_rng(0)
    base = rng.uniform(50, 500, 12)  # sample paths differ tenfold
    gain = statistics.paired_improvement("eel_mean_s", base, 0.8 * base)
    assert gain.estimate == pytest.approx(20.0)
    assert gain.high - gain.low < 1e-9
    assert gain.excludes_zero()
    shuffled = statistics.paired_improvement("eel_mean_s", base, 0.8 * base[::-1])
    assert shuffled.high - shuffled.low > 5.0


@pytest.mark.parametrize(("key", "sign"), [("eel_mean_s", -1), ("slo_attainment", 1)])
def test_sign_follows_the_better_side(key: str, sign: int) -> None:
    base = np.array([1.0, 2.0, 3.0, 4.0])
    gain = statistics.paired_improvement(key, base, base * 1.5)
    assert gain.estimate == pytest.approx(50.0 * sign)
    assert gain.low <= gain.estimate <= gain.high


def test_pairs_with_a_missing_side_are_left_out() -> None:
    gain = statistics.paired_improvement("eel_mean_s", [4.0, np.nan, 8.0], [2.0, 1.0, 4.0])
    assert gain.estimate == pytest.approx(50.0)
    with pytest.raises(ValueError, match="paired samples differ"):
        statistics.paired_improvement("eel_mean_s", [1.0], [1.0, 2.0])


def test_compare_pairs_by_seed_not_by_row() -> None:
    frame = episodes({"lor": [10.0, 20.0, 30.0], "olp": [5.0, 10.0, 15.0]})
    shuffled = frame.sample(frac=1.0, random_state=3).sort_values("policy", kind="stable")
    result = statistics.compare(shuffled, "lor")
    assert list(result.columns) == list(statistics.COLUMNS)
    assert list(dict.fromkeys(result["policy"])) == ["lor", "olp"]
    assert list(result["metric"][: len(METRICS)]) == list(METRICS)
    mean, gain = statistics.lookup(result)["olp", "eel_mean_s"]
    assert mean.estimate == 10.0
    assert gain == pytest.approx((50.0, 50.0, 50.0))
    assert np.isnan(statistics.lookup(result)["lor", "eel_mean_s"][1]).all()


def test_compare_uses_shared_seeds_only() -> None:
    frame = episodes({"lor": [10.0, 20.0, 1000.0], "olp": [5.0, 10.0]})
    mean, gain = statistics.lookup(statistics.compare(frame, "lor"))["olp", "eel_mean_s"]
    assert gain.estimate == pytest.approx(50.0)
    assert mean.estimate == pytest.approx(7.5)


def test_compare_names_an_unknown_baseline() -> None:
    with pytest.raises(ValueError, match="'rr' is not among the policies: lor"):
        statistics.compare(episodes({"lor": [1.0]}), "rr")
