"""Where the search starts: prices on very few knots, by cutting planes.

Two knots a resource (prices linear in time) cost a handful of evaluations and land within a few
percent of the best prices. A descent from zero may need hundreds for that when rewards do not
fade with time: requests then flee from every slot that gets a price, until all slots have one.
"""

from __future__ import annotations

import numpy as np
from scipy.optimize import linprog

from policies.hindsight.dual import Basis, Dual
from policies.hindsight.instance import Floats

#: most evaluations, and the gap (a share of the value) that ends it before
_CUTS, _GAP = 12, 2e-3
#: later steps go this share of the way from the best prices to the LP's, which swing widely
_SHARE, _WHOLE = 0.7, 2


def start(dual: Dual, basis: Basis, *, pause: bool) -> Floats:
    """Knots of ``basis`` with prices that are linear in time and nearly the best of that kind."""
    slots = dual.instance.slots
    line = Basis(slots, [slots] * dual.resources)
    knots = np.zeros(len(line.weights))
    best, at = np.inf, knots
    slopes: list[Floats] = []
    limits: list[float] = []
    most = knots
    for step in range(_CUTS):
        value, use = dual.evaluate(line.expand(knots), pause=pause)
        slope = line.restrict(use)
        if value < best:
            best, at = value, knots
        if not step:
            most = value / line.weights  # capacity at higher prices costs more than zero prices do
        slopes.append(np.append(slope, -1.0))
        limits.append(float(slope @ knots) - value)
        model = linprog(
            np.append(np.zeros(len(knots)), 1.0),
            A_ub=np.array(slopes),
            b_ub=np.array(limits),
            bounds=[*((0.0, float(top)) for top in most), (None, None)],
            method="highs-ds",
        )
        if model.status != 0 or best - float(model.fun or 0.0) <= _GAP * abs(best):
            break
        share = _SHARE if step >= _WHOLE else 1.0
        knots = at + share * (np.asarray(model.x, np.float64)[:-1] - at)
    prices = line.expand(at)
    return np.concatenate([price[spots] for price, spots in zip(prices, basis.spots, strict=True)])
