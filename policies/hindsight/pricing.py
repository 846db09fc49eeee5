"""What a request gains at given prices of slots, KV and device time. All functions are compiled.

Prices are per slot, (N,): ``hold`` for every slot from a request's first iteration to its last,
idle or not; ``run`` for a slot in which it runs an iteration, less alpha; ``kv`` per KV token of
that iteration, s + i in the i-th. Prefix sums make a contiguous run cost O(1).
"""

from __future__ import annotations

import numpy as np

from llmroute_env.jit import compiled
from policies.hindsight.instance import Floats, Ints, Work


@compiled
def _prefix(prices: Floats) -> Floats:
    """(N + 1,) sums of the first k prices."""
    sums = np.zeros(len(prices) + 1)
    for k in range(len(prices)):
        sums[k + 1] = sums[k] + prices[k]
    return sums


@compiled
def _start(work: Work, j: int, k: int) -> float:
    value: float = work.first_value[j] if k == work.first[j] else work.start_value[k]
    return value + (work.zeta2 if k <= work.start_by[j] else 0.0)


@compiled
def _finish(work: Work, j: int, k: int) -> float:
    value: float = work.finish_value[k]
    return value + (work.zeta1 if k <= work.finish_by[j] else 0.0)


@compiled
def respond(
    work: Work,
    hold: Floats,
    run: Floats,
    kv: Floats,
    pause: bool,
    value: Floats,
    begin: Ints,
    resume: Ints,
) -> None:
    """Best schedule of each request among those with one iteration first and the rest in one run.

    Without ``pause`` the rest follows at once: the schedules without preemption. With it, the
    rest may come later: the pause that preemption gains most by, since gamma is paid for the
    first iteration.

    Args:
        work: the requests.
        hold, run, kv: (N,) prices.
        pause: whether the rest may come later.
        value: (R,) out, the gain, 0 for a request that had better not start.
        begin: (R,) out, slot of the first iteration, -1 for none.
        resume: (R,) out, slot of the second; N for never.
    """
    slots = len(hold)
    holds, runs, kvs = _prefix(hold), _prefix(run), _prefix(kv)
    until, since = np.zeros(slots + 1), np.zeros(slots + 1)
    moment = 0.0  # sum of slot number x price
    for k in range(slots + 1):
        since[k] = runs[k] + moment
        until[k] = -holds[k] - since[k]
        if k < slots:
            moment += k * kv[k]
    for j in range(len(work.first)):
        o, f = work.decode[j], work.first[j]
        first = _first_gains(work, j, run, kv, holds)
        if o == 1:
            best, at = _best(first)
            value[j], begin[j], resume[j] = best, at + f if at >= 0 else -1, slots
            continue
        later = _later_gains(work, j, until, since, kvs)
        best, at, on = 0.0, -1, slots
        rest, rest_at = -holds[slots], slots
        for i in range(slots - f - 1, -1, -1):
            gain = first[i] + rest
            if gain > best:
                best, at, on = gain, f + i, rest_at
            if later[i] >= rest or not pause:
                rest, rest_at = later[i], f + i
        value[j], begin[j], resume[j] = best, at, on


@compiled
def _first_gains(work: Work, j: int, run: Floats, kv: Floats, holds: Floats) -> Floats:
    """(N - f,) gain of a first iteration in each slot from the first possible one, f, on.

    Holding is charged from slot 0 to the first iteration with the opposite sign, and from slot 0
    to the last one by `_later_gains`: a pause between the two then adds nothing.
    """
    f, s = work.first[j], float(work.prompt[j])
    value, price, each, before = work.start_value[f:], run[f:], kv[f:], holds[f:]
    gains = np.empty(len(price))
    for i in range(len(gains)):
        gains[i] = value[i] - price[i] - (s + 1.0) * each[i] + before[i]
    gains[0] += work.first_value[j] - value[0]
    if work.zeta2 > 0.0:
        for i in range(min(max(work.start_by[j] + 1 - f, 0), len(gains))):
            gains[i] += work.zeta2
    if work.decode[j] == 1:
        for i in range(len(gains)):
            gains[i] += _finish(work, j, f + i) - before[i + 1]
    return gains


