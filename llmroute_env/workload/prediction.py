"""Predicted decode lengths ô: what a router is told instead of the truth."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from llmroute_env.scenario.workload import (
    Biased,
    Bucketed,
    LognormalError,
    Mean,
    Perfect,
    Prediction,
    Uniform,
)
from llmroute_env.workload.table import Floats, Ints

Predicted = NDArray[np.float32]

_LEAST = np.float32(1e-3)  #: ô stays positive even where a lognormal error underflows


class Buckets(NamedTuple):
    """Edges (K,) between buckets, and what each bucket predicts (K + 1,) [tokens]."""

    edges: Floats
    means: Floats


class LengthSample:
    """A sample of decode lengths, hashed by identity so that its statistics can be cached."""

    def __init__(self, decode: Ints) -> None:
        self.decode = decode


def _factors(rng: np.random.Generator, spread: float, count: int) -> Floats:
    factors = rng.random(count)
    factors *= 2.0 * spread
    factors += 1.0 - spread
    return factors


def buckets(prediction: Bucketed, decode: Ints) -> Buckets:
    """Edges and bucket means for a sample of the scenario's decode lengths.

    An empty bucket predicts its middle, the last, open one its lower edge: no request of the
    sample falls there.
    """
    if prediction.edges is not None:
        edges = np.array(prediction.edges, np.float64)
    else:
        assert prediction.width is not None  # validated: exactly one is given
        edges = np.arange(prediction.width, float(decode.max()) + 1.0, prediction.width)
    bucket = np.searchsorted(edges, decode, side="right")
    count = np.bincount(bucket, minlength=len(edges) + 1)
    total = np.bincount(bucket, weights=decode, minlength=len(edges) + 1)
    low = np.concatenate(([0.0], edges))
    high = np.concatenate((edges, edges[-1:] if len(edges) else [float(decode.max())]))
    means = np.where(count > 0, total / np.maximum(count, 1), 0.5 * (low + high))
    return Buckets(edges, means)


@lru_cache(maxsize=64)
def _known(prediction: Bucketed | Mean, sample: LengthSample) -> Buckets:
    if isinstance(prediction, Mean):
        return Buckets(np.empty(0), np.array([sample.decode.mean()]))
    return buckets(prediction, sample.decode)


def draw(
    prediction: Prediction, rng: np.random.Generator, decode: Ints, sample: LengthSample | None
) -> Predicted:
    """Predict the decode lengths of one episode.

    Args:
        prediction: the prediction model.
        rng: the prediction stream; no other stream is touched.
        decode: (R,) true decode lengths [tokens].
        sample: decode lengths of the scenario at large, for the bucketed and mean models.

    Returns:
        (R,) float32, positive, not rounded [tokens].
    """
    count = len(decode)
    predicted: Floats
    match prediction:
        case Perfect():
            return decode.astype(np.float32)
        case Uniform():
            predicted = decode * _factors(rng, prediction.spread, count)
        case Biased():
            predicted = decode * _factors(rng, prediction.spread, count)
            predicted *= prediction.factor
        case LognormalError():
            predicted = rng.standard_normal(count)
            predicted *= prediction.sigma
            predicted -= 0.5 * prediction.sigma**2
            np.exp(predicted, out=predicted)
            predicted *= decode
        case Bucketed() | Mean():
            assert sample is not None
            known = _known(prediction, sample)
            predicted = known.means[np.searchsorted(known.edges, decode, side="right")]
    return np.maximum(predicted.astype(np.float32), _LEAST)
