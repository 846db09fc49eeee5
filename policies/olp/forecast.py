"""Forecast of what the devices will hold over the look-ahead, from the telemetry of one period.

Each active request stays for its predicted remaining tokens, rounded to nearest and at least 1 (so
a request planned for n iterations is forecast at n - e after e tokens; one that outlives its
prediction is expected to end each next iteration). It holds kv + 1 + h tokens at slot h. FIFO
contents count from slot 0 with the mean of their predicted remaining tokens: they join before
anything that is sent now. Slot 0 is the next iteration to start, or the running one.

The forecast is rebuilt from telemetry every period, so it cannot drift away from the devices; the
released scheduler of arXiv 2607.03948 keeps an open-loop ledger instead.
"""

from __future__ import annotations

import numpy as np

from llmroute_env.jit import compiled
from llmroute_env.spaces import Active, Device
from policies.olp.layout import Grid, Resource, Running
from policies.olp.prices import add_event, open_chunks
from policies.olp.state import NO_BUDGET, Load


@compiled
def remaining_slots(predicted: float) -> int:
    """Predicted remaining tokens, rounded to nearest, at least 1."""
    return max(int(np.floor(predicted + 0.5)), 1)


@compiled
def read_load(devices: np.ndarray, context_limit: np.ndarray, width: int, load: np.ndarray) -> None:
    """Fill ``load`` (G, len(Load)) from ``obs["devices"]`` (G, 11).

    With an iteration under way a newcomer joins when it ends. Every active request has one token
    more then, and PHYSICAL assumes that none has left: what is sent must start without relying on
    a predicted end (release when startable).
    """
    for g in range(devices.shape[0]):
        active = int(devices[g, Device.ACTIVE])
        fifo = int(devices[g, Device.FIFO_LENGTH])
        up = devices[g, Device.UP] > 0.0
        tokens = (
            int(devices[g, Device.KV_USED]) + active + int(devices[g, Device.FIFO_TOKENS]) + fifo
        )
        kv_limit = int(devices[g, Device.KV_LIMIT])
        load[g, Load.USED] = active + fifo
        load[g, Load.TOKENS] = tokens
        load[g, Load.PHYSICAL] = tokens + (active if devices[g, Device.TIME_TO_END] > 0.0 else 0)
        load[g, Load.BATCH_LIMIT] = int(devices[g, Device.BATCH_LIMIT]) if up else 0
        load[g, Load.KV_LIMIT] = kv_limit if up else 0
        load[g, Load.PLAN_LIMIT] = min(kv_limit, context_limit[g]) if up else 0
        load[g, Load.OPEN] = 0
        load[g, Load.BLOCK] = g // width
        load[g, Load.LANE] = g % width
        load[g, Load.BUDGET] = NO_BUDGET
        load[g, Load.FIFO_STAY] = fifo_slots(devices, g) if fifo > 0 else 0
        load[g, Load.FIFO_LEAD] = int(devices[g, Device.FIFO_TOKENS]) + fifo


@compiled
def fifo_slots(devices: np.ndarray, g: int) -> int:
    """Mean predicted stay of the FIFO's contents [slots]."""
    mean = np.float64(devices[g, Device.FIFO_PREDICTED]) / np.float64(
        devices[g, Device.FIFO_LENGTH]
    )
    return remaining_slots(mean)


