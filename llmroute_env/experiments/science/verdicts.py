"""Rules that turn measurements into words; nothing here knows what anyone hoped for.

A published improvement x (in percent, positive is better) against ours with its 95% interval:

* *reproduces*: our interval is above 0 and our estimate is at least three quarters of x, or the
  interval holds x. More than twice x is said with it ("larger").
* *partly*: above 0, but smaller than that.
* *does not*: the interval holds 0 or lies below.

A claim "A is better than B" reproduces when the paired interval of the gain is above 0, does not
when it is below 0, and is *not decided* in between. In percent, less than 0.05 is no gain.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

from llmroute_env.experiments.science.episodes import shared
from llmroute_env.experiments.statistics import Interval, mean_interval, paired_improvement
from llmroute_env.metrics import METRICS

REPRODUCES: Final = "reproduces"
LARGER: Final = "reproduces, larger"
PARTLY: Final = "partly"
FAILS: Final = "does not"
UNDECIDED: Final = "not decided"

#: Percent below which a gain is none, however certain it is.
LEAST: Final = 0.05

_NEAR: Final = 0.75
_FAR: Final = 2.0

#: Keys that are no summary keys, and one whose better side is theirs.
_LIKE: Final = {"violation": "eel_mean_s", "inside_start": "qps", "inside_eel": "qps"}


class Test(NamedTuple):
    """A paired comparison of two policies in one cell."""

    cell: str
    weights: str
    policy: str
    rival: str
    difference: float  #: policy - rival, mean over seeds, positive: the policy is ahead
    statistic: float
    p_ahead: float  #: one-sided, that the policy is not ahead
    p_behind: float  #: one-sided, that the policy is not behind
    n: int


def of_figure(published: float, ours: Interval) -> str:
    """Verdict on one published improvement."""
    if np.isnan(ours.low) or ours.low <= 0:
        return FAILS
    if ours.estimate > _FAR * published:
        return LARGER
    if ours.estimate >= _NEAR * published or ours.low <= published <= ours.high:
        return REPRODUCES
    return PARTLY


def of_gain(gain: Interval, least: float = 0.0) -> str:
    """Verdict on "better than" by more than `least`."""
    if gain.low > least:
        return REPRODUCES
    return FAILS if gain.high < -least else UNDECIDED


def gain(key: str, baseline: pd.Series[float], own: pd.Series[float]) -> Interval:
    """Paired improvement over a baseline in percent; positive is better."""
    base, values = shared(baseline, own)
    return paired_improvement(_LIKE.get(key, key), base, values)


def difference(baseline: pd.Series[float], own: pd.Series[float]) -> Interval:
    """Paired difference own - baseline, in the metric's unit."""
    base, values = shared(baseline, own)
    return mean_interval(values - base)


def mean_of(values: pd.Series[float]) -> Interval:
    """Mean over seeds with its interval."""
    return mean_interval(np.array(values, dtype=np.float64))


def better(key: str) -> int:
    """+1 where more is better, -1 where less is."""
    return METRICS[_LIKE.get(key, key)].better


def paired_test(
    cell: str, weights: str, names: tuple[str, str], own: pd.Series[float], rival: pd.Series[float]
) -> Test:
    """One-sided paired t tests of "ahead" and "behind" on a value of which more is better.

    Differences that are the same number in all seeds have no variance: 0 decides nothing, any
    other number counts as certain.
    """
    mine, other = shared(own, rival)
    gaps: NDArray[np.float64] = mine - other
    n = len(gaps)
    mean = float(gaps.mean()) if n else float("nan")
    spread = float(gaps.std(ddof=1)) if n > 1 else float("nan")
    scale = max(float(np.abs(mine).max()), 1e-300) if n else 1.0
    if n < 2 or (spread <= 1e-12 * scale and abs(mean) <= 1e-12 * scale):
        return Test(cell, weights, *names, mean, 0.0, 1.0, 1.0, n)
    if spread <= 1e-12 * scale:
        sure = np.sign(mean)
        return Test(cell, weights, *names, mean, sure * np.inf, *_sides(sure * np.inf, n), n)
    t = mean / (spread / np.sqrt(n))
    return Test(cell, weights, *names, mean, float(t), *_sides(t, n), n)


def _sides(t: float, n: int) -> tuple[float, float]:
    return float(stats.t.sf(t, n - 1)), float(stats.t.cdf(t, n - 1))


def holm(p_values: Sequence[float]) -> NDArray[np.float64]:
    """Holm's step-down adjusted p-values, in the order given (family-wise error)."""
    p = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(p, kind="stable")
    factors = len(p) - np.arange(len(p))
    adjusted = np.minimum(np.maximum.accumulate(p[order] * factors), 1.0)
    found = np.empty_like(p)
    found[order] = adjusted
    return found


def tally(verdicts: Sequence[str]) -> str:
    """Overall word for several verdicts: all, some or none of them."""
    good = sum(v in (REPRODUCES, LARGER) for v in verdicts)
    if good == len(verdicts) and verdicts:
        return REPRODUCES
    if good or PARTLY in verdicts:
        return PARTLY
    return FAILS
