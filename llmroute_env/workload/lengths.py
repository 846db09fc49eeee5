"""Prompt and decode lengths: lognormal or from quantile tables, and their moments."""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from llmroute_env.scenario.workload import Lengths, Lognormal, LognormalLengths, QuantileLengths
from llmroute_env.workload.quantiles import load_table
from llmroute_env.workload.table import Floats, Ints

_NORMAL = NormalDist()
_UNBOUNDED = 2.0**31 - 1.0  #: largest token count where a scenario sets no limit


class Marginal(NamedTuple):
    """Lognormal of one token count in the form that drawing needs."""

    mu: float
    sigma: float
    low: float
    high: float

    def tokens(self, normal: Floats) -> Ints:
        """Standard normal values, changed in place, to tokens."""
        normal *= self.sigma
        normal += self.mu
        np.exp(normal, out=normal)
        np.rint(normal, out=normal)
        np.maximum(normal, self.low, out=normal)
        np.minimum(normal, self.high, out=normal)
        return normal.astype(np.int64)


@lru_cache(maxsize=256)
def marginal(spec: Lognormal) -> Marginal:
    """A lognormal in the form that drawing needs."""
    mu = math.log(spec.mean) - 0.5 * spec.sigma**2
    high = _UNBOUNDED if spec.max is None else float(spec.max)
    return Marginal(mu, spec.sigma, float(spec.min), high)


def _correlate(normal: Floats, spearman: float) -> None:
    """Give independent normals (R, 2) that rank correlation, in place."""
    pearson = 2.0 * math.sin(math.pi * spearman / 6.0)  # exact for the Gaussian copula
    normal[:, 1] *= math.sqrt(1.0 - pearson**2)
    normal[:, 1] += pearson * normal[:, 0]


def from_normals(lengths: Lengths, normal: Floats) -> tuple[Ints, Ints]:
    """Tokens for pairs of independent standard normals.

    Args:
        lengths: lognormal or quantile lengths.
        normal: (R, 2) standard normal values; they are overwritten.

    Returns:
        prompt (R,) and decode (R,) int64, each at least 1 [tokens].
    """
    if isinstance(lengths, LognormalLengths):
        prompt, decode = marginal(lengths.prompt), marginal(lengths.decode)
        return prompt.tokens(normal[:, 0].copy()), decode.tokens(normal[:, 1].copy())
    if isinstance(lengths, QuantileLengths):
        table = load_table(lengths.table)
        rank = table.spearman if lengths.correlation is None else lengths.correlation
        _correlate(normal, rank)
        return table.prompt.tokens(normal[:, 0]), table.decode.tokens(normal[:, 1])
    raise ValueError(f"workload.lengths.kind = {lengths.kind!r}: its lengths are not drawn")


def draw(lengths: Lengths, rng: np.random.Generator, count: int) -> tuple[Ints, Ints]:
    """Prompt and decode lengths of ``count`` requests, row by row.

    Request i has the same lengths whatever ``count`` is, so scenarios that differ in their rate
    alone share lengths under the same seed.

    Returns:
        prompt (count,) and decode (count,) int64, each at least 1 [tokens].
    """
    return from_normals(lengths, rng.standard_normal((count, 2)))


@lru_cache(maxsize=64)
def grid(lengths: Lengths, points: int = 512) -> tuple[Ints, Ints]:
    """A deterministic, equally weighted sample: the midpoints of a ``points`` x ``points`` grid.

    Expectations over it are quadratures of the drawn distribution, clipping and rounding included
    (within about 0.2% for the means of the embedded scenarios).

    Returns:
        prompt and decode, (points * points,) int64 [tokens]; do not write to them.
    """
    middle = np.array([_NORMAL.inv_cdf((i + 0.5) / points) for i in range(points)])
    normal = np.stack(np.meshgrid(middle, middle, indexing="ij"), axis=-1).reshape(-1, 2)
    return from_normals(lengths, np.ascontiguousarray(normal))
