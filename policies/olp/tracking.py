"""What a router sees of a request's fate: late in the queue, started, ended. Compiled.

* Waiting past the limit: a miss, settled at the first sight of it. The queue is in the order of
  arrivals, so one mark in time tells which were counted.
* Start: what is sent starts at the device's next iteration boundary, so its delay is known when it
  is sent (release when startable).
* End: a request has ended when it is neither in ``active`` nor in the FIFO any more. The table has
  no ids. Both are in the order of admission, so the requests that this router sent to a device are
  kept in that order and matched with the rows: a row fits a request if KV less prompt tokens is a
  number of emitted tokens that agrees with the remaining prediction, and all rows have gained the
  same number of tokens. The number of requests that ended is exact; which of two did is a guess
  where both fit. Ends are seen at period boundaries.

A request settles once for every target. What is rejected at arrival is never seen, hence not
counted. Requests that were on the devices when the episode was joined belong to nobody.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from llmroute_env.jit import compiled
from llmroute_env.spaces import Active, Device, Queue
from policies.olp.drift import iteration_periods
from policies.olp.state import Number, OlpMemory, OlpParams
from policies.olp.targets import Goal, Kind, Target, settle

#: Iterations that a device is thought to end in one period, at most.
_MOST_ITERATIONS = 64


class Sent(IntEnum):
    """Columns of ``memory.sent`` (G, B_max, 5), float64: requests on a device, as admitted."""

    ARRIVAL = 0  #: [s]
    PROMPT = 1  #: [tokens]
    PREDICTED = 2  #: [tokens]
    KV = 3  #: KV tokens when last seen in the batch, -1 before that
    SETTLED = 4  #: 1 if its fate is known or nobody's business


@compiled
def end_row(targets: np.ndarray) -> int:
    """Row of the target that needs to see ends; -1 if there is none."""
    for row in range(targets.shape[0]):
        if int(targets[row, Target.KIND]) != Kind.TTFT:
            return row
    return -1


@compiled
def start_limit(target: np.ndarray, iteration_s: float) -> float:
    """Largest delay of a start that can still be inside [s]."""
    if int(target[Target.KIND]) == Kind.TTFT:
        return float(target[Target.START_LIMIT] - iteration_s)
    if int(target[Target.KIND]) == Kind.EEL:
        return float(target[Target.END_LIMIT])
    return float(target[Target.START_LIMIT])


@compiled
def see_waiting(
    queue: np.ndarray,
    queue_id: np.ndarray,
    waiting: int,
    seen_before: float,
    now: float,
    iteration_s: float,
    targets: np.ndarray,
    goals: np.ndarray,
) -> None:
    """Settle the waiting requests that are too late.

    Args:
        seen_before: largest id of earlier periods; a request first seen late is settled, too.
        now: [s].
    """
    for row in range(targets.shape[0]):
        target, goal = targets[row], goals[row]
        before = goal[Goal.MARK]
        goal[Goal.MARK] = max(before, now - start_limit(target, iteration_s))
        for at in range(waiting):
            arrival = now - np.float64(queue[at, Queue.WAITED])
            if arrival > goal[Goal.MARK]:
                break
            if arrival > before or queue_id[at] > seen_before:
                settle(goal, target, True, now)


@compiled
def see_starts(
    queue: np.ndarray,
    waiting: int,
    action: np.ndarray,
    devices: np.ndarray,
    now: float,
    iteration_s: float,
    targets: np.ndarray,
    goals: np.ndarray,
    sent: np.ndarray,
    held: np.ndarray,
) -> None:
    """Settle starts, and keep what was sent until it ends."""
    tracked = end_row(targets)
    for at in range(waiting):
        if action[at] == 0:
            continue
        g = action[at] - 1
        waited = np.float64(queue[at, Queue.WAITED])
        delay = waited + np.float64(devices[g, Device.TIME_TO_END])
        settled = 0.0
        for row in range(targets.shape[0]):
            target, goal = targets[row], goals[row]
            known = now - waited <= goal[Goal.MARK]
            kind = int(target[Target.KIND])
            late = bool(delay >= start_limit(target, iteration_s))
            if not known and (kind == Kind.TTFT or (kind == Kind.BOTH and late)):
                settle(goal, target, late, now)
            if row == tracked and (known or (kind == Kind.BOTH and late)):
                settled = 1.0
        if tracked >= 0 and held[g] < sent.shape[1]:
            one = sent[g, held[g]]
            one[Sent.ARRIVAL] = now - waited
            one[Sent.PROMPT] = queue[at, Queue.PROMPT]
            one[Sent.PREDICTED] = queue[at, Queue.PREDICTED]
            one[Sent.KV] = -1.0
            one[Sent.SETTLED] = settled
            held[g] += 1


@compiled
def _fits(one: np.ndarray, row: np.ndarray, gained: float) -> bool:
    """Tell whether a request can be this row of ``active``.

    Args:
        gained: tokens that requests on this device gained since they were seen, -1: not known.
    """
    kv = np.float64(row[Active.KV])
    if one[Sent.KV] >= 0.0 and gained >= 0.0 and kv - one[Sent.KV] != gained:
        return False
    emitted = kv - one[Sent.PROMPT]
    if emitted < 0.0 and one[Sent.KV] < one[Sent.PROMPT]:  # it prefills on the device
        emitted = 0.0
    if emitted < 0.0 or kv < one[Sent.KV] or (one[Sent.KV] < 0.0 and emitted > gained >= 0.0):
        return False
    left = max(one[Sent.PREDICTED] - emitted, 1.0)
    return bool(abs(left - np.float64(row[Active.REMAINING])) < 0.01)  # float32, to 100,000 tokens


@compiled
def _gained(sent: np.ndarray, held: int, active: np.ndarray, rows: int, ended: int) -> float:
    """Tokens that every request of a device gained since its rows were seen.

    It is the smallest number with which all rows find their requests, in order, when ``ended`` of
    those are passed over; -1 where there is none (a preempted request came back).
    """
    for gained in range(_MOST_ITERATIONS):
        found, left = 0, ended
        for i in range(held):
            if found < rows and _fits(sent[i], active[found], float(gained)):
                found += 1
            elif left > 0:
                left -= 1
            else:
                break
        if found == rows:
            return float(gained)
    return -1.0


@compiled
def see_ends(
    devices: np.ndarray,
    active: np.ndarray,
    now: float,
    targets: np.ndarray,
    goals: np.ndarray,
    sent: np.ndarray,
    held: np.ndarray,
) -> None:
    """Settle the requests that have ended, and those on a device that have become too late."""
    tracked = end_row(targets)
    if tracked < 0:
        return
    target, goal = targets[tracked], goals[tracked]
    limit = target[Target.END_LIMIT]
    for g in range(devices.shape[0]):
        rows = min(int(devices[g, Device.ACTIVE]), sent.shape[1])
        there = min(rows + int(devices[g, Device.FIFO_LENGTH]), sent.shape[1])
        while held[g] < there:  # not ours
            one = sent[g, held[g]]
            one[:] = 0.0
            one[Sent.KV] = -1.0
            one[Sent.SETTLED] = 1.0
            if held[g] < rows:
                one[Sent.PROMPT] = active[g, held[g], Active.KV]
                one[Sent.PREDICTED] = active[g, held[g], Active.REMAINING]
            held[g] += 1
        ended = held[g] - there
        kept, gained = 0, -1.0
        if ended > 0:
            gained = _gained(sent[g], held[g], active[g], rows, ended)
        for i in range(held[g]):
            one = sent[g, i]
            age = now - one[Sent.ARRIVAL]
            here = kept < rows and (ended == 0 or _fits(one, active[g, kept], gained))
            if not here and ended > 0:
                ended -= 1
                if one[Sent.SETTLED] == 0.0:
                    settle(goal, target, age >= limit, now)
                continue
            if one[Sent.SETTLED] == 0.0 and age >= limit:
                settle(goal, target, True, now)
                one[Sent.SETTLED] = 1.0
            if kept < rows:
                one[Sent.KV] = active[g, kept, Active.KV]
            else:
                one[Sent.KV] = -1.0
            if kept != i:
                sent[g, kept] = one
            kept += 1
        held[g] = kept


@compiled
def see_targets(
    queue: np.ndarray,
    queue_id: np.ndarray,
    waiting: int,
    seen_before: float,
    devices: np.ndarray,
    active: np.ndarray,
    params: OlpParams,
    memory: OlpMemory,
) -> None:
    """Settle what this period's observation tells. Call before the decision."""
    if params.targets.shape[0] == 0:
        return
    now = memory.numbers[Number.PERIOD] * params.period_s
    iteration_s = iteration_periods(memory.numbers) * params.period_s
    see_ends(devices, active, now, params.targets, memory.goals, memory.sent, memory.held)
    see_waiting(
        queue, queue_id, waiting, seen_before, now, iteration_s, params.targets, memory.goals
    )


@compiled
def note_starts(
    queue: np.ndarray,
    waiting: int,
    action: np.ndarray,
    devices: np.ndarray,
    params: OlpParams,
    memory: OlpMemory,
) -> None:
    """Settle what the action tells. Call after the decision."""
    if params.targets.shape[0] == 0:
        return
    now = memory.numbers[Number.PERIOD] * params.period_s
    iteration_s = iteration_periods(memory.numbers) * params.period_s
    targets, goals = params.targets, memory.goals
    see_starts(
        queue,
        waiting,
        action,
        devices,
        now,
        iteration_s,
        targets,
        goals,
        memory.sent,
        memory.held,
    )
