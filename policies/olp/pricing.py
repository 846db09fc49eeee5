"""Price updates of one period: the published rule (``pricing="paper"``).

SAA over the history: f(p) = d.p + mean over the history of (r* - a*.p)_+, K projected subgradient
steps from the last prices, each on a mini-batch (arXiv 2607.03948, sections 3.2, 3.3 and B.3).
History columns keep their absolute slots, so what they took before now is dropped, and prices move
with the clock, a slot for every iteration.

What follows from absolute slots, measured on paper-overload: about five of six history columns
are wholly in the past. On full devices d is 0 at slot 0, and the optimum of f (by HiGHS) puts the
whole price there, a mean reward per device, so that every live column's margin is 0. Step sizes
that come near it (1 and more) leave little of the reward's ranking; the default of 0.1 stays at an
eighth of that price, and results barely depend on it between 0.03 and 0.3. Pricing of future
arrivals is another rule.

Another pricing rule is another function of the signature of :func:`update_prices`, chosen by
``OlpParams.priced``.
"""

from __future__ import annotations

import numpy as np

from llmroute_env.jit import compiled
from policies.olp.drift import arrival_rate, iteration_periods
from policies.olp.forecast import scarcity
from policies.olp.history import sample, step_sizes
from policies.olp.layout import Column, Grid
from policies.olp.modes import by_arrivals
from policies.olp.prices import (
    add_event,
    advance,
    close_chunks,
    column_cost,
    make_sums,
    open_chunks,
    step_pass,
)
from policies.olp.state import Number, OlpMemory, OlpParams, OlpScratch


@compiled
def learn(
    prices: np.ndarray,
    scarcity: np.ndarray,
    events: np.ndarray,
    sums: np.ndarray,
    carry: np.ndarray,
    running: np.ndarray,
    grid: Grid,
    block: int,
    columns: np.ndarray,
    rewards: np.ndarray,
    picks: np.ndarray,
    size: int,
    now: int,
    mem_scale: float,
    step_bat: float,
    step_mem: float,
) -> None:
    """All projected mini-batch subgradient steps of one period, for one block of devices.

    Args:
        prices, sums: (blocks, 2, rows, lanes), and carry (blocks, 2, lanes): of all blocks.
        columns, rewards: the history, see ``history.py``; rewards are normalized.
        picks: (K, batch) rows of the history that each step samples.
        size: entries of a row of ``picks`` in use.
        now: absolute slot of slot 0; columns are clipped to [now, now + H).
    """
    low = block * grid.block
    own_prices, own_sums, own_carry = prices[block], sums[block], carry[block]
    weight = 1.0 / size
    for step in range(picks.shape[0]):
        for entry in range(size):
            pick = picks[step, entry]
            lane = columns[pick, Column.DEVICE] - low
            if lane < 0 or lane >= grid.block:
                continue
            start = columns[pick, Column.START] - now
            last = min(start + columns[pick, Column.LENGTH], grid.lookahead)
            first = max(start, 0)
            if last <= first:
                continue  # wholly in the past, or beyond the look-ahead
            lead = float(columns[pick, Column.PROMPT] + 1 - start)
            cost = column_cost(sums, carry, block, grid.bits, lane, grid.block, first, last, lead)
            if rewards[pick] > cost:
                add_event(events, running, grid.bits, lane, grid.block, first, 1.0, lead)
                add_event(events, running, grid.bits, lane, grid.block, last, -1.0, -lead)
        open_chunks(running, grid.block)
        step_pass(
            own_prices,
            scarcity,
            events,
            own_sums,
            running,
            grid.slot0,
            mem_scale,
            step_bat,
            step_mem,
            weight,
        )
        close_chunks(running, grid.block, own_carry)


@compiled
def update_prices(
    devices: np.ndarray,
    active: np.ndarray,
    slots: int,
    params: OlpParams,
    memory: OlpMemory,
    scratch: OlpScratch,
    mem_scale: float,
) -> None:
    """Shift the prices to now, take K projected steps, and leave their prefix sums in scratch."""
    grid, numbers = params.grid, memory.numbers
    batch = sample(memory, scratch.picks)
    step_bat, step_mem = step_sizes(numbers, params.step_size, mem_scale)
    arrivals_per_slot = arrival_rate(numbers) * iteration_periods(numbers)
    coming = arrivals_per_slot * grid.lookahead
    iteration = iteration_periods(numbers)
    expected = by_arrivals(0.0, coming, iteration, scratch.pace, scratch.share)
    now = int(np.floor(numbers[Number.SLOT]))
    for block in range(grid.blocks):
        prices, sums = memory.prices[block], scratch.sums[block]
        if slots > 0:
            advance(prices, sums, grid.bits, grid.block, slots)
        make_sums(
            prices,
            sums,
            scratch.carry[block],
            scratch.running,
            grid.slot0,
            grid.block,
            mem_scale,
        )
        if batch == 0:
            continue
        scarcity(
            devices,
            active,
            scratch.load,
            grid,
            block,
            expected,
            mem_scale,
            scratch.share,
            scratch.events,
            scratch.running,
            scratch.limits,
            scratch.scarcity,
        )
        learn(
            memory.prices,
            scratch.scarcity,
            scratch.events,
            scratch.sums,
            scratch.carry,
            scratch.running,
            grid,
            block,
            memory.columns,
            memory.rewards,
            scratch.picks,
            batch,
            now,
            mem_scale,
            step_bat,
            step_mem,
        )
