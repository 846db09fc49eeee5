"""Who wins what in an arena: scores, winners with confidence, corrected tests.

The judge of a cell is its realized objective. The score of a policy in a cell is 0 at round
robin's objective and 1 at the cell's best, so it can be averaged over cells whose objectives have
other units.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from llmroute_env.experiments.science.arena import ORIGIN, Arena
from llmroute_env.experiments.science.episodes import Episodes
from llmroute_env.experiments.science.verdicts import Test, holm, paired_test

LEVEL: Final = 0.05
_RESAMPLES: Final = 2_000
_RESAMPLING_SEED: Final = 17


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
    origin = arena.policies.index(ORIGIN)
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


def cell_scores(arena: Arena, cell: Objectives) -> NDArray[np.float64]:
    """(policies,) scores of one cell."""
    return _score(cell.reward.mean(axis=1)[:, None], arena.policies.index(ORIGIN))[:, 0]


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