@compiled
def scarcity(
    devices: np.ndarray,
    active: np.ndarray,
    load: np.ndarray,
    grid: Grid,
    block: int,
    expected: float,
    mem_scale: float,
    share: np.ndarray,
    events: np.ndarray,
    running: np.ndarray,
    limits: np.ndarray,
    out: np.ndarray,
) -> None:
    """Remaining capacity per expected arrival, the d of the SAA objective, for one block.

    d_bat = (B - occ)_+ / expected, d_mem = mem_scale * (M - occ)_+ / expected, at every slot. A
    device that is down has no capacity left.

    Args:
        expected: arrivals expected over the look-ahead, at least 1.
        share: (G,) those over the ones of each device's own look-ahead.
        out: (2, rows, lanes).
    """
    bits, width = grid.bits, grid.block
    limits[:] = 0.0
    for lane in range(min(width, grid.devices - block * width)):
        g = block * width + lane
        for at in range(lane, grid.lanes, width):
            limits[Resource.BATCH, at] = load[g, Load.BATCH_LIMIT]
            limits[Resource.MEMORY, at] = load[g, Load.KV_LIMIT]
            limits[2, at] = share[g]
        used, tokens = float(load[g, Load.USED]), float(load[g, Load.TOKENS])
        add_event(events, running, bits, lane, width, 0, used, tokens)
        for slot in range(int(devices[g, Device.ACTIVE])):
            end = remaining_slots(np.float64(active[g, slot, Active.REMAINING]))
            lead = np.float64(active[g, slot, Active.KV]) + 1.0
            add_event(events, running, bits, lane, width, end, -1.0, -lead)
        fifo = np.float64(devices[g, Device.FIFO_LENGTH])
        if fifo > 0.0:
            end, lead = load[g, Load.FIFO_STAY], np.float64(load[g, Load.FIFO_LEAD])
            add_event(events, running, bits, lane, width, end, -fifo, -lead)
    open_chunks(running, width)
    _remaining(events, running, grid.slot0, limits, 1.0 / expected, mem_scale / expected, out)
    running[:] = 0.0


@compiled
def _remaining(
    events: np.ndarray,
    running: np.ndarray,
    slot0: np.ndarray,
    limits: np.ndarray,
    bat_scale: float,
    mem_scale: float,
    out: np.ndarray,
) -> None:
    e_count, e_lead = events[Running.COUNT], events[Running.LEAD]
    count, lead = running[Running.COUNT], running[Running.LEAD]
    d_bat, d_mem = out[Resource.BATCH], out[Resource.MEMORY]
    batch_limit, kv_limit, share = limits[Resource.BATCH], limits[Resource.MEMORY], limits[2]
    rows, lanes = d_bat.shape
    for row in range(rows):
        for at in range(lanes):
            covering = count[at] + e_count[row, at]
            count[at] = covering
            e_count[row, at] = 0.0
            leads = lead[at] + e_lead[row, at]
            lead[at] = leads
            e_lead[row, at] = 0.0
            used = leads + (slot0[at] + row) * covering
            d_bat[row, at] = max(batch_limit[at] - covering, 0.0) * bat_scale * share[at]
            d_mem[row, at] = max(kv_limit[at] - used, 0.0) * mem_scale * share[at]


@compiled
def read_departures(
    devices: np.ndarray, active: np.ndarray, load: np.ndarray, g: int, leaving: np.ndarray
) -> None:
    """Fill ``leaving`` (G, 2, H) of device g: requests and KV leads that leave at each slot."""
    leaving[g] = 0
    slots = leaving.shape[2]
    for slot in range(int(devices[g, Device.ACTIVE])):
        end = remaining_slots(np.float64(active[g, slot, Active.REMAINING]))
        if end < slots:
            leaving[g, 0, end] += 1
            leaving[g, 1, end] += int(active[g, slot, Active.KV]) + 1
    fifo = int(devices[g, Device.FIFO_LENGTH])
    if fifo > 0:
        end = load[g, Load.FIFO_STAY]
        if end < slots:
            leaving[g, 0, end] += fifo
            leaving[g, 1, end] += load[g, Load.FIFO_LEAD]


@compiled
def find_peaks(load: np.ndarray, leaving: np.ndarray, g: int, peaks: np.ndarray) -> None:
    """Make ``peaks[g, n]`` = max over slots h < n of (occupied KV at h) + h, n = 1..H.

    A newcomer holds s + 1 + h at slot h, so it fits for n slots exactly when
    peaks[g, n] + s + 1 <= M.
    """
    count = load[g, Load.USED]
    tokens = load[g, Load.TOKENS]
    peak = load[g, Load.PHYSICAL]
    row = peaks[g]
    gone, gone_tokens = leaving[g, 0], leaving[g, 1]
    for slot in range(gone.shape[0]):
        count -= gone[slot]
        tokens -= gone_tokens[slot]
        peak = max(peak, tokens + slot * (count + 1))
        row[slot + 1] = peak
