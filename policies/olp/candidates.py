"""A (request, device) pair: what it is worth, what it costs, and which device a request goes to.

A pair's margin is the normalized reward less what it costs: its column at the learned prices, and
the time that it takes from others where that counts (``slowdown.py``). It, or the index, is the
pair's score. Ties: of devices with equal scores, the one with the smaller share of its batch slots
taken, then the next one in turn from a pointer in the memory.
"""

from __future__ import annotations

import numpy as np

from llmroute_env.jit import compiled
from policies.olp.columns import index, plan_on, reward, token_worth
from policies.olp.prices import column_cost
from policies.olp.slowdown import lost_time, time_cost
from policies.olp.state import Load, Slow, Terms


@compiled
def offer(
    prompt: int, predicted: float, waited_s: float, limit: int, pace: float, terms: Terms
) -> tuple[int, float]:
    """Planned stay and normalized reward of a start now; (0, 0) where it can never fit.

    Args:
        prompt: s - steps [tokens].
        limit: PLAN_LIMIT of the device.
        pace: length of its iterations [periods].
    """
    tokens = plan_on(predicted, prompt + terms.steps, limit, terms.largest)
    if tokens == 0:
        return 0, 0.0
    length = tokens + terms.steps
    return length, min(terms.scale * reward(length, waited_s, pace, terms), 1.0)


@compiled
def price(
    prompt: int,
    length: int,
    g: int,
    terms: Terms,
    load: np.ndarray,
    sums: np.ndarray,
    carry: np.ndarray,
) -> float:
    """What a start on device g costs, now, at the learned prices."""
    if terms.priced == 0:
        return 0.0
    block, lane = load[g, Load.BLOCK], load[g, Load.LANE]
    last = min(length, terms.lookahead)
    return column_cost(sums, carry, block, terms.bits, lane, terms.width, 0, last, prompt + 1.0)


@compiled
def fits(load: np.ndarray, peaks: np.ndarray, g: int, length: int, prompt: int) -> bool:
    """Tell whether an open device has KV for the request at every slot of its planned stay."""
    top = min(length, peaks.shape[1] - 1)
    return peaks[g, top] + prompt + 1 <= load[g, Load.KV_LIMIT]  # type: ignore[no-any-return]


@compiled
def _score(
    prompt: int,
    length: int,
    waited_s: float,
    worth: float,
    g: int,
    pace: np.ndarray,
    terms: Terms,
    load: np.ndarray,
    sums: np.ndarray,
    carry: np.ndarray,
    time: float,
    lenient: float,
) -> float:
    """What a (request, device) pair is ranked by: its margin, or its index.

    An index is positive, so with it prices order and do not shut out. Unless work-conserving: then
    a margin of 0 or less makes it negative, and the pair is not started.
    """
    cost = price(prompt, length, g, terms, load, sums, carry)
    if terms.indexed == 0:
        return worth - cost - time
    # Prices end with the look-ahead, and what is beyond would be free.
    cost = cost * (length / min(length, terms.lookahead)) + time
    score = index(length, waited_s, worth, cost, pace[g], terms)
    if not terms.selective:
        return score
    # Tokens are worth the same whoever emits them, so prices come close to all of it and margins
    # are noise around 0; but what an idle slot does not emit is lost. So they count twice here.
    return -score if worth + token_worth(length, terms) <= cost - lenient else score


@compiled
def best_device(
    prompt: int,
    predicted: float,
    waited_s: float,
    pointer: int,
    pace: np.ndarray,
    terms: Terms,
    load: np.ndarray,
    peaks: np.ndarray,
    sums: np.ndarray,
    carry: np.ndarray,
    slow: np.ndarray,
) -> tuple[float, int, int]:
    """Device for a request, of those that can take it: its score there, the device, the length.

    The best score decides between groups. Within one, neighbours in a group, the device on which
    the least time is lost does, of those with a score above 0 if there are any.
    """
    best, least = -np.inf, np.inf
    chosen, planned = -1, 0
    other, other_best, other_planned = -1, -np.inf, 0  # of the groups before
    limit, speed, length, worth = -1, 0.0, 0, 0.0
    for g in range(load.shape[0]):
        if load[g, Load.OPEN] == 0:
            continue
        if load[g, Load.PLAN_LIMIT] != limit or pace[g] != speed:  # once where devices are alike
            limit, speed = load[g, Load.PLAN_LIMIT], pace[g]
            length, worth = offer(prompt, predicted, waited_s, limit, speed, terms)
        if length == 0 or not fits(load, peaks, g, length, prompt):
            continue
        if chosen >= 0 and load[g, Load.GROUP] != load[chosen, Load.GROUP]:
            if other < 0 or _better(best, load, chosen, other_best, other, pointer):
                other, other_best, other_planned = chosen, best, planned
            best, least, chosen = -np.inf, np.inf, -1
        lost, time, lenient = 0.0, 0.0, 0.0
        if terms.slowdown:
            lost = lost_time(prompt, length, g, slow)
            time, lenient = time_cost(prompt, length, lost, g, pace[g], terms, slow)
            lost += slow[g, Slow.DELAY]
        score = _score(
            prompt, length, waited_s, worth, g, pace, terms, load, sums, carry, time, lenient
        )
        sooner = lost < least or (lost == least and _better(score, load, g, best, chosen, pointer))
        if (score > 0.0 and best <= 0.0) or ((score > 0.0) == (best > 0.0) and sooner):
            best, least, chosen, planned = score, lost, g, length
    if other >= 0 and not _better(best, load, chosen, other_best, other, pointer):
        return other_best, other, other_planned
    return best, chosen, planned


@compiled
def _better(score: float, load: np.ndarray, g: int, best: float, other: int, pointer: int) -> bool:
    """Tell whether device g comes before another: by the score, then by `_emptier`."""
    return score > best or (score == best and _emptier(load, g, other, pointer))


@compiled
def _emptier(load: np.ndarray, g: int, other: int, pointer: int) -> bool:
    """Tell whether g has a smaller share of its slots taken, or an equal one and its turn first."""
    mine = load[g, Load.USED] * load[other, Load.BATCH_LIMIT]
    its = load[other, Load.USED] * load[g, Load.BATCH_LIMIT]
    if mine != its:
        return mine < its  # type: ignore[no-any-return]
    devices = load.shape[0]
    return (g - pointer) % devices < (other - pointer) % devices  # type: ignore[no-any-return]
