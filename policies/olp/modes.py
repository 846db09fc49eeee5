"""Devices that prefill what they decode, and devices of unlike speed, as the rest of OLP sees them.

**Mixed mode** (arXiv 2607.03948, appendix A). A request planned for n tokens stays 1 + n slots, its
prefill first, and holds s tokens at age 0, s + θ at age θ. In the kernel of a decode-only device, n
slots with s + 1 + θ tokens, that is a request of s - 1 prompt tokens that stays 1 + n slots; so
columns, prices and forecasts are the same code with ``steps`` = 1. Where the prefill emits the
first token (``emits_token``), n slots suffice and a decoding request needs s + 1 + θ at age θ, as
the cluster counts it: ``steps`` = 0, and the prefill itself is counted one token too high.
A prompt in chunks is planned as one prefill slot; where the token budget of the coming iteration is
spent on prompts already there, nothing is sent, since it would wait in the FIFO. Prefill tokens
lengthen iterations; OLP does not foresee by how much, it takes slots to last as long as
LAST_ITERATION shows.

**Occupancy.** Requests that prefill come last in ``obs["active"]``, with the tokens that are in KV
now, but hold their whole prompt. What is left of them is PREFILL less the FIFO's tokens. A row
without KV prefills for sure, so these share what is left; without such a row it is the last one's.
With prefix caches KV_USED counts whole prompts already, shared blocks once, while rows overlap:
then rows are scaled down to KV_USED, so that what leaves is not more than what is there.

**Unlike devices.** A slot is an iteration, and each group of devices has its own smoothed length of
one (``pace``); rewards are in periods, so the same request earns less on a slower device, and d
divides by the arrivals in that device's own H iterations. Columns of the history are placed on one
clock, that of the fleet's mean iteration.
"""

from __future__ import annotations

import numpy as np

from llmroute_env.jit import compiled
from llmroute_env.spaces import Active, Device
from policies.olp.state import Load


@compiled
def as_decoding(
    devices: np.ndarray,
    active: np.ndarray,
    steps: int,
    shared: int,
    chunk_tokens: int,
    load: np.ndarray,
    batch: np.ndarray,
) -> None:
    """Write what prefilling devices hold as if it were decoding, and correct ``load`` by it.

    Args:
        devices: ``obs["devices"]`` (G, 11).
        active: ``obs["active"]`` (G, B_max, 2).
        steps: slots that a stay is longer than its tokens, 0 or 1.
        shared: 1 where devices have prefix caches.
        chunk_tokens: tokens of an iteration that prefills, 0 without a budget.
        load: (G, len(Load)), as ``forecast.read_load`` left it.
        batch: (G, B_max, 2), filled; it may be ``active`` itself.
    """
    for g in range(devices.shape[0]):
        rows, fifo = int(devices[g, Device.ACTIVE]), int(devices[g, Device.FIFO_LENGTH])
        left = int(devices[g, Device.PREFILL]) - int(devices[g, Device.FIFO_TOKENS])
        left = max(left, 0)
        if chunk_tokens > 0:
            each = max(chunk_tokens - rows, 0)  # prefill tokens of an iteration
            ends = each if devices[g, Device.TIME_TO_END] > 0.0 else 0
            load[g, Load.BUDGET] = each - max(int(devices[g, Device.PREFILL]) - ends, 0)
        first = rows
        while first > 0 and active[g, first - 1, Active.KV] == 0.0:
            first -= 1
        if first == rows and rows > 0 and left > 0:
            first -= 1
        held = 0
        for row in range(rows):
            kv = int(active[g, row, Active.KV])
            remaining = active[g, row, Active.REMAINING]
            if row >= first:
                part = left // (rows - row)  # of the rows that are left
                left -= part
                kv += part - steps
                remaining += steps
            batch[g, row, Active.KV] = kv
            batch[g, row, Active.REMAINING] = remaining
            held += kv
        used = int(devices[g, Device.KV_USED])
        if shared:
            for row in range(rows if held > used else 0):
                kv = int(batch[g, row, Active.KV])
                batch[g, row, Active.KV] = kv * used // held
            held = used
        load[g, Load.FIFO_STAY] += steps
        load[g, Load.FIFO_LEAD] -= steps * fifo
        load[g, Load.TOKENS] += held - used - steps * fifo
        load[g, Load.PHYSICAL] += held - used - steps * fifo


@compiled
def keep_pace(
    devices: np.ndarray,
    group: np.ndarray,
    period_s: float,
    smoothing: float,
    mean: float,
    known: np.ndarray,
    pace: np.ndarray,
) -> None:
    """Update the length of an iteration by group, and write it by device.

    Args:
        group: (G,) row of ``known`` of each device; all 0 where devices are alike.
        period_s: as float32 holds it [s].
        smoothing: weight of a new observation.
        mean: the fleet's own [periods], for all of a single group, or before telemetry shows more.
        known: (groups,) smoothed, 0 before telemetry shows one [periods].
        pace: (G,) [periods].
    """
    groups = known.shape[0]
    if groups == 1:
        pace[:] = mean
        return
    for one in range(groups):
        total, seen = 0.0, 0
        for g in range(devices.shape[0]):
            if group[g] == one and devices[g, Device.LAST_ITERATION] > 0.0:
                total += np.float64(devices[g, Device.LAST_ITERATION])
                seen += 1
        if seen > 0:
            observed = total / seen / period_s
            before = known[one]
            known[one] = before + smoothing * (observed - before) if before > 0.0 else observed
    for g in range(devices.shape[0]):
        own = known[group[g]]
        pace[g] = own if own > 0.0 else mean


@compiled
def by_arrivals(
    here: float, coming: float, mean: float, pace: np.ndarray, share: np.ndarray
) -> float:
    """Arrivals expected over the look-ahead; ``share`` (G,): those over each device's own.

    Args:
        here: waiting requests that count, in any look-ahead.
        coming: arrivals in H iterations of the mean length.
        mean: that length [periods].
        pace: (G,) each device's [periods].
    """
    expected = max(here + coming, 1.0)
    for g in range(pace.shape[0]):
        share[g] = expected / max(here + coming * (pace[g] / mean), 1.0)
    return expected
