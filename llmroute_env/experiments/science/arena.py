"""The arena: scenarios x weights x policies from one YAML, and who wins what.

Every policy plays every cell on the same seeds. The judge of a cell is its realized objective.
The score of a policy in a cell is 0 at round robin's objective and 1 at the cell's best, so it
can be averaged over cells whose objectives have other units.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from llmroute_env.env import LLMRouteEnv
from llmroute_env.experiments import runner
from llmroute_env.experiments.science.episodes import Cell, Episodes, weights
from llmroute_env.experiments.science.verdicts import Test, holm, mean_of, paired_test
from llmroute_env.scenario import Scenario
from llmroute_env.scenario.overrides import read_yaml
from policies.registry import make, parse

SHOWN: Final = (
    *("reward", "eel_mean_s", "eel_p95_s", "eel_p99_s", "ttft_mean_s", "ttft_p99_s"),
    *("slo_attainment", "throughput_tok_s", "wait_max_s", "jain_length", "unfinished"),
    *("preemptions", "hidden_share"),
)
LEVEL: Final = 0.05
_RESAMPLES: Final = 2_000
_RESAMPLING_SEED: Final = 17
_ORIGIN: Final = "round_robin"
_KEYS: Final = frozenset(
    [
        *("description", "first_seed", "seeds", "family", "designated"),
        *("policies", "if_available", "weights", "scenarios"),
    ]
)
_SCENARIO_KEYS: Final = frozenset({"name", "base", "load", "set"})


@dataclass(frozen=True)
class Arena:
    """What is played."""

    cells: dict[tuple[str, str], Cell]  #: by (scenario, weights)
    policies: tuple[str, ...]
    family: str  #: name of the policies that rivals are tested against
    designated: str  #: the family's member that stands for it without hindsight
    first_seed: int
    seeds: int
    skipped: dict[str, str] = field(default_factory=dict)  #: policies that cannot run, and why

    @property
    def scenarios(self) -> list[str]:
        """Names of the scenarios in order."""
        return list(dict.fromkeys(name for name, _ in self.cells))

    @property
    def settings(self) -> list[str]:
        """Names of the weight settings in order."""
        return list(dict.fromkeys(weighting for _, weighting in self.cells))

    def of_family(self, policy: str) -> bool:
        """Whether a policy belongs to the family."""
        return parse(policy)[0] == self.family

    def wanted(self) -> list[tuple[Cell, str]]:
        """Every (cell, policy)."""
        return [(cell, policy) for cell in self.cells.values() for policy in self.policies]


def load(path: Path, extra: Sequence[str] = ()) -> Arena:
    """Read an arena file and add policies.

    Raises:
        ValueError: an unknown key, a policy or scenario that cannot be made; one line.
    """
    content = read_yaml(path.read_text(encoding="utf-8"))
    if not isinstance(content, dict):
        raise ValueError(f"{path}: must be a mapping of keys")  # noqa: TRY004
    _only(path, content, _KEYS)
    settings = {name: weights(values) for name, values in content["weights"].items()}
    cells: dict[tuple[str, str], Cell] = {}
    scenarios: dict[str, Scenario] = {}
    for entry in content["scenarios"]:
        _only(path, entry, _SCENARIO_KEYS)
        name = entry.get("name", entry["base"])
        if name in scenarios:
            raise ValueError(f"{path}: scenario {name} is there twice")
        scenario = Scenario.load(entry["base"], entry.get("set"))
        if "load" in entry:
            scenario = runner.at_load(scenario, float(entry["load"]))
        scenarios[name] = scenario.with_overrides({"name": name})
        for weighting, values in settings.items():
            cells[name, weighting] = Cell(f"{name} [{weighting}]", scenarios[name], values)
    policies, skipped = [*content["policies"], *extra], {}
    first = next(iter(scenarios.values()))
    runner.check(first, policies)
    env = LLMRouteEnv(first)
    for policy in content.get("if_available", ()):
        try:
            make(policy, env)
        except Exception as error:  # noqa: BLE001  (an optional dependency may be missing)
            skipped[policy] = str(error).splitlines()[0]
        else:
            policies.append(policy)
    family = content.get("family", "olp")
    members = [policy for policy in policies if parse(policy)[0] == family]
    designated = [p for p in content.get("designated", ()) if p in members] or members
    if not designated or _ORIGIN not in policies:
        raise ValueError(f"{path}: policies must hold {_ORIGIN} and one of the family {family}")
    return Arena(
        cells,
        tuple(dict.fromkeys(policies)),
        family,
        designated[0],
        int(content.get("first_seed", 1000)),
        int(content.get("seeds", 20)),
        skipped,
    )


def summary(arena: Arena, episodes: Episodes) -> pd.DataFrame:
    """One row per scenario, weights, policy, metric: mean over seeds, interval, n."""
    rows = []
    for (name, weighting), cell in arena.cells.items():
        for policy in arena.policies:
            for key in SHOWN:
                values = episodes.values(cell, policy, key)
                level = mean_of(values)
                head = {"scenario": name, "weights": weighting, "policy": policy, "metric": key}
                rows.append(
                    head
                    | {"n": len(values), "mean": level.estimate}
                    | {"low": level.low, "high": level.high}
                )
    return pd.DataFrame(rows)


@dataclass(frozen=True)
class Objectives:
    """Realized objective of a cell: (policies, seeds), only seeds that all policies played."""

    reward: NDArray[np.float64]
    seeds: tuple[int, ...]


def objectives(arena: Arena, episodes: Episodes) -> dict[tuple[str, str], Objectives]:
    """Per cell, policies in the arena's order."""
    found = {}
    for key, cell in arena.cells.items():
        columns = [episodes.values(cell, policy, "reward") for policy in arena.policies]
        seeds = sorted(set.intersection(*(set(column.index) for column in columns)))
        values = np.array([column.loc[seeds].to_numpy() for column in columns])
        found[key] = Objectives(values, tuple(seeds))
    return found


