"""Episodes of a study: which to play, one CSV that holds them, and values paired by seed.

The CSV is the record and the resume point: a row is appended when its episode ends, a torn last
line is dropped, and a row counts only for the scenario whose digest it carries. Seeds are the
outer loop, so a run that is cut short has whole paired comparisons over fewer seeds.
"""

from __future__ import annotations

import csv
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from llmroute_env.experiments.science.play import WEIGHTS, Job, play_at
from llmroute_env.metrics import METRICS, TIMINGS
from llmroute_env.scenario import Scenario
from policies.registry import parse

#: Policies whose decisions do not depend on the objective: one episode with unit weights gives
#: their realized objective under any weights. Any other policy is assumed to read the weights.
BLIND: Final = frozenset(
    [
        *("random", "round_robin", "lor", "power_of_d", "vllm_dp", "least_predicted_work"),
        *("central_fifo", "sjf", "mc_sf"),
        "learned",  # pursues the objective of its training, whatever the scenario's
    ]
)

#: A policy that reads the weights, for what depends on them whoever plays.
READER: Final = "olp"

_REWARDS: Final = tuple(f"r_{name}" for name in WEIGHTS)
_EXTRA: Final = ("price_batch", "price_memory")
COLUMNS: Final = (
    *("digest", "cell", "policy", "information", "seed", "code"),
    *METRICS,
    *TIMINGS,
    *_REWARDS,
    *_EXTRA,
)


@dataclass(frozen=True)
class Cell:
    """A scenario under one set of weights. Cells of equal content share their episodes."""

    name: str
    scenario: Scenario
    weights: tuple[float, ...]  #: in the order of `WEIGHTS`

    @cached_property
    def of_readers(self) -> Scenario:
        """What a policy that reads the weights plays."""
        return weighted(self.scenario, self.weights)

    @cached_property
    def of_blind(self) -> Scenario:
        """What a policy plays that does not."""
        return weighted(self.scenario, (1.0,) * len(WEIGHTS))

    def played_by(self, policy: str) -> Scenario:
        """The scenario that a policy plays for this cell."""
        return self.of_blind if is_blind(policy) else self.of_readers

    def digest_of(self, policy: str) -> str:
        """Digest of that scenario, kept: it is asked for once per value."""
        return self._digests[is_blind(policy)]

    @cached_property
    def _digests(self) -> tuple[str, str]:
        return self.of_readers.digest(), self.of_blind.digest()


