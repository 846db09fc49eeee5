"""Fits of kernel times, and their errors on rows that the fit has not seen."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from scipy.optimize import isotonic_regression, nnls

from llmroute_env.cluster.profiles import Table

#: Share of the profiled sizes whose rows are held out of the fit that is judged.
HELD_OUT = 0.2


def monotone_table(
    size: np.ndarray, us: np.ndarray, *, tolerance: float, max_knots: int = 40
) -> Table:
    """Monotone (isotonic) regression of time on size, thinned to the knots that matter.

    Args:
        size: (n,) sizes, repeated ones are averaged.
        us: (n,) times [microseconds].
        tolerance: largest relative distance from the isotonic fit that thinning may cause.
        max_knots: stop there even if the tolerance is not reached.
    """
    sizes, index, counts = np.unique(size, return_inverse=True, return_counts=True)
    means = np.bincount(index, weights=us) / counts
    fit = np.asarray(isotonic_regression(means, weights=counts.astype(np.float64)).x)
    keep = np.zeros(len(sizes), np.bool_)
    keep[[0, -1]] = True
    while keep.sum() < min(max_knots, len(sizes)):
        gap = np.abs(np.interp(sizes, sizes[keep], fit[keep]) / fit - 1)
        worst = int(np.argmax(gap))
        if gap[worst] <= tolerance:
            break
        keep[worst] = True
    rounded = np.maximum.accumulate([significant(value) for value in fit[keep]])
    return Table(sizes=sizes[keep].tolist(), microseconds=rounded.tolist())


def least_squares(features: np.ndarray, us: np.ndarray, *, relative: bool = False) -> np.ndarray:
    """Non-negative least squares.

    Args:
        features: (n, k), one column per coefficient.
        us: (n,) times.
        relative: minimise relative instead of absolute errors.

    Returns:
        (k,) coefficients, none negative.
    """
    weight = 1 / us if relative else np.ones(len(us))
    scale = np.linalg.norm(features * weight[:, None], axis=0)
    solution, _ = nnls(features * weight[:, None] / scale, us * weight)
    return np.asarray(solution / scale)


def split(groups: np.ndarray, seed: int) -> np.ndarray:
    """Rows to fit on: all but a seeded ``HELD_OUT`` share of the groups.

    Rows of one group (a token count, a message size) stay together, so a repeated measurement
    cannot be on both sides. The first and the last group are always fitted on: a table does not
    judge what lies beyond its ends.

    Args:
        groups: (n,) group of each row.
        seed: of the split.

    Returns:
        (n,) bool, true where the row is fitted on.
    """
    values = np.unique(groups)
    inner = values[1:-1]
    rng = np.random.default_rng(seed)
    held = rng.choice(inner, size=round(HELD_OUT * len(inner)), replace=False)
    return ~np.isin(groups, held)


def r_squared(measured: np.ndarray, fitted: np.ndarray) -> float:
    """Share of the variance that the fit explains."""
    rest = float(np.sum((measured - fitted) ** 2))
    return 1 - rest / float(np.sum((measured - measured.mean()) ** 2))


def relative_errors(
    measured: np.ndarray, fitted: np.ndarray, size: np.ndarray, edges: Sequence[float]
) -> dict[str, Any]:
    """Median and P95 of |fitted / measured - 1|, overall and by range of ``size``.

    Returns:
        ``rows``, ``median``, ``p95``, and ``ranges``: label to ``rows``, ``median`` and
        ``median_us``, the absolute error [microseconds]. Shares, not percent; a range without
        rows is left out.
    """
    error = np.abs(fitted / measured - 1)
    ranges: dict[str, Any] = {}
    for low, high in pairwise(edges):
        inside = (size > low) & (size <= high)
        if inside.any():
            label = f"{low:.0f}-{high:.0f}" if np.isfinite(high) else f"{low:.0f}+"
            ranges[label] = {
                "rows": int(inside.sum()),
                "median": significant(float(np.median(error[inside])), 3),
                "median_us": significant(float(np.median(np.abs(fitted - measured)[inside])), 3),
            }
    return {
        "rows": len(error),
        "median": significant(float(np.median(error)), 3),
        "p95": significant(float(np.quantile(error, 0.95)), 3),
        "ranges": ranges,
    }


def significant(value: float, digits: int = 4) -> float:
    """``value`` to so many significant digits: more would only record the noise."""
    return float(f"{value:.{digits}g}")
