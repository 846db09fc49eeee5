"""One period of OLP, compiled: clock, arrivals, prices, history, admissions.

Order, as in the paper's algorithm 1: prices are learned from the history up to the last period,
decide this period, and this period's first-seen requests enter the history afterwards.
"""

from __future__ import annotations

import numpy as np

from llmroute_env.jit import compiled
from llmroute_env.spaces import Clock, Device, Queue
from policies.olp.admission import admit, open_devices
from policies.olp.columns import largest_reward
from policies.olp.drift import (
    arrival_rate,
    count_arrivals,
    iteration_periods,
    rate_increased,
)
from policies.olp.errors import expect
from policies.olp.fluid import update_fluid
from policies.olp.forecast import read_load
from policies.olp.history import enter, forget_before
from policies.olp.modes import as_decoding, keep_pace
from policies.olp.pricing import update_prices
from policies.olp.slowdown import prepare
from policies.olp.state import Load, Number, OlpMemory, OlpParams, OlpScratch, Terms
from policies.olp.targets import Goal, multiplier, reopen, tail_weights
from policies.olp.tracking import note_starts, see_targets


@compiled
def _tick(devices: np.ndarray, clock: np.ndarray, params: OlpParams, numbers: np.ndarray) -> int:
    """Move the clock to this period; return by how many slots the look-ahead moves.

    A slot is one iteration. Its length in periods is a moving average of the mean of
    LAST_ITERATION over the devices that have one, 1 before that; exactly 1 in lock-step.
    """
    total, seen = 0.0, 0
    for g in range(devices.shape[0]):
        if devices[g, Device.LAST_ITERATION] > 0.0:
            total += np.float64(devices[g, Device.LAST_ITERATION])
            seen += 1
    if seen > 0:
        # The telemetry is float32, so the period is rounded alike.
        observed = total / seen / np.float64(np.float32(params.period_s))
        known = numbers[Number.ITERATION]
        if known > 0.0:
            observed = known + params.smoothing * (observed - known)
        numbers[Number.ITERATION] = observed
    period = np.float64(clock[Clock.PERIOD])
    before = numbers[Number.SLOT]
    if numbers[Number.PERIOD] >= 0.0:
        gone = max(period - numbers[Number.PERIOD], 0.0)
        numbers[Number.SLOT] = before + gone / iteration_periods(numbers)
    numbers[Number.PERIOD] = period
    return int(np.floor(numbers[Number.SLOT]) - np.floor(before))


@compiled
def _horizon(clock: np.ndarray, params: OlpParams, numbers: np.ndarray, most: int) -> float:
    """R [periods]: what is left of the episode, or constant and at least the longest stay."""
    if params.rolling == 0:
        return float(clock[Clock.LEFT])
    if params.window_periods > 0.0:
        return float(max(params.window_periods, numbers[Number.LONGEST]))
    return max(most - 1.0, 1.0) * iteration_periods(numbers)


@compiled
def _most_tokens(load: np.ndarray) -> int:
    """Most tokens s + n that some device can give one request."""
    most = 0
    for g in range(load.shape[0]):
        most = max(most, load[g, Load.PLAN_LIMIT])
    return most


@compiled
def _largest(devices: np.ndarray, context_limit: np.ndarray) -> int:
    """Most tokens s + o that some device takes, up or down."""
    largest = 0
    for g in range(devices.shape[0]):
        largest = max(largest, min(int(devices[g, Device.KV_LIMIT]), context_limit[g]))
    return largest


@compiled
def _largest_kv(devices: np.ndarray) -> float:
    """The largest KV limit M of all devices, up or down [tokens]."""
    largest = 1.0
    for g in range(devices.shape[0]):
        largest = max(largest, np.float64(devices[g, Device.KV_LIMIT]))
    return largest


@compiled
def _see_arrivals(
    queue: np.ndarray,
    queue_id: np.ndarray,
    waiting: int,
    hidden: float,
    most: int,
    params: OlpParams,
    memory: OlpMemory,
) -> None:
    """Count arrivals, keep the longest stay, and forget what is stale when the rate rises.

    A request first seen was hidden before or has just arrived, so arrivals are the first-seen ones
    plus the growth of the hidden queue.
    """
    numbers = memory.numbers
    iteration = iteration_periods(numbers)
    seen_before = numbers[Number.LAST_ID]
    new = 0
    for row in range(waiting):
        if queue_id[row] > seen_before:
            new += 1
            numbers[Number.LAST_ID] = max(numbers[Number.LAST_ID], np.float64(queue_id[row]))
            stay = min(np.float64(queue[row, Queue.PREDICTED]), float(most)) * iteration
            numbers[Number.LONGEST] = max(numbers[Number.LONGEST], np.ceil(stay))
    arrived = max(new + int(hidden - numbers[Number.HIDDEN]), 0)
    numbers[Number.HIDDEN] = hidden
    count_arrivals(numbers, memory.arrivals, arrived)
    if params.drift_periods > 0 and rate_increased(numbers, params.drift_periods, params.drift_z):
        oldest = numbers[Number.SLOT] - params.drift_periods / iteration
        forget_before(memory, int(np.ceil(oldest)), params.grid.lookahead)
        for at in range(params.targets.shape[0]):
            reopen(memory.goals[at])