@dataclass
class Episodes:
    """The episodes of one directory.

    Args:
        path: the CSV file; made with its directory when absent.
    """

    path: Path
    rows: dict[tuple[str, str], dict[int, dict[str, Any]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if self.path.is_file():
            self._read()
        else:
            self.path.write_text(",".join(COLUMNS) + "\n", encoding="utf-8")

    def missing(self, wanted: Iterable[tuple[Cell, str]], seeds: Sequence[int]) -> list[Job]:
        """Episodes that have no row, seed by seed; each once however many cells want it."""
        pairs: dict[tuple[str, str], tuple[Cell, Scenario]] = {}
        for cell, policy in wanted:
            pairs.setdefault((cell.digest_of(policy), policy), (cell, cell.played_by(policy)))
        return [
            Job(digest, cell.name, scenario, policy, seed)
            for seed in seeds
            for (digest, policy), (cell, scenario) in pairs.items()
            if seed not in self.rows.get((digest, policy), {})
        ]

    def run(
        self,
        jobs: Sequence[Job],
        *,
        processes: int,
        minutes: float = math.inf,
        progress: Callable[[int], None] = lambda _: None,
    ) -> bool:
        """Play jobs a seed at a time and append their rows; False when the time was up before."""
        from joblib import Parallel, delayed

        start, longest = time.monotonic(), 0.0
        by_seed: dict[int, list[Job]] = {}
        for job in jobs:
            by_seed.setdefault(job.seed, []).append(job)
        here = str(Path.cwd())
        with (
            Parallel(n_jobs=processes, return_as="generator_unordered") as parallel,
            self.path.open("a", encoding="utf-8", newline="") as stream,
        ):
            writer = csv.writer(stream, lineterminator="\n")
            for batch in by_seed.values():
                begun = time.monotonic()
                if begun - start + longest > 60.0 * minutes:
                    return False
                for row in parallel(delayed(play_at)(here, job) for job in batch):
                    writer.writerow([_cell(row[name]) for name in COLUMNS])
                    stream.flush()
                    self._add(row)
                    progress(1)
                longest = max(longest, time.monotonic() - begun)
        return True

    def values(self, cell: Cell, policy: str, key: str) -> pd.Series[float]:
        """One value per seed: a summary key, ``reward`` under the cell's weights, or

        ``violation`` (1 - slo_attainment), ``inside_start`` (share of arrived requests that
        started inside the start-delay limit) and ``inside_eel`` (finished inside the EEL limit).
        """
        rows = self.rows.get((cell.digest_of(policy), policy), {})
        return pd.Series(
            {seed: _value(rows[seed], cell, policy, key) for seed in sorted(rows)}, dtype=float
        )

    def frame(self) -> pd.DataFrame:
        """Every row."""
        rows = [row for by_seed in self.rows.values() for row in by_seed.values()]
        return pd.DataFrame(rows, columns=list(COLUMNS))

    def versions(self) -> set[str]:
        """Versions of the code that rows were made with."""
        return {row["code"] for by_seed in self.rows.values() for row in by_seed.values()}

    def _add(self, row: dict[str, Any]) -> None:
        self.rows.setdefault((row["digest"], row["policy"]), {})[row["seed"]] = row

    def _read(self) -> None:
        text = self.path.read_text(encoding="utf-8")
        whole = text[: text.rfind("\n") + 1]
        lines = list(csv.DictReader(whole.splitlines()))
        found = tuple(lines[0]) if lines else COLUMNS
        # A summary that has gained a key since leaves it empty; anything else is not ours.
        older = found == tuple(name for name in COLUMNS if name in found)
        if not older or set(COLUMNS) - set(found) - set(METRICS):
            raise ValueError(f"{self.path}: written by another version; name another directory")
        for line in lines:
            row: dict[str, Any] = {key: _number(key, line.get(key, "")) for key in COLUMNS}
            self._add(row)
        if found != COLUMNS:
            table = [COLUMNS, *([line.get(name, "") for name in COLUMNS] for line in lines)]
            with self.path.open("w", encoding="utf-8", newline="") as stream:
                csv.writer(stream, lineterminator="\n").writerows(table)
        elif whole != text:
            self.path.write_text(whole, encoding="utf-8")


def weighted(scenario: Scenario, weights: Sequence[float]) -> Scenario:
    """The scenario with other weights of its objective."""
    values = zip(WEIGHTS, weights, strict=True)
    return scenario.with_overrides({f"objective.{key}": value for key, value in values})


def is_blind(policy: str) -> bool:
    """Whether a policy's decisions are known not to depend on the objective."""
    return parse(policy)[0] in BLIND


def weights(values: Mapping[str, float]) -> tuple[float, ...]:
    """Weights by name, the others 0.

    Raises:
        ValueError: a name that is no weight.
    """
    for key in values:
        if key not in WEIGHTS:
            raise ValueError(f"weight {key!r}: allowed are {', '.join(WEIGHTS)}")
    return tuple(float(values.get(key, 0.0)) for key in WEIGHTS)


def shared(*series: pd.Series[float]) -> list[NDArray[np.float64]]:
    """Values of the seeds that all series have, in the order of the seeds."""
    index = series[0].index
    for other in series[1:]:
        index = index.intersection(other.index)
    order = index.sort_values()
    return [np.array(one.loc[order], dtype=np.float64) for one in series]


def _value(row: Mapping[str, Any], cell: Cell, policy: str, key: str) -> float:
    if key == "violation":
        return 1.0 - float(row["slo_attainment"])
    if key in ("inside_start", "inside_eel"):
        name = "zeta2" if key == "inside_start" else "zeta1"
        weight = 1.0 if is_blind(policy) else cell.weights[WEIGHTS.index(name)]
        return float(row[f"r_{name}"]) / weight / float(row["arrived"]) if weight else math.nan
    if key == "reward" and is_blind(policy):
        parts = zip(cell.weights, _REWARDS, strict=True)
        return sum(weight * float(row[name]) for weight, name in parts)
    return float(row[key])


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return "" if math.isnan(value) else repr(value)
    return str(value)


def _number(key: str, value: str) -> Any:
    if key in ("digest", "cell", "policy", "information", "code"):
        return value
    if key == "seed":
        return int(value)
    return float(value) if value else math.nan
