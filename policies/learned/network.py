"""The actor of a learned router without torch: the same numbers as ``policies.learned.actor``.

Deep sets over candidates and devices, and one small network that scores each legal pair::

    r_c = relu(R x_c),  m_g = relu(D y_g)                         embeddings, shared weights
    h   = relu(C [context, mean_c r_c, mean_g m_g])               the system
    z   = relu(P [r_c, m_g, pair_cg] + H h)                       a pair
    score(c, g) = s . relu(Q z) + s0 + l . pair_cg,   score(hold) = t . relu(T h) + t0

Permuting candidates or devices permutes the scores, and nothing depends on their number.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from llmroute_env.jit import compiled
from policies.learned.question import Context, Machine, Pair, Question, Request


class Weights(NamedTuple):
    """Parameters, float32; matrices are (inputs, outputs), h the width."""

    request: np.ndarray  #: (len(Request) + 1, h), bias last, like all of them
    machine: np.ndarray  #: (len(Machine) + 1, h)
    context: np.ndarray  #: (len(Context) + 2 h + 1, h)
    pair_request: np.ndarray  #: (h + 1, h)
    pair_machine: np.ndarray  #: (h + 1, h)
    pair_features: np.ndarray  #: (len(Pair) + 1, h)
    pair_context: np.ndarray  #: (h + 1, h)
    hidden: np.ndarray  #: (h + 1, h)
    score: np.ndarray  #: (h + 1, 1)
    linear: np.ndarray  #: (len(Pair) + 1, 1), from a pair's features straight to its score
    hold_hidden: np.ndarray  #: (h + 1, h)
    hold: np.ndarray  #: (h + 1, 1)


class NetworkScratch(NamedTuple):
    """Working space, float32."""

    embedded: np.ndarray  #: (h,)
    system: np.ndarray  #: (h,)
    inputs: np.ndarray  #: (len(Context) + 2 h,)
    base: np.ndarray  #: (h,), the part of a pair's layer that all pairs share
    by_request: np.ndarray  #: (K, h)
    by_machine: np.ndarray  #: (G, h)
    first: np.ndarray  #: (h,)
    second: np.ndarray  #: (h,)
    one: np.ndarray  #: (1,)
    scores: np.ndarray  #: (1 + K * G,), -inf where not legal


def shapes(width: int) -> dict[str, tuple[int, int]]:
    """Shape of each of the `Weights` of a network of ``width``."""
    h = width
    return {
        "request": (len(Request) + 1, h),
        "machine": (len(Machine) + 1, h),
        "context": (len(Context) + 2 * h + 1, h),
        "pair_request": (h + 1, h),
        "pair_machine": (h + 1, h),
        "pair_features": (len(Pair) + 1, h),
        "pair_context": (h + 1, h),
        "hidden": (h + 1, h),
        "score": (h + 1, 1),
        "linear": (len(Pair) + 1, 1),
        "hold_hidden": (h + 1, h),
        "hold": (h + 1, 1),
    }


def weights(arrays: Mapping[str, Any]) -> Weights:
    """Check and take the parameters from named arrays.

    Raises:
        ValueError: one is missing, of another shape, or not finite.
    """
    missing = [name for name in Weights._fields if name not in arrays]
    if missing:
        raise ValueError(f"weights: {missing[0]} is missing")
    width = int(np.shape(arrays["score"])[0]) - 1
    found: dict[str, Any] = {}
    for name, shape in shapes(width).items():
        array = np.ascontiguousarray(arrays[name], np.float32)
        if array.shape != shape:
            raise ValueError(f"weights: {name} is {array.shape}, expected {shape}")
        if not np.isfinite(array).all():
            raise ValueError(f"weights: {name} has numbers that are not finite")
        found[name] = array
    return Weights(**found)


def network_scratch(width: int, candidates: int, devices: int) -> NetworkScratch:
    """Allocate the working space."""

    def zeros(*shape: int) -> np.ndarray:
        return np.zeros(shape, np.float32)

    h = width
    return NetworkScratch(
        zeros(h),
        zeros(h),
        zeros(len(Context) + 2 * h),
        zeros(h),
        zeros(candidates, h),
        zeros(devices, h),
        zeros(h),
        zeros(h),
        zeros(1),
        zeros(1 + candidates * devices),
    )


@compiled
def _layer(matrix: np.ndarray, inputs: np.ndarray, relu: bool, out: np.ndarray) -> None:
    """``out = inputs @ matrix[:-1] + matrix[-1]``, the inner loop over contiguous memory."""
    n = inputs.shape[0]
    out[:] = matrix[n]
    for i in range(n):
        x = inputs[i]
        if x != 0.0:
            for j in range(out.shape[0]):
                out[j] += x * matrix[i, j]
    if relu:
        for j in range(out.shape[0]):
            out[j] = max(out[j], np.float32(0.0))


@compiled
def forward(question: Question, weights: Weights, scratch: NetworkScratch) -> None:
    """Fill ``scratch.scores``: 0 is to hold, ``1 + c * G + g`` a pair."""
    h = weights.score.shape[0] - 1
    candidates, machines = question.legal.shape
    inputs, embedded = scratch.inputs, scratch.embedded
    n = question.context.shape[0]
    inputs[:n] = question.context
    inputs[n:] = 0.0
    present = 0
    for c in range(candidates):
        if question.rows[c] >= 0:
            present += 1
            _layer(weights.request, question.requests[c], True, embedded)
            _layer(weights.pair_request, embedded, False, scratch.by_request[c])
            for j in range(h):
                inputs[n + j] += embedded[j]
    for g in range(machines):
        _layer(weights.machine, question.devices[g], True, embedded)
        _layer(weights.pair_machine, embedded, False, scratch.by_machine[g])
        for j in range(h):
            inputs[n + h + j] += embedded[j]
    for j in range(h):
        inputs[n + j] /= np.float32(max(present, 1))
        inputs[n + h + j] /= np.float32(machines)
    _layer(weights.context, inputs, True, scratch.system)
    _layer(weights.pair_context, scratch.system, False, scratch.base)
    _layer(weights.hold_hidden, scratch.system, True, scratch.second)
    _layer(weights.hold, scratch.second, False, scratch.one)
    scores = scratch.scores
    scores[0] = scratch.one[0]
    for c in range(candidates):
        for g in range(machines):
            at = 1 + c * machines + g
            if not question.legal[c, g]:
                scores[at] = -np.inf
                continue
            _layer(weights.pair_features, question.pairs[c, g], False, scratch.first)
            for j in range(h):
                total = (
                    scratch.first[j]
                    + scratch.base[j]
                    + scratch.by_request[c, j]
                    + scratch.by_machine[g, j]
                )
                scratch.first[j] = max(total, np.float32(0.0))
            _layer(weights.hidden, scratch.first, True, scratch.second)
            _layer(weights.score, scratch.second, False, scratch.one)
            total = scratch.one[0]
            _layer(weights.linear, question.pairs[c, g], False, scratch.one)
            scores[at] = total + scratch.one[0]


@compiled
def best(scores: np.ndarray, machines: int, pointer: int) -> int:
    """Position of the largest score; of equal devices the first at or after ``pointer``."""
    chosen, top = 0, scores[0]
    for start in range(1, scores.shape[0], machines):
        for turn in range(machines):
            g = (pointer + turn) % machines
            if scores[start + g] > top:
                chosen, top = start + g, scores[start + g]
    return chosen
