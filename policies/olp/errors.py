"""Errors of the predicted lengths, learned from what the devices show, and their correction.

A request that leaves a batch shows its true length: the tokens that it had emitted when last seen
and what it can have emitted since. With o and ô summed over those that left,

    c = (N0 + n r) / (N0 + n),  r = sum of o / sum of ô,

the ratio shrunk to 1 as if N0 requests had met their prediction. A waiting request is planned with
c ô, an active one with c ô - emitted left. Older requests are forgotten at the pace of the history.

The batch is observed in admission order without ids. Survivors keep their order and all gain the
same number of tokens k, so they are matched by KV and predicted remaining length, for the k that
matches most. What vanishes from the end of a batch whose FIFO is not empty may be a preemption, and
what waited in a FIFO at the last look may have emitted before: neither is counted.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from llmroute_env.jit import compiled
from llmroute_env.spaces import Active, Device, Queue
from policies.olp.state import Number, OlpMemory, OlpScratch

#: Requests that count as predicted correctly, and most iterations between two looks that are tried.
PRIOR = 20.0
MOST_ITERATIONS = 8


class Seen(IntEnum):
    """Last axis of ``memory.seen``: what the last look showed of an active request."""

    KV = 0  #: s + emitted [tokens]
    REMAINING = 1  #: predicted remaining length as observed [tokens]
    PREDICTED = 2  #: ô, 0 where unknown [tokens]
    EMITTED = 3  #: [tokens]


@compiled
def correction(numbers: np.ndarray) -> float:
    """Factor c by which predicted lengths are corrected."""
    known = numbers[Number.DEPARTED]
    if known == 0.0:
        return 1.0
    ratio = numbers[Number.SUM_LENGTH] / max(numbers[Number.SUM_PREDICTED], 1.0)
    return float((PRIOR + known * ratio) / (PRIOR + known))


@compiled
def _same(seen: np.ndarray, old: int, active: np.ndarray, row: int, gained: int) -> bool:
    """Tell whether a row can be an old one after ``gained`` tokens."""
    return (  # type: ignore[no-any-return]
        active[row, Active.KV] == seen[old, Seen.KV] + gained
        and active[row, Active.REMAINING] == max(seen[old, Seen.REMAINING] - gained, 1.0)
    )


@compiled
def _survivors(
    seen: np.ndarray, before: int, active: np.ndarray, now: int, gained: int
) -> tuple[int, int]:
    """How many rows of the last look are there if each gained ``gained`` tokens, and the last."""
    found, last = 0, -1
    for old in range(before):
        if found < now and _same(seen, old, active, found, gained):
            found += 1
            last = old
    return found, last


@compiled
def _gained(seen: np.ndarray, before: int, active: np.ndarray, now: int) -> tuple[int, int]:
    """Tokens that each survivor gained since the last look, and the last of them; -1 if unknown."""
    best, most, last = -1, 0, -1
    for gained in range(MOST_ITERATIONS + 1):
        found, at = _survivors(seen, before, active, now, gained)
        if found > most:
            best, most, last = gained, found, at
            if found == min(before, now):
                break
    return best, last


@compiled
def _enter(length: float, predicted: float, forget: float, numbers: np.ndarray) -> None:
    keep = 1.0 - forget
    numbers[Number.DEPARTED] = keep * numbers[Number.DEPARTED] + 1.0
    numbers[Number.SUM_LENGTH] = keep * numbers[Number.SUM_LENGTH] + length
    numbers[Number.SUM_PREDICTED] = keep * numbers[Number.SUM_PREDICTED] + predicted


@compiled
def watch(devices: np.ndarray, active: np.ndarray, forget: float, memory: OlpMemory) -> None:
    """Compare the batches with the last look, and enter the lengths of what has left.

    Args:
        devices: ``obs["devices"]`` (G, 10).
        active: ``obs["active"]`` (G, B_max, 2).
        forget: share of the sums that each departure wipes out.
    """
    for g in range(devices.shape[0]):
        seen, rows = memory.seen[g], active[g]
        before, queued = memory.seen_count[g, 0], memory.seen_count[g, 1]
        now, queues = int(devices[g, Device.ACTIVE]), int(devices[g, Device.FIFO_LENGTH])
        gained, last = _gained(seen, before, rows, now)
        # One that has left emitted at least one token since, and at most what survivors gained.
        ran = max(gained, 1)
        kept = 0
        for old in range(before if gained >= 0 else 0):
            predicted, emitted = seen[old, Seen.PREDICTED], seen[old, Seen.EMITTED]
            if kept < now and _same(seen, old, rows, kept, gained):
                seen[kept, Seen.PREDICTED] = predicted
                seen[kept, Seen.EMITTED] = emitted + gained
                kept += 1
            elif predicted > 0.0 and (queues == 0 or old < last):
                _enter(emitted + 0.5 * (1.0 + ran), predicted, forget, memory.numbers)
        for row in range(kept, now):
            known = 1.0 if row - kept >= queued else 0.0  # a FIFO is served in order
            seen[row, Seen.PREDICTED] = known * (rows[row, Active.REMAINING] + ran)
            seen[row, Seen.EMITTED] = ran
        for row in range(now):
            seen[row, Seen.KV] = rows[row, Active.KV]
            seen[row, Seen.REMAINING] = rows[row, Active.REMAINING]
        memory.seen_count[g, 0] = now
        memory.seen_count[g, 1] = queues


@compiled
def correct(
    devices: np.ndarray, active: np.ndarray, factor: float, memory: OlpMemory, out: np.ndarray
) -> None:
    """Write ``active`` with corrected remaining lengths into ``out`` (G, B_max, 2)."""
    for g in range(devices.shape[0]):
        seen = memory.seen[g]
        for row in range(int(devices[g, Device.ACTIVE])):
            out[g, row, Active.KV] = active[g, row, Active.KV]
            predicted = np.float64(seen[row, Seen.PREDICTED])
            left = factor * np.float64(active[g, row, Active.REMAINING])
            if predicted > 0.0:
                left = factor * predicted - np.float64(seen[row, Seen.EMITTED])
            out[g, row, Active.REMAINING] = max(left, 1.0)


@compiled
def expect(
    queue: np.ndarray,
    waiting: int,
    devices: np.ndarray,
    active: np.ndarray,
    forget: float,
    memory: OlpMemory,
    scratch: OlpScratch,
) -> None:
    """Fill ``scratch.predicted`` and ``scratch.active``; as observed when ``forget`` is 0."""
    factor = 1.0
    if forget > 0.0:
        watch(devices, active, forget, memory)
        factor = correction(memory.numbers)
        correct(devices, active, factor, memory, scratch.active)
    else:
        for g in range(devices.shape[0]):
            for row in range(int(devices[g, Device.ACTIVE])):
                scratch.active[g, row, Active.KV] = active[g, row, Active.KV]
                scratch.active[g, row, Active.REMAINING] = active[g, row, Active.REMAINING]
    for row in range(waiting):
        scratch.predicted[row] = factor * np.float64(queue[row, Queue.PREDICTED])
