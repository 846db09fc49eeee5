"""What a device that prefills beside decoding can serve, when work never runs out.

A request brings s prompt tokens, which take m iterations (one, or as many as chunks of what the
token budget leaves), and d decode iterations: o, or o - 1 where the prefill emits the first token.
At x requests per iteration x d requests decode and x s tokens are prefilled, so x is limited by

    slots and KV:  x (d + m) <= min(B, M / KV held by a request),   budget:  x (d + s) <= C.

The iteration that x makes takes the time of its tokens (``token_s``, with the prefill spread over
as few iterations as the budget allows), of the decoding requests' KV, and of the chunks' attention,
which depends on s and s^2 alone however a prompt is cut. No prompt token is taken to be cached, and
none to be computed again: a hit lowers the load, a preemption raises it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from llmroute_env.cluster.timing import MixedTiming

Floats = NDArray[np.float64]

_BISECTIONS = 40


class Served(NamedTuple):
    """What one device does per request, and the iterations in which it is full."""

    iterations: float  #: m + d, iterations of a request in the batch
    kv_tokens: float  #: KV token-iterations of a request
    tokens: float  #: s + d, of the token budget
    iteration_s: float  #: mean time of an iteration [s]


def served(
    timing: MixedTiming,
    batch_limit: int,
    kv_limit: int,
    chunk_tokens: int | None,
    prompt: Floats,
    decode: Floats,
    *,
    emits_token: bool,
) -> Served:
    """See `Served`; ``prompt`` and ``decode`` (N,) are a sample of s and o [tokens]."""
    first = 1.0 if emits_token else 0.0
    s, d = float(prompt.mean()), float(decode.mean()) - first
    decoding_kv = float((decode * prompt + 0.5 * decode * (decode + 1.0)).mean())
    decoding_kv -= first * float((prompt + 1.0).mean())  # sum of s + emitted + 1

    def prefills(x: float) -> Floats:
        """Iterations that each prompt of the sample needs."""
        if chunk_tokens is None:
            return np.ones_like(prompt)
        return np.maximum(np.ceil(prompt / max(chunk_tokens - x * d, 1.0)), 1.0)

    def room(x: float) -> tuple[float, float, float]:
        """Iterations, KV token-iterations, and how many requests fit at once."""
        steps = prefills(x)
        iterations = d + float(steps.mean())
        held = decoding_kv + float((steps * prompt).mean())
        return iterations, held, min(batch_limit, kv_limit * iterations / held)

    low, high = 0.0, float(batch_limit)
    if chunk_tokens is not None:
        high = min(high, chunk_tokens / (s + d))
    for _ in range(_BISECTIONS):
        x = 0.5 * (low + high)
        iterations, _, fits = room(x)
        if x * iterations > max(fits, 1.0):
            high = x
        else:
            low = x
    iterations, held, _ = room(high)
    steps = prefills(high)
    seconds = _token_s(timing, high, d, prompt, chunk_tokens)
    seconds += timing.kv_s * high * decoding_kv + timing.chunk_s * high * float(steps.mean())
    seconds += timing.query_s * high * s + timing.pair_s * high * 0.5 * float((prompt**2).mean())
    return Served(iterations, held, s + d, seconds)


def _token_s(
    timing: MixedTiming, x: float, d: float, prompt: Floats, chunk_tokens: int | None
) -> float:
    """Mean of ``token_s`` over iterations, those with and those without prefill [s]."""

    def at(tokens: Floats | float) -> Floats:
        inside = np.minimum(tokens, timing.table_tokens)
        table = np.interp(inside, np.arange(timing.table_tokens + 1.0), timing.token_s)
        return np.asarray(table + timing.token_slope_s * (tokens - inside))

    decoding = float(at(x * d))
    if chunk_tokens is None:
        return decoding + x * float((at(x * d + prompt) - decoding).mean())
    share = min(x * float(prompt.mean()) / max(chunk_tokens - x * d, 1.0), 1.0)
    return decoding + share * (float(at(float(chunk_tokens))) - decoding)
