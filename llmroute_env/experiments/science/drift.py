"""Power and false-alarm rate of OLP's rate-shift detector, on arrivals alone.

The detector sees nothing but the number of arrivals per period, so episodes of arrivals are
enough: thousands of them cost a second, where as many routed episodes would cost an hour.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

from llmroute_env.jit import compiled
from policies.olp.drift import count_arrivals, rate_increased
from policies.olp.state import Number

PERIODS: Final = 4_000
RATE: Final = 0.4
FACTORS: Final = (1.0, 1.1, 1.2, 1.3, 1.5, 2.0)
_SEED: Final = 20_260_708
_NUMBERS: Final = len(Number)  # a constant for compiled code


def table(episodes: int, window: int, z_limit: float) -> pd.DataFrame:
    """One row per kind of arrivals: how often, and how fast, an increase is found.

    Args:
        episodes: per row.
        window: of the test [periods].
        z_limit: its threshold.

    Returns:
        Columns: arrivals, factor (rate after T/2 over the rate before), episodes, found (share of
        episodes with an alarm after the shift; with factor 1, at any time), found_low, found_high
        (Wilson 95%), early (share with a false alarm before the shift), delay_p50, delay_p90
        [periods from the shift to its first alarm].
    """
    rng = np.random.default_rng(_SEED)
    rows = []
    for kind in ("Poisson", "bursty (gamma, cv 2)"):
        for factor in FACTORS if kind == "Poisson" else (1.0, 1.5):
            counts = _counts(rng, kind == "Poisson", factor, episodes)
            first_early, first_late = _alarms(counts, window, z_limit, PERIODS // 2)
            early = first_early >= 0
            late = first_late >= 0
            found = late if factor > 1 else early | late
            low, high = _wilson(int(found.sum()), episodes)
            delays = first_late[late] - PERIODS // 2
            quantiles = np.quantile(delays, [0.5, 0.9]) if factor > 1 and late.any() else None
            rows.append(
                {
                    "arrivals": kind,
                    "factor": factor,
                    "episodes": episodes,
                    "found": float(found.mean()),
                    "found_low": low,
                    "found_high": high,
                    "early": float(early.mean()),
                    "delay_p50": float(quantiles[0]) if quantiles is not None else np.nan,
                    "delay_p90": float(quantiles[1]) if quantiles is not None else np.nan,
                }
            )
    return pd.DataFrame(rows)


def _counts(
    rng: np.random.Generator, poisson: bool, factor: float, episodes: int
) -> NDArray[np.int64]:
    """(episodes, PERIODS) arrivals per period; the rate is multiplied by `factor` at T/2."""
    rates = np.full(PERIODS, RATE)
    rates[PERIODS // 2 :] *= factor
    if poisson:
        return rng.poisson(rates, (episodes, PERIODS))
    # A renewal process in operational time, where the rate is 1; cv 2 is shape 1/4.
    total = np.concatenate([[0.0], np.cumsum(rates)])
    found = np.zeros((episodes, PERIODS), np.int64)
    for row in found:
        gaps = rng.gamma(0.25, 4.0, int(1.5 * total[-1]) + 400)
        times = np.cumsum(gaps)
        at = np.searchsorted(total, times[times < total[-1]], side="right") - 1
        row += np.bincount(at, minlength=PERIODS)
    return found


@compiled
def _alarms(
    counts: np.ndarray, window: int, z_limit: float, shift: int
) -> tuple[np.ndarray, np.ndarray]:
    """First alarm before and after the shift per episode, -1 where none."""
    early = np.full(counts.shape[0], -1, np.int64)
    late = np.full(counts.shape[0], -1, np.int64)
    for episode in range(counts.shape[0]):
        numbers = np.zeros(_NUMBERS)
        ring = np.zeros(window, np.int32)
        for period in range(counts.shape[1]):
            numbers[Number.PERIOD] = period
            count_arrivals(numbers, ring, counts[episode, period])
            if rate_increased(numbers, window, z_limit):
                if period < shift:
                    if early[episode] < 0:
                        early[episode] = period
                elif late[episode] < 0:
                    late[episode] = period
    return early, late


def _wilson(hits: int, n: int) -> tuple[float, float]:
    interval = stats.binomtest(hits, n).proportion_ci(method="wilson")
    return float(interval.low), float(interval.high)
