"""One environment lane: arrivals, dispatch, the period, the end of the episode. Compiled.

Order of events at a boundary t = k * period: iterations that end by t have retired, arrivals up to
t are visible, the observation is taken; `step_lane` then dispatches the action, lets the devices
that are between two iterations admit and start, and simulates up to the next boundary.
"""

from __future__ import annotations

from llmroute_env.cluster.accounting import end_of_period, measure_imbalance, sample, settle
from llmroute_env.cluster.clear import (
    clear_device,
    clear_lane,
    clear_requests,
    clear_step,
)
from llmroute_env.cluster.device import SLEEPING, begin, retire
from llmroute_env.cluster.mixed import clear_mixed, prefills, run_mixed, start_mixed
from llmroute_env.cluster.observe import observe
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
    clear_mixed(state, lane, requests)
    for g in range(state.devices.shape[1]):
        clear_device(state.devices[lane, g])
        state.phase[lane, g, :] = 0
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
    if prefills(state):
        start_mixed(state, lane, now)
    else:
        for g in range(len(devices)):
            d, slots, phase = devices[g], state.slots[lane, g], state.phase[lane, g]
            if d.running != 1:
                begin(p, state.base_s[g], q, v, d, slots, phase, now)
    if now >= p.warmup_ns:
        measure_imbalance(v, devices)
    if prefills(state):
        run_mixed(state, lane, target)
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