@compiled
def _later_gains(work: Work, j: int, until: Floats, since: Floats, kvs: Floats) -> Floats:
    """(N - f,) gain of the iterations after the first, in one run from each slot on."""
    f, s, rest = work.first[j], float(work.prompt[j]), work.decode[j] - 1
    slots = len(kvs) - 1
    gains = np.empty(slots - f)
    ending = max(slots - rest + 1 - f, 0)  # so many of these runs end in time
    begun, tokens = since[f:], kvs[f:]
    ended, later = until[f + rest :], kvs[f + rest :]
    value = work.finish_value[f + rest - 1 :]
    for i in range(ending):
        gains[i] = value[i] + ended[i] + begun[i] + (s + 2.0 - f - i) * (tokens[i] - later[i])
    for i in range(ending, slots - f):
        gains[i] = until[slots] + begun[i] + (s + 2.0 - f - i) * (tokens[i] - kvs[slots])
    if work.zeta1 > 0.0:
        for i in range(min(max(work.finish_by[j] - f - rest + 2, 0), ending)):
            gains[i] += work.zeta1
    return gains


@compiled
def _best(gains: Floats) -> tuple[float, int]:
    best, at = 0.0, -1
    for i in range(len(gains)):
        if gains[i] > best:
            best, at = gains[i], i
    return best, at


@compiled
def occupy(
    work: Work, begin: Ints, resume: Ints, held: Floats, ran: Floats, tokens: Floats
) -> None:
    """Add up what schedules of `respond` occupy.

    Args:
        work: the requests.
        begin, resume: (R,) the schedules.
        held: (N,) out, requests between first and last iteration.
        ran: (N,) out, requests that run.
        tokens: (N,) out, KV tokens of the running ones.
    """
    slots = len(held)
    steps = np.zeros((3, slots + 1))  # of held, ran, and of tokens - slot x ran
    for j in range(len(begin)):
        k = begin[j]
        if k < 0:
            continue
        s, rest, on = work.prompt[j], work.decode[j] - 1, resume[j]
        end = k + 1 if rest == 0 else min(on + rest, slots)
        steps[0, k] += 1.0
        steps[0, end] -= 1.0
        steps[1, k] += 1.0
        steps[1, k + 1] -= 1.0
        steps[2, k] += s + 1.0 - k
        steps[2, k + 1] -= s + 1.0 - k
        if rest > 0 and on < slots:
            steps[1, on] += 1.0
            steps[1, end] -= 1.0
            steps[2, on] += s + 2.0 - on
            steps[2, end] -= s + 2.0 - on
    holding, running, constant = 0.0, 0.0, 0.0
    for k in range(slots):
        holding += steps[0, k]
        running += steps[1, k]
        constant += steps[2, k]
        held[k], ran[k], tokens[k] = holding, running, constant + running * k


@compiled
def certify(
    work: Work, hold: Floats, run: Floats, kv: Floats, value: Floats, count: Ints, slot: Ints
) -> None:
    """Best schedule of each request with any pauses: the exact subproblem, by dynamic programming.

    ``cost[i]`` is the least cost, finish rewards off, of a started request that has i tokens and
    may go on in slot k + 1, plus the hold prices before that slot; in that form a pause is free,
    and one pass over i takes k + 1 to k. O(o N) a request, and the pass is vectorised.

    Args:
        work: the requests.
        hold, run, kv: (N,) prices.
        value: (R,) out, the gain, 0 for a request that had better not start.
        count: (R,) out, iterations that it runs.
        slot: (sum of o,) out, the slots of these iterations, request after request; of length 0
            when they are not wanted.
    """
    slots, written, wanted = len(hold), 0, len(slot) > 0
    holds = _prefix(hold)
    longest = 1
    for j in range(len(work.first)):
        longest = max(longest, work.decode[j])
    cost, number = np.empty(longest + 1), np.empty(longest + 1)
    for i in range(longest + 1):
        number[i] = i + 1.0
    goes = np.empty((slots if wanted else 1, longest + 1), np.bool_)
    for j in range(len(work.first)):
        s, o, f = float(work.prompt[j]), work.decode[j], work.first[j]
        for i in range(o):
            cost[i] = holds[slots]
        best, at = 0.0, -1
        for k in range(slots - 1, f - 1, -1):
            cost[o] = holds[k + 1] - _finish(work, j, k)
            fixed, each = run[k] + s * kv[k], kv[k]
            gain = _start(work, j, k) - fixed - each + holds[k] - cost[1]
            if gain > best:
                best, at = gain, k
            if wanted:
                row = goes[k]
                for i in range(1, o):
                    on = fixed + each * number[i] + cost[i + 1]
                    row[i] = on <= cost[i]
                    cost[i] = min(cost[i], on)
            else:
                for i in range(1, o):
                    cost[i] = min(cost[i], fixed + each * number[i] + cost[i + 1])
        value[j], count[j] = best, 0
        if at >= 0 and wanted:
            i = 0
            for k in range(at, slots):
                if i < o and (i == 0 or goes[k, i]):
                    slot[written + i] = k
                    i += 1
            count[j] = i
            written += i
