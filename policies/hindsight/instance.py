"""An episode with full information, on a grid of slots: what bounds, plans and exports start from.

A slot is the shortest iteration that the scenario's devices can have. In the lock-step model
(constant iterations that divide the period) every iteration *is* a slot and the grid is exact.
Otherwise iterations lie anywhere and last longer; `policies.hindsight.bounds` shows why the grid
still gives a relaxation, and `Instance.notes` says what it gives away.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from llmroute_env.cluster.spec import ClusterSpec, to_ns
from llmroute_env.cluster.state import NANOSECONDS

if TYPE_CHECKING:
    from llmroute_env.scenario import Scenario
    from llmroute_env.workload import RequestTable

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

LOCK_STEP = "constant iterations that divide the period"

#: requests x slots above which a bound would take minutes to hours
_MOST_WORK = 1_000_000_000


class HindsightError(ValueError):
    """An episode that cannot be bounded, planned or exported; one line that says why."""


class Work(NamedTuple):
    """The requests and their rewards, as compiled code takes them. R requests, N slots."""

    first: Ints  #: (R,) first slot in which the request may start
    prompt: Ints  #: (R,) s [tokens]
    decode: Ints  #: (R,) true o [tokens]
    first_value: Floats  #: (R,) gamma and sigma of a start in slot ``first``
    start_value: Floats  #: (N,) gamma and sigma of a start in any later slot
    finish_value: Floats  #: (N,) beta of a last token in the slot
    start_by: Ints  #: (R,) last slot whose start earns zeta2, -1 for none
    finish_by: Ints  #: (R,) last slot whose last token earns zeta1, -1 for none
    zeta1: float
    zeta2: float


@dataclass(frozen=True)
class Instance:
    """One episode's routing problem.

    Attributes:
        work: requests and rewards.
        rows: (R,) row of each request in the table; rejected and too late ones are left out.
        alpha: reward of a token.
        slot_ns: length of a slot [ns].
        exact: whether iterations are slots (lock-step).
        hold: whether a preempted request keeps others out of its batch slot.
        batch_limit: (G,) B [requests].
        kv_limit: (G,) M [tokens].
        kv_block: tokens of a KV block.
        reserve: (G,) KV tokens that admission keeps free.
        token_share: device time that a token takes at least, in slots, besides its KV; 0 where
            the batch limit says it all (constant iterations).
        kv_share: device time per KV token and iteration, in slots.
        reach: longest iteration without recomputation, in slots.
        notes: what makes bounds on this instance loose.
    """

    work: Work
    rows: Ints
    alpha: float
    slot_ns: int
    exact: bool
    hold: bool
    batch_limit: Ints
    kv_limit: Ints
    kv_block: int
    reserve: Ints
    token_share: float
    kv_share: float
    reach: int
    notes: tuple[str, ...]

    @property
    def slots(self) -> int:
        """N."""
        return len(self.work.start_value)

    @property
    def requests(self) -> int:
        """R."""
        return len(self.rows)

    @property
    def devices(self) -> int:
        """G."""
        return len(self.batch_limit)

    @property
    def limited_by_time(self) -> bool:
        """Whether iteration times grow with the batch, so that device time is a resource."""
        return self.token_share > 0.0

    def digest(self) -> str:
        """Twelve hex digits that stand for everything a bound depends on.

        Scenarios that differ in predictions alone have the same instances.
        """
        seen = hashlib.sha256()
        rest = (getattr(self, each.name) for each in fields(self) if each.name != "notes")
        for part in (*self.work, *rest):
            if not isinstance(part, Work):
                seen.update(np.asarray(part).tobytes())
        return seen.hexdigest()[:12]

    @classmethod
    def build(cls, scenario: Scenario, requests: RequestTable) -> Instance:
        """The instance of a scenario and the requests of one of its episodes.

        Raises:
            HindsightError: more slots and requests than can be handled.
        """
        spec = ClusterSpec.from_scenario(scenario)
        if spec.prefill:
            raise HindsightError(
                f"scenario {scenario.name}: cluster.prefill has to be null, the bound knows only "
                "devices that decode"
            )
        constants = spec.constants(scenario)[0]
        clock, cluster = _Clock.of(spec), scenario.cluster
        period, horizon = int(constants["period_ns"]), int(constants["horizon_ns"])

        arrival = np.rint(requests.arrival_s * NANOSECONDS).astype(np.int64)
        seen = -(-arrival // period) * period
        fits = requests.prompt + requests.decode <= int(constants["largest"])
        rows = np.flatnonzero(fits & (seen < horizon))
        arrival, seen = arrival[rows], seen[rows]
        prompt, decode = requests.prompt[rows], requests.decode[rows]

        shortest = int(prompt.min()) + 1 if len(rows) else 2
        slot = max(to_ns(clock.alone_s + clock.kv_s * shortest), 1)
        exact = clock.constant and period % slot == 0 and cluster.handoff is None
        lag = 0 if exact else 1  # off the devices' own grid, events may lie a slot earlier
        slots = horizon // slot if exact else -(-horizon // slot) + 1
        if slots * max(len(rows), 1) > _MOST_WORK:
            raise HindsightError(
                f"scenario {scenario.name}: {len(rows)} requests x {slots} slots of "
                f"{slot / NANOSECONDS:g} s are more than {_MOST_WORK:g}; shorten horizon_periods"
            )
        grid = np.arange(slots, dtype=np.int64)
        objective = scenario.objective
        start_ns = np.maximum(grid - lag, 0) * slot
        finish_ns = (grid + 1 - lag) * slot

        def saved(weight: float, at: Ints) -> Floats:
            return weight * (np.maximum(horizon - at, 0) / period)

        in_time = arrival + int(constants["tail_ttft_ns"]) - 1
        start_by = np.where(seen <= in_time, in_time // slot + lag, -1)
        done = arrival + int(constants["tail_eel_ns"]) - 1
        work = Work(
            first=-(-seen // slot),
            prompt=prompt.astype(np.int64),
            decode=decode.astype(np.int64),
            first_value=saved(objective.gamma, seen) + objective.sigma,
            start_value=saved(objective.gamma, start_ns) + objective.sigma,
            finish_value=saved(objective.beta, finish_ns),
            start_by=start_by,
            finish_by=done // slot - 1 + lag,
            zeta1=float(objective.zeta1),
            zeta2=float(objective.zeta2),
        )
        blocks = spec.kv_limit // cluster.kv_block
        # A hair less than the truth, for the rounding of durations to nanoseconds.
        per_slot = NANOSECONDS / slot * (1.0 - 1e-7)
        return cls(
            work=work,
            rows=rows,
            alpha=float(objective.alpha),
            slot_ns=slot,
            exact=exact,
            hold=not cluster.head_of_line_skip,
            batch_limit=spec.batch_limit,
            kv_limit=spec.kv_limit,
            kv_block=cluster.kv_block,
            reserve=np.floor(blocks * cluster.kv_watermark).astype(np.int64) * cluster.kv_block,
            token_share=0.0 if clock.constant else clock.token_s * per_slot,
            kv_share=0.0 if clock.constant else clock.kv_s * per_slot,
            reach=0 if clock.constant else int(np.ceil(clock.longest_s * NANOSECONDS / slot)),
            notes=_notes(scenario, clock, slot, exact),
        )


class _Clock(NamedTuple):
    """Iteration times of a fleet; of unlike devices the fastest in each respect."""

    alone_s: float  #: of a batch of one, without its KV [s]
    token_s: float  #: least share of an iteration that one of its requests takes [s]
    kv_s: float  #: per KV token [s]
    longest_s: float  #: longest iteration without recomputation [s]
    constant: bool  #: whether all iterations of all devices last the same
    unlike: bool  #: whether devices differ

    @classmethod
    def of(cls, spec: ClusterSpec) -> _Clock:
        longest = [
            timing.iteration_s(timing.batch_limit, int(kv))
            for timing, kv in zip(spec.timing, spec.kv_limit, strict=True)
        ]
        shares = [
            (timing.base_s[1:] / np.arange(1, len(timing.base_s))).min() for timing in spec.timing
        ]
        alone = [float(timing.base_s[1]) for timing in spec.timing]
        flat = all(
            timing.kv_s == 0.0 and timing.prefill_s == 0.0 and np.ptp(timing.base_s) == 0.0
            for timing in spec.timing
        )
        return cls(
            min(alone),
            float(min(shares)),
            min(timing.kv_s for timing in spec.timing),
            max(longest),
            flat and len(set(alone)) == 1,
            len(set(longest)) > 1,
        )


def _notes(scenario: Scenario, clock: _Clock, slot: int, exact: bool) -> tuple[str, ...]:
    cluster = scenario.cluster
    notes = ["devices are pooled, as if packing requests onto them lost nothing"]
    if not exact:
        notes.append(f"start and end up to one slot early ({slot / NANOSECONDS:g} s)")
    if not clock.constant:
        notes.append(
            "a request's own iterations are as fast as those of a batch of one; recomputation "
            "after preemption takes no time"
        )
    if clock.unlike:
        notes.append("all devices are as fast as the fastest")
    if cluster.handoff is not None:
        notes.append("prompts arrive at a device at once")
    if cluster.kv_block > 1:
        notes.append(f"KV in tokens, not in blocks of {cluster.kv_block}")
    if cluster.head_of_line_skip:
        notes.append("head-of-line skip: a preempted request keeps no batch slot")
    return tuple(notes)
