"""Records that OLP's compiled decision works on: constants, memory and working space."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import numpy as np

from policies.olp.layout import Grid


class Number(IntEnum):
    """Entries of ``memory.numbers``, float64 (integers in it are exact)."""

    PERIOD = 0  #: period index of the last decision, -1 before the first
    SLOT = 1  #: the clock in slots (iterations), not rounded
    ITERATION = 2  #: smoothed length of an iteration [periods], 0 before telemetry shows one
    LONGEST = 3  #: longest planned stay seen [periods]
    LAST_ID = 4  #: largest request id seen, -1 before the first
    HIDDEN = 5  #: waiting requests beyond the window at the last decision
    COLUMNS = 6  #: columns in the history
    WRITE = 7  #: row of the history that is written next
    SUM_REWARD = 8  #: over the history: normalized rewards
    SUM_BATCH = 9  #: over the history: squared norms of the batch entries
    SUM_MEMORY = 10  #: over the history: squared norms of the memory entries [tokens^2]
    ELAPSED = 11  #: periods since the rate estimate started anew
    ARRIVALS = 12  #: arrivals in them
    RECENT = 13  #: arrivals in the drift window
    TICK = 14  #: periods decided
    DRIFTS = 15  #: rate increases detected
    LAST_DRIFT = 16  #: period of the last one, -1 if none
    RANKED = 17  #: candidates ranked, a request once per period in which some device is open
    POSITIVE = 18  #: of them, with a positive margin
    STARTED = 19  #: requests sent
    STARTED_POSITIVE = 20  #: of them, with a positive margin
    DEPARTED = 21  #: requests seen to leave a batch, with forgetting; see ``errors.py``
    SUM_LENGTH = 22  #: their true lengths [tokens]
    SUM_PREDICTED = 23  #: their predicted lengths [tokens]


class Load(IntEnum):
    """Columns of ``scratch.load``, int64: what a device holds, with this period's admissions."""

    USED = 0  #: active + FIFO + just sent [requests]
    TOKENS = 1  #: their KV tokens in the next iteration [tokens]
    PHYSICAL = 2  #: KV tokens at the boundary at which a newcomer joins, nobody leaving [tokens]
    BATCH_LIMIT = 3  #: B, 0 when the device is down [requests]
    KV_LIMIT = 4  #: M, 0 when the device is down [tokens]
    PLAN_LIMIT = 5  #: most tokens s + n of one request, min(M, context) [tokens]
    OPEN = 6  #: 1 while the device may start something this period
    BLOCK = 7  #: block of the grid
    LANE = 8  #: lane in the block
    FIFO_STAY = 9  #: mean planned stay of the FIFO's contents [slots]
    FIFO_LEAD = 10  #: their KV tokens at slot 0 [tokens]
    BUDGET = 11  #: prefill tokens that the boundary's iteration has left, NO_BUDGET without one
    GROUP = 12  #: group of devices that are alike


class Trend(IntEnum):
    """Columns of ``memory.trend``: moments of KV [tokens], batch [requests] and time [periods]."""

    COUNT = 0  #: observations, forgotten ones included
    ORIGIN = 1  #: first time seen; times are relative to it, so equal ones have no rounding
    KV = 2  #: means
    BATCH = 3
    TIME = 4
    KV_KV = 5  #: covariances
    KV_BATCH = 6
    BATCH_BATCH = 7
    KV_TIME = 8
    BATCH_TIME = 9


#: what stands for no budget; an admission takes its prompt from it [tokens]
NO_BUDGET = 2**62


class OlpParams(NamedTuple):
    """Constants of one policy."""

    grid: Grid
    priced: int  #: 1: prices are learned, 0: they stay 0
    fluid: int  #: 1: from the demand of the look-ahead (``fluid.py``), 0: as published
    indexed: int  #: 1: rank by the index of ``columns.py``, 0: by margin
    patience_s: float  #: D of the index [s]
    step_size: float
    mem_scale: float  #: 0: 1 / the largest M
    rolling: int  #: 1: rolling horizon
    window_periods: float  #: R with a rolling horizon, 0: the longest stay that fits a device
    horizon_periods: float  #: T
    aging: float  #: a, see ``columns.index``
    work_conserving: int
    normalizer: float  #: 0: the largest reward
    forget: float  #: share of the errors seen that one more wipes out, 0: no correction
    period_s: float
    smoothing: float  #: weight of a new iteration time in its moving average
    record_stride: int  #: periods between two samples of ``series``
    drift_periods: int  #: window of the drift test, 0: none
    drift_z: float
    weights: np.ndarray  #: (8,) alpha ... zeta2, tail_eel_s, tail_ttft_s
    context_limit: np.ndarray  #: (G,) int64 [tokens]
    targets: np.ndarray  #: (n, len(Target)) float64, tail targets, see ``targets.py``
    prefill: int  #: 1: devices prefill what they decode, see ``modes.py``
    steps: int  #: slots that a stay is longer than its tokens: the prefill, where it emits none
    shared: int  #: 1: devices have prefix caches
    chunk_tokens: int  #: tokens of an iteration that prefills, 0 without a budget
    group: np.ndarray  #: (G,) int64, group of devices that are alike
    slowdown: int  #: 1: the time that a request adds to iterations counts, see ``slowdown.py``