@compiled
def _record(params: OlpParams, memory: OlpMemory) -> None:
    """Sample ``memory.series``, a ring."""
    size = memory.series.shape[0]
    tick = int(memory.numbers[Number.TICK]) - 1
    if size == 0 or tick % params.record_stride != 0:
        return
    grid, numbers = params.grid, memory.numbers
    row = memory.series[tick // params.record_stride % size]
    row[0] = numbers[Number.PERIOD]
    for resource in range(2):
        total = 0.0
        for block in range(grid.blocks):
            for at_row in range(grid.rows):
                for at in range(grid.lanes):
                    total += memory.prices[block, resource, at_row, at]
        row[1 + resource] = total / (grid.devices * grid.lookahead)
    row[3] = arrival_rate(numbers)
    count = params.targets.shape[0]
    for at in range(count):
        row[4 + at] = multiplier(memory.goals[at], params.targets[at])
        row[4 + count + at] = memory.goals[at, Goal.RECENT]


@compiled
def decide(
    queue: np.ndarray,
    queue_id: np.ndarray,
    devices: np.ndarray,
    active: np.ndarray,
    clock: np.ndarray,
    params: OlpParams,
    memory: OlpMemory,
    scratch: OlpScratch,
    action: np.ndarray,
) -> None:
    """Decide one period. Shapes: ``policies.base.Kernels``."""
    action[:] = 0
    numbers, load = memory.numbers, scratch.load
    period_s = np.float64(np.float32(params.period_s))  # as the telemetry has it
    waiting = 0
    while waiting < queue_id.shape[0] and queue_id[waiting] >= 0:
        waiting += 1
    slots = _tick(devices, clock, params, numbers)
    expect(queue, waiting, devices, active, params.forget, memory, scratch)
    expected = scratch.active
    read_load(devices, params.context_limit, params.grid.block, load)
    load[:, Load.GROUP] = params.group
    if params.prefill:
        steps, shared, chunk_tokens = params.steps, params.shared, params.chunk_tokens
        as_decoding(devices, active, steps, shared, chunk_tokens, load, expected)
    most = _most_tokens(load)
    seen_before = numbers[Number.LAST_ID]
    hidden = np.float64(clock[Clock.HIDDEN])
    _see_arrivals(queue, queue_id, waiting, hidden, most, params, memory)
    see_targets(queue, queue_id, waiting, seen_before, devices, active, params, memory)
    horizon = _horizon(clock, params, numbers, most)
    iteration = iteration_periods(numbers)
    keep_pace(
        devices,
        params.group,
        period_s,
        params.smoothing,
        iteration,
        memory.pace,
        scratch.pace,
    )
    largest = params.normalizer
    if largest == 0.0:
        longest = horizon if params.rolling else max(params.horizon_periods, horizon)
        largest = largest_reward(longest, iteration, params.weights)
    grid = params.grid
    weights = params.weights
    zeta1, zeta2, tail_eel_s, tail_ttft_s, joint = tail_weights(
        weights, iteration * params.period_s, params.targets, memory.goals
    )
    terms = Terms(
        weights[0],
        weights[1],
        weights[2] * horizon + weights[3],
        zeta1,
        zeta2,
        tail_eel_s,
        tail_ttft_s,
        horizon,
        horizon / iteration,
        iteration,
        1.0 / largest,
        params.priced,
        params.indexed,
        params.aging / params.patience_s,
        1 - params.work_conserving,
        weights[1] + weights[2],
        params.patience_s,
        grid.block,
        grid.bits,
        grid.lookahead,
        joint,
        params.steps,
        _largest(devices, params.context_limit),
        params.period_s,
        params.slowdown,
    )
    if params.priced:
        mem_scale = params.mem_scale
        if mem_scale == 0.0:
            mem_scale = 1.0 / _largest_kv(devices)
        if params.fluid:
            update_fluid(
                queue,
                waiting,
                hidden,
                devices,
                expected,
                terms,
                params,
                memory,
                scratch,
                mem_scale,
            )
        else:
            update_prices(devices, expected, slots, params, memory, scratch, mem_scale)
        if params.slowdown:
            prepare(
                devices,
                memory.prices,
                load,
                grid.block,
                grid.lookahead,
                mem_scale,
                period_s,
                params.group,
                memory.trend,
                scratch.running,
                scratch.slow,
            )
        _record(params, memory)
    if waiting > 0 and open_devices(devices, expected, load, scratch.leaving, scratch.peaks) > 0:
        admit(queue, waiting, params.work_conserving, terms, memory, scratch, action)
        note_starts(queue, waiting, action, devices, params, memory)
    if params.priced:
        enter(queue, queue_id, waiting, seen_before, terms, memory, scratch)
