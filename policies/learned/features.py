"""Writing the questions of ``policies.learned.question`` from a router's observation. Compiled."""

from __future__ import annotations

import numpy as np

from llmroute_env.jit import compiled
from llmroute_env.spaces import Clock, Device, Queue
from policies.completions import Profile, attention, build_profile, plan
from policies.learned.question import (
    LATE,
    LATER,
    PAIR_SCALE,
    SOON,
    Context,
    FeatureParams,
    FeatureScratch,
    Machine,
    Pair,
    Question,
    Request,
)
from policies.learned.rates import RateMemory
from policies.startable import fits, whole

_LOG = 1.0 / 8.0  # log(1 + 2980) / 8 is 1
_FINE = 16.0
_NO_LIMIT = 1e12


@compiled
def log_scale(value: float) -> float:
    """Squeeze a count or a time: 0 at 0, 1 at 2,980."""
    return np.log1p(max(value, 0.0)) * _LOG  # type: ignore[no-any-return]


@compiled
def _ratio(value: float) -> float:
    """Squeeze a time in services or a share: 0 at 0, 0.35 at 1, 1 at 186, at most 1.5."""
    return min(log_scale(_FINE * value), 1.5)


@compiled
def _pace(devices: np.ndarray, period_s: float) -> float:
    """Periods that an iteration takes, by the mean of the last ones; 1 before the first."""
    total, count = 0.0, 0
    for g in range(devices.shape[0]):
        if devices[g, Device.LAST_ITERATION] > 0.0:
            total += devices[g, Device.LAST_ITERATION]
            count += 1
    return total / count / period_s if count > 0 else 1.0


@compiled
def _shortlist(
    queue: np.ndarray,
    queue_id: np.ndarray,
    action: np.ndarray,
    oldest: int,
    key: np.ndarray,
    rows: np.ndarray,
) -> int:
    """Fill ``rows`` with candidates not sent yet; return the number of requests that wait."""
    rows[:] = -1
    most = rows.shape[0]
    waiting, n = 0, 0
    for i in range(queue_id.shape[0]):
        if queue_id[i] < 0:
            break
        if action[i] != 0:
            continue
        waiting += 1
        if waiting <= oldest:
            rows[n] = i
            n += 1
            continue
        length = np.float64(queue[i, Queue.PREDICTED])
        if n == most and (most == oldest or length >= key[most - 1]):
            continue
        at = n if n < most else most - 1
        while at > oldest and key[at - 1] > length:
            key[at], rows[at] = key[at - 1], rows[at - 1]
            at -= 1
        key[at], rows[at] = length, i
        n = min(n + 1, most)
    return waiting


@compiled
def _headroom(peaks: Profile, g: int, prompt: float, length: int, limit: float) -> float:
    """KV left at the worst predicted completion with the newcomer [tokens]; < 0 overflows."""
    low, high = 0, peaks.n[g]
    while low < high:
        middle = (low + high) // 2
        if peaks.left[g, middle] < length:
            low = middle + 1
        else:
            high = middle
    load = prompt + length
    if low < peaks.n[g]:
        load += peaks.kv[g, low] + length * peaks.requests[g, low]
    if low > 0:
        load = max(load, peaks.peak[g, low - 1] + prompt)
    return limit - max(load, np.float64(peaks.top[g]))


