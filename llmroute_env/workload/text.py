"""Size and category of the text of requests whose tokens are known."""

from __future__ import annotations

import math

import numpy as np

from llmroute_env.scenario.text import Text
from llmroute_env.workload.blocks import Ints
from llmroute_env.workload.table import Category


def draw(
    spec: Text, rng: np.random.Generator, prompt: Ints, session: Ints | None = None
) -> tuple[Ints, Ints]:
    """Draw the category and the bytes per token of each text.

    Args:
        spec: the scenario's ``workload.text``.
        rng: a stream for texts alone.
        prompt: (R,) prompt tokens.
        session: (R,) number of the session that a request belongs to, at least 0; None: each
            request is a text of its own.

    Returns:
        size (R,) int64, at least 1 [bytes], and category (R,) int64, of :class:`Category`.
    """
    texts = len(prompt) if session is None else int(session.max(initial=-1)) + 1
    # Text by text, so that the i-th text is the same however many there are.
    drawn = rng.random(texts), rng.spawn(1)[0].standard_normal(texts)
    shares = [getattr(spec.mix, entry.name.lower()) for entry in Category]
    category = np.searchsorted(np.cumsum(shares)[:-1], drawn[0], side="right").astype(np.int64)
    ratios = [getattr(spec.bytes_per_token, entry.name.lower()) for entry in Category]
    spread = np.array([ratio.spread for ratio in ratios])[category]
    mu = np.array([math.log(ratio.mean) for ratio in ratios])[category]
    ratio = np.exp(mu - 0.5 * spread**2 + spread * drawn[1])
    if session is not None:
        category, ratio = category[session], ratio[session]
    size = np.maximum(np.rint(prompt * ratio), 1.0).astype(np.int64)
    return size, category
