"""The compiled decision of all load balancers: score the devices, send, score again.

The rules and their sources are documented with the classes in ``policies.load_balancing``.
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
from llmroute_env.spaces import Active, Device, Queue
from policies.rng import below


class Rule(IntEnum):
    """How a device is scored or drawn."""

    RANDOM = 0
    ROUND_ROBIN = 1
    OUTSTANDING = 2
    VLLM = 3
    VLLM_KV = 4
    TOKENS = 5
    KV_TOKEN_STEPS = 6


class DispatchParams(NamedTuple):
    """Constants of a load balancer."""

    rule: int  #: a ``Rule``
    sample: int  #: devices compared for each request; 0 for all of them
    largest: np.ndarray  #: (G,) float64, largest s + o that a device holds [tokens]
    uneven: bool  #: whether some devices hold larger requests than others
    reads_length: bool  #: whether ô says where a request fits, else s alone does


class DispatchMemory(NamedTuple):
    """What survives to the next period."""

    rng: np.ndarray  #: (1,) uint64
    pointer: np.ndarray  #: (1,) int64, device at which the next search starts


class DispatchScratch(NamedTuple):
    """Working space."""

    score: np.ndarray  #: (G,) float64
    waiting: np.ndarray  #: (G,) float64, FIFO length with what was just sent
    up: np.ndarray  #: (G,) int64, the devices that are up, in no particular order
    able: np.ndarray  #: (G,) int64, those of them that can hold the request


@compiled
def _vllm_score(devices: np.ndarray, g: int, waiting: float, with_kv: bool) -> float:
    running = devices[g, Device.ACTIVE]
    if not with_kv:
        return 4.0 * waiting + running  # type: ignore[no-any-return]
    share = np.float64(devices[g, Device.KV_USED]) / np.float64(devices[g, Device.KV_LIMIT])
    return waiting + running + 6.0 * waiting * max(0.0, share - 0.5)  # type: ignore[no-any-return]


@compiled
def _kv_token_steps(kv: float, steps: float) -> float:
    """Sum of a request's KV tokens over its remaining iterations: kv + 1, ..., kv + steps."""
    return steps * kv + 0.5 * steps * (steps + 1.0)


@compiled
def _predicted_work(devices: np.ndarray, active: np.ndarray, g: int, rule: int) -> float:
    fifo = np.float64(devices[g, Device.FIFO_PREDICTED])
    work: float = fifo
    if rule == Rule.KV_TOKEN_STEPS and fifo > 0.0:
        length = max(np.float64(devices[g, Device.FIFO_LENGTH]), 1.0)
        tokens = np.float64(devices[g, Device.FIFO_TOKENS])
        work = length * _kv_token_steps(tokens / length, fifo / length)
    for slot in range(int(devices[g, Device.ACTIVE])):
        left = np.float64(active[g, slot, Active.REMAINING])
        if rule == Rule.TOKENS:
            work += left
        else:
            work += _kv_token_steps(np.float64(active[g, slot, Active.KV]), left)
    return work


@compiled
def _score(devices: np.ndarray, active: np.ndarray, g: int, rule: int, waiting: float) -> float:
    """Score of a device as the telemetry shows it."""
    if rule == Rule.OUTSTANDING:
        return devices[g, Device.ACTIVE] + waiting  # type: ignore[no-any-return]
    if rule in (Rule.VLLM, Rule.VLLM_KV):
        return _vllm_score(devices, g, waiting, rule == Rule.VLLM_KV)
    if rule in (Rule.TOKENS, Rule.KV_TOKEN_STEPS):
        return _predicted_work(devices, active, g, rule)
    return 0.0


@compiled
def _smallest(score: np.ndarray, up: np.ndarray, pointer: int, n: int) -> int:
    """Index into ``up[:n]`` of the smallest score; of equals, the first at or after ``pointer``."""
    devices = score.shape[0]
    best, best_turn = 0, devices
    best_score = np.inf
    for i in range(n):
        g = up[i]
        turn = g - pointer
        if turn < 0:
            turn += devices
        if score[g] < best_score or (score[g] == best_score and turn < best_turn):
            best, best_turn, best_score = i, turn, score[g]
    return best


