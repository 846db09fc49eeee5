"""Fleets played over seeds: episodes on disk, verdicts in memory.

    DIR/capacity.json                                       says what the directory is
    DIR/<scenario>/run.json                                 see `records.ResultDirectory`
    DIR/<scenario>/sweep/fleet-9+3/<policy>/seed1000.json   summary of one episode

Records know nothing of objectives, so a directory serves any of them: a search with another limit
plays only what is missing. Episodes of all fleets and policies share their seeds, hence their
requests (common random numbers).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from llmroute_env.experiments import runner
from llmroute_env.experiments.capacity import fleets, slo
from llmroute_env.experiments.capacity.search import Fleet
from llmroute_env.experiments.capacity.slo import Slo, Verdict
from llmroute_env.experiments.records import (
    EpisodeRecord,
    ResultDirectory,
    ResultError,
    read_episode,
    write_text,
)
from llmroute_env.scenario import Scenario

_RUN_FILE: Final = "capacity.json"
_FORMAT: Final = 1
_VIEWS: Final = ("episodes.csv", "sizes.csv", "capacity.csv", "capacity.png", "splits.png")


@dataclass(frozen=True)
class Case:
    """What a smallest fleet is sought for."""

    scenario: Scenario
    policy: str

    @property
    def name(self) -> str:
        """For tables and plots."""
        return f"{self.scenario.name} {self.policy}"


@dataclass(frozen=True)
class Trial:
    """One fleet of one case.

    Attributes:
        case: scenario and policy.
        fleet: device counts.
        records: of the seeds that were needed, in their order; fewer than asked for where those
            played rule a pass out.
        verdicts: one per objective; after an early end with the mean of the seeds played and no
            bound.
    """

    case: Case
    fleet: Fleet
    records: tuple[EpisodeRecord, ...]
    verdicts: tuple[Verdict, ...]

    @property
    def passed(self) -> bool:
        """Every objective is met with confidence."""
        return all(verdict.met is True for verdict in self.verdicts)

    @property
    def passed_on_average(self) -> bool:
        """Every objective is met by the mean."""
        return all(verdict.mean_met is True for verdict in self.verdicts)

    @property
    def devices(self) -> int:
        """Devices of the fleet."""
        return sum(self.fleet)

    @property
    def gpus(self) -> int:
        """GPUs of the fleet."""
        return fleets.gpus(self.case.scenario, self.fleet)

    @property
    def gpu_hours(self) -> dict[int, float]:
        """GPU-hours by seed."""
        return {
            record.seed: fleets.gpu_hours(self.gpus, record.summary["horizon_s"])
            for record in self.records
        }


class Trials:
    """Plays fleets of one case and judges them; each fleet once.

    Args:
        case: scenario and policy.
        results: where the episodes of the scenario are kept; None keeps none.
        slos: what a fleet must meet.
        seeds: at least two; equal ones have equal requests whatever the fleet.
        confidence: of the one-sided bounds.
        jobs: processes.
        progress: called with every episode that was played or found.
        played: episodes in memory by fleet and seed, looked up first and added to; searches of
            the same case with other objectives may share it.
    """

    def __init__(
        self,
        case: Case,
        results: ResultDirectory | None,
        slos: Sequence[Slo],
        seeds: Sequence[int],
        *,
        confidence: float = 0.95,
        jobs: int = 1,
        progress: Callable[[EpisodeRecord], None] | None = None,
        played: dict[tuple[Fleet, int], EpisodeRecord] | None = None,
    ) -> None:
        self.played = {} if played is None else played
        self.case, self.results, self.slos = case, results, tuple(slos)
        self.seeds, self.confidence, self.jobs = tuple(seeds), confidence, jobs
        self.progress = progress
        self.done: dict[Fleet, Trial] = {}
        if results is not None:
            results.add_policies([case.policy])

    def meets(self, fleet: Fleet) -> bool:
        """Whether a fleet meets every objective."""
        return self.trial(fleet).passed

    def trial(self, fleet: Fleet) -> Trial:
        """Play a fleet, or what is missing of it."""
        if fleet not in self.done:
            self.done[fleet] = self._play(fleet)
        return self.done[fleet]

    def _play(self, fleet: Fleet) -> Trial:
        # Seeds count in their order up to the one that rules a pass out. Others may have been
        # played beside it by other processes; leaving them out makes the result independent of
        # how many there were.
        scenario = fleets.resized(self.case.scenario, fleet)
        records: list[EpisodeRecord] = []
        while len(records) < len(self.seeds):
            batch = self.seeds[len(records) : len(records) + self.jobs]
            for record in self._episodes(scenario, fleet, batch):
                records.append(record)
                if self.progress is not None:
                    self.progress(record)
                if self._hopeless(records):
                    return Trial(self.case, fleet, tuple(records), self._broken_off(records))
        verdicts = tuple(
            slo.judge(aim, self._values(aim, records), self.confidence) for aim in self.slos
        )
        return Trial(self.case, fleet, tuple(records), verdicts)

    def _episodes(
        self, scenario: Scenario, fleet: Fleet, seeds: Sequence[int]
    ) -> list[EpisodeRecord]:
        """Records of some seeds, in their order."""
        found: dict[int, EpisodeRecord] = {}
        tasks = []
        # An offered load marks a record that needs no request log.
        load = float(scenario.offered_load().rho)
        for seed in seeds:
            stem = self._stem(fleet, seed)
            if (fleet, seed) in self.played:
                found[seed] = self.played[fleet, seed]
            elif stem is not None and stem.with_suffix(".json").is_file():
                found[seed] = read_episode(stem.with_suffix(".json"), arrays=False)
            else:
                load_known = load if math.isfinite(load) else 0.0
                tasks.append(runner.Task(scenario, self.case.policy, seed, stem, load_known))

        def keep(record: EpisodeRecord) -> None:
            found[record.seed] = self.played[fleet, record.seed] = record

        runner.run(tasks, jobs=self.jobs, progress=keep)
        return [found[seed] for seed in seeds]

    def _stem(self, fleet: Fleet, seed: int) -> Path | None:
        if self.results is None:
            return None
        folder = self.results.folder(self.case.policy)
        top = self.results.path / "sweep" / f"fleet-{fleets.label(fleet)}"
        return top / folder / f"seed{seed:04d}"

    @staticmethod
    def _values(aim: Slo, records: Sequence[EpisodeRecord]) -> list[float]:
        return [slo.with_shares(record.summary)[aim.key] for record in records]

    def _hopeless(self, records: Sequence[EpisodeRecord]) -> bool:
        return any(self._missed(aim, records) for aim in self.slos)

    def _missed(self, aim: Slo, records: Sequence[EpisodeRecord]) -> bool:
        return slo.hopeless(aim, self._values(aim, records), len(self.seeds))

    def _broken_off(self, records: Sequence[EpisodeRecord]) -> tuple[Verdict, ...]:
        """The means so far; which objective is missed for certain, and which are left open."""
        verdicts = []
        for aim in self.slos:
            values = self._values(aim, records)
            missed = False if self._missed(aim, records) else None
            mean = math.fsum(values) / len(values)
            verdicts.append(Verdict(mean, math.nan, met=missed, mean_met=missed))
        return tuple(verdicts)


class CapacityDirectory:
    """Episodes of a capacity search, by scenario; never overwritten unasked.

    Args:
        path: the directory; made when absent.
        overwrite: delete the results that it holds.

    Raises:
        ResultError: it holds other things; one line.
    """

    def __init__(self, path: Path, *, overwrite: bool = False) -> None:
        self.path, self.overwrite = path, overwrite
        if path.exists() and not path.is_dir():
            raise ResultError(f"--out {path}: is a file")
        run_file = path / _RUN_FILE
        if path.is_dir() and any(path.iterdir()) and not run_file.is_file():
            raise ResultError(
                f"--out {path}: not empty and not a directory of a capacity search; "
                "name another one"
            )
        if overwrite:
            for name in _VIEWS:
                (path / name).unlink(missing_ok=True)
        elif run_file.is_file() and json.loads(run_file.read_text()).get("format") != _FORMAT:
            raise ResultError(f"--out {path}: written by another version; name another one")
        path.mkdir(parents=True, exist_ok=True)
        write_text(run_file, json.dumps({"format": _FORMAT}) + "\n")

    def of(self, scenario: Scenario) -> ResultDirectory:
        """The records of a scenario.

        Raises:
            ResultError: the directory holds another scenario of this name.
        """
        return ResultDirectory(self.path / scenario.name, scenario, overwrite=self.overwrite)
