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
from numpy.typing import NDArray
from scipy import sparse
from scipy.optimize import linprog

from policies.hindsight.dual import Basis, Dual
from policies.hindsight.instance import Floats, Ints
from policies.hindsight.schedules import Schedules, rewards


class Master:
    """Columns collected so far.

    Args:
        dual: the dual whose columns these are.
        basis: knots of the capacity rows, the same for every resource.
    """

    def __init__(self, dual: Dual, basis: Basis) -> None:
        self.dual, self.basis = dual, basis
        self._usage = Usage(dual, basis)
        self._known: set[tuple[int, int]] = set()
        self._request: list[Ints] = []
        self._begin: list[Ints] = []
        self._reward: list[Floats] = []
        self._pauses: list[NDArray[np.bool_]] = []
        self._use: list[Any] = []
        self._x: Floats = np.zeros(0)

    @property
    def columns(self) -> int:
        """Number of columns."""
        return len(self._known)

    def add(self, made: Schedules) -> int:
        """Add the schedules that are new; returns how many."""
        keys = made.keys()
        rows = np.array([c for c, key in enumerate(keys) if key not in self._known], np.int64)
        if len(rows):
            self._known.update(keys)
            new = made.take(rows)
            self._request.append(new.request)
            self._begin.append(new.begin)
            self._pauses.append(new.pauses(self.dual.instance))
            self._reward.append(rewards(self.dual.instance, new))
            self._use.append(self._usage(new))
        return len(rows)

    def solve(self) -> tuple[float, Floats] | None:
        """Value of the LP and its prices on knots; None without columns or if HiGHS fails."""
        if not self._known:
            return None
        requests = self.dual.instance.requests
        reward, owner = np.concatenate(self._reward), np.concatenate(self._request)
        scale = max(float(np.abs(reward).max()), 1e-300)
        columns = len(reward)
        once = sparse.csr_array(
            (np.ones(columns), (owner, np.arange(columns))), shape=(requests, columns)
        )
        rows = sparse.vstack([sparse.vstack(self._use).T, once], format="csr")
        limit = np.concatenate([self.basis.weights, np.ones(requests)])
        # The interior-point method is two to four times faster here than the simplex method.
        found = linprog(-reward / scale, A_ub=rows, b_ub=limit, method="highs-ipm")
        if found.status != 0:
            found = linprog(-reward / scale, A_ub=rows, b_ub=limit, method="highs-ds")
        if found.status != 0:
            return None
        self._x = np.asarray(found.x, np.float64)
        knots = -np.asarray(found.ineqlin.marginals)[: len(self.basis.weights)] * scale
        return -float(found.fun or 0.0) * scale, np.maximum(knots, 0.0)

    def pausing(self) -> float:
        """Requests that pause in the last LP's solution, fractions added up; inf without an LP."""
        if not len(self._x):
            return float("inf")
        pauses = np.concatenate(self._pauses)[: len(self._x)]
        return float(self._x[pauses].sum())

    def order(self) -> Ints:
        """(R,) requests by their mean start in the last LP; what it leaves out comes last."""
        requests, last = self.dual.instance.requests, float(self.dual.instance.slots)
        count = len(self._x)
        if not count:
            return np.argsort(self.dual.instance.work.first, kind="stable")
        owner, begin = np.concatenate(self._request), np.concatenate(self._begin)
        started = np.bincount(owner[:count], self._x, requests)
        mean = np.bincount(owner[:count], self._x * begin[:count], requests)
        return np.argsort(mean + np.maximum(1.0 - started, 0.0) * last, kind="stable")


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
