"""The search for prices: a coarse start, a descent, then column generation with HiGHS."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from policies.hindsight.coarse import start
from policies.hindsight.descent import Point, trajectory
from policies.hindsight.dual import Basis, Dual, Prices
from policies.hindsight.instance import Floats, Instance, Ints
from policies.hindsight.master import Master
from policies.hindsight.schedules import Schedules, from_runs

#: evaluations of the descent, and how many of its last ones give the first columns
_DESCENT, _COLUMNS = 40, 8
#: gap of the descent's first target, as a share of the value
_GAP = 0.005
#: prices that are tried after each LP, as shares of the way from the best ones to the LP's
_SHARES = (0.3, 1.0)
#: from (K,) knots to the dual value there and the schedules that attain it
Oracle = Callable[[Floats], tuple[float, Schedules]]


@dataclass(frozen=True)
class Found:
    """The best prices, and how they were found.

    Attributes:
        prices: (N,) of each resource, the best found.
        status: ``unconstrained`` (everything fits when all start at once), ``converged`` or
            ``stopped``, when more rounds or time might have lowered the bound.
        columns: columns of the last LP.
        order: (R,) requests in the order in which the LP starts them.
        pausing: requests that the LP pauses, fractions added up; with none, schedules without
            preemption earn as much.
    """

    prices: Prices
    status: str
    columns: int
    order: Ints
    pausing: float


@dataclass(frozen=True)
class Effort:
    """How long to search.

    Attributes:
        knots: of the prices, about so many a resource.
        rounds: most LPs in each phase.
        tolerance: column generation ends when no prices on these knots can improve the bound by
            more than this share.
        until: CPU time of the process (`time.process_time`) after which no LP is begun [s].
    """

    knots: int
    rounds: int
    tolerance: float = 1e-4
    until: float = np.inf

    @property
    def is_over(self) -> bool:
        """Whether the time is up."""
        return time.process_time() >= self.until


def search(one: Instance, effort: Effort, *, preemption: bool) -> Found:
    """Minimise the dual over prices on knots.

    The first phase allows one pause, after a request's first iteration, the second any (see
    `pricing`). Any prices give a valid bound, so nothing depends on HiGHS' tolerances or on
    convergence but how low it is.
    """
    dual = Dual(one)
    width = max(1, round(one.slots / effort.knots))
    basis = Basis(one.slots, [width] * dual.resources)

    def quick(at: Floats) -> tuple[float, Schedules]:
        value, _ = dual.evaluate(basis.expand(at), pause=preemption)
        return value, from_runs(one, dual.begin, dual.resume)

    def exact(at: Floats) -> tuple[float, Schedules]:
        return dual.certify(basis.expand(at), schedules=True) if preemption else quick(at)

    nothing = np.zeros(len(basis.weights))
    _, slopes = dual.evaluate(basis.expand(nothing), pause=False)
    if min((float(slope.min()) for slope in slopes if len(slope)), default=0.0) >= 0.0:
        order = np.argsort(one.work.first, kind="stable")
        return Found(basis.expand(nothing), "unconstrained", 0, order, 0.0)

    master = Master(dual, basis)
    best = Point(nothing, np.inf)
    begun = start(dual, basis, pause=preemption)
    descent = trajectory(dual, basis, begun, _DESCENT, _GAP, pause=preemption)
    for step, (point, begin, resume) in enumerate(descent):
        if point.value < best.value:
            best = point
        if step >= _DESCENT - _COLUMNS:
            master.add(from_runs(one, begin, resume))
    best, value = _generate(master, quick, best, effort)
    if preemption:
        best, value = _generate(master, exact, Point(best.knots, np.inf), effort, value)
    status = "converged" if _close(best.value, value, effort) else "stopped"
    prices = basis.expand(best.knots)
    return Found(prices, status, master.columns, master.order(), master.pausing())


def _generate(
    master: Master, oracle: Oracle, best: Point, effort: Effort, value: float = -np.inf
) -> tuple[Point, float]:
    """Column generation: the best prices and the value of the last LP.

    Args:
        master: the LP so far.
        oracle: dual value and columns at some prices.
        best: prices to start from.
        effort: when to end.
        value: value of the last LP, if there was one.
    """
    dual_value, made = oracle(best.knots)
    best = Point(best.knots, dual_value)
    master.add(made)
    for _ in range(effort.rounds):
        if _close(best.value, value, effort) or effort.is_over:
            break
        solved = master.solve()
        if solved is None:
            break
        value, at = solved
        begun, added = best.knots, 0
        for share in _SHARES:
            knots = begun + share * (at - begun)
            dual_value, made = oracle(knots)
            added += master.add(made)
            if dual_value < best.value:
                best = Point(knots, dual_value)
        if not added:
            break
    return best, value


def _close(upper: float, lower: float, effort: Effort) -> bool:
    return upper - lower <= effort.tolerance * abs(upper)
