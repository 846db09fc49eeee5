"""The compiled decision of the dual-pool router: estimate, choose a pool, then a device in it.

The rules are documented with the class in ``policies.dual_pool.router``.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import numpy as np

from llmroute_env.cluster.clock import now_ns
from llmroute_env.cluster.kernel import is_over, step_lane
from llmroute_env.cluster.observe import observe, observe_load
from llmroute_env.cluster.state import Handle
from llmroute_env.jit import compiled
from llmroute_env.spaces import Clock, Device, Queue, Text
from policies.dual_pool.estimator import CATEGORIES, learn, prompt_tokens


class Count(IntEnum):
    """Columns of the counters."""

    SENT = 0  #: requests sent
    SPILLED = 1  #: of these, to another pool than the preferred one
    REFUSED = 2  #: requests that a pool would not take: more prompt tokens than it can hold
    LOST_REPORTS = 3  #: reports of engines that found no room to wait in


class DualPoolParams(NamedTuple):
    """Constants of the router; pools are numbered by what they can hold, smallest first."""

    beta: float  #: weight of the past in the averages of the estimator
    gamma: float  #: safety margin in deviations
    output_factor: float  #: output budget over the predicted decode length
    overload: float  #: waiting requests per batch slot from which a device counts as overloaded
    feedback_s: float  #: from sending a request until its report [s]
    pool: np.ndarray  #: (G,) int64 pool of each device
    reach: np.ndarray  #: (P,) float64 most tokens s + o in a pool, ascending
    threshold: np.ndarray  #: (P,) float64 largest budget that prefers the pool


class DualPoolMemory(NamedTuple):
    """What survives to the next period; C categories, F reports that may be under way."""

    ratio: np.ndarray  #: (C,) float64 c_k [bytes per token]
    deviation: np.ndarray  #: (C,) float64 sigma_k
    turn: np.ndarray  #: (P,) int64 device at which the next search in a pool starts
    due: np.ndarray  #: (F,) float64 when a report comes [s], a ring
    report: np.ndarray  #: (F, 3) float64 category, bytes, prompt tokens
    ring: np.ndarray  #: (2,) int64 oldest report, number of reports
    sent: np.ndarray  #: (W + 1,) int64 ids sent in the last period, ascending, then -1
    counts: np.ndarray  #: (len(Count),) int64


class DualPoolScratch(NamedTuple):
    """Working space."""

    waiting: np.ndarray  #: (G,) float64, FIFO length with what was just sent
    best: np.ndarray  #: (P,) int64, least loaded device of each pool, -1 for none
    refused: np.ndarray  #: (W + 1,) int64, ids sent in the last period, as ``DualPoolMemory.sent``


@compiled
def _hear(now: float, params: DualPoolParams, memory: DualPoolMemory) -> None:
    """Learn from the reports that have come."""
    ring, room = memory.ring, memory.due.shape[0]
    while ring[1] > 0 and memory.due[ring[0]] <= now:
        row = memory.report[ring[0]]
        learn(memory.ratio, memory.deviation, int(row[0]), row[1], row[2], params.beta)
        ring[0] = (ring[0] + 1) % room
        ring[1] -= 1


@compiled
def _expect(
    due: float, category: int, size_bytes: float, prompt: float, memory: DualPoolMemory
) -> None:
    """Note the report that a request just sent will bring."""
    ring, room = memory.ring, memory.due.shape[0]
    if ring[1] == room:
        memory.counts[Count.LOST_REPORTS] += 1
        return
    at = (ring[0] + ring[1]) % room
    memory.due[at] = due
    memory.report[at, 0] = category
    memory.report[at, 1] = size_bytes
    memory.report[at, 2] = prompt
    ring[1] += 1


@compiled
def _find_best(
    devices: np.ndarray, params: DualPoolParams, turn: np.ndarray, scratch: DualPoolScratch
) -> None:
    """The least loaded device of every pool; of equals, the first at or after the pool's turn."""
    n = devices.shape[0]
    scratch.best[:] = -1
    for g in range(n):
        if devices[g, Device.UP] <= 0.0:
            continue
        p = params.pool[g]
        best = scratch.best[p]
        if best < 0:
            scratch.best[p] = g
            continue
        load = devices[g, Device.ACTIVE] + scratch.waiting[g]
        least = devices[best, Device.ACTIVE] + scratch.waiting[best]
        if load < least or (load == least and (g - turn[p]) % n < (best - turn[p]) % n):
            scratch.best[p] = g


@compiled
def _overloaded(devices: np.ndarray, g: int, params: DualPoolParams, waiting: np.ndarray) -> bool:
    return waiting[g] >= params.overload * devices[g, Device.BATCH_LIMIT]  # type: ignore[no-any-return]


