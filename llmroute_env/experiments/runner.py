"""Paired runs: every policy on the same sample paths, in parallel, each episode recorded at once.

An episode is one task: it depends on (scenario, policy, seed) alone, so neither the number of
processes nor the order in which they finish changes a record, and a run that was killed goes on
with the episodes that have no record.
"""

from __future__ import annotations

import os
import traceback
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from llmroute_env.env import LLMRouteEnv
from llmroute_env.evaluation import EpisodeResult, evaluate, series_columns
from llmroute_env.experiments.load import at_load
from llmroute_env.experiments.records import EpisodeRecord, ResultDirectory, write_episode
from llmroute_env.scenario import Scenario
from policies.registry import make

#: Seeds for which a policy that can record its inner state (prices) plays a second episode to do
#: so; the first is left alone, because recording takes time that would count as decision time.
RECORDED_SEEDS = 3

#: Points of a stored time series; enough for a plot, and small next to the request log.
SERIES_POINTS = 1000

Progress = Callable[[EpisodeRecord], None]


class EpisodeError(RuntimeError):
    """An episode that raised. The message is one line; `details` holds the worker's traceback."""

    def __init__(self, message: str, details: str = "") -> None:
        super().__init__(message)
        self.details = details

    def __reduce__(self) -> tuple[type[EpisodeError], tuple[str, str]]:
        return type(self), (str(self), self.details)


@dataclass(frozen=True)
class Task:
    """One episode to run and where its record goes (nowhere: it is only returned)."""

    scenario: Scenario
    policy: str
    seed: int
    stem: Path | None = None
    load: float | None = None
    diagnostics: bool = False  #: also record the policy's inner state


def missing(
    results: ResultDirectory,
    policies: Sequence[str],
    seeds: Sequence[int],
    loads: Sequence[float] = (),
) -> list[Task]:
    """Tasks of the scenario and of a load sweep that have no record, in their final order.

    Seeds are the outer loop: a run that is cut short has whole paired comparisons.
    """
    results.add_policies(policies)
    points: list[tuple[Scenario, float | None]] = [(results.scenario, None)]
    points += [(at_load(results.scenario, load), load) for load in loads]
    return [
        Task(
            scenario,
            policy,
            seed,
            results.episode_path(policy, seed, load),
            load,
            diagnostics=load is None and seed in seeds[:RECORDED_SEEDS],
        )
        for scenario, load in points
        for seed in seeds
        for policy in policies
        if not results.has(policy, seed, load)
    ]


def run(tasks: Sequence[Task], *, jobs: int = 1, progress: Progress | None = None) -> None:
    """Run tasks and write their records.

    Args:
        tasks: from `missing`.
        jobs: processes; 1 runs in this one.
        progress: called in this process with each record, in the order of completion.

    Raises:
        EpisodeError: a policy raised; episodes that had finished keep their records.
    """
    for record in _completed(tasks, jobs):
        if progress is not None:
            progress(record)


def collect(
    scenario: Scenario, policies: Sequence[str], seeds: Iterable[int], *, jobs: int = 1
) -> list[EpisodeRecord]:
    """Run policies × seeds without a directory and return the records, by policy and seed."""
    tasks = [Task(scenario, policy, seed) for policy in policies for seed in seeds]
    found = {(record.policy, record.seed): record for record in _completed(tasks, jobs)}
    return [found[task.policy, task.seed] for task in tasks]


def check(scenario: Scenario, policies: Sequence[str]) -> None:
    """Make the environment and every policy, and run nothing.

    Raises:
        ValueError: a policy's name or parameter is wrong, or the scenario cannot be built; one
            line.
    """
    env = _environment(scenario)
    for policy in policies:
        make(policy, env)


def compile_policies(scenario: Scenario, policies: Sequence[str]) -> None:
    """Play three periods with every policy, so that the workers find all code compiled.

    Raises:
        EpisodeError: a policy raised in its first periods.
    """
    short = scenario.with_overrides({"horizon_periods": 3, "warmup_s": 0.0, "drain": False})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a trace cut to three periods
        for policy in policies:
            run_task(Task(short, policy, 0))


def run_task(task: Task) -> EpisodeRecord:
    """Run one episode and write its record."""
    env = _environment(task.scenario)
    try:
        result = evaluate(env, task.policy, task.seed)
        diagnostics = result.diagnostics or (_recorded(env, task) if task.diagnostics else {})
    except Exception as error:  # noqa: BLE001  (a user's policy may raise anything)
        where = f"policy {task.policy}, seed {task.seed}"
        raise EpisodeError(
            f"{where}: {type(error).__name__}: {error}", traceback.format_exc()
        ) from None
    record = _record(task, result, diagnostics)
    if task.stem is not None:
        write_episode(task.stem, record)
    return record


def _completed(tasks: Sequence[Task], jobs: int) -> Iterable[EpisodeRecord]:
    if jobs == 1 or len(tasks) < 2:
        return (run_task(task) for task in tasks)
    from joblib import Parallel, delayed

    here = Path.cwd()
    parallel = Parallel(n_jobs=min(jobs, len(tasks)), return_as="generator_unordered")
    finished: Iterable[EpisodeRecord] = parallel(delayed(_run_at)(here, task) for task in tasks)
    return finished


def _run_at(directory: Path, task: Task) -> EpisodeRecord:
    # Workers outlive a run: paths, and a module of the user's, count from where *this* run is.
    os.chdir(directory)
    return run_task(task)


@lru_cache(maxsize=2)
def _environment(scenario: Scenario) -> LLMRouteEnv:
    """One environment per scenario and process: making one costs more than resetting it."""
    return LLMRouteEnv(scenario)


def _recorded(env: LLMRouteEnv, task: Task) -> dict[str, np.ndarray]:
    """What the policy records of its inner state when it is told to; empty if it cannot."""
    policy = make(task.policy, env)
    if getattr(getattr(policy, "parameters", None), "record", None) != 0:
        return {}
    policy = make(task.policy, env, record=task.scenario.horizon_periods)
    return evaluate(env, policy, task.seed).diagnostics


def _record(task: Task, result: EpisodeResult, recorded: Mapping[str, np.ndarray]) -> EpisodeRecord:
    arrays: dict[str, Any] = {}
    if task.load is None:
        arrays |= {f"requests/{name}": _small(column) for name, column in result.log.items()}
        arrays["capacity/batch_limit"] = result.stats.batch_limit
        arrays["capacity/kv_limit"] = result.stats.kv_limit
        series = {f"series/{name}": column for name, column in series_columns(result.stats).items()}
        diagnostics = {f"diagnostics/{name}": a for name, a in recorded.items()}
        arrays |= {name: _thinned(array) for name, array in (series | diagnostics).items()}
    return EpisodeRecord(
        scenario=task.scenario.name,
        policy=task.policy,
        information=result.information,
        seed=task.seed,
        summary=result.summary,
        rewards=result.rewards,
        load=task.load,
        arrays=arrays,
    )


def _small(column: np.ndarray) -> np.ndarray:
    """Integers as int32, which holds every id and token count; times keep their precision."""
    return column.astype(np.int32) if column.dtype.kind in "iu" else column


def _thinned(array: np.ndarray) -> np.ndarray:
    """At most `SERIES_POINTS` rows, evenly spaced, the first and the last among them."""
    if array.ndim == 0 or len(array) <= SERIES_POINTS:
        return array
    rows = np.linspace(0, len(array) - 1, SERIES_POINTS).round().astype(int)
    return np.take(array, rows, axis=0)
