"""The time-indexed integer program of an episode without preemption, for any solver.

maximise    sum of r[j,k] x[j,k,g]                                    start j on g in slot k
subject to  once[j]:    sum over k, g of x[j,k,g] <= 1
            batch[g,k]: n[g,k] = n[g,k-1] + starts in k - ends in k   requests that run, <= B_g
            kv[g,k]:    m[g,k] = m[g,k-1] + n[g,k] + sum of s over starts in k
                                 - sum of (s + o) over ends in k      KV tokens, <= M_g
            x binary

Balances instead of windows: a start has five entries and not two for every slot that it occupies.
The optimum is the best that full information can do without preemption in the lock-step model;
its LP relaxation is the bound `policies.hindsight.bounds` approaches with one knot per slot.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse
from scipy.optimize import Bounds, LinearConstraint, milp

from policies.hindsight.instance import LOCK_STEP, Floats, HindsightError, Instance, Ints
from policies.hindsight.schedules import from_runs, rewards


@dataclass(frozen=True, eq=False)
class Program:
    """A mixed-integer program: maximise reward x, lower <= rows x <= upper, 0 <= x <= most.

    Attributes:
        reward: (C,) objective.
        rows: (K, C) sparse matrix.
        lower, upper: (K,) row limits.
        most: (C,) column limits.
        integer: (C,) whether a column is integral.
        row_names, column_names: K and C names.
        starts: (S, 3) request's row in the table, slot and device of the first S columns.
    """

    reward: Floats
    rows: Any
    lower: Floats
    upper: Floats
    most: Floats
    integer: Any
    row_names: list[str]
    column_names: list[str]
    starts: Ints


def program(
    one: Instance,
    *,
    per_device: bool = True,
    integral: bool = True,
    stride: int = 1,
    most_columns: int = 2_000_000,
) -> Program:
    """The program of a lock-step instance.

    Args:
        one: the instance; KV counts in tokens, also where the cluster has blocks.
        per_device: a start names its device; else one device holds what all hold together.
        integral: starts are binary; else the LP relaxation.
        stride: starts only at every so many slots after a request's first possible one: a smaller
            program whose solutions remain feasible, and whose optimum is no upper bound.
        most_columns: refuse a larger program.

    Raises:
        HindsightError: not lock-step, or more columns than ``most_columns``.
    """
    if not one.exact:
        raise HindsightError(f"a program needs lock-step: {LOCK_STEP}")
    if stride < 1:
        raise HindsightError(f"stride = {stride}: must be at least 1")
    devices = one.devices if per_device else 1
    work, slots = one.work, one.slots
    counts = -(-(slots - work.first) // stride)
    size = (int(counts.sum()) + 2 * slots) * devices
    if size > most_columns:
        raise HindsightError(
            f"{size} columns, more than {most_columns}: shorten the horizon, take fewer requests, "
            "a larger stride, or pool the devices"
        )
    j = np.repeat(np.arange(one.requests), counts)
    place = np.arange(len(j)) - np.repeat(np.cumsum(counts) - counts, counts)
    k = work.first[j] + place * stride
    reward = _contiguous(one, j, k)
    j, k, reward = (np.repeat(part, devices) for part in (j, k, reward))
    g = np.tile(np.arange(devices), len(j) // devices)
    rows, limit = _rows(one, j, k, g, devices)
    held = np.arange(devices * slots)
    names = [f"{kind}_{h // slots}_{h % slots}" for kind in ("n", "m") for h in held]
    ids = one.rows[j]
    starts = [f"x_{a}_{b}_{c}" for a, b, c in zip(ids, k, g, strict=True)]
    limits = (
        [one.batch_limit, one.kv_limit]
        if per_device
        else [one.batch_limit.sum(keepdims=True), one.kv_limit.sum(keepdims=True)]
    )
    balance = [f"{kind}_{h // slots}_{h % slots}" for kind in ("batch", "kv") for h in held]
    return Program(
        reward=np.concatenate([reward, np.zeros(2 * devices * slots)]),
        rows=rows,
        lower=np.where(np.arange(len(limit)) < one.requests, -np.inf, 0.0),
        upper=limit,
        most=np.concatenate([np.ones(len(j)), *(np.repeat(part, slots) for part in limits)]),
        integer=np.arange(len(j) + 2 * devices * slots) < (len(j) if integral else 0),
        row_names=[f"once_{row}" for row in one.rows] + balance,
        column_names=starts + names,
        starts=np.stack([ids, k, g], axis=1),
    )


def solve(made: Program, *, gap: float = 0.0) -> tuple[float, Ints]:
    """Optimum by HiGHS, and (S',) the columns of the starts it takes (LP: those above 1/2).

    Args:
        made: the program.
        gap: relative gap at which to stop.

    Raises:
        HindsightError: HiGHS found no optimum.
    """
    found = milp(
        -made.reward,
        constraints=LinearConstraint(made.rows, made.lower, made.upper),
        bounds=Bounds(np.zeros(len(made.most)), made.most),
        integrality=made.integer.astype(np.int64),
        options={"mip_rel_gap": gap},
    )
    if found.status != 0 or found.x is None:
        raise HindsightError(f"HiGHS: {found.message}")
    return -float(found.fun), np.flatnonzero(found.x[: len(made.starts)] > 0.5)


def _contiguous(one: Instance, j: Ints, k: Ints) -> Floats:
    """(C,) reward of starting request j in slot k and never stopping."""
    reward = np.zeros(len(j))
    for first in range(0, len(j), 10_000):  # a schedule lists all its slots: not all at once
        part = slice(first, first + 10_000)
        made = from_runs(one, k[part], k[part] + 1, j[part])
        reward[part] = rewards(one, made)
    return reward


def _rows(one: Instance, j: Ints, k: Ints, g: Ints, devices: int) -> tuple[Any, Floats]:
    """Constraint matrix and upper limits: once, batch and KV balances."""
    work, slots, starts = one.work, one.slots, len(j)
    size = devices * slots
    batch, kv = one.requests, one.requests + size
    c, held = np.arange(starts), np.arange(size)
    n, m = starts + held, starts + size + held
    end = k + work.decode[j]
    inside = end < slots
    later = held % slots > 0
    begins, ends = g * slots + k, (g * slots + end)[inside]
    parts = [
        (j, c, np.ones(starts)),
        (batch + held, n, np.ones(size)),
        ((batch + held)[later], (n - 1)[later], -np.ones(later.sum())),
        (batch + begins, c, -np.ones(starts)),
        (batch + ends, c[inside], np.ones(len(ends))),
        (kv + held, m, np.ones(size)),
        ((kv + held)[later], (m - 1)[later], -np.ones(later.sum())),
        (kv + held, n, -np.ones(size)),
        (kv + begins, c, -work.prompt[j].astype(np.float64)),
        (kv + ends, c[inside], (work.prompt + work.decode)[j][inside].astype(np.float64)),
    ]
    row, column, value = (np.concatenate(part) for part in zip(*parts, strict=True))
    shape = (one.requests + 2 * size, starts + 2 * size)
    limit = np.concatenate([np.ones(one.requests), np.zeros(2 * size)])
    return sparse.csc_array((value, (row, column)), shape=shape), limit
