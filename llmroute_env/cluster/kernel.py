"""One environment lane: arrivals, dispatch, the period, the end of the episode. Compiled.

Order of events at a boundary t = k * period: iterations that end by t have retired, arrivals up to
t are visible, the observation is taken; `step_lane` then dispatches the action, lets the devices
that are between two iterations admit and start, and simulates up to the next boundary.
"""

from __future__ import annotations

from llmroute_env.cluster.accounting import end_of_period, measure_imbalance, sample, settle
from llmroute_env.cluster.clear import (
    clear_device,
    clear_extra,
    clear_lane,
    clear_requests,
    clear_step,
)
from llmroute_env.cluster.device import SLEEPING, begin, retire
from llmroute_env.cluster.observe import observe
from llmroute_env.cluster.prefill import begin_mixed, retire_mixed
from llmroute_env.cluster.prefix import clear_cache
from llmroute_env.cluster.queueing import arrive, dispatch
from llmroute_env.cluster.state import Array, Handle, State, borrowed
from llmroute_env.jit import compiled, inlined


@compiled
def reset_lane(state: State, lane: int, requests: int) -> None:
    """Empty the cluster of ``lane`` and start an episode of ``requests`` rows.

    The caller has written arrival_ns, prompt, decode, predicted and tier of those rows.
    """
    v = state.lanes[lane]
    clear_requests(state.requests[lane, :requests])
    if state.constants[0].prefill or state.constants[0].text:
        clear_extra(state.extra[lane, :requests])
    for g in range(state.devices.shape[1]):
        clear_device(state.devices[lane, g])
        state.phase[lane, g, :] = 0
        if state.constants[0].prefix_block:
            clear_cache(state.cache[lane, g])
    clear_step(v)
    clear_lane(v)
    v.requests = requests
    arrive(state.constants[0], state.requests[lane], v, state.window[lane])
    sample(state, lane)
    observe(state, lane)


@inlined
def step_lane(state: State, lane: int, action: Array) -> None:
    """Play one period of ``lane``, without the observation.

    ``action`` is int64 (W,), or only the rows of the visible requests: what is left out holds.
    """
    p, v, q = state.constants[0], state.lanes[lane], state.requests[lane]
    devices, window = state.devices[lane], state.window[lane]
    now = v.now_ns
    target = now + p.period_ns
    dispatch(state, lane, action)
    if p.prefill:
        _start_mixed(state, lane, now)
    else:
        for g in range(len(devices)):
            d, slots, phase = devices[g], state.slots[lane, g], state.phase[lane, g]
            if d.running != 1:
                begin(p, state.base_s[g], q, v, d, slots, phase, now)
    if now >= p.warmup_ns:
        measure_imbalance(v, devices)
    if p.prefill:
        _run_mixed(state, lane, target)
    else:
        for g in range(len(devices)):
            d, slots, phase = devices[g], state.slots[lane, g], state.phase[lane, g]
            while d.running and d.end_ns <= target:
                if d.running == SLEEPING:  # wakes at a boundary only after the dispatch there
                    d.running = 0
                else:
                    retire(p, q, v, d, slots, phase)
                if d.end_ns < target:
                    begin(p, state.base_s[g], q, v, d, slots, phase, d.end_ns)
    v.now_ns = target
    v.period += 1
    arrive(p, q, v, window)
    v.hidden_periods += v.hidden > 0
    end_of_period(state, lane)
    settle(v, state.outcome[lane])
    clear_step(v)  # here, not above: what reset rejected counts in the first step
    sample(state, lane)


@compiled
def _start_mixed(state: State, lane: int, now: int) -> None:
    """Start the devices that are between two iterations; they prefill what they decode."""
    p, v, q, x = state.constants[0], state.lanes[lane], state.requests[lane], state.extra[lane]
    for g in range(state.devices.shape[1]):
        d, slots, phase = state.devices[lane, g], state.slots[lane, g], state.phase[lane, g]
        cache = state.cache[lane, g]
        if not d.running:
            begin_mixed(
                p, state.token_s[g], q, x, state.chains[lane], cache, v, d, slots, phase, now
            )


@compiled
def _run_mixed(state: State, lane: int, target: int) -> None:
    """Let the devices go on up to the next boundary; they prefill what they decode."""
    p, v, q, x = state.constants[0], state.lanes[lane], state.requests[lane], state.extra[lane]
    chains = state.chains[lane]
    for g in range(state.devices.shape[1]):
        d, slots, phase = state.devices[lane, g], state.slots[lane, g], state.phase[lane, g]
        cache = state.cache[lane, g]
        while d.running and d.end_ns <= target:
            retire_mixed(p, q, x, chains, cache, v, d, slots, phase)
            if d.end_ns < target:
                end = d.end_ns
                begin_mixed(p, state.token_s[g], q, x, chains, cache, v, d, slots, phase, end)


@inlined
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
    state, chosen = handle.state, borrowed(actions)
    for lane in range(first, stop):
        if not skip[lane]:
            step_lane(state, lane, chosen[lane])
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