@compiled
def _machine(
    devices: np.ndarray,
    scratch: FeatureScratch,
    g: int,
    pace: float,
    mean: float,
    period_s: float,
    row: np.ndarray,
    sums: np.ndarray,
) -> None:
    """Write the features of a device, and add to the totals of the system."""
    peaks, rooms = scratch.profile, scratch.room
    batch, limit = np.float64(devices[g, Device.BATCH_LIMIT]), rooms.limit[g]
    n, here, work, soon, later, late = peaks.n[g], 0.0, 0.0, 0.0, 0.0, 0.0
    for i in range(n):
        count = peaks.requests[g, i] - (peaks.requests[g, i + 1] if i + 1 < n else 0.0)
        left = peaks.left[g, i] * pace / mean
        here += count
        work += count * left
        soon += count if left <= SOON else 0.0
        later += count if left <= LATER else 0.0
        late += count if left <= LATE else 0.0
    free = max(np.float64(rooms.slots[g]), 0.0)
    last = devices[g, Device.LAST_ITERATION] / period_s / pace
    row[Machine.FREE_SHARE] = free / batch
    row[Machine.KV] = 1.0 - rooms.free[g] / limit
    row[Machine.PEAK] = min(peaks.top[g] / limit, 2.0)
    row[Machine.ENDING_SOON] = soon / batch
    row[Machine.ENDING_LATER] = later / batch
    row[Machine.REMAINING] = _ratio(work / here) if here > 0.0 else 0.0
    row[Machine.FIFO] = min(np.float64(devices[g, Device.FIFO_LENGTH]) / batch, 2.0)
    row[Machine.PACE] = max(-2.0, min(10.0 * (last - 1.0), 2.0)) if last > 0.0 else 0.0
    sums[0] += batch
    sums[1] += free
    sums[2] += soon
    sums[3] += later
    sums[4] += late
    sums[5] += work
    sums[6] += here
    sums[7] += row[Machine.KV] / devices.shape[0]
    sums[8] += limit


@compiled
def begin(
    devices: np.ndarray, active: np.ndarray, params: FeatureParams, scratch: FeatureScratch
) -> None:
    """Profile all devices; call after `policies.startable.measure`, once per period."""
    for g in range(devices.shape[0]):
        limit = min(scratch.room.limit[g], np.float64(params.context[g]))
        build_profile(devices, active, g, limit, scratch.profile)


@compiled
def ask(
    queue: np.ndarray,
    queue_id: np.ndarray,
    devices: np.ndarray,
    clock: np.ndarray,
    params: FeatureParams,
    memory: RateMemory,
    scratch: FeatureScratch,
    action: np.ndarray,
    out: Question,
) -> int:
    """Write the next decision of a period; return the number of legal pairs (0: nothing to ask).

    ``action`` (W,) int64 has what was sent in this period; ``begin`` and `answer` keep the rest.
    """
    pace = _pace(devices, params.period_s)
    waiting = _shortlist(queue, queue_id, action, params.oldest, scratch.key, out.rows)
    legal = _pairs(queue, devices, params, pace, scratch, out)
    if legal == 0:
        return 0
    mean = max(memory.tokens[0] / max(memory.arrivals[0], 1e-9) * pace, 1e-6)
    sums = np.zeros(9)
    for g in range(devices.shape[0]):
        _machine(devices, scratch, g, pace, mean, params.period_s, out.devices[g], sums)
    left = np.float64(clock[Clock.LEFT])
    work = 0.0
    for i in range(queue_id.shape[0]):
        if queue_id[i] < 0:
            break
        if action[i] == 0:
            work += queue[i, Queue.PREDICTED] * pace
    fill = sums[1] * memory.weight[0] / max(memory.arrivals[0], 1e-9)
    row = out.context
    row[Context.LEFT] = _ratio(left / mean)
    row[Context.WAITING] = _ratio((waiting + clock[Clock.HIDDEN]) / sums[0])
    row[Context.FREE] = np.log1p(sums[1]) * 0.25
    row[Context.FREE_SHARE] = sums[1] / sums[0]
    row[Context.FILL_TIME] = _ratio(fill / mean)
    row[Context.LOAD] = min(memory.tokens[0] * pace / memory.weight[0] / sums[0], 3.0)
    row[Context.ENDING_SOON] = sums[2] / sums[0]
    row[Context.ENDING_LATER] = sums[3] / sums[0]
    row[Context.ENDING_LATE] = sums[4] / sums[0]
    row[Context.REMAINING] = _ratio(sums[5] / sums[6]) if sums[6] > 0.0 else 0.0
    row[Context.KV] = sums[7]
    row[Context.WAITING_WORK] = _ratio(work / sums[0] / mean)
    for c in range(out.rows.shape[0]):
        if out.rows[c] < 0:
            out.requests[c, :] = 0.0
        else:
            row = out.requests[c]
            _request(queue[out.rows[c]], params, pace, left, mean, sums[0] / sums[8], row)
    return legal


