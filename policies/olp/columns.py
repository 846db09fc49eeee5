"""Columns of the online LP: planned length, decision reward, norm.

A column is one action (request j, device g, start slot): a reward and the capacity it would take,
one batch slot and s + θ + 1 KV tokens at age θ < n. Its slots are contiguous, so (start, n, s, g)
is all of it.

Conventions, with 0-based period boundaries (source: arXiv 2607.03948, section 3.1 and B):

* ô is planned as n = clip(round(ô), 1, min(M, context) - s), ties up. The same n is used in the
  reward and in the column. The paper leaves ô free; an ô above the limit would then wait forever.
* A start at boundary k ends at boundary k + n, hence saved steps T - k - n and tail test
  waited + n < t1'. The paper's 1-based T - (k + n - 1) and k + n - t are the same numbers.
* Rolling horizon: T - k is a constant R. Fixed horizon: R is what is left of the episode.
* A slot is one iteration. ``pace`` [periods per slot], the device's own, converts.
* Where devices prefill, a request is given as s - steps prompt tokens and a stay of n + steps
  slots (``modes.py``).
* A clipped plan makes any ô look as if it fitted. On a fleet of unlike devices a shorter one would
  then take what it must reject, so clipping is for the fleet's largest devices; on the others a
  request whose s + ô is too long is no candidate.

The index (``rank="index"``, our own) is what a request loses by waiting D longer, per unit of what
it costs: a generalized c-mu rule with prices in place of service times. With latency weights alone
it is shortest-first where slots bind and smallest KV-volume-first where memory does. With ``aging``
waiting costs more the longer it has lasted (a convex waiting cost), for the P99 of the latency.
"""

from __future__ import annotations

import numpy as np

from llmroute_env.jit import compiled
from policies.olp.state import Terms


@compiled
def plan_length(predicted: float, prompt: int, limit: int) -> int:
    """Plan clip(round(ô), 1, limit - s) tokens; 0 where the request can never fit."""
    room = limit - prompt
    if room < 1:
        return 0
    if not predicted < room:
        return room
    return max(int(np.floor(predicted + 0.5)), 1)


@compiled
def plan_on(predicted: float, prompt: int, limit: int, largest: int) -> int:
    """:func:`plan_length` on a device of a fleet whose largest one takes ``largest`` tokens."""
    if limit < largest and np.floor(predicted + 0.5) > limit - prompt:
        return 0
    return plan_length(predicted, prompt, limit)


@compiled
def reward(length: int, waited_s: float, pace: float, terms: Terms) -> float:
    """The decision reward r of a start now, before normalization.

    Args:
        length: planned stay [slots].
        pace: length of an iteration of the device [periods].
        waited_s: time since arrival [s].
        terms: weights, horizon and iteration time of this period.
    """
    stay = float(length)
    value = terms.alpha * min(stay - terms.steps, terms.horizon_tokens)
    value += terms.beta * max(terms.horizon - stay * pace, 0.0) + terms.start
    starts_in_time = waited_s < terms.tail_ttft_s
    ends_in_time = waited_s + stay * (pace * terms.period_s) < terms.tail_eel_s
    if terms.zeta1 > 0.0 and ends_in_time and (terms.joint == 0 or starts_in_time):
        value += terms.zeta1
    if terms.zeta2 > 0.0 and starts_in_time:
        value += terms.zeta2
    return value


@compiled
def token_worth(length: int, terms: Terms) -> float:
    """The part of the normalized reward that is paid per token."""
    return float(terms.scale * terms.alpha * min(float(length - terms.steps), terms.horizon_tokens))


@compiled
def index(
    length: int, waited_s: float, worth: float, cost: float, pace: float, terms: Terms
) -> float:
    """Loss from waiting D longer, over the cost; for ordering only.

    A deadline that is still met is lost with a chance that rises exponentially as its slack shrinks
    below D. The worth itself counts a little, so that rewards that waiting does not lower are
    ranked by reward per cost, as in a knapsack. Of these, tokens count least: a busy slot earns the
    same with any request, so tokens per cost differ by little but the noise of the prices.

    Args:
        length: planned stay [slots].
        waited_s: time since arrival [s].
        worth: normalized reward of a start now.
        cost: price of the column.
        pace: length of an iteration of the device [periods].
        terms: weights, horizon and iteration time of this period.
    """
    loss = terms.waiting * terms.patience_s / terms.period_s
    loss *= 1.0 + (terms.aging * waited_s) ** 2
    if terms.zeta2 > 0.0 and waited_s < terms.tail_ttft_s:
        loss += terms.zeta2 * np.exp((waited_s - terms.tail_ttft_s) / terms.patience_s)
    if terms.zeta1 > 0.0:
        slack_s = terms.tail_eel_s - waited_s - length * (pace * terms.period_s)
        if terms.joint:
            slack_s = min(slack_s, terms.tail_ttft_s - waited_s)
        if slack_s > 0.0:
            loss += terms.zeta1 * np.exp(-slack_s / terms.patience_s)
    # Free capacity costs nothing: the length then decides alone.
    tokens = token_worth(length, terms)
    rest = 1e-3 * (worth - tokens) + 1e-6 * tokens
    return float((terms.scale * loss + rest) / (cost + 1e-7 * length))


@compiled
def largest_reward(horizon: float, iteration: float, weights: np.ndarray) -> float:
    """Least upper bound of :func:`reward` over n and waited, 1 when all weights are 0.

    The first two terms are linear in n up to R, so one of the two ends is the largest.
    """
    value = max(weights[0] / iteration, weights[1]) * horizon + weights[2] * horizon
    value += weights[3] + weights[4] + weights[5]
    return value if value > 0.0 else 1.0


@compiled
def memory_norm(prompt: int, length: int) -> float:
    """Sum over θ < length of (s + 1 + θ)^2 [tokens^2], in closed form."""
    m = float(length)
    lead = prompt + 1.0
    ramp = m * (m - 1.0)
    return m * lead * lead + lead * ramp + ramp * (2.0 * m - 1.0) / 6.0
