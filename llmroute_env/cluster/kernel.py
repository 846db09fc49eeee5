"""One environment lane: arrivals, dispatch, the period, the end of the episode. Compiled.

Order of events at a boundary t = k * period: iterations that end by t have retired, arrivals up to
t are visible, the observation is taken; `step_lane` then dispatches the action, lets the devices
that are between two iterations admit and start, and simulates up to the next boundary.
"""

from __future__ import annotations

import numpy as np

from llmroute_env.cluster.device import Record, begin, push_tail, retire
from llmroute_env.cluster.observe import observe
from llmroute_env.cluster.state import (
    COMPLETED,
    NOT_ARRIVED,
    QUEUED,
    REJECTED,
    Array,
    Handle,
    Outcome,
    RejectReason,
    Series,
    State,
)
from llmroute_env.jit import compiled

_KV_LIMIT, _CONTEXT_LIMIT = int(RejectReason.KV_LIMIT), int(RejectReason.CONTEXT_LIMIT)
(_S_NOW, _S_QUEUE, _S_FIFO, _S_ACTIVE, _S_KV, _S_COMPLETED, _S_TOKENS, _S_REWARD, _S_REJECTED) = (
    int(f) for f in Series
)
(
    _O_ALPHA,
    _O_BETA,
    _O_GAMMA,
    _O_SIGMA,
    _O_ZETA1,
    _O_ZETA2,
    _O_REWARD,
    _O_COST,
    _O_INVALID,
    _O_TERMINATED,
    _O_TRUNCATED,
) = (int(f) for f in Outcome)


@compiled
def _clear_requests(q: Array) -> None:
    for j in range(len(q)):
        request = q[j]
        request.dispatch_ns = -1
        request.start_ns = -1
        request.first_token_ns = -1
        request.finish_ns = -1
        request.device = -1
        request.emitted = 0
        request.preemptions = 0
        request.recomputed = 0
        request.following = -1
        request.status = NOT_ARRIVED
        request.reason = 0
        request.missed = 0


@compiled
def _clear_device(d: Record) -> None:
    d.up = 1
    d.active = d.count = d.kv_held = d.blocks = d.next_finish = d.fresh = d.prefill = 0
    d.running = d.start_ns = d.end_ns = d.last_ns = 0
    d.fifo_head = d.fifo_tail = d.fifo_length = d.fifo_tokens = d.busy_slot_ns = 0
    d.fifo_predicted = d.kv_token_s = 0.0


@compiled
def _clear_step(v: Record) -> None:
    v.alpha = v.beta = v.gamma = v.sigma = v.zeta1 = v.zeta2 = 0.0
    v.cost = v.invalid = 0


@compiled
def _clear_lane(v: Record) -> None:
    v.now_ns = v.period = v.arrived = v.hidden_head = v.hidden = v.visible = v.dispatched = 0
    v.in_batch = v.completed = v.rejected = v.tokens = v.warm_tokens = 0
    v.terminated = v.truncated = v.invalid_total = v.hidden_periods = 0
    v.imbalance_sum = 0.0
    v.imbalance_count = v.samples = 0
    v.alpha_total = v.beta_total = v.gamma_total = 0.0
    v.sigma_total = v.zeta1_total = v.zeta2_total = v.reward_total = 0.0


@compiled
def reset_lane(state: State, lane: int, requests: int) -> None:
    """Empty the cluster of ``lane`` and start an episode of ``requests`` rows.

    The caller has written arrival_ns, prompt, decode, predicted and tier of those rows.
    """
    v = state.lanes[lane]
    _clear_requests(state.requests[lane, :requests])
    for g in range(state.devices.shape[1]):
        _clear_device(state.devices[lane, g])
        state.phase[lane, g, :] = 0
    _clear_step(v)
    _clear_lane(v)
    v.requests = requests
    _arrive(state.constants[0], state.requests[lane], v, state.window[lane])
    _sample(state, lane)
    observe(state, lane)


@compiled
def _arrive(p: Record, q: Array, v: Record, window: Array) -> None:
    """Make the arrivals up to now visible; reject what no device can ever hold."""
    last, j = min(v.now_ns, p.horizon_ns), v.arrived
    while j < v.requests and q[j].arrival_ns <= last:
        request = q[j]
        final = np.int64(request.prompt) + request.decode
        if final > p.largest:
            request.status = REJECTED
            request.reason = _KV_LIMIT if final > p.largest_kv else _CONTEXT_LIMIT
            request.missed = 1
            v.rejected += 1
            v.cost += 1
        else:
            request.status = QUEUED
            if v.hidden == 0 and v.visible < len(window):
                window[v.visible] = j
                v.visible += 1
                v.hidden_head = j + 1
            else:
                v.hidden += 1
        j += 1
    v.arrived = j


@compiled
def _dispatch(q: Array, v: Record, devices: Array, window: Array, action: Array) -> None:
    """Send the chosen visible requests to FIFO tails, in queue order, and refill the window."""
    kept, visible = 0, v.visible
    for i in range(len(window)):
        choice = action[i]
        if i >= visible:
            v.invalid += choice != 0
            continue
        j = window[i]
        if 1 <= choice <= len(devices) and devices[choice - 1].up:
            q[j].device = choice - 1
            q[j].dispatch_ns = v.now_ns
            push_tail(q, v, devices[choice - 1], j)
        else:
            v.invalid += choice != 0
            window[kept] = j
            kept += 1
    v.invalid_total += v.invalid
    while v.hidden > 0 and kept < len(window):
        if q[v.hidden_head].status == QUEUED:
            window[kept] = v.hidden_head
            kept += 1
            v.hidden -= 1
        v.hidden_head += 1
    v.visible = kept


