"""Projected subgradient descent on the dual, with Polyak's step and an adaptive target."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from policies.hindsight.dual import Basis, Dual
from policies.hindsight.instance import Floats, Ints

#: the gap to the target is halved after so many evaluations without progress
_PATIENCE = 8
#: least share of the aimed-at gap that counts as progress
_PROGRESS = 0.05


class Point(NamedTuple):
    """Prices on knots, and their dual value."""

    knots: Floats
    value: float


def trajectory(
    dual: Dual, basis: Basis, start: Floats, steps: int, gap: float, *, pause: bool
) -> Iterator[tuple[Point, Ints, Ints]]:
    """The points of a descent from ``start``, each with the schedules that respond to it.

    The target lies ``gap`` (a share of the value) below the best value found; the gap is halved
    when the descent stalls. No step depends on elapsed time: the same input gives the same prices.
    """
    knots = start
    best, since = Point(start, np.inf), 0
    for _ in range(steps):
        value, slopes = dual.evaluate(basis.expand(knots), pause=pause)
        yield Point(knots, value), dual.begin, dual.resume
        if value < best.value - _PROGRESS * gap * abs(best.value) or not np.isfinite(best.value):
            since = 0
        else:
            since += 1
        if value < best.value:
            best = Point(knots, value)
        slope = basis.restrict(slopes)
        if since > _PATIENCE:
            # Back to the best point; its slope comes with the next evaluation.
            since, gap, knots = 0, gap / 2.0, best.knots
            continue
        free = (knots > 0.0) | (slope < 0.0)
        length = float(np.square(slope[free]).sum())
        if length == 0.0:  # complementary slackness: the minimum
            return
        step = (value - best.value + gap * abs(best.value)) / length
        knots = np.maximum(knots - step * slope, 0.0)
