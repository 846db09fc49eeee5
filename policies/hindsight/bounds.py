"""The hindsight bound: no routing of an episode earns more, whatever it knows.

**Claim.** Let R requests with known arrivals and lengths meet the lock-step cluster: G devices, an
iteration a slot, k = 0 .. N - 1. For any prices b, q >= 0 of batch slots and KV tokens, no routing
earns more than

    D(b, q) = sum_k (b_k sum_g B_g + q_k sum_g M_g) + sum_j max(0, max over plans P of j of g_j(P)),

where a *plan* of request j is a set of slots k_1 < ... < k_n, n <= o_j, none before j is seen, and
g_j(P) is its reward (gamma, sigma, zeta2 by k_1, alpha n, and, if n = o_j, beta and zeta1 by k_n)
less its cost: q at k_i for the s_j + i tokens of the i-th iteration, and b at each slot from k_1 to
k_n (to the end if n < o_j).

**Proof.** A routing gives each request it starts the plan of the slots in which it runs. What a
plan earns is what the environment pays, for the realized reward depends on a request's own first
and last iteration and its tokens only. So the routing earns sum_j reward(P_j), and it is enough
that the plans of a routing satisfy, in every slot,

    KV:     sum of s_j + i over the requests that run   <= sum_g M_g, and
    batch:  number of requests between k_1 and k_n      <= sum_g B_g,

since then adding b_k (capacity - use) and q_k (capacity - use), all >= 0, gives the claim (weak
duality). The first is the admission and growth rule, summed over devices; a request alone on a
device cannot break M, since one with s + o > M is rejected. The second needs preemption: a victim
returns to the *head* of its device's FIFO, and admission takes that FIFO in order. So the FIFO is
always victims first, and a request that has never run starts only when no victim waits. At that
moment all requests of the device that have started and not finished are in the batch, at most B;
between two such moments their number does not grow. Hence a started request counts against B
until it finishes, in the batch or not. (With `head_of_line_skip` a newcomer may pass a victim;
then b is charged in the slots in which a request runs, and the batch limit itself is the proof.)

Plans may pause anywhere: preemption is free in this relaxation, as in a lock-step cluster, where
recomputation takes no time. Without preemption plans are contiguous, k_i = k_1 + i - 1, and if at
most n requests are preempted, at most n plans are not: D with contiguous plans plus the n largest
differences that pauses make at the same prices bounds such an episode (`Bound.given`).

**Other iteration times.** Let d be the shortest possible iteration. On the grid of slots of length
d give iteration [u, v) of a request the slot ceil(u / d): its instant k d lies in [u, v), for
v - u >= d. Slots of one request differ, its order is kept, and the capacities hold at that
instant, so plans satisfy both constraints again; a slow iteration is a pause. An iteration starts
after (k - 1) d and ends after k d, so rewards are taken one slot early. Where iterations grow with
the batch b and its KV, t >= base(b) + c kv, device time is a third resource: an iteration is
charged sum over its requests of min_b base(b) / b + c (s + i) <= t, and as a device runs one
iteration at a time, the charges in any set of slots are covered by the slots' length, up to the
iteration's own: the price of time is spread over the longest iteration (`dual._spread`).

**The search** (`search`) only chooses b and q: piecewise linear in time (coarse knots average the
capacity between them, everything else is exact), by column generation on the LP relaxation with
HiGHS. The value reported is D at the prices found, computed in full by dynamic programming over
each request's plans, so no solver tolerance enters it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from policies.hindsight.dual import Dual, Prices
from policies.hindsight.instance import Floats, HindsightError, Instance
from policies.hindsight.search import Effort, Found, search

if TYPE_CHECKING:
    from llmroute_env.scenario import Scenario
    from llmroute_env.workload import RequestTable

#: added to a bound: far above its rounding errors, far below anything of interest (a share)
_ROUNDING = 1e-9
#: contiguous plans get prices of their own when the LP pauses more requests than this
_NOTICEABLE = 1e-3
#: defaults of the search
KNOTS, ROUNDS = 100, 12


@dataclass(frozen=True, eq=False)
class Bound:
    """An upper bound on the reward of one episode.

    Attributes:
        value: no routing earns more.
        unpreempted: no routing without a preemption earns more, see also `given`; with iteration
            times that grow with the batch the same as ``value``.
        status: ``unconstrained`` (every request can start at once, the bound is what that earns),
            ``converged`` (within the tolerance of the best prices on these knots) or ``stopped``.
        slots: N of the time grid.
        requests: requests that can earn anything.
        columns: columns of the last LPs.
        seconds: wall time.
        looseness: what the relaxation gives away, besides integrality and the knots.
    """

    value: float
    unpreempted: float
    status: str
    slots: int
    requests: int
    columns: int
    seconds: float
    looseness: tuple[str, ...]
    _ladders: tuple[Floats, ...] = ()

    def given(self, preempted: int) -> float:
        """No routing that preempts at most so many different requests earns more."""
        rungs = [ladder[min(preempted, len(ladder) - 1)] for ladder in self._ladders]
        return float(min([self.value, *rungs]))

    def share(self, reward: float, preempted: int | None = None) -> float:
        """Share of the bound that a reward reaches; NaN if nothing can be earned.

        Args:
            reward: of the same episode.
            preempted: requests that were preempted in it, for the sharper bound.
        """
        best = self.value if preempted is None else self.given(preempted)
        return reward / best if best > 0.0 else float("nan")


def bound(
    scenario: Scenario,
    requests: RequestTable,
    *,
    knots: int = KNOTS,
    rounds: int = ROUNDS,
    tolerance: float = 1e-4,
    seconds: float = np.inf,
) -> Bound:
    """Bound the realized reward of an episode from above.

    Args:
        scenario: the scenario that is played.
        requests: the episode's requests, ``env.unwrapped.requests`` after ``reset``.
        knots: knots of the prices over the horizon; more are tighter and slower.
        rounds: most LPs to solve in each phase of the search; 0 leaves it at the descent.
        tolerance: share of the bound that further LPs need not win.
        seconds: CPU time after which no LP is begun. The best prices so far bound as validly as
            any; with a limit that is reached, the bound depends on the speed of the machine.

    Raises:
        HindsightError: an episode too large, or arguments out of range.
    """
    one = Instance.build(scenario, requests)
    return bound_and_order(one, knots=knots, rounds=rounds, tolerance=tolerance, seconds=seconds)[0]


def bound_and_order(
    one: Instance,
    *,
    knots: int,
    rounds: int,
    tolerance: float = 1e-4,
    seconds: float = np.inf,
) -> tuple[Bound, Found]:
    """`bound` of an instance, and the search without preemption, whose order makes a plan."""
    began = time.perf_counter()
    if knots < 1 or rounds < 0:
        raise HindsightError(
            f"knots = {knots}, rounds = {rounds}: at least 1 knot and 0 rounds are needed"
        )
    if not (tolerance >= 0.0 and seconds >= 0.0):
        raise HindsightError(f"tolerance = {tolerance}, seconds = {seconds}: must be at least 0")
    effort = Effort(knots, rounds, tolerance, time.process_time() + seconds)
    any_plan = search(one, effort, preemption=True)
    found, ladders = any_plan, [_ladder(one, any_plan.prices)]
    columns, status = any_plan.columns, any_plan.status
    if one.limited_by_time:  # a slow iteration is a pause too, so no plan need be contiguous
        ladders = [ladders[0][-1:]]
    elif any_plan.pausing > _NOTICEABLE and not effort.is_over:
        found = search(one, effort, preemption=False)
        ladders.append(_ladder(one, found.prices))
        columns += found.columns
        status = "stopped" if "stopped" in (status, found.status) else status
    bounded = Bound(
        value=float(min(ladder[-1] for ladder in ladders)),
        unpreempted=float(min(ladder[0] for ladder in ladders)),
        status=status,
        slots=one.slots,
        requests=one.requests,
        columns=columns,
        seconds=time.perf_counter() - began,
        looseness=one.notes,
        _ladders=tuple(ladders),
    )
    return bounded, found


def _ladder(one: Instance, prices: Prices) -> Floats:
    """(R + 1,) bound at these prices when at most 0, 1, ..., R requests pause."""
    dual = Dual(one)
    contiguous, _ = dual.evaluate(prices, pause=False)
    gains = dual.value.copy()
    dual.certify(prices)
    extra = np.sort(np.maximum(dual.value - gains, 0.0))[::-1]
    ladder: Floats = contiguous + np.concatenate([[0.0], np.cumsum(extra)])
    return ladder + np.abs(ladder) * _ROUNDING
