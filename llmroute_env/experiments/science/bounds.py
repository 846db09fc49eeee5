"""Hindsight bounds of an arena's episodes: how far the best policy is from what nobody can beat.

A bound costs seconds where an episode costs milliseconds, so it is made for the first seeds of an
arena only; every share says of how many. Cells that differ in predictions alone have the same
instance and share its bound. The CSV is the resume point, as with episodes.
"""

from __future__ import annotations

import csv
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pandas as pd

from llmroute_env.env import LLMRouteEnv
from llmroute_env.experiments.science.arena import Arena
from llmroute_env.experiments.science.episodes import READER, Cell, Episodes, shared
from llmroute_env.experiments.statistics import Interval, mean_interval
from llmroute_env.scenario import Scenario

#: Fewer knots and LPs than the bound's default: 0.1% looser in our cells, several times faster.
_EFFORT: Final[dict[str, Any]] = {"knots": 40, "rounds": 6, "tolerance": 5e-4, "seconds": 60.0}


class Made(NamedTuple):
    """The bound of an episode; the fields are the columns of the CSV."""

    digest: str  #: of the scenario with its weights
    cell: str
    seed: int
    instance: str  #: digest of what the bound depends on
    bound: float  #: NaN where the episode is too large
    plan: float  #: reward of a clairvoyant schedule, NaN without lock-step
    status: str
    loose: str  #: what the relaxation gives away
    wall_cpu_s: float  #: CPU time that it took, 0 for one that was shared


@dataclass
class Bounds:
    """Bounds by scenario (with its weights) and seed, in one CSV file."""

    path: Path
    rows: dict[tuple[str, int], Made] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if not self.path.is_file():
            self.path.write_text(",".join(Made._fields) + "\n", encoding="utf-8")
            return
        text = self.path.read_text(encoding="utf-8")
        whole = text[: text.rfind("\n") + 1]
        lines = list(csv.DictReader(whole.splitlines()))
        if lines and tuple(lines[0]) != Made._fields:
            raise ValueError(f"{self.path}: written by another version; name another directory")
        for line in lines:
            self._add(_made(line))
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
        known = {row.instance: row for row in self.rows.values()}
        wanted: dict[str, list[tuple[Cell, int]]] = {}
        with self.path.open("a", encoding="utf-8", newline="") as stream:
            writer = csv.writer(stream, lineterminator="\n")

            def keep(row: Made) -> None:
                writer.writerow(["" if _missing(value) else value for value in row])
                stream.flush()
                self._add(row)
                progress()

            for cell, seed in ((cell, seed) for seed in seeds for cell in arena.cells.values()):
                scenario = cell.of_readers
                if (cell.digest_of(READER), seed) in self.rows:
                    continue
                instance = _digest(scenario, seed)
                if instance in known:
                    keep(_of(known[instance], cell, seed))
                else:
                    wanted.setdefault(instance, []).append((cell, seed))
            jobs = list(wanted.values())
            with Parallel(n_jobs=processes, return_as="generator_unordered") as parallel:
                for begin in range(0, len(jobs), processes):
                    if time.monotonic() > until:
                        return
                    batch = jobs[begin : begin + processes]
                    for row in parallel(delayed(_bound)(*same[0]) for same in batch):
                        for cell, seed in wanted[row.instance]:
                            keep(_of(row, cell, seed))

    def share(self, episodes: Episodes, cell: Cell, policy: str) -> tuple[Interval, int]:
        """Mean share of the bound that a policy's realized objective reaches, and its seeds."""
        found = episodes.values(cell, policy, "reward")
        shares = [
            value / row.bound
            for seed, value in zip(found.index, *shared(found), strict=True)
            if (row := self.of(cell, int(seed))) is not None and row.bound > 0
        ]
        return mean_interval(np.array(shares, dtype=np.float64)), len(shares)

    def plan_share(self, cell: Cell) -> float:
        """Mean share of the bound that a clairvoyant schedule reaches; NaN without lock-step."""
        digest = cell.digest_of(READER)
        rows = [row for (own, _), row in self.rows.items() if own == digest and row.bound > 0]
        return float(np.mean([row.plan / row.bound for row in rows])) if rows else math.nan

    def of(self, cell: Cell, seed: int) -> Made | None:
        """The bound of an episode, if there is one."""
        return self.rows.get((cell.digest_of(READER), seed))

    def frame(self) -> pd.DataFrame:
        """Every row."""
        return pd.DataFrame(list(self.rows.values()), columns=list(Made._fields))

    def _add(self, row: Made) -> None:
        self.rows[row.digest, row.seed] = row


def _of(row: Made, cell: Cell, seed: int) -> Made:
    """The row of a cell whose instance is that of another."""
    digest = cell.digest_of(READER)
    own = (digest, seed) == (row.digest, row.seed)
    spent = row.wall_cpu_s if own else 0.0
    return row._replace(digest=digest, cell=cell.name, seed=seed, wall_cpu_s=spent)


def _missing(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _made(line: dict[str, str]) -> Made:
    numbers = {key: float(line[key] or "nan") for key in ("bound", "plan", "wall_cpu_s")}
    return Made(**{**line, **numbers, "seed": int(line["seed"])})  # type: ignore[arg-type]


def _drawn(scenario: Scenario, seed: int) -> tuple[Any, Any]:
    """The instance of an episode and its requests."""
    from policies.hindsight import Instance

    env = LLMRouteEnv(scenario)
    env.reset(seed=seed)
    return Instance.build(scenario, env.requests), env.requests


def _digest(scenario: Scenario, seed: int) -> str:
    from policies.hindsight import HindsightError

    try:
        digest: str = _drawn(scenario, seed)[0].digest()
    except HindsightError:
        return f"{scenario.digest()}-{seed}"
    return digest


def _bound(cell: Cell, seed: int) -> Made:
    from policies.hindsight import HindsightError, bound_and_order, plan

    begun, scenario = time.process_time(), cell.of_readers
    head = (scenario.digest(), cell.name, seed)
    try:
        one, requests = _drawn(scenario, seed)
        found, prices = bound_and_order(one, **_EFFORT)
    except HindsightError as error:  # an episode too large for a bound has none
        reason = str(error).splitlines()[0]
        return Made(*head, f"{scenario.digest()}-{seed}", math.nan, math.nan, reason, "", 0.0)
    planned = plan(one, prices.order, requests).reward if one.exact else math.nan
    spent = round(time.process_time() - begun, 2)
    loose = "; ".join(found.looseness)
    return Made(*head, one.digest(), found.value, planned, found.status, loose, spent)