@compiled
def _choose(
    budget: float, devices: np.ndarray, params: DualPoolParams, scratch: DualPoolScratch
) -> tuple[int, bool]:
    """Device for a budget [tokens], -1 for none; and whether it is not in the preferred pool."""
    best, pools = scratch.best, params.reach.shape[0]
    preferred = pools - 1  # beyond every pool: the largest, the cluster knows the true size
    for p in range(pools):
        if budget <= params.threshold[p]:
            preferred = p
            break
    g = best[preferred]
    if g >= 0 and not _overloaded(devices, g, params, scratch.waiting):
        return g, False
    fallback = -1  # for a preferred pool that is down altogether
    for p in range(pools):
        other = best[p]
        if p == preferred or other < 0 or budget > params.reach[p]:
            continue
        if not _overloaded(devices, other, params, scratch.waiting):
            return other, True
        if fallback < 0:
            fallback = other
    if g < 0:
        return fallback, fallback >= 0
    return g, False


@compiled
def decide(
    queue: np.ndarray,
    queue_id: np.ndarray,
    devices: np.ndarray,
    active: np.ndarray,  # noqa: ARG001  (the signature is shared)
    clock: np.ndarray,
    text: np.ndarray,
    params: DualPoolParams,
    memory: DualPoolMemory,
    scratch: DualPoolScratch,
    action: np.ndarray,
) -> None:
    """Send every visible request, in queue order. Shapes: ``policies.base.Kernels``."""
    action[:] = 0
    _hear(clock[Clock.NOW], params, memory)
    if queue_id[0] < 0:
        memory.sent[0] = -1
        return
    scratch.refused[:] = memory.sent
    sent = tried = 0
    for g in range(devices.shape[0]):
        scratch.waiting[g] = devices[g, Device.FIFO_LENGTH]
    for i in range(queue_id.shape[0]):
        if queue_id[i] < 0:
            break
        size, prompt = np.float64(text[i, Text.SIZE_BYTES]), np.float64(queue[i, Queue.PROMPT])
        category = min(int(text[i, Text.CATEGORY]), CATEGORIES - 1)
        # Sent in the last period and still here: the pool refused it, and said how long it is.
        while scratch.refused[tried] >= 0 and scratch.refused[tried] < queue_id[i]:
            tried += 1
        refused = scratch.refused[tried] == queue_id[i]
        if refused:
            memory.counts[Count.REFUSED] += 1
        tokens: float = prompt
        if size > 0.0 and not refused:
            ratio, deviation = memory.ratio[category], memory.deviation[category]
            tokens = prompt_tokens(size, ratio, deviation, params.gamma)
        budget = tokens + np.ceil(params.output_factor * np.float64(queue[i, Queue.PREDICTED]))
        _find_best(devices, params, memory.turn, scratch)
        g, spilled = _choose(budget, devices, params, scratch)
        if g < 0:
            continue
        action[i] = g + 1
        scratch.waiting[g] += 1.0
        memory.turn[params.pool[g]] = (g + 1) % devices.shape[0]
        memory.counts[Count.SENT] += 1
        memory.counts[Count.SPILLED] += spilled
        memory.sent[sent] = queue_id[i]
        sent += 1
        if size > 0.0 and not refused:
            _expect(clock[Clock.NOW] + params.feedback_s, category, size, prompt, memory)
    memory.sent[sent] = -1


@compiled
def decide_lanes(
    queue: np.ndarray,
    queue_id: np.ndarray,
    devices: np.ndarray,
    active: np.ndarray,
    clock: np.ndarray,
    text: np.ndarray,
    params: DualPoolParams,
    memory: DualPoolMemory,
    scratch: DualPoolScratch,
    action: np.ndarray,
) -> None:
    """Decide a batch: everything but params and scratch has a leading lane axis."""
    for lane in range(queue.shape[0]):
        decide(
            queue[lane],
            queue_id[lane],
            devices[lane],
            active[lane],
            clock[lane],
            text[lane],
            params,
            DualPoolMemory(
                memory.ratio[lane],
                memory.deviation[lane],
                memory.turn[lane],
                memory.due[lane],
                memory.report[lane],
                memory.ring[lane],
                memory.sent[lane],
                memory.counts[lane],
            ),
            scratch,
            action[lane],
        )


@compiled
def run(
    handle: Handle,
    params: DualPoolParams,
    memory: DualPoolMemory,
    scratch: DualPoolScratch,
    action: np.ndarray,
    times: np.ndarray,
) -> int:
    """Play lane 0 to the end of its episode; see ``policies.family.Kernels``."""
    state = handle.state
    seen = state.observed
    period = 0
    while not is_over(state, 0):
        start = now_ns() if period < times.shape[0] else 0
        decide(
            seen.queue[0],
            seen.queue_id[0],
            seen.devices[0],
            seen.active[0],
            seen.clock[0],
            seen.text[0],
            params,
            memory,
            scratch,
            action,
        )
        if period < times.shape[0]:
            times[period] = now_ns() - start
        step_lane(state, 0, action[: state.lanes[0].visible])
        observe_load(state, 0)
        period += 1
    observe(state, 0)
    return period
