"""The compiled decision of all cache-aware routers: cost of each device, send, book, next request.

The rules are documented with the classes in ``policies.cache_aware.routers``.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from llmroute_env.cluster.clock import now_ns
from llmroute_env.cluster.kernel import is_over, step_lane
from llmroute_env.cluster.observe import observe, observe_load
from llmroute_env.cluster.state import Handle
from llmroute_env.jit import compiled
from llmroute_env.spaces import Device, Queue
from policies.cache_aware import scores
from policies.cache_aware.detector import DETECTED, PERSISTENT, judge, signature
from policies.cache_aware.scores import Rule
from policies.cache_aware.state import (
    FILTER,
    CacheAwareMemory,
    CacheAwareParams,
    CacheAwareScratch,
    Count,
)
from policies.rng import uniform

_LMETRIC, _LLMD, _DYNAMO, _SGLANG, _LINEAR, _ = (int(rule) for rule in Rule)
#: weight of a request in the mean of uncached tokens
_FORGET: Final = 0.01


@compiled
def _fill(
    prompt: float,
    cached: np.ndarray,
    devices: np.ndarray,
    params: CacheAwareParams,
    mean_new: float,
    scratch: CacheAwareScratch,
    n: int,
) -> None:
    """Write the cost of every candidate, ``scratch.open[:n]``."""
    waiting, prefill, kv, cost = scratch.waiting, scratch.prefill, scratch.kv, scratch.cost
    rule = params.rule
    least_waiting, most_waiting = np.inf, 0.0
    least_load, most_load, best_match = np.inf, 0.0, 0.0
    for i in range(n):
        g = scratch.open[i]
        least_waiting, most_waiting = min(least_waiting, waiting[g]), max(most_waiting, waiting[g])
        load = np.float64(devices[g, Device.ACTIVE]) + waiting[g]
        least_load, most_load = min(least_load, load), max(most_load, load)
        best_match = max(best_match, np.float64(cached[g]) / prompt)
    by_load = (
        most_load - least_load > params.balance_abs and most_load > params.balance_rel * least_load
    ) or best_match <= params.cache_threshold
    blocks = max(np.floor(prompt / params.block), 1.0)
    for i in range(n):
        g = scratch.open[i]
        found = np.float64(cached[g])
        load = np.float64(devices[g, Device.ACTIVE]) + waiting[g]
        if rule == _LMETRIC:
            new = prompt
            if params.cache:
                new -= found
            if params.queued:
                new += prefill[g]
            cost[g] = scores.lmetric(new, load, params.least)
        elif rule == _LLMD:
            share = np.float64(devices[g, Device.KV_USED]) / np.float64(devices[g, Device.KV_LIMIT])
            hit = np.floor(found / params.block) / blocks
            span = (least_waiting, most_waiting)
            cost[g] = scores.llmd(hit, share, waiting[g], span, params.weights)
        elif rule == _DYNAMO:
            # Prefill blocks are those of all that is queued and of the whole request.
            to_do = (prefill[g] + prompt) / params.block
            overlap = np.floor(found / params.block)
            decode = np.ceil((kv[g] + prompt) / params.block)
            credit, scale = params.weights[0], params.weights[1]
            cost[g] = scores.dynamo(to_do, overlap, decode, credit, scale)
        elif rule == _SGLANG:
            cost[g] = load if by_load else -found
        elif rule == _LINEAR:
            cost[g] = scores.linear(found / prompt, load / max(most_load, 1.0), params.weights[0])
        else:
            future = params.weights[0] / mean_new if mean_new > 0.0 else 0.0
            cost[g] = scores.priced(prefill[g], prompt - found, load, future)


@compiled
def _smallest(cost: np.ndarray, candidates: np.ndarray, n: int, pointer: int) -> int:
    """The candidate of least cost; of equals, the first at or after ``pointer``."""
    devices = cost.shape[0]
    best, best_turn = candidates[0], devices
    for i in range(n):
        g = candidates[i]
        turn = (g - pointer) % devices
        if cost[g] < cost[best] or (cost[g] == cost[best] and turn < best_turn):
            best, best_turn = g, turn
    return best  # type: ignore[no-any-return]


@compiled
def _choose(
    params: CacheAwareParams, memory: CacheAwareMemory, scratch: CacheAwareScratch, n: int
) -> int:
    if params.temperature > 0.0:
        u = uniform(memory.rng)
        drawn = scores.draw_softmin(scratch.cost, scratch.open, n, params.temperature, u)
        return scratch.open[drawn]  # type: ignore[no-any-return]
    return _smallest(scratch.cost, scratch.open, n, memory.pointer[0])


@compiled
def _keep_off(
    cached: np.ndarray,
    params: CacheAwareParams,
    memory: CacheAwareMemory,
    candidates: np.ndarray,
    n: int,
) -> int:
    """Take the devices that the request's class overloads off the candidates; how many are left."""
    bits = signature(cached)
    found = judge(memory.recent, memory.entered, bits, cached.shape[0], params.guard_z)
    if found >= DETECTED:
        memory.counts[Count.DETECTED] += 1
    if found < PERSISTENT:
        return n
    memory.counts[Count.PERSISTENT] += 1
    if params.guard < FILTER:
        return n
    left = 0
    for i in range(n):
        if (bits >> candidates[i]) & 1 == 0:
            candidates[left] = candidates[i]
            left += 1
    if left == 0:
        return n
    memory.counts[Count.FILTERED] += 1
    return left


