"""Greedy admission: candidates by descending score, as long as they fit.

A candidate is a (request, device) pair, its score its margin or its index (``candidates.py``).
Pairs are admitted in the order of their scores, a request once, as long as the device has a free
slot and enough KV at every slot of the planned stay, and (unless work-conserving) the score is
positive.
Work-conserving, pairs with a score of 0 or less follow the positive ones into capacity that would
otherwise stay idle; the paper stops at 0.

Partial selection: a heap over requests, keyed by minus the score on the device that they would go
to now. An admission takes room and time, so a key is checked when it is popped; if the device has
changed, the request goes back with the score it has now.

Ties: of equal scores, the older request; of devices, see ``candidates.py``.
"""

from __future__ import annotations

import numpy as np

from llmroute_env.jit import compiled
from llmroute_env.spaces import Queue
from policies.olp.candidates import best_device
from policies.olp.forecast import find_peaks, read_departures
from policies.olp.slowdown import meet
from policies.olp.state import Load, Number, OlpMemory, OlpScratch, Terms
from policies.ordering import heapify, pop


@compiled
def open_devices(
    devices: np.ndarray,
    active: np.ndarray,
    load: np.ndarray,
    leaving: np.ndarray,
    peaks: np.ndarray,
) -> int:
    """Find the devices that may start something now and forecast their KV peaks; count them.

    A device is open with a free slot that no FIFO content needs and room for the smallest request
    (one prompt token, one decode token) at the boundary at which it would join, whose iteration
    has prefill tokens left where there is a budget.
    """
    count = 0
    for g in range(devices.shape[0]):
        if (
            load[g, Load.USED] < load[g, Load.BATCH_LIMIT]
            and load[g, Load.PHYSICAL] + 2 <= load[g, Load.KV_LIMIT]
            and load[g, Load.BUDGET] > 0
        ):
            load[g, Load.OPEN] = 1
            count += 1
            read_departures(devices, active, load, g, leaving)
            find_peaks(load, leaving, g, peaks)
    return count


@compiled
def _put_back(keys: np.ndarray, heap: np.ndarray, size: int, row: int) -> None:
    """Insert ``row`` into a heap of ``size`` rows; the order is that of ``policies.ordering``."""
    at = size
    while at > 0:
        parent = (at - 1) // 2
        above = heap[parent]
        if keys[above] < keys[row] or (keys[above] == keys[row] and above < row):
            break
        heap[at] = above
        at = parent
    heap[at] = row


@compiled
def admit(
    queue: np.ndarray,
    waiting: int,
    work_conserving: int,
    terms: Terms,
    memory: OlpMemory,
    scratch: OlpScratch,
    action: np.ndarray,
) -> None:
    """Rank the visible requests and write the admissions of this period into ``action``.

    Call after :func:`open_devices` found at least one device.
    """
    load, peaks, leaving = scratch.load, scratch.peaks, scratch.leaving
    sums, carry, keys, heap = scratch.sums, scratch.carry, scratch.keys, scratch.heap
    numbers, margins, pointer = memory.numbers, memory.margins, memory.pointer
    pace, slow = scratch.pace, scratch.slow
    for g in range(load.shape[0]):
        if load[g, Load.OPEN] == 1:
            meet(load, leaving, g, slow)
    floor = -np.inf if work_conserving else 0.0
    margins[:] = np.nan
    size = 0
    positive = 0
    for row in range(waiting):
        prompt = int(queue[row, Queue.PROMPT]) - terms.steps
        predicted = scratch.predicted[row]
        waited = np.float64(queue[row, Queue.WAITED])
        best, g, _ = best_device(
            prompt, predicted, waited, pointer[0], pace, terms, load, peaks, sums, carry, slow
        )
        if g < 0:
            continue
        margins[row] = best
        if best > 0.0:
            positive += 1
        if best > floor:
            keys[row] = -best
            heap[size] = row
            size += 1
    numbers[Number.RANKED] += waiting
    numbers[Number.POSITIVE] += positive
    heapify(keys, heap, size)
    while size > 0:
        row = pop(keys, heap, size)
        size -= 1
        prompt = int(queue[row, Queue.PROMPT]) - terms.steps
        predicted = scratch.predicted[row]
        waited = np.float64(queue[row, Queue.WAITED])
        best, g, length = best_device(
            prompt, predicted, waited, pointer[0], pace, terms, load, peaks, sums, carry, slow
        )
        if g < 0:
            continue
        if best == -keys[row]:
            action[row] = g + 1
            pointer[0] = (g + 1) % load.shape[0]
            numbers[Number.STARTED] += 1.0
            if best > 0.0:
                numbers[Number.STARTED_POSITIVE] += 1.0
            if not _occupy(load, leaving, peaks, g, length, prompt):
                break
            if load[g, Load.OPEN] == 1:
                meet(load, leaving, g, slow)
        elif best > floor:  # the device it wanted is taken; it waits for its next best one
            keys[row] = -best
            _put_back(keys, heap, size, row)
            size += 1


@compiled
def _occupy(
    load: np.ndarray, leaving: np.ndarray, peaks: np.ndarray, g: int, length: int, prompt: int
) -> bool:
    """Book an admission on device g; tell whether any device is still open."""
    load[g, Load.USED] += 1
    load[g, Load.TOKENS] += prompt + 1
    load[g, Load.PHYSICAL] += prompt + 1
    load[g, Load.BUDGET] -= prompt + 1
    if (
        load[g, Load.USED] < load[g, Load.BATCH_LIMIT]
        and load[g, Load.PHYSICAL] + 2 <= load[g, Load.KV_LIMIT]
        and load[g, Load.BUDGET] > 0
    ):
        if length < leaving.shape[2]:
            leaving[g, 0, length] += 1
            leaving[g, 1, length] += prompt + 1
        find_peaks(load, leaving, g, peaks)
        return True
    load[g, Load.OPEN] = 0
    still_open = 0
    for other in range(load.shape[0]):
        still_open += load[other, Load.OPEN]
    return still_open > 0
