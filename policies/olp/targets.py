"""Targets: tail requirements whose multipliers take the place of zeta1 and zeta2. Compiled.

A target asks that a share q of the requests stay inside a limit. It is a chance constraint; its
Lagrange multiplier is the zeta of the decision reward, raised by each request that misses and
lowered by each that does not (stochastic dual ascent, in the logarithm):

    lambda = scale (exp(u) - 1),   u <- clip(u + step (miss - (1 - q)), 0, u_max)

``scale`` is what every request loses by waiting for the patience D, the size against which a
deadline has to count. The step of u is a number of e-folds per miss, so that it needs no unit. As u
is bounded, misses less their due are bounded by u_max / step: whatever the start, the attained
share comes to q, from above where u rests at 0 (the target is loose, and the plain objective is
served). The first misses count more, max(step, first / (1 + settled (1 - q))), to leave a wrong
start quickly; so do those after a detected increase of the rate and after an infeasible spell.

Infeasible: a window of settled requests at u_max missed the target. Pressing on would be worse
than giving up: the closer to a deadline rule the order comes, the more requests a hopeless load
lets start late. So a few levels of u are tried in turn, a window each, from the low end, and the
one that attained most is kept (its neighbours are tried again in every other window). The first
window that reaches q ends the spell, and u goes on from that level: nothing has wound up.

Misses are counted by what a router sees (``tracking.py``). Source: our own; the constraints are
those of chance-constrained online allocation, the shifted exponential map is mirror descent's.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from llmroute_env.jit import compiled


class Kind(IntEnum):
    """What has to be inside its limit."""

    TTFT = 0  #: arrival to the end of the first iteration
    EEL = 1  #: arrival to the last token
    BOTH = 2  #: the start delay and EEL, each inside its own limit


class Target(IntEnum):
    """Columns of ``params.targets``, float64, one row per target."""

    KIND = 0
    SHARE = 1  #: q
    START_LIMIT = 2  #: of TTFT, or of the start delay with ``BOTH`` [s]
    END_LIMIT = 3  #: of EEL [s]
    SCALE = 4  #: of the multiplier
    STEP = 5  #: e-folds of u per miss
    TOP = 6  #: u_max


class Goal(IntEnum):
    """Columns of ``memory.goals``, float64, one row per target."""

    LEVEL = 0  #: u
    SETTLED = 1  #: requests whose fate is known
    MISSED = 2  #: of them, outside
    GEAR = 3  #: settled since the step was large
    MARK = 4  #: arrivals up to this time [s] that did not start in time are settled
    RECENT = 5  #: moving average of the share inside
    AGE = 6  #: settled requests that it stands on, at most its window
    SEEKING = 7  #: 1 during an infeasible spell
    WINDOW = 8  #: settled in the window of this level
    INSIDE = 9  #: of them, inside
    SINCE = 10  #: when the level was taken [s]
    ARM = 11  #: during a spell, the level that is tried, as a row of ARMS
    BEST = 12  #: largest share that any level attained in this spell
    FIRST_ARM = 13  #: from here on, share attained by each level, -1 where not tried


#: Levels of u that an infeasible spell tries, as shares of u_max.
ARMS = (0.0, 0.25, 0.5, 0.75, 1.0)
LOW_ARM = 1
COLUMNS = int(Goal.FIRST_ARM) + len(ARMS)

#: A window is this many expected misses, and the moving average four times as many.
WINDOW_MISSES = 5.0
#: ... and at least so many requests: misses come in bursts.
WINDOW_REQUESTS = 200.0
#: Step of the first miss, in e-folds.
FIRST_STEP = 0.5
#: A level that attains so much less is still preferred when it is lower.
INDIFFERENCE = 0.01


@compiled
def multiplier(goal: np.ndarray, target: np.ndarray) -> float:
    """Lambda, in the unit of the reward (before normalization)."""
    return float(target[Target.SCALE] * np.expm1(goal[Goal.LEVEL]))


@compiled
def settle(goal: np.ndarray, target: np.ndarray, missed: bool, now: float) -> None:
    """Enter the fate of one request."""
    share = target[Target.SHARE]
    inside = 0.0 if missed else 1.0
    goal[Goal.SETTLED] += 1.0
    goal[Goal.MISSED] += 1.0 - inside
    most = 4.0 * WINDOW_MISSES / (1.0 - share)
    goal[Goal.AGE] = min(goal[Goal.AGE] + 1.0, most)
    goal[Goal.RECENT] += (inside - goal[Goal.RECENT]) / goal[Goal.AGE]
    if now < goal[Goal.SINCE]:
        return  # what is settled now was decided before this level
    goal[Goal.WINDOW] += 1.0
    goal[Goal.INSIDE] += inside
    if goal[Goal.SEEKING] == 0.0:
        _ascend(goal, target, 1.0 - inside)
    if goal[Goal.WINDOW] >= max(WINDOW_MISSES / (1.0 - share), WINDOW_REQUESTS):
        _close_window(goal, target, now)


@compiled
def _ascend(goal: np.ndarray, target: np.ndarray, miss: float) -> None:
    allowed = 1.0 - target[Target.SHARE]
    step = max(target[Target.STEP], FIRST_STEP / (1.0 + allowed * goal[Goal.GEAR]))
    goal[Goal.GEAR] += 1.0
    level = goal[Goal.LEVEL] + step * (miss - allowed)
    goal[Goal.LEVEL] = min(max(level, 0.0), target[Target.TOP])
    if level < 0.9 * target[Target.TOP]:  # not pressed: the window of u_max starts later
        goal[Goal.WINDOW] = 0.0
        goal[Goal.INSIDE] = 0.0


@compiled
def _close_window(goal: np.ndarray, target: np.ndarray, now: float) -> None:
    """Judge the level that was held for a window."""
    attained = goal[Goal.INSIDE] / goal[Goal.WINDOW]
    arms = goal[Goal.FIRST_ARM :]
    top = len(ARMS) - 1
    if attained >= target[Target.SHARE]:
        if goal[Goal.SEEKING] == 1.0:
            reopen(goal)
        goal[Goal.SEEKING] = 0.0
        _take(goal, goal[Goal.LEVEL], now)
        return
    if goal[Goal.SEEKING] == 0.0:
        goal[Goal.SEEKING] = 1.0
        goal[Goal.ARM] = top
        arms[:] = -1.0
    arm = int(goal[Goal.ARM])
    arms[arm] = attained if arms[arm] < 0.0 else 0.5 * (arms[arm] + attained)
    goal[Goal.BEST] = arms.max()
    best = 0
    while arms[best] < goal[Goal.BEST] - INDIFFERENCE:
        best += 1
    chosen = best
    if arm == top and arms[LOW_ARM] < 0.0:  # the far side first: that is where much is gained
        chosen = LOW_ARM
    elif arm == best:  # a neighbour: the one that was not tried yet, then either in turn
        lower, upper = max(best - 1, 0), min(best + 1, top)
        if arms[lower] < 0.0:
            chosen = lower
        elif arms[upper] < 0.0:
            chosen = upper
        else:
            chosen = lower if int(goal[Goal.SETTLED]) % 2 == 0 else upper
    goal[Goal.ARM] = chosen
    limit = target[Target.START_LIMIT]
    if int(target[Target.KIND]) != Kind.TTFT:
        limit = target[Target.END_LIMIT]
    _take(goal, ARMS[chosen] * target[Target.TOP], now if chosen == arm else now + limit)


@compiled
def _take(goal: np.ndarray, level: float, since: float) -> None:
    goal[Goal.LEVEL] = level
    goal[Goal.WINDOW] = 0.0
    goal[Goal.INSIDE] = 0.0
    goal[Goal.SINCE] = since


@compiled
def reopen(goal: np.ndarray) -> None:
    """Make the step large again: what was learned is out of date."""
    goal[Goal.GEAR] = 0.0


@compiled
def tail_weights(
    weights: np.ndarray, iteration_s: float, targets: np.ndarray, goals: np.ndarray
) -> tuple[float, float, float, float, int]:
    """Return zeta1, zeta2, tail_eel_s, tail_ttft_s of this period, and 1 if zeta1 needs both."""
    zeta1, zeta2, tail_eel_s, tail_ttft_s = weights[4], weights[5], weights[6], weights[7]
    joint = 0
    if targets.shape[0] > 0:
        zeta1, zeta2 = 0.0, 0.0
    for row in range(targets.shape[0]):
        target = targets[row]
        learned = multiplier(goals[row], target)
        if int(target[Target.KIND]) == Kind.TTFT:
            zeta2 = learned
            tail_ttft_s = target[Target.START_LIMIT] - iteration_s
        else:
            zeta1 = learned
            tail_eel_s = target[Target.END_LIMIT]
            if int(target[Target.KIND]) == Kind.BOTH:
                tail_ttft_s = target[Target.START_LIMIT]
                joint = 1
    return zeta1, zeta2, tail_eel_s, tail_ttft_s, joint
