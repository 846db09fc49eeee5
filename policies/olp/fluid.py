"""Price updates of one period: the fluid rule (``pricing="fluid"``).

The published rule keeps columns on absolute time, so that most of the history prices the past, and
prices a few dozen slots ahead are always 0. Here the columns stand for the demand of the look-ahead
itself: the waiting requests and samples of future arrivals, each a request of the history. Either
may start at any time, so each column starts at an offset drawn uniformly from the look-ahead, a
waiting one with what it is worth then. (With a target it starts at 0: its wait is what is
controlled.) With n = waiting + rate * H of them,

    f(p) = d.p + mean over columns of (r* - min over devices of a*.p)_+ ,  d = (capacity - occ) / n.

A column goes to its cheapest device, so prices of equal devices stay equal where loads are. Prices
are relative to now (slot h is h iterations ahead), hence nothing is shifted from period to period.
Source: our own, after the fluid relaxation of online linear programming.
"""

from __future__ import annotations

import numpy as np

from llmroute_env.jit import compiled
from llmroute_env.spaces import Queue
from policies.olp.candidates import offer
from policies.olp.drift import arrival_rate, iteration_periods
from policies.olp.forecast import scarcity
from policies.olp.history import step_sizes
from policies.olp.layout import Column
from policies.olp.modes import by_arrivals
from policies.olp.prices import (
    add_event,
    close_chunks,
    column_cost,
    make_sums,
    open_chunks,
    step_pass,
)
from policies.olp.state import Load, Number, OlpMemory, OlpParams, OlpScratch, Terms
from policies.rng import below


@compiled
def _cheapest(
    load: np.ndarray,
    sums: np.ndarray,
    carry: np.ndarray,
    bits: int,
    width: int,
    turn: int,
    first: int,
    last: int,
    lead: float,
    need: int,
    pace: np.ndarray,
    own: float,
    slope: float,
) -> tuple[int, float]:
    """Device that can hold a column and gains most by it, and its cost; -1 where there is none.

    A slower device earns less, which counts as cost: ``slope`` for every period by which its
    iterations (``pace``, (G,)) are longer than those of the column's worth, ``own``.

    Args:
        need: most KV tokens of the column, s + n; a device that is down has room for none.
    """
    best, chosen = np.inf, -1
    devices = load.shape[0]
    for i in range(devices):
        g = (turn + i) % devices
        if load[g, Load.PLAN_LIMIT] < need:
            continue
        cost = column_cost(
            sums, carry, load[g, Load.BLOCK], bits, load[g, Load.LANE], width, first, last, lead
        )
        cost += slope * (pace[g] - own)
        if cost < best:
            best, chosen = cost, g
    return chosen, best


@compiled
def update_fluid(
    queue: np.ndarray,
    waiting: int,
    hidden: float,
    devices: np.ndarray,
    active: np.ndarray,
    terms: Terms,
    params: OlpParams,
    memory: OlpMemory,
    scratch: OlpScratch,
    mem_scale: float,
) -> None:
    """Take K projected steps from the last prices, and leave their prefix sums in scratch."""
    grid, numbers, load = params.grid, memory.numbers, scratch.load
    sums, carry, pace = scratch.sums, scratch.carry, scratch.pace
    known = int(numbers[Number.COLUMNS])
    for block in range(grid.blocks):
        make_sums(
            memory.prices[block],
            sums[block],
            carry[block],
            scratch.running,
            grid.slot0,
            grid.block,
            mem_scale,
        )
    expected_new = arrival_rate(numbers) * iteration_periods(numbers) * grid.lookahead
    here = waiting + hidden
    if known == 0:
        return
    expected = by_arrivals(here, expected_new, terms.iteration, pace, scratch.share)
    share_waiting = min(here / expected, 1.0) if waiting > 0 else 0.0
    step_bat, step_mem = step_sizes(numbers, params.step_size, mem_scale)
    batch = scratch.picks.shape[1]
    weight = 1.0 / batch
    pressing = params.targets.shape[0] > 0
    for block in range(grid.blocks):
        scarcity(
            devices,
            active,
            load,
            grid,
            block,
            expected,
            mem_scale,
            scratch.share,
            scratch.events,
            scratch.running,
            scratch.limits,
            scratch.demand_scarcity[block],
        )
    most = 0
    for g in range(load.shape[0]):
        most = max(most, load[g, Load.PLAN_LIMIT])
    for _ in range(scratch.picks.shape[0]):
        drawn_waiting = int(batch * share_waiting + below(memory.rng, 1 << 20) / (1 << 20))
        for entry in range(batch):
            if entry < drawn_waiting:
                row = below(memory.rng, waiting)
                start = 0 if pressing else below(memory.rng, grid.lookahead)
                prompt = int(queue[row, Queue.PROMPT]) - terms.steps
                length, worth = offer(
                    prompt,
                    scratch.predicted[row],
                    np.float64(queue[row, Queue.WAITED])
                    + start * (terms.iteration * terms.period_s),
                    most,
                    terms.iteration,
                    terms,
                )
                own = terms.iteration
            else:
                pick = below(memory.rng, known)
                prompt = memory.columns[pick, Column.PROMPT]
                length = memory.columns[pick, Column.LENGTH]
                worth = memory.rewards[pick]
                own = pace[memory.columns[pick, Column.DEVICE]]
                start = below(memory.rng, grid.lookahead)
            last = min(start + length, grid.lookahead)
            if last <= start:
                continue
            lead = float(prompt + 1 - start)
            turn = below(memory.rng, load.shape[0])
            # A window cut at H pays for what is left of it; so it also earns only that share.
            slope = terms.scale * terms.beta * (last - start)
            g, cost = _cheapest(
                load, sums, carry, grid.bits, grid.block, turn, start, last, lead,
                prompt + length, pace, own, slope,
            )  # fmt: skip
            if g >= 0 and worth * (last - start) / length > cost:
                block = load[g, Load.BLOCK]
                events, running = scratch.demand_events[block], scratch.demand_running[block]
                lane = load[g, Load.LANE]
                add_event(events, running, grid.bits, lane, grid.block, start, 1.0, lead)
                add_event(events, running, grid.bits, lane, grid.block, last, -1.0, -lead)
        for block in range(grid.blocks):
            running = scratch.demand_running[block]
            open_chunks(running, grid.block)
            step_pass(
                memory.prices[block],
                scratch.demand_scarcity[block],
                scratch.demand_events[block],
                sums[block],
                running,
                grid.slot0,
                mem_scale,
                step_bat,
                step_mem,
                weight,
            )
            close_chunks(running, grid.block, carry[block])
