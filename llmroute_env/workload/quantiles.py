"""Embedded quantile tables of prompt and decode lengths (``configs/lengths/*.yaml``).

``scripts/build_lengths.py`` computes them from a published trace; the data stay with their
publisher, a table holds a few dozen quantiles and the rank correlation.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np

from llmroute_env.scenario.errors import ScenarioError, nearest
from llmroute_env.scenario.loading import config_directory
from llmroute_env.scenario.overrides import read_yaml
from llmroute_env.workload.table import Floats, Ints

_GRID_POINTS = 16_385  #: of a quantile function; a cell holds less than 0.03% of the requests


@dataclass(frozen=True, eq=False)
class Quantiles:
    """Quantile function of one token count over normal scores, linear between its knots.

    Linear in the normal score, not in the level: between the last knots a long tail then falls
    off as a real one does. The extremes of R rows stand at the levels 1/2R and 1 - 1/2R.

    It is kept on an even grid of scores, where an index replaces a search per request.
    """

    first: float  #: score of the first grid point
    per_score: float  #: grid points per unit of score
    value: Floats  #: (N,) value at the grid points, ascending [tokens]
    slope: Floats  #: (N,) difference to the next value, 0 at the last

    @classmethod
    def through(cls, score: Floats, value: Floats) -> Quantiles:
        """The function through knots ``score`` (K,) ascending, ``value`` (K,) ascending."""
        grid = np.linspace(score[0], score[-1], _GRID_POINTS)
        values = np.interp(grid, score, value)
        per_score = (_GRID_POINTS - 1) / float(score[-1] - score[0])
        return cls(float(score[0]), per_score, values, np.diff(values, append=values[-1]))

    def tokens(self, normal: Floats) -> Ints:
        """Standard normal values (R,) to tokens (R,), rounded to integers."""
        place = normal - self.first
        place *= self.per_score
        np.clip(place, 0.0, _GRID_POINTS - 1.0, out=place)
        index = place.astype(np.int64)
        place -= index
        place *= self.slope[index]
        place += self.value[index]
        np.rint(place, out=place)
        return place.astype(np.int64)


@dataclass(frozen=True, eq=False)
class QuantileTable:
    """Marginals and rank correlation of prompt and decode lengths."""

    name: str
    prompt: Quantiles
    decode: Quantiles
    spearman: float  #: Spearman's rank correlation of prompt and decode
    rows: int  #: requests that the table was computed from
    source: str  #: public address of the data


@lru_cache(maxsize=32)
def load_table(name: str) -> QuantileTable:
    """Load a table by its name under ``configs/lengths``, or by path.

    Raises:
        ScenarioError: no such table, or one that is not a quantile table.
    """
    directory = config_directory() / "lengths"
    path = Path(name)
    if path.suffix not in (".yaml", ".yml"):
        path = directory / f"{name}.yaml"
    if not path.is_file():
        names = [found.stem for found in directory.glob("*.yaml")]
        raise ScenarioError(
            f"workload.lengths.table = {name!r}: no such table{nearest(name, names)}"
        )
    data = read_yaml(path.read_text(encoding="utf-8"))
    try:
        rows = int(data["rows"])
        level = np.array(data["levels"], np.float64)
        return QuantileTable(
            name=path.stem,
            prompt=_quantiles(path, "prompt", level, data["prompt"], rows),
            decode=_quantiles(path, "decode", level, data["decode"], rows),
            spearman=float(data["spearman"]),
            rows=rows,
            source=str(data["source"]),
        )
    except (KeyError, TypeError) as error:
        raise ScenarioError(f"length table {path}: missing or malformed: {error}") from None


def _quantiles(path: Path, key: str, level: Floats, values: Any, rows: int) -> Quantiles:
    value = np.array(values, np.float64)
    fault = None
    if level.ndim != 1 or len(level) < 2 or level[0] != 0.0 or level[-1] != 1.0:
        fault = "levels must run from 0 to 1"
    elif not (np.diff(level) > 0.0).all():
        fault = "levels must be ascending"
    elif value.shape != level.shape:
        fault = f"{key} must have {len(level)} values, has {value.size}"
    elif not ((np.diff(value) >= 0.0).all() and value[0] >= 1.0 and np.isfinite(value[-1])):
        fault = f"{key} must be ascending from at least 1 token"
    if fault:
        raise ScenarioError(f"length table {path}: {fault}")
    extreme = 0.5 / rows
    inner = np.clip(level, extreme, 1.0 - extreme)
    score = np.array([NormalDist().inv_cdf(float(p)) for p in inner])
    if (np.diff(score) <= 0.0).any():
        raise ScenarioError(f"length table {path}: levels are finer than {rows} rows can tell")
    return Quantiles.through(score, value)