def won_by(arena: Arena, cells: Mapping[tuple[str, str], Objectives]) -> pd.DataFrame:
    """One row per cell: the best mean objective, how sure, who is level with it.

    ``confidence`` is the share of resampled seed sets in which the winner's mean is the largest;
    equal means share it. ``level`` are the policies that are not significantly behind the winner
    (one-sided paired t test at 5%, not corrected).
    """
    rows = []
    for key, cell in cells.items():
        values = cell.reward
        if len(cell.seeds) < 2:
            continue
        means = values.mean(axis=1)
        tied = np.isclose(means, means.max(), rtol=1e-12, atol=0.0)
        winner = int(np.argmax(means))
        resampled = _resampled(values)
        best = resampled.max(axis=0)
        wins = np.isclose(resampled, best, rtol=1e-12, atol=0.0)
        shares = wins / wins.sum(axis=0)
        confidence = float(shares[tied].sum(axis=0).mean())
        names = np.array(arena.policies)
        level = [
            str(names[i])
            for i in range(len(names))
            if i != winner and _test(arena, key, cell, i, winner).p_behind > LEVEL
        ]
        family = [i for i in range(len(names)) if arena.of_family(str(names[i]))]
        first = max(family, key=lambda i: means[i])
        rivals = [i for i in range(len(names)) if i not in family]
        rival = max(rivals, key=lambda i: means[i])
        rows.append(
            {
                "scenario": key[0],
                "weights": key[1],
                "n": len(cell.seeds),
                "winner": " = ".join(names[tied]),
                "confidence": confidence,
                "level": ", ".join(level),
                "best_family": str(names[first]),
                "best_rival": str(names[rival]),
                "family_gain_pct": 100.0 * (means[first] - means[rival]) / abs(means[rival]),
            }
        )
    return pd.DataFrame(rows)


