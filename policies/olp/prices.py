"""Shadow prices: O(1) column costs, range-update subgradients, projected steps.

The dual of the online LP has a price p_bat[g, h] >= 0 per batch slot and p_mem[g, h] >= 0 per KV
token, h < H. A column that starts at slot ``first`` with KV ``lead + h`` at slot h costs

    sum_{first <= h < last} p_bat[h] + mem_scale * (lead + h) * p_mem[h]
      = (LEVEL[last] - LEVEL[first]) + lead * (RAMP[last] - RAMP[first])

with two prefix sums. The subgradient of the SAA objective

    f(p) = d.p + mean over a sample of (r* - a*.p)_+

adds a constant (count) and a ramp (lead + h) over the slots of each accepted column: difference
arrays, two events a column, exact because counts and leads are integers. One pass over the rows
of a block integrates the events into the gradient, projects the prices, and makes their new prefix
sums. Source: arXiv 2607.03948, section 3.3 and appendix B; the prefix sums are ours.

``mem_scale`` multiplies the memory entries of a and of d, so p_mem is a price per 1 / mem_scale
tokens. Layout: see ``layout.py``. Arrays of one block: prices, scarcity, events, sums
(2, rows, lanes); carry (2, lanes); running (4, lanes). Compiled inner functions take plain arrays
and integers: wide records by value, or a view per call, cost more than what they do.
"""

from __future__ import annotations

import numpy as np

from llmroute_env.jit import compiled
from policies.olp.layout import Resource, Running, Sum


@compiled
def column_cost(
    sums: np.ndarray,
    carry: np.ndarray,
    block: int,
    bits: int,
    lane: int,
    width: int,
    first: int,
    last: int,
    lead: float,
) -> float:
    """Cost a.p of a column over slots first <= h < last, KV ``lead + h``, in O(1).

    Args:
        sums: (blocks, 2, rows, lanes) prefix sums, inclusive within a chunk.
        carry: (blocks, 2, lanes) sums of the chunks before.
        block, lane: where the device is: lane q of a block ``width`` devices wide.
        bits: of the grid.
        first, last: slots, 0 <= first < last <= H.
        lead: s + 1 - start, in tokens.

    A difference of prefix sums has an absolute error of about 1e-16 of the whole device's sum.
    """
    slot = last - 1
    row = slot & ((1 << bits) - 1)
    at = (slot >> bits) * width + lane
    level = sums[block, Sum.LEVEL, row, at] + carry[block, Sum.LEVEL, at]
    ramp = sums[block, Sum.RAMP, row, at] + carry[block, Sum.RAMP, at]
    if first > 0:
        slot = first - 1
        row = slot & ((1 << bits) - 1)
        at = (slot >> bits) * width + lane
        level -= sums[block, Sum.LEVEL, row, at] + carry[block, Sum.LEVEL, at]
        ramp -= sums[block, Sum.RAMP, row, at] + carry[block, Sum.RAMP, at]
    return level + lead * ramp  # type: ignore[no-any-return]


@compiled
def add_event(
    events: np.ndarray,
    running: np.ndarray,
    bits: int,
    lane: int,
    width: int,
    slot: int,
    count: float,
    lead: float,
) -> None:
    """Add ``count`` columns with total ``lead`` from ``slot`` on (negative: they end there).

    ``running`` gets the totals of each chunk. A slot past the last chunk is ignored.
    """
    at = (slot >> bits) * width + lane
    if at < running.shape[1]:
        row = slot & ((1 << bits) - 1)
        events[Running.COUNT, row, at] += count
        events[Running.LEAD, row, at] += lead
        running[Running.COUNT, at] += count
        running[Running.LEAD, at] += lead


@compiled
def open_chunks(running: np.ndarray, width: int) -> None:
    """Turn chunk totals of COUNT and LEAD into what is active when each chunk opens."""
    for lane in range(width):
        count = 0.0
        lead = 0.0
        for at in range(lane, running.shape[1], width):
            total = running[Running.COUNT, at]
            running[Running.COUNT, at] = count
            count += total
            total = running[Running.LEAD, at]
            running[Running.LEAD, at] = lead
            lead += total


@compiled
def close_chunks(running: np.ndarray, width: int, carry: np.ndarray) -> None:
    """Scan the chunk totals of LEVEL and RAMP into ``carry`` (2, lanes); clear ``running``."""
    for lane in range(width):
        level = 0.0
        ramp = 0.0
        for at in range(lane, running.shape[1], width):
            carry[Sum.LEVEL, at] = level
            carry[Sum.RAMP, at] = ramp
            level += running[Running.LEVEL, at]
            ramp += running[Running.RAMP, at]
    running[:] = 0.0