@compiled
def _next(able: np.ndarray, pointer: int, n: int, devices: int) -> int:
    """First of ``able[:n]`` at or after ``pointer``, going round."""
    best = 0
    for i in range(n):
        if (able[i] - pointer) % devices < (able[best] - pointer) % devices:
            best = i
    return able[best]  # type: ignore[no-any-return]


@compiled
def _able(
    queue: np.ndarray, i: int, params: DispatchParams, scratch: DispatchScratch, n_up: int
) -> int:
    """Fill ``able`` with the devices that can hold request ``i``; how many there are."""
    final = np.float64(queue[i, Queue.PROMPT])
    predicted = np.float64(queue[i, Queue.PREDICTED]) if params.reads_length else 1.0
    final = min(final + max(np.rint(predicted), 1.0), params.largest.max())
    n = 0
    for k in range(n_up):
        if final <= params.largest[scratch.up[k]]:
            scratch.able[n] = scratch.up[k]
            n += 1
    return n


@compiled
def decide(
    queue: np.ndarray,
    queue_id: np.ndarray,
    devices: np.ndarray,
    active: np.ndarray,
    clock: np.ndarray,  # noqa: ARG001  (the signature is shared)
    params: DispatchParams,
    memory: DispatchMemory,
    scratch: DispatchScratch,
    action: np.ndarray,
) -> None:
    """Send every visible request, in queue order. Shapes: ``policies.base.Kernels``."""
    action[:] = 0
    if queue_id[0] < 0:
        return
    rule = params.rule
    score, waiting, up = scratch.score, scratch.waiting, scratch.up
    n_up = 0
    for g in range(devices.shape[0]):
        if devices[g, Device.UP] > 0.0:
            up[n_up] = g
            n_up += 1
            waiting[g] = devices[g, Device.FIFO_LENGTH]
            score[g] = _score(devices, active, g, rule, waiting[g])
    if n_up == 0:
        return
    for i in range(queue_id.shape[0]):
        if queue_id[i] < 0:
            break
        able, n = up, n_up
        if params.uneven:
            able, n = scratch.able, _able(queue, i, params, scratch, n_up)
            if n == 0:
                continue
        compared = n
        if 0 < params.sample < n:
            compared = params.sample
            for j in range(compared):  # the first steps of a Fisher-Yates shuffle
                k = j + below(memory.rng, n - j)
                able[j], able[k] = able[k], able[j]
        if rule == Rule.RANDOM:
            g = able[below(memory.rng, n)]
        elif rule == Rule.ROUND_ROBIN:
            g = _next(able, memory.pointer[0], n, devices.shape[0])
            memory.pointer[0] = (g + 1) % devices.shape[0]
        else:
            g = able[_smallest(score, able, memory.pointer[0], compared)]
            memory.pointer[0] = (g + 1) % devices.shape[0]
        waiting[g] += 1.0
        if rule == Rule.TOKENS:
            score[g] += queue[i, Queue.PREDICTED]
        elif rule == Rule.KV_TOKEN_STEPS:
            prompt = np.float64(queue[i, Queue.PROMPT])
            score[g] += _kv_token_steps(prompt, np.float64(queue[i, Queue.PREDICTED]))
        elif rule not in (Rule.RANDOM, Rule.ROUND_ROBIN):
            score[g] = _score(devices, active, g, rule, waiting[g])
        action[i] = g + 1


@compiled
def decide_lanes(
    queue: np.ndarray,
    queue_id: np.ndarray,
    devices: np.ndarray,
    active: np.ndarray,
    clock: np.ndarray,
    params: DispatchParams,
    memory: DispatchMemory,
    scratch: DispatchScratch,
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
            params,
            DispatchMemory(memory.rng[lane], memory.pointer[lane]),
            scratch,
            action[lane],
        )


@compiled
def run(
    handle: Handle,
    params: DispatchParams,
    memory: DispatchMemory,
    scratch: DispatchScratch,
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
            params,
            memory,
            scratch,
            action,
        )
        if period < times.shape[0]:
            times[period] = now_ns() - start
        step_lane(state, 0, action[: state.lanes[0].visible])
        if params.rule >= Rule.TOKENS:
            observe(state, 0)
        else:
            observe_load(state, 0)
        period += 1
    observe(state, 0)
    return period
