"""Costs of sending one request to one device: the formulas alone, smaller is better. Compiled.

What each means, and where it comes from, stands with its class in ``policies.cache_aware.routers``.
Tokens, blocks and requests are float64 counts.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from llmroute_env.jit import compiled


class Rule(IntEnum):
    """Which formula."""

    LMETRIC = 0
    LLMD = 1
    DYNAMO = 2
    SGLANG = 3
    LINEAR = 4
    PRICED = 5


@compiled
def lmetric(new_tokens: float, batch: float, least: float) -> float:
    """``max(least, new tokens) * (batch + 1)``."""
    return max(least, new_tokens) * (batch + 1.0)


@compiled
def llmd(
    hit: float, kv_share: float, waiting: float, span: tuple[float, float], w: np.ndarray
) -> float:
    """Minus the weighted sum of three scores in [0, 1]; ``span`` is (least, most) waiting."""
    least, most = span
    queue = (most - waiting) / (most - least) if most > least else 1.0
    return -(w[0] * hit + w[1] * (1.0 - kv_share) + w[2] * queue)  # type: ignore[no-any-return]


@compiled
def dynamo(
    prefill_blocks: float, overlap_blocks: float, decode_blocks: float, credit: float, scale: float
) -> float:
    """``scale * max(0, prefill - credit * overlap) + decode``, in blocks."""
    return scale * max(0.0, prefill_blocks - credit * overlap_blocks) + decode_blocks


@compiled
def linear(hit: float, load_share: float, weight: float) -> float:
    """``w * (1 - hit) + (1 - w) * load``."""
    return weight * (1.0 - hit) + (1.0 - weight) * load_share


@compiled
def priced(queued: float, new: float, batch: float, future: float) -> float:
    """Tokens that requests wait for: this one, those on the device, and those still to come.

    ``queued + new * (1 + batch + future * (queued + new))``.
    """
    return queued + new * (1.0 + batch + future * (queued + new))


@compiled
def draw_softmin(
    cost: np.ndarray, candidates: np.ndarray, n: int, temperature: float, u: float
) -> int:
    """Index into ``candidates[:n]`` drawn with probability ~ exp(-cost / (range * temperature)).

    Args:
        cost: (G,) float64.
        candidates: (G,) int64, the devices to draw from.
        n: how many.
        temperature: above 0.
        u: uniform in [0, 1).
    """
    least, most = np.inf, -np.inf
    for i in range(n):
        least = min(least, cost[candidates[i]])
        most = max(most, cost[candidates[i]])
    width = (most - least) * temperature
    total = 0.0
    for i in range(n):
        total += np.exp(-(cost[candidates[i]] - least) / width) if width > 0.0 else 1.0
    reached = 0.0
    for i in range(n):
        reached += np.exp(-(cost[candidates[i]] - least) / width) if width > 0.0 else 1.0
        if u * total < reached:
            return i
    return n - 1
