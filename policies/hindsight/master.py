"""The restricted primal: an LP over the schedules found so far, solved by HiGHS.

maximise    sum of reward x
subject to  sum over a request's schedules of x             <= 1
            sum over all of (hat-weighted use) x            <= hat-weighted capacity, each knot
            x >= 0

Its duals are prices on knots; the schedules that respond to them are its next columns. When none
of them gains anything the LP holds the optimum over *all* schedules (column generation).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import sparse
from scipy.optimize import linprog

from policies.hindsight.dual import Basis, Dual
from policies.hindsight.instance import Floats, Ints
from policies.hindsight.schedules import Key, Schedules, rewards

#: with more columns a request than this, those that stayed at 0 in the last LPs, so many in a row,
#: are dropped, for they make LPs slow; the oracle may bring them back
_MANY, _IDLE = 6, 2


class Master:
    """Columns collected so far.

    Args:
        dual: the dual whose columns these are.
        basis: knots of the capacity rows, the same for every resource.
    """

    def __init__(self, dual: Dual, basis: Basis) -> None:
        self.dual, self.basis = dual, basis
        self._usage = Usage(dual, basis)
        self._known: set[Key] = set()
        self._keys: list[Key] = []
        self._request, self._begin = np.zeros(0, np.int64), np.zeros(0, np.int64)
        self._reward = np.zeros(0)
        self._pauses = np.zeros(0, np.bool_)
        self._use: Any = sparse.csr_array((0, dual.resources * basis.sizes[0]))
        self._idle = np.zeros(0, np.int64)
        self._x = np.zeros(0)  # of the last LP, 0 for columns that came later

    @property
    def columns(self) -> int:
        """Number of columns."""
        return len(self._keys)

    def add(self, made: Schedules) -> int:
        """Add the schedules that are new; returns how many."""
        keys = made.keys()
        rows = np.array([c for c, key in enumerate(keys) if key not in self._known], np.int64)
        if len(rows):
            self._known.update(keys)
            self._keys += [keys[c] for c in rows]
            new, one = made.take(rows), self.dual.instance
            self._request = np.concatenate([self._request, new.request])
            self._begin = np.concatenate([self._begin, new.begin])
            self._reward = np.concatenate([self._reward, rewards(one, new)])
            self._pauses = np.concatenate([self._pauses, new.pauses(one)])
            self._use = sparse.vstack([self._use, self._usage(new)], format="csr")
            nothing = np.zeros(len(rows))
            self._idle = np.concatenate([self._idle, nothing.astype(np.int64)])
            self._x = np.concatenate([self._x, nothing])
        return len(rows)

    def solve(self) -> tuple[float, Floats] | None:
        """Value of the LP and its prices on knots; None without columns or if HiGHS fails."""
        if not self._keys:
            return None
        requests, columns = self.dual.instance.requests, self.columns
        scale = max(float(np.abs(self._reward).max()), 1e-300)
        once = sparse.csr_array(
            (np.ones(columns), (self._request, np.arange(columns))), shape=(requests, columns)
        )
        rows = sparse.vstack([self._use.T, once], format="csr")
        limit = np.concatenate([self.basis.weights, np.ones(requests)])
        # The interior-point method is two to four times faster here than the simplex method.
        found = linprog(-self._reward / scale, A_ub=rows, b_ub=limit, method="highs-ipm")
        if found.status != 0:
            found = linprog(-self._reward / scale, A_ub=rows, b_ub=limit, method="highs-ds")
        if found.status != 0:
            return None
        knots = -np.asarray(found.ineqlin.marginals)[: len(self.basis.weights)] * scale
        self._x = np.asarray(found.x, np.float64)
        self._drop()
        return -float(found.fun or 0.0) * scale, np.maximum(knots, 0.0)

    def pausing(self) -> float:
        """Requests that pause in the last LP's solution, fractions added up; inf without an LP."""
        return float(self._x[self._pauses].sum()) if self._x.any() else float("inf")

    def order(self) -> Ints:
        """(R,) requests by their mean start in the last LP; what it leaves out comes last."""
        requests, last = self.dual.instance.requests, float(self.dual.instance.slots)
        started = np.bincount(self._request, self._x, requests)
        mean = np.bincount(self._request, self._x * self._begin, requests)
        late = np.maximum(1.0 - started, 0.0) * last
        # Without an LP, and among what it leaves out, by arrival.
        return np.argsort(mean + late, kind="stable")

    def _drop(self) -> None:
        """Leave out columns that have been idle for long."""
        self._idle = np.where(self._x > 0.0, 0, self._idle + 1)
        if self.columns <= _MANY * self.dual.instance.requests:
            return
        keep = np.flatnonzero(self._idle < _IDLE)
        self._keys = [self._keys[c] for c in keep]
        self._known = set(self._keys)
        self._request, self._begin = self._request[keep], self._begin[keep]
        self._reward, self._pauses = self._reward[keep], self._pauses[keep]
        self._use, self._idle, self._x = self._use[keep], self._idle[keep], self._x[keep]


class Usage:
    """What schedules occupy, summed with the hat of each knot.

    Args:
        dual: of the instance.
        basis: knots, the same for every resource.
    """

    def __init__(self, dual: Dual, basis: Basis) -> None:
        self._dual, self._hat = dual, basis.hats[0]
        dense = self._hat.toarray()
        self._sums = np.vstack([np.zeros((1, dense.shape[1])), np.cumsum(dense, axis=0)])

    def __call__(self, made: Schedules) -> sparse.csr_array:
        """(C, K) use as a share of the fleet's capacity."""
        one = self._dual.instance
        columns = len(made.request)
        owner = np.repeat(np.arange(columns), made.length)
        starts = np.repeat(np.cumsum(made.length) - made.length, made.length)
        tokens = one.work.prompt[made.request][owner] + np.arange(len(owner)) - starts + 1.0
        shape = (columns, one.slots)
        ran = sparse.csr_array((np.ones(len(owner)), (owner, made.slot)), shape=shape) @ self._hat
        kv = sparse.csr_array((tokens, (owner, made.slot)), shape=shape) @ self._hat
        held = self._sums[made.end(one)] - self._sums[made.begin]
        use = np.hstack(self._dual.shares(held, ran.toarray(), kv.toarray()))
        use[use < 1e-12] = 0.0
        return sparse.csr_array(use)
