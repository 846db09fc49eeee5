"""Carrying out one decision of a learned router. Compiled."""

from __future__ import annotations

import numpy as np

from llmroute_env.jit import compiled
from llmroute_env.spaces import Queue
from policies.completions import insert, plan
from policies.learned.question import FeatureParams, FeatureScratch
from policies.startable import take


@compiled
def answer(
    queue: np.ndarray,
    row: int,
    g: int,
    params: FeatureParams,
    scratch: FeatureScratch,
    action: np.ndarray,
) -> None:
    """Send the request in ``row`` to device ``g``, and book it on the device's profile."""
    prompt = np.float64(queue[row, Queue.PROMPT])
    limit = min(scratch.room.limit[g], np.float64(params.context[g]))
    action[row] = g + 1
    insert(
        scratch.profile, g, prompt, plan(np.float64(queue[row, Queue.PREDICTED]), limit - prompt)
    )
    take(scratch.room, g, prompt + 1.0)
