"""What a request costs by making iterations longer (``slowdown``, our own).

An iteration reads the KV of its whole batch, so each KV token makes it κ longer. The published LP
does not see that: its slots all last as long. With N_g(θ) requests and K_g(θ) KV tokens forecast on
device g at slot θ, a newcomer of s prompt tokens and n slots loses

    L_g = κ sum over θ < n of K_g(θ)  +  κ sum over θ < n of N_g(θ) (s + 1 + θ)  +  b_g

periods for itself and the others there together, b_g being the wait for the boundary at which it
can join. Of devices that are alike, the one with the smallest L_g gets the request. Its cost is

    β (L_g + b_g) + γ b_g + τ + (P κ / pace * sum over θ < n of (s + 1 + θ)  -  τ)_+ ,

    τ = α L_g / pace,

in shares of the largest reward, with L_g from now on without b_g: latency lost by all, tokens that
are not emitted, and what the time is worth to those who wait where that is more. P is the price of
a whole device for one iteration, p_bat B + p_mem M averaged over the look-ahead: what slows a
device down takes all of it for longer. This cost counts in full in what orders requests. In the
test that holds a request back the last term counts for a quarter (`HELD_BACK`), as prices lag
behind the end of a burst.

κ is learned from telemetry: the last iteration's length, regressed on KV and batch size of the same
device with an intercept, old observations forgotten. Where iterations are of one length κ is 0
exactly; if that is also the period's, every b_g is 0 too and OLP is as without this.
"""

from __future__ import annotations

import numpy as np

from llmroute_env.jit import compiled
from llmroute_env.spaces import Device
from policies.olp.layout import Resource
from policies.olp.state import Load, Slow, Terms, Trend

#: Share of the price of time in the test that holds a request back.
HELD_BACK = 0.25
#: Observations that the regression remembers, and how many it needs.
REMEMBERED = 4096.0
NEEDED = 128.0


@compiled
def watch_iterations(
    devices: np.ndarray, group: np.ndarray, period_s: float, trend: np.ndarray
) -> None:
    """Enter the last iteration of every device into the moments of its group.

    The batch is that of now, which differs from the one of that iteration by who came and left at
    its end; that attenuates κ a little.

    Args:
        devices: ``obs["devices"]`` (G, 11).
        group: (G,) row of ``trend`` of each device.
        period_s: as float32 holds it [s].
        trend: (groups, len(Trend)).
    """
    for g in range(devices.shape[0]):
        if devices[g, Device.LAST_ITERATION] == 0.0 or devices[g, Device.ACTIVE] == 0.0:
            continue
        row = trend[group[g]]
        time = np.float64(devices[g, Device.LAST_ITERATION]) / period_s
        if row[Trend.COUNT] == 0.0:
            row[Trend.ORIGIN] = time
        row[Trend.COUNT] += 1.0
        share = max(1.0 / row[Trend.COUNT], 1.0 / REMEMBERED)
        kv = devices[g, Device.KV_USED] - row[Trend.KV]
        batch = devices[g, Device.ACTIVE] - row[Trend.BATCH]
        away = time - row[Trend.ORIGIN] - row[Trend.TIME]
        row[Trend.KV] += share * kv
        row[Trend.BATCH] += share * batch
        row[Trend.TIME] += share * away
        keep = 1.0 - share
        row[Trend.KV_KV] = keep * (row[Trend.KV_KV] + share * kv * kv)
        row[Trend.KV_BATCH] = keep * (row[Trend.KV_BATCH] + share * kv * batch)
        row[Trend.BATCH_BATCH] = keep * (row[Trend.BATCH_BATCH] + share * batch * batch)
        row[Trend.KV_TIME] = keep * (row[Trend.KV_TIME] + share * kv * away)
        row[Trend.BATCH_TIME] = keep * (row[Trend.BATCH_TIME] + share * batch * away)


@compiled
def kv_time(row: np.ndarray) -> float:
    """κ of a group [periods per token]: least squares, 0 before enough has been seen."""
    if row[Trend.COUNT] < NEEDED or row[Trend.KV_KV] <= 0.0:
        return 0.0
    spread, both = row[Trend.KV_KV], row[Trend.KV_TIME]
    if row[Trend.BATCH_BATCH] > 0.0:  # what KV explains beyond the batch size
        slope = row[Trend.KV_BATCH] / row[Trend.BATCH_BATCH]
        spread -= slope * row[Trend.KV_BATCH]
        both -= slope * row[Trend.BATCH_TIME]
    if spread < 1e-3 * row[Trend.KV_KV]:  # the two cannot be told apart
        return 0.0
    return max(both / spread, 0.0)  # type: ignore[no-any-return]


