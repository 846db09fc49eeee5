"""Bytes to tokens without a tokenizer: a ratio per category, learned from what engines report.

Source: arXiv 2604.08075 (rules restated in the class docstring of ``policies.dual_pool.router``).
The order within one report is not published: the deviation is taken from the ratio *before* the
report changes it, so a report never measures itself.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from llmroute_env.jit import compiled
from llmroute_env.workload.table import Category

#: c of a category before its first report [bytes per token]
COLD_START: Final = 4.0
#: a token stands for at least one byte, whatever the margin [bytes per token]
LEAST_RATIO: Final = 1.0
CATEGORIES: Final = len(Category)


@compiled
def bytes_per_token(ratio: float, deviation: float, gamma: float) -> float:
    """``c_k - gamma * sigma_k``: on the low side, so that tokens are over-estimated."""
    return max(ratio - gamma * deviation, LEAST_RATIO)


@compiled
def prompt_tokens(size_bytes: float, ratio: float, deviation: float, gamma: float) -> float:
    """Estimated prompt tokens of a text, ``ceil(bytes / c)``."""
    return np.ceil(size_bytes / bytes_per_token(ratio, deviation, gamma))  # type: ignore[no-any-return]


@compiled
def learn(
    ratio: np.ndarray,
    deviation: np.ndarray,
    category: int,
    size_bytes: float,
    prompt: float,
    beta: float,
) -> None:
    """Take in one report.

    Args:
        ratio: (C,) float64 c_k [bytes per token], changed in place.
        deviation: (C,) float64 sigma_k, an average of |c_obs - c_k|, changed in place.
        category: k.
        size_bytes: of the text, at least 1.
        prompt: tokens that the engine counted, at least 1.
        beta: weight of the past in both averages, in [0, 1).
    """
    observed = size_bytes / prompt
    off = abs(observed - ratio[category])
    deviation[category] = beta * deviation[category] + (1.0 - beta) * off
    ratio[category] = beta * ratio[category] + (1.0 - beta) * observed