@compiled
def _pairs(
    queue: np.ndarray,
    devices: np.ndarray,
    params: FeatureParams,
    pace: float,
    scratch: FeatureScratch,
    out: Question,
) -> int:
    """Write which pairs are legal and their features; return the number of legal ones."""
    rooms, peaks = scratch.room, scratch.profile
    machines, count = rooms.slots.shape[0], 0
    for c in range(out.rows.shape[0]):
        i, here = out.rows[c], 0
        out.legal[c, :] = False
        out.pairs[c, :, :] = 0.0
        if i < 0:
            continue
        prompt = np.float64(queue[i, Queue.PROMPT])
        final = whole(rooms, prompt, np.float64(queue[i, Queue.PREDICTED]))
        for g in range(machines):
            limit = min(rooms.limit[g], np.float64(params.context[g]))
            if not fits(rooms, g, prompt + 1.0) or limit - prompt < 1.0:
                continue
            if final > rooms.largest[g]:
                continue
            length = plan(np.float64(queue[i, Queue.PREDICTED]), limit - prompt)
            left = _headroom(peaks, g, prompt, length, rooms.limit[g])
            if left < 0.0:
                continue
            out.legal[c, g] = True
            row = out.pairs[c, g]
            row[Pair.HEADROOM] = left / rooms.limit[g]
            row[Pair.BOUNDARY] = devices[g, Device.TIME_TO_END] / (pace * params.period_s)
            _costs(devices, scratch, g, prompt, length, row)
            here += 1
        if here > 0:
            _center(out.legal[c], out.pairs[c], here)
        count += here
    return count


@compiled
def _costs(
    devices: np.ndarray,
    scratch: FeatureScratch,
    g: int,
    prompt: float,
    length: int,
    row: np.ndarray,
) -> None:
    """Write what a newcomer on a device costs itself and the others there."""
    rooms = scratch.room
    own, others = attention(scratch.profile, g, prompt, length)
    limit, batch = rooms.limit[g], np.float64(devices[g, Device.BATCH_LIMIT])
    inside = batch - rooms.slots[g]
    row[Pair.ROOM] = (rooms.free[g] - prompt - 1.0) / limit
    row[Pair.OWN] = own / limit
    row[Pair.OTHERS] = others / limit
    row[Pair.BURDEN] = (limit - rooms.free[g]) * length / limit
    row[Pair.GROWTH] = inside * (prompt + 0.5 * length) / limit
    row[Pair.CROWD] = inside / batch


@compiled
def _center(legal: np.ndarray, rows: np.ndarray, count: int) -> None:
    """Take the mean over the legal devices from each feature, and scale it."""
    for f in range(rows.shape[1]):
        scale = np.float32(PAIR_SCALE[f])
        mean = np.float32(0.0)
        for g in range(legal.shape[0]):
            if legal[g]:
                mean += rows[g, f]
        mean /= np.float32(count)
        for g in range(legal.shape[0]):
            if legal[g]:
                away = scale * (rows[g, f] - mean)
                rows[g, f] = min(max(away, np.float32(-5.0)), np.float32(5.0))


@compiled
def _slack(limit_s: float, used_s: float) -> float:
    if limit_s <= 0.0 or limit_s >= _NO_LIMIT:
        return 1.0
    return max(-1.0, min(1.0, 1.0 - used_s / limit_s))


@compiled
def _request(
    request: np.ndarray,
    params: FeatureParams,
    pace: float,
    left: float,
    mean: float,
    slots_per_token: float,
    row: np.ndarray,
) -> None:
    length = np.float64(request[Queue.PREDICTED]) * pace
    waited = np.float64(request[Queue.WAITED])
    end = waited + length * params.period_s
    row[Request.LENGTH] = _ratio(length / mean)
    row[Request.LENGTH_SHARE] = min(length / max(left, 1.0), 2.0)
    row[Request.PROMPT] = _ratio(np.float64(request[Queue.PROMPT]) * slots_per_token)
    row[Request.WAITED] = _ratio(waited / params.period_s / mean)
    row[Request.RELATIVE] = max(-1.0, min(1.0, 0.25 * np.log((length + 1.0) / (mean + 1.0))))
    row[Request.START_SLACK] = _slack(params.tail_ttft_s, waited)
    row[Request.END_SLACK] = _slack(params.tail_eel_s, end)
    row[Request.TIER] = min(np.float64(request[Queue.TIER]), 4.0) * 0.25