class Terms(NamedTuple):
    """What margins of one period depend on, beside the prices and the devices."""

    alpha: float
    beta: float
    start: float  #: gamma * R + sigma, the same for every start
    zeta1: float
    zeta2: float
    tail_eel_s: float
    tail_ttft_s: float
    horizon: float  #: R [periods]
    horizon_tokens: float  #: R in iterations
    iteration: float  #: length of an iteration [periods]
    scale: float  #: 1 / the reward normalizer
    priced: int
    indexed: int
    aging: float  #: a / D [1/s], see ``columns.index``
    selective: int  #: 1: only positive margins start
    waiting: float  #: beta + gamma, what every request loses by waiting for a period
    patience_s: float  #: D [s]
    width: int  #: devices per block of the grid
    bits: int  #: of the grid
    lookahead: int
    joint: int  #: 1: zeta1 is earned where the start is in time, too
    steps: int  #: slots that a stay is longer than its tokens
    largest: int  #: most tokens s + o that some device of the fleet takes, up or down [tokens]
    period_s: float
    slowdown: int  #: 1: the time that a request adds to iterations counts


class OlpMemory(NamedTuple):
    """What survives to the next period (one lane)."""

    rng: np.ndarray  #: (1,) uint64
    pointer: np.ndarray  #: (1,) int64, device that wins the next tie
    numbers: np.ndarray  #: (len(Number),) float64
    prices: np.ndarray  #: (blocks, 2, rows, lanes) float64
    columns: np.ndarray  #: (history, 4) int32, see ``layout.Column``
    rewards: np.ndarray  #: (history,) float64, normalized
    arrivals: np.ndarray  #: (drift window,) int32, arrivals per period, a ring
    margins: np.ndarray  #: (W,) float32, margins of the last ranking, NaN where none
    #: (record, 4 + 2 n) float32: period, mean p_bat, mean p_mem, arrival rate, multipliers, shares
    series: np.ndarray
    goals: np.ndarray  #: (n, targets.COLUMNS) float64, see ``targets.Goal``
    sent: np.ndarray  #: (G, B_max, len(Sent)) float64, see ``tracking.py``; empty if no end counts
    held: np.ndarray  #: (G,) int64, rows of it in use
    seen: np.ndarray  #: (G, B_max, 4) float32, see ``errors.Seen``
    seen_count: np.ndarray  #: (G, 2) int64, active and FIFO at the last look
    pace: np.ndarray  #: (groups,) float64, smoothed length of an iteration, 0: unknown [periods]
    trend: np.ndarray  #: (groups, len(Trend)) float64


class Slow(IntEnum):
    """Columns of ``scratch.slow``, float64: what ``slowdown.py`` knows of a device this period.

    One array: each one more that is passed down to the ranking of pairs costs every decision.
    """

    DELAY = 0  #: wait for the boundary at which a newcomer joins [periods]
    KV_TIME = 1  #: κ [periods per token]
    WHOLE = 2  #: P, price of a whole device for one iteration
    COMPANY = 3  #: from here on, H + 1 sums over slots θ < n of K + θ N [tokens], then as many of N


class OlpScratch(NamedTuple):
    """Working space; content is meaningless between calls."""

    scarcity: np.ndarray  #: (2, rows, lanes) d of one block
    events: np.ndarray  #: (2, rows, lanes) zero between calls
    sums: np.ndarray  #: (blocks, 2, rows, lanes)
    carry: np.ndarray  #: (blocks, 2, lanes)
    running: np.ndarray  #: (4, lanes) zero between calls
    limits: np.ndarray  #: (3, lanes) B, M and ``share`` of one block
    picks: np.ndarray  #: (K, batch) int32
    demand_scarcity: np.ndarray  #: (blocks, 2, rows, lanes); these three only for fluid prices
    demand_events: np.ndarray  #: (blocks, 2, rows, lanes) zero between calls
    demand_running: np.ndarray  #: (blocks, 4, lanes) zero between calls
    load: np.ndarray  #: (G, len(Load)) int64
    leaving: np.ndarray  #: (G, 2, H) int64, requests and KV leads that leave at a slot
    peaks: np.ndarray  #: (G, H + 1) int64, max over slots < n of occupied KV + slot
    predicted: np.ndarray  #: (W,) float64, ô of the visible queue, corrected [tokens]
    active: np.ndarray  #: (G, B_max, 2) float32, ``obs["active"]``, corrected, as if all decoded
    keys: np.ndarray  #: (W,) float64, minus the margins
    heap: np.ndarray  #: (W,) int64, rows as a heap
    pace: np.ndarray  #: (G,) float64, length of an iteration [periods]
    share: np.ndarray  #: (G,) float64, arrivals of the look-ahead over those of the device's own
    slow: np.ndarray  #: (G, Slow.COMPANY + 2 (H + 1)) float64; never written where it is off
