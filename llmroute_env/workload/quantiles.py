"""Embedded quantile tables of prompt and decode lengths (``configs/lengths/*.yaml``).

``scripts/build_lengths.py`` computes them from a published trace; the data stay with their
publisher, a table holds a few dozen quantiles and the rank correlation.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from llmroute_env.scenario.errors import ScenarioError, nearest
from llmroute_env.scenario.loading import config_directory
from llmroute_env.scenario.overrides import read_yaml
from llmroute_env.workload.table import Floats, Ints


@dataclass(frozen=True, eq=False)
class Quantiles:
    """Quantile function of one token count, linear between its knots."""

    level: Floats  #: (K,) ascending from 0 to 1
    value: Floats  #: (K,) ascending [tokens], at least 1

    def tokens(self, uniform: Floats) -> Ints:
        """Uniform values in [0, 1] to tokens, rounded to integers."""
        return np.rint(np.interp(uniform, self.level, self.value)).astype(np.int64)


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
        level = np.array(data["levels"], np.float64)
        return QuantileTable(
            name=path.stem,
            prompt=_quantiles(path, "prompt", level, data["prompt"]),
            decode=_quantiles(path, "decode", level, data["decode"]),
            spearman=float(data["spearman"]),
            rows=int(data["rows"]),
            source=str(data["source"]),
        )
    except (KeyError, TypeError) as error:
        raise ScenarioError(f"length table {path}: missing or malformed: {error}") from None


def _quantiles(path: Path, key: str, level: Floats, values: Any) -> Quantiles:
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
    return Quantiles(level, value)
