"""Hindsight bounds of an arena's episodes: how far the best policy is from what nobody can beat.

A bound costs seconds where an episode costs milliseconds, so it is made for the first seeds of an
arena only; every share says of how many. The CSV is the resume point, as with episodes.
"""

from __future__ import annotations

import csv
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from llmroute_env.env import LLMRouteEnv
from llmroute_env.experiments.science.arena import Arena
from llmroute_env.experiments.science.episodes import Cell, Episodes, shared
from llmroute_env.experiments.statistics import Interval, mean_interval
from llmroute_env.scenario import Scenario

_COLUMNS: Final = ("digest", "cell", "seed", "bound", "status", "seconds")
#: Fewer knots and LPs than the bound's default: 0.1% looser in our cells, several times faster.
_KNOTS: Final = 40
_ROUNDS: Final = 4


@dataclass
class Bounds:
    """Bounds by scenario (with its weights) and seed, in one CSV file."""

    path: Path
    rows: dict[tuple[str, int], float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if not self.path.is_file():
            self.path.write_text(",".join(_COLUMNS) + "\n", encoding="utf-8")
            return
        text = self.path.read_text(encoding="utf-8")
        whole = text[: text.rfind("\n") + 1]
        for row in csv.DictReader(whole.splitlines()):
            self.rows[row["digest"], int(row["seed"])] = float(row["bound"] or "nan")
        if whole != text:
            self.path.write_text(whole, encoding="utf-8")

    def run(
        self,
        arena: Arena,
        seeds: Sequence[int],
        *,
        processes: int,
        minutes: float = math.inf,
        progress: Callable[[], None] = lambda: None,
    ) -> None:
        """Make the bounds that are missing, as many as fit into the time."""
        from joblib import Parallel, delayed

        until = time.monotonic() + 60.0 * minutes
        wanted = [
            (cell.name, cell.of_readers, seed) for seed in seeds for cell in arena.cells.values()
        ]
        wanted = [job for job in wanted if (job[1].digest(), job[2]) not in self.rows]
        with (
            Parallel(n_jobs=processes, return_as="generator_unordered") as parallel,
            self.path.open("a", encoding="utf-8", newline="") as stream,
        ):
            writer = csv.writer(stream, lineterminator="\n")
            for first in range(0, len(wanted), processes):
                if time.monotonic() > until:
                    return
                for row in parallel(delayed(_bound)(*job) for job in wanted[first:][:processes]):
                    writer.writerow(row)
                    stream.flush()
                    self.rows[row[0], row[2]] = float(row[3] or "nan")
                    progress()

    def share(self, episodes: Episodes, cell: Cell, policy: str) -> tuple[Interval, int]:
        """Mean share of the bound that a policy's realized objective reaches, and its seeds."""
        digest = cell.of_readers.digest()
        found = episodes.values(cell, policy, "reward")
        shares = [
            value / bound
            for seed, value in zip(found.index, *shared(found), strict=True)
            if (bound := self.rows.get((digest, int(seed)), math.nan)) > 0
        ]
        return mean_interval(np.array(shares, dtype=np.float64)), len(shares)


def _bound(name: str, scenario: Scenario, seed: int) -> tuple[Any, ...]:
    from policies.hindsight import HindsightError, bound

    env = LLMRouteEnv(scenario)
    env.reset(seed=seed)
    try:
        made = bound(scenario, env.requests, knots=_KNOTS, rounds=_ROUNDS)
    except HindsightError as error:  # an episode too large for a bound has none
        return scenario.digest(), name, seed, "", str(error).splitlines()[0], 0.0
    seconds = round(made.seconds, 2)
    return scenario.digest(), name, seed, repr(made.value), made.status, seconds