def scores(arena: Arena, cells: Mapping[tuple[str, str], Objectives]) -> pd.DataFrame:
    """One row per policy: mean score with its interval, mean rank, cells won.

    A score in a cell is (own - round robin) / (best - round robin), cut at -1 below; in a cell
    where nobody beats round robin it is 1 for the best and own's shortfall below. The interval
    resamples the seeds of every cell by the same draw.
    """
    points, ranks, won = [], [], []
    draws: list[NDArray[np.float64]] = []
    origin = arena.policies.index(_ORIGIN)
    for cell in cells.values():
        if len(cell.seeds) < 2:
            continue
        means = cell.reward.mean(axis=1)
        points.append(_score(means[:, None], origin)[:, 0])
        draws.append(_score(_resampled(cell.reward), origin))
        ranks.append(pd.Series(-means).rank(method="average").to_numpy())
        won.append(np.isclose(means, means.max(), rtol=1e-12, atol=0.0))
    if not points:
        return pd.DataFrame()
    resampled = np.mean(draws, axis=0)
    low, high = np.quantile(resampled, [0.025, 0.975], axis=1)
    table = pd.DataFrame(
        {
            "policy": arena.policies,
            "score": np.mean(points, axis=0),
            "low": low,
            "high": high,
            "mean_rank": np.mean(ranks, axis=0),
            "best_or_tied": np.sum(won, axis=0),
            "cells": len(points),
        }
    )
    return table.sort_values("score", ascending=False, ignore_index=True)


def family_tests(arena: Arena, cells: Mapping[tuple[str, str], Objectives]) -> pd.DataFrame:
    """The family's designated member against every rival in every cell, Holm over all of them.

    Columns: those of `Test`, p_ahead_holm, p_behind_holm, verdict (ahead, behind, level).
    """
    names = arena.policies
    own = names.index(arena.designated)
    rivals = [i for i, policy in enumerate(names) if not arena.of_family(policy)]
    tests = [
        _test(arena, key, cell, own, rival)
        for key, cell in cells.items()
        if len(cell.seeds) >= 2
        for rival in rivals
    ]
    table = pd.DataFrame(tests, columns=list(Test._fields))
    if len(table):
        table["p_ahead_holm"] = holm(table["p_ahead"].tolist())
        table["p_behind_holm"] = holm(table["p_behind"].tolist())
        ahead, behind = table["p_ahead_holm"] < LEVEL, table["p_behind_holm"] < LEVEL
        table["verdict"] = np.select([ahead, behind], ["ahead", "behind"], "level")
    return table


def _test(arena: Arena, key: tuple[str, str], cell: Objectives, own: int, rival: int) -> Test:
    series = [pd.Series(cell.reward[i], index=list(cell.seeds)) for i in (own, rival)]
    return paired_test(*key, (arena.policies[own], arena.policies[rival]), *series)


def _score(means: NDArray[np.float64], origin: int) -> NDArray[np.float64]:
    """(policies, draws) means to scores."""
    best, zero = means.max(axis=0), means[origin]
    way = best - zero
    flat = way <= 1e-12 * np.abs(best)
    score = (means - zero) / np.where(flat, np.maximum(np.abs(best), 1e-300), way)
    found: NDArray[np.float64] = np.maximum(np.where(flat, 1.0 + score, score), -1.0)
    return found


def _resampled(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """(policies, resamples) means over seeds drawn with replacement, the same for all policies."""
    rng = np.random.default_rng(_RESAMPLING_SEED)
    count = values.shape[1]
    drawn = rng.multinomial(count, np.full(count, 1.0 / count), _RESAMPLES)
    means: NDArray[np.float64] = np.asarray(values @ drawn.T / count, dtype=np.float64)
    return means


def _only(path: Path, content: Mapping[str, Any], allowed: frozenset[str]) -> None:
    for key in content:
        if key not in allowed:
            raise ValueError(f"{path}: unknown key {key!r}; allowed: {', '.join(sorted(allowed))}")


__all__ = [
    "Arena",
    "Objectives",
    "family_tests",
    "load",
    "objectives",
    "scores",
    "summary",
    "won_by",
]
