"""Intervals for means over seeds, and paired improvement over a baseline.

Every policy sees the same sample paths, so a comparison resamples *seeds*: one resampled set of
seeds gives a policy's mean and the baseline's mean from the same episodes, which takes the
variation between sample paths out of their difference (common random numbers).

Intervals are bootstrap percentile intervals in the expanded form of Hesterberg (2015), "What
Teachers Should Know About the Bootstrap", section 5.3: with few seeds the plain percentile
interval is too narrow (at n = 5 a nominal 95% covers about 84%), so the percentiles are moved out
as Student's t and the factor sqrt(n / (n - 1)) demand (then 92-93% at n = 5 and 10). No resampled
mean lies outside the sample, so with fewer than 5 seeds the interval stays too narrow (76% at
n = 3).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Final, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import special

from llmroute_env.metrics import METRICS, improvement

LEVEL: Final = 0.95
RESAMPLES: Final = 10_000
BOOTSTRAP_SEED: Final = 20_240_607

COLUMNS: Final = (
    "scenario",
    "policy",
    "information",
    "baseline",
    "metric",
    "unit",
    "n",
    "mean",
    "ci_low",
    "ci_high",
    "improvement_pct",
    "improvement_ci_low",
    "improvement_ci_high",
)


class Interval(NamedTuple):
    """A point estimate and its interval; the bounds are NaN with fewer than two values."""

    estimate: float
    low: float
    high: float

    def excludes_zero(self) -> bool:
        """Whether the interval lies on one side of 0."""
        return self.low > 0 or self.high < 0


def mean_interval(
    values: Sequence[float] | NDArray[np.float64], *, seed: int = BOOTSTRAP_SEED
) -> Interval:
    """Mean of one value per seed with its bootstrap interval; NaN values are left out."""
    sample = np.asarray(values, dtype=np.float64)
    sample = sample[~np.isnan(sample)]
    if not len(sample):
        return Interval(np.nan, np.nan, np.nan)
    return _interval(float(sample.mean()), _resampled_means(sample, seed), len(sample))


def paired_improvement(
    key: str,
    baseline: Sequence[float] | NDArray[np.float64],
    values: Sequence[float] | NDArray[np.float64],
    *,
    seed: int = BOOTSTRAP_SEED,
) -> Interval:
    """Improvement of a policy's mean over the baseline's mean, in percent; positive is better.

    The ratio is of the two means, not a mean of per-seed ratios, which short episodes dominate.

    Args:
        key: summary key, which says whether higher or lower is better.
        baseline: (n,) the baseline's value per seed.
        values: (n,) the policy's value for the same seeds, in the same order.
        seed: of the resampling.

    Returns:
        Interval of percents; NaN where the metric has no better side, and when the baseline's
        mean is 0. Seeds where either value is NaN are left out.
    """
    base = np.asarray(baseline, dtype=np.float64)
    own = np.asarray(values, dtype=np.float64)
    if base.shape != own.shape:
        raise ValueError(f"paired samples differ in size: {base.shape} and {own.shape}")
    both = ~(np.isnan(base) | np.isnan(own))
    base, own = base[both], own[both]
    if not len(base):
        return Interval(np.nan, np.nan, np.nan)
    better = METRICS[key].better
    base_means, own_means = _resampled_means(base, seed), _resampled_means(own, seed)
    defined = base_means != 0
    gains = better * 100.0 * (own_means - base_means)[defined] / np.abs(base_means[defined])
    point = improvement(key, float(base.mean()), float(own.mean()))
    if np.isnan(point) or not len(gains):
        return Interval(point, np.nan, np.nan)
    return _interval(point, gains, len(base))


def compare(episodes: pd.DataFrame, baseline: str) -> pd.DataFrame:
    """One row per policy and metric: mean, interval, paired improvement over the baseline.

    Args:
        episodes: one row per policy and seed with columns scenario, policy, information, seed and
            the summary keys.
        baseline: a value of the column `policy`.

    Returns:
        A frame with `COLUMNS`; policies in the order of `episodes`, metrics in that of `METRICS`.
        `n` counts the seeds behind the mean; the improvement uses the seeds that the policy and
        the baseline share. The baseline's own improvement is empty.
    """
    policies = list(dict.fromkeys(episodes["policy"]))
    if baseline not in policies:
        raise ValueError(f"baseline {baseline!r} is not among the policies: {', '.join(policies)}")
    rows: list[dict[str, Any]] = []
    by_policy = {name: part.set_index("seed") for name, part in episodes.groupby("policy")}
    base = by_policy[baseline]
    for policy in policies:
        own = by_policy[policy]
        shared = base.index.intersection(own.index).sort_values()
        for key, metric in METRICS.items():
            values = own[key].to_numpy(dtype=np.float64)
            level = mean_interval(values)
            gain = Interval(np.nan, np.nan, np.nan)
            if policy != baseline:
                gain = paired_improvement(
                    key, _floats(base, shared, key), _floats(own, shared, key)
                )
            row = {
                "scenario": own["scenario"].iloc[0],
                "policy": policy,
                "information": own["information"].iloc[0],
                "baseline": baseline,
                "metric": key,
                "unit": metric.unit,
                "n": int(np.count_nonzero(~np.isnan(values))),
            }
            rows.append(row | dict(zip(COLUMNS[7:], (*level, *gain), strict=True)))
    return pd.DataFrame(rows, columns=list(COLUMNS))


def lookup(comparison: pd.DataFrame) -> Mapping[tuple[str, str], tuple[Interval, Interval]]:
    """(policy, metric) to its mean and its improvement, for the views."""
    mean, gain = comparison[list(COLUMNS[7:10])], comparison[list(COLUMNS[10:13])]
    names = zip(comparison["policy"], comparison["metric"], strict=True)
    values = zip(mean.to_numpy(float), gain.to_numpy(float), strict=True)
    return {
        (str(policy), str(metric)): (Interval(*map(float, own)), Interval(*map(float, over)))
        for (policy, metric), (own, over) in zip(names, values, strict=True)
    }


def _floats(frame: pd.DataFrame, index: pd.Index[Any], key: str) -> NDArray[np.float64]:
    values: NDArray[np.float64] = frame.loc[index, key].to_numpy(dtype=np.float64)
    return values


@cache
def _resampled_rows(size: int, seed: int) -> NDArray[np.int64]:
    """(size, RESAMPLES) indices; the same for every metric and policy with `size` seeds."""
    return np.random.default_rng(seed).integers(0, size, (size, RESAMPLES))


def _resampled_means(sample: NDArray[np.float64], seed: int) -> NDArray[np.float64]:
    # Summed over the first axis, so in one fixed order: the same bytes on every machine.
    means: NDArray[np.float64] = sample[_resampled_rows(len(sample), seed)].sum(axis=0)
    return means / len(sample)


def _interval(estimate: float, resampled: NDArray[np.float64], size: int) -> Interval:
    if size < 2:
        return Interval(estimate, np.nan, np.nan)
    tail = _expanded_tail(size)
    low, high = np.quantile(resampled, [tail, 1.0 - tail])
    return Interval(estimate, float(low), float(high))


def _expanded_tail(size: int) -> float:
    """Probability to cut on each side so that `size` values cover `LEVEL`."""
    t = special.stdtrit(size - 1, 0.5 * (1.0 - LEVEL))
    return float(special.ndtr(np.sqrt(size / (size - 1)) * t))