@compiled
def step_pass(
    prices: np.ndarray,
    scarcity: np.ndarray,
    events: np.ndarray,
    sums: np.ndarray,
    running: np.ndarray,
    slot0: np.ndarray,
    mem_scale: float,
    step_bat: float,
    step_mem: float,
    weight: float,
) -> None:
    """Step p <- (p - step * (d - weight * sum of accepted a))_+ and its prefix sums, one pass.

    Clears ``events``. Call between :func:`open_chunks` and :func:`close_chunks`. With steps of 0
    it only makes the prefix sums.
    """
    p_bat, p_mem = prices[Resource.BATCH], prices[Resource.MEMORY]
    d_bat, d_mem = scarcity[Resource.BATCH], scarcity[Resource.MEMORY]
    e_count, e_lead = events[Running.COUNT], events[Running.LEAD]
    levels, ramps = sums[Sum.LEVEL], sums[Sum.RAMP]
    count, lead = running[Running.COUNT], running[Running.LEAD]
    level, ramp = running[Running.LEVEL], running[Running.RAMP]
    mem_weight = weight * mem_scale
    rows, lanes = p_bat.shape
    for row in range(rows):
        for at in range(lanes):
            covering = count[at] + e_count[row, at]
            count[at] = covering
            e_count[row, at] = 0.0
            leads = lead[at] + e_lead[row, at]
            lead[at] = leads
            e_lead[row, at] = 0.0
            slot = slot0[at] + row
            bat = max(p_bat[row, at] - step_bat * (d_bat[row, at] - weight * covering), 0.0)
            used = leads + slot * covering
            mem = max(p_mem[row, at] - step_mem * (d_mem[row, at] - mem_weight * used), 0.0)
            p_bat[row, at] = bat
            p_mem[row, at] = mem
            token = mem_scale * mem
            total = ramp[at] + token
            ramp[at] = total
            ramps[row, at] = total
            total = level[at] + (bat + slot * token)
            level[at] = total
            levels[row, at] = total


@compiled
def make_sums(
    prices: np.ndarray,
    sums: np.ndarray,
    carry: np.ndarray,
    running: np.ndarray,
    slot0: np.ndarray,
    width: int,
    mem_scale: float,
) -> None:
    """Prefix sums of one block's prices."""
    p_bat, p_mem = prices[Resource.BATCH], prices[Resource.MEMORY]
    levels, ramps = sums[Sum.LEVEL], sums[Sum.RAMP]
    level, ramp = running[Running.LEVEL], running[Running.RAMP]
    rows, lanes = p_bat.shape
    for row in range(rows):
        for at in range(lanes):
            token = mem_scale * p_mem[row, at]
            total = ramp[at] + token
            ramp[at] = total
            ramps[row, at] = total
            total = level[at] + (p_bat[row, at] + (slot0[at] + row) * token)
            level[at] = total
            levels[row, at] = total
    close_chunks(running, width, carry)


@compiled
def advance(prices: np.ndarray, buffer: np.ndarray, bits: int, width: int, slots: int) -> None:
    """Shift one block's prices ``slots`` slots towards now; slots that come into view cost 0.

    Args:
        prices: (2, rows, lanes).
        buffer: (2, rows, lanes), overwritten in part.
    """
    rows, lanes = prices.shape[1], prices.shape[2]
    jump = min((slots >> bits) * width, lanes)
    rest = slots & (rows - 1)
    for resource in range(2):
        if jump > 0:  # whole chunks
            for row in range(rows):
                for at in range(lanes - jump):
                    prices[resource, row, at] = prices[resource, row, at + jump]
                for at in range(lanes - jump, lanes):
                    prices[resource, row, at] = 0.0
        for row in range(rest):
            for at in range(lanes):
                buffer[resource, row, at] = prices[resource, row, at]
        for row in range(rows - rest):
            for at in range(lanes):
                prices[resource, row, at] = prices[resource, row + rest, at]
        for row in range(rest):  # the first rows of the next chunk end this one
            end = rows - rest + row
            for at in range(lanes - width):
                prices[resource, end, at] = buffer[resource, row, at + width]
            for at in range(lanes - width, lanes):
                prices[resource, end, at] = 0.0