@compiled
def decide(
    queue: np.ndarray,
    queue_id: np.ndarray,
    devices: np.ndarray,
    active: np.ndarray,  # noqa: ARG001  (the signature is shared)
    clock: np.ndarray,  # noqa: ARG001
    prefix: np.ndarray,
    params: CacheAwareParams,
    memory: CacheAwareMemory,
    scratch: CacheAwareScratch,
    action: np.ndarray,
) -> None:
    """Send every visible request, in queue order. Shapes: ``policies.base.Kernels``."""
    action[:] = 0
    if queue_id[0] < 0:
        return
    for g in range(devices.shape[0]):
        scratch.waiting[g] = devices[g, Device.FIFO_LENGTH]
        scratch.prefill[g] = devices[g, Device.PREFILL]
        scratch.kv[g] = devices[g, Device.KV_USED] + devices[g, Device.FIFO_TOKENS]
    for i in range(queue_id.shape[0]):
        if queue_id[i] < 0:
            break
        prompt = np.float64(queue[i, Queue.PROMPT])
        n = 0
        for g in range(devices.shape[0]):
            if devices[g, Device.UP] > 0.0 and prompt + 1.0 <= params.reach[g]:
                scratch.open[n] = g
                n += 1
        if n == 0:
            continue
        if params.guard > 0:
            n = _keep_off(prefix[i], params, memory, scratch.open, n)
        _fill(prompt, prefix[i], devices, params, memory.mean_new[0], scratch, n)
        g = _choose(params, memory, scratch, n)
        new = prompt - np.float64(prefix[i, g])
        share = _FORGET if memory.mean_new[0] > 0.0 else 1.0
        memory.mean_new[0] += share * (new - memory.mean_new[0])
        memory.pointer[0] = (g + 1) % devices.shape[0]
        memory.counts[Count.SENT] += 1
        action[i] = g + 1
        if params.inflight:
            scratch.waiting[g] += 1.0
            scratch.kv[g] += prompt
            if params.prefills:
                scratch.prefill[g] += new


@compiled
def decide_lanes(
    queue: np.ndarray,
    queue_id: np.ndarray,
    devices: np.ndarray,
    active: np.ndarray,
    clock: np.ndarray,
    prefix: np.ndarray,
    params: CacheAwareParams,
    memory: CacheAwareMemory,
    scratch: CacheAwareScratch,
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
            prefix[lane],
            params,
            CacheAwareMemory(
                memory.rng[lane],
                memory.pointer[lane],
                memory.recent[lane],
                memory.entered[lane],
                memory.mean_new[lane],
                memory.counts[lane],
            ),
            scratch,
            action[lane],
        )


@compiled
def run(
    handle: Handle,
    params: CacheAwareParams,
    memory: CacheAwareMemory,
    scratch: CacheAwareScratch,
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
            seen.prefix[0],
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