@compiled
def prepare(
    devices: np.ndarray,
    prices: np.ndarray,
    load: np.ndarray,
    width: int,
    lookahead: int,
    mem_scale: float,
    period_s: float,
    group: np.ndarray,
    trend: np.ndarray,
    running: np.ndarray,
    slow: np.ndarray,
) -> None:
    """Learn κ from this period's telemetry and fill ``slow`` up to its company.

    Args:
        devices: ``obs["devices"]`` (G, 11).
        prices: (blocks, 2, rows, lanes), as learned.
        width: devices per block of the grid.
        period_s: as float32 holds it [s].
        group: (G,) row of ``trend`` of each device.
        trend: (groups, len(Trend)).
        running: (4, lanes), zero before and after.
    """
    watch_iterations(devices, group, period_s, trend)
    known = 0.0
    for g in range(devices.shape[0]):
        slow[g, Slow.DELAY] = np.float64(devices[g, Device.TIME_TO_END]) / period_s
        slow[g, Slow.KV_TIME] = kv_time(trend[group[g]])
        known = max(known, slow[g, Slow.KV_TIME])
    if known == 0.0:
        return
    for block in range(prices.shape[0]):
        for resource in range(2):
            own, total = prices[block, resource], running[resource]
            for row in range(own.shape[0]):
                for at in range(own.shape[1]):
                    total[at] += own[row, at]
        for lane in range(min(width, load.shape[0] - block * width)):
            g = block * width + lane
            batch, memory = 0.0, 0.0
            for at in range(lane, running.shape[1], width):
                batch += running[Resource.BATCH, at]
                memory += running[Resource.MEMORY, at]
            memory *= mem_scale * load[g, Load.KV_LIMIT]
            slow[g, Slow.WHOLE] = (batch * load[g, Load.BATCH_LIMIT] + memory) / lookahead
        running[:2] = 0.0


@compiled
def meet(load: np.ndarray, leaving: np.ndarray, g: int, slow: np.ndarray) -> None:
    """Sum up whom a newcomer to device g would meet, by the length of its stay."""
    if slow[g, Slow.KV_TIME] == 0.0:
        return
    count, leads = load[g, Load.USED], load[g, Load.TOKENS]
    slots = leaving.shape[2]
    fixed = slow[g, Slow.COMPANY : Slow.COMPANY + slots + 1]
    requests = slow[g, Slow.COMPANY + slots + 1 :]
    for slot in range(slots):
        count -= leaving[g, 0, slot]
        leads -= leaving[g, 1, slot]
        fixed[slot + 1] = fixed[slot] + (leads + 2 * slot * count)
        requests[slot + 1] = requests[slot] + count


@compiled
def lost_time(prompt: int, length: int, g: int, slow: np.ndarray) -> float:
    """L_g without the wait for the boundary [periods]; beyond the look-ahead as within."""
    if slow[g, Slow.KV_TIME] == 0.0:
        return 0.0
    sums = (slow.shape[1] - Slow.COMPANY) // 2
    top = min(length, sums - 1)
    requests = slow[g, Slow.COMPANY + sums + top]
    tokens = slow[g, Slow.COMPANY + top] + (prompt + 1.0) * requests
    return slow[g, Slow.KV_TIME] * tokens * (length / top)  # type: ignore[no-any-return]


@compiled
def time_cost(
    prompt: int, length: int, lost: float, g: int, pace: float, terms: Terms, slow: np.ndarray
) -> tuple[float, float]:
    """Cost of a start on device g, and the part of it that does not hold a request back.

    Args:
        lost: from `lost_time`.
        pace: length of an iteration of the device [periods].
    """
    tokens = terms.scale * terms.alpha * lost / pace
    grown = length * (prompt + 1.0 + 0.5 * (length - 1.0))
    worth = slow[g, Slow.WHOLE] * slow[g, Slow.KV_TIME] / pace * grown
    more = max(worth - tokens, 0.0)
    latency = terms.beta * lost + terms.waiting * slow[g, Slow.DELAY]
    return terms.scale * latency + tokens + more, (1.0 - HELD_BACK) * more