@compiled
def _measure_imbalance(v: Record, devices: Array) -> None:
    """Add this period's (max - mean) / mean of the devices' KV load."""
    top, total = 0, 0
    for g in range(len(devices)):
        kv = devices[g].kv_held
        total += kv
        top = max(top, kv)
    v.imbalance_count += 1
    if total > 0:
        v.imbalance_sum += top * len(devices) / total - 1.0


@compiled
def _sample(state: State, lane: int) -> None:
    """Append a row to the lane's time series when it is due."""
    v, stride = state.lanes[lane], state.constants[0].series_stride
    if stride == 0 or v.period % stride != 0 or v.samples >= state.series.shape[1]:
        return
    kv = 0
    for g in range(state.devices.shape[1]):
        kv += state.devices[lane, g].kv_held
    row = state.series[lane, v.samples]
    row[_S_NOW] = v.now_ns * 1e-9
    row[_S_QUEUE] = v.visible + v.hidden
    row[_S_FIFO] = v.dispatched
    row[_S_ACTIVE] = v.in_batch
    row[_S_KV] = kv
    row[_S_COMPLETED] = v.completed
    row[_S_TOKENS] = v.tokens
    row[_S_REWARD] = v.reward_total
    row[_S_REJECTED] = v.rejected
    v.samples += 1


@compiled
def _end_of_period(state: State, lane: int) -> None:
    """Decide whether the episode is over; the last step settles the open SLO misses."""
    p, v, q = state.constants[0], state.lanes[lane], state.requests[lane]
    late = v.period - p.horizon_periods
    if late < 0:
        return
    open_requests = v.arrived - v.completed - v.rejected
    if not p.drain or (open_requests > 0 and late >= p.max_drain_periods):
        v.truncated = 1
    elif open_requests == 0:
        v.terminated = 1
    else:
        return
    for j in range(v.arrived):
        if q[j].status < COMPLETED and not q[j].missed:
            q[j].missed = 1
            v.cost += 1


@compiled
def _settle(v: Record, outcome: Array) -> None:
    """Write the outcome of the step and add it to the episode's totals."""
    outcome[_O_ALPHA] = v.alpha
    outcome[_O_BETA] = v.beta
    outcome[_O_GAMMA] = v.gamma
    outcome[_O_SIGMA] = v.sigma
    outcome[_O_ZETA1] = v.zeta1
    outcome[_O_ZETA2] = v.zeta2
    outcome[_O_REWARD] = v.alpha + v.beta + v.gamma + v.sigma + v.zeta1 + v.zeta2
    outcome[_O_COST] = v.cost
    outcome[_O_INVALID] = v.invalid
    outcome[_O_TERMINATED] = v.terminated
    outcome[_O_TRUNCATED] = v.truncated
    v.alpha_total += v.alpha
    v.beta_total += v.beta
    v.gamma_total += v.gamma
    v.sigma_total += v.sigma
    v.zeta1_total += v.zeta1
    v.zeta2_total += v.zeta2
    v.reward_total += outcome[_O_REWARD]


@compiled
def step_lane(state: State, lane: int, action: Array) -> None:
    """Play one period of ``lane`` with ``action`` (W,) int64, without the observation."""
    p, v, q = state.constants[0], state.lanes[lane], state.requests[lane]
    devices, window = state.devices[lane], state.window[lane]
    now = v.now_ns
    target = now + p.period_ns
    _clear_step(v)
    _dispatch(q, v, devices, window, action)
    for g in range(len(devices)):
        d, slots, phase = devices[g], state.slots[lane, g], state.phase[lane, g]
        if not d.running:
            begin(p, state.base_s[g], q, v, d, slots, phase, now)
    if now >= p.warmup_ns:
        _measure_imbalance(v, devices)
    for g in range(len(devices)):
        d, slots, phase = devices[g], state.slots[lane, g], state.phase[lane, g]
        while d.running and d.end_ns <= target:
            retire(p, q, v, d, slots, phase)
            if d.end_ns < target:
                begin(p, state.base_s[g], q, v, d, slots, phase, d.end_ns)
    v.now_ns = target
    v.period += 1
    _arrive(p, q, v, window)
    v.hidden_periods += v.hidden > 0
    _end_of_period(state, lane)
    _settle(v, state.outcome[lane])
    _sample(state, lane)


@compiled
def is_over(state: State, lane: int) -> bool:
    """Whether the episode of ``lane`` has ended."""
    return bool(state.lanes[lane].terminated + state.lanes[lane].truncated)


@compiled
def step_lanes(handle: Handle, actions: Array, skip: Array, first: int, stop: int) -> None:
    """Step and observe lanes ``first`` to ``stop - 1``.

    Args:
        handle: the state.
        actions: (N, W) int64.
        skip: (N,) bool, lanes to leave as they are.
        first: first lane.
        stop: one past the last lane.
    """
    state = handle.state
    for lane in range(first, stop):
        if not skip[lane]:
            step_lane(state, lane, actions[lane])
            observe(state, lane)


@compiled
def reset_lanes(handle: Handle, lanes: Array, requests: Array) -> None:
    """Start an episode on each of ``lanes`` (K,), with ``requests`` (K,) rows each."""
    state = handle.state
    for i in range(len(lanes)):
        reset_lane(state, lanes[i], requests[i])


@compiled
def update_emitted(handle: Handle, lane: int) -> None:
    """Write the emitted tokens of ``lane``'s active requests, which the kernel keeps implicit."""
    state = handle.state
    for g in range(state.devices.shape[1]):
        d = state.devices[lane, g]
        for b in range(d.active):
            slot = state.slots[lane, g, b]
            request = state.requests[lane, slot.request]
            request.emitted = slot.kv + d.count - request.prompt
