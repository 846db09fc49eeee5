"""How far policies stay below the bound: a row per episode, and the table of their means."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from policies.hindsight.bounds import Bound, bound_and_order
from policies.hindsight.instance import LOCK_STEP, Instance
from policies.hindsight.plans import plan

if TYPE_CHECKING:
    from llmroute_env.evaluation import EpisodeResult
    from llmroute_env.scenario import Scenario

#: name of the clairvoyant schedule's row
PLAN = "hindsight plan"


def gap_row(found: Bound, result: EpisodeResult) -> dict[str, Any]:
    """What an episode left of its bound.

    Args:
        found: the bound of the same scenario and seed.
        result: the episode.

    Returns:
        ``policy``, ``seed``, ``reward``, ``preempted`` (requests), ``bound`` and ``share`` (of it),
        ``bound_given`` and ``share_given``, the same with the number of preempted requests known,
        and ``gap_per_request``, what is missing to the latter. With the weights (0, 1, 1, 0, 0, 0)
        the gap per request counts periods, of its start's delay and its end's together.
    """
    preempted = int(np.count_nonzero(result.log["preemptions"]))
    return _row(found, result.policy, result.seed, result.stats.reward, preempted)


def gap_table(
    scenario: Scenario,
    policies: Sequence[str],
    seeds: Iterable[int],
    *,
    knots: int = 100,
    rounds: int = 12,
) -> pd.DataFrame:
    """Rows of `gap_row` for each policy and seed, with a row for the clairvoyant plan.

    Args:
        scenario: the scenario.
        policies: command-line strings of policies.
        seeds: seeds of the episodes.
        knots, rounds: see `bounds.bound`.
    """
    from llmroute_env.env import LLMRouteEnv
    from llmroute_env.evaluation import evaluate

    env = LLMRouteEnv(scenario)
    rows = []
    for seed in seeds:
        env.reset(seed=seed)
        one, requests = Instance.build(scenario, env.requests), env.requests
        found, prices = bound_and_order(one, knots=knots, rounds=rounds)
        if one.exact:
            rows.append(_row(found, PLAN, seed, plan(one, prices.order, requests).reward, 0))
        rows += [gap_row(found, evaluate(env, policy, seed)) for policy in policies]
    return pd.DataFrame(rows)


def gap_line(found: Bound, planned: float | None) -> str:
    """One line on how much of the bound a clairvoyant schedule reaches.

    Args:
        found: the bound.
        planned: reward of the schedule, None where iterations are not slots.
    """
    if planned is None:
        return f"gap: no schedule to compare with, a plan needs lock-step ({LOCK_STEP})"
    gap = 1.0 - found.share(planned)
    return (
        f"gap: a clairvoyant schedule earns {planned:.10g}, {100.0 * gap:.3f}% below the bound; "
        "the optimum lies between"
    )


def plot_gaps(table: pd.DataFrame, path: Path) -> Path | None:
    """Share of the bound by policy, a dot per seed and a bar at the mean.

    Args:
        table: of `gap_table`.
        path: PNG file to write.

    Returns:
        The file, or None when matplotlib is not installed.
    """
    if find_spec("matplotlib") is None:
        return None
    from llmroute_env.experiments import style

    order = list(summarize_gaps(table).index)
    with style.look():
        figure = style.new_figure(6.4, 1.0 + 0.34 * len(order))
        (axes,) = style.subplots(figure, 1, 1)
        for at, policy in enumerate(order):
            shares = 100.0 * table.loc[table["policy"] == policy, "share"].to_numpy()
            color = style.PALETTE[at % len(style.PALETTE)]
            axes.plot(shares, np.full(len(shares), at), "o", color=color, alpha=0.5, markersize=4)
            axes.plot([shares.mean()] * 2, [at - 0.3, at + 0.3], color=color, linewidth=2.0)
        axes.set_yticks(range(len(order)), [style.short(policy) for policy in order])
        axes.set_ylim(len(order) - 0.5, -0.5)
        axes.set_xlabel("share of the hindsight bound [%]")
        return style.save(figure, path)


def summarize_gaps(table: pd.DataFrame) -> pd.DataFrame:
    """Means over seeds, a row per policy, the best share first."""
    numbers = table.drop(columns="seed").groupby("policy", sort=False).mean()
    numbers.insert(0, "seeds", table.groupby("policy", sort=False).size())
    return numbers.sort_values("share", ascending=False, kind="stable")


def _row(found: Bound, policy: str, seed: int, reward: float, preempted: int) -> dict[str, Any]:
    given = found.given(preempted)
    return {
        "policy": policy,
        "seed": seed,
        "reward": float(reward),
        "preempted": preempted,
        "bound": found.value,
        "share": found.share(reward),
        "bound_given": given,
        "share_given": found.share(reward, preempted),
        "gap_per_request": (given - reward) / found.requests if found.requests else float("nan"),
    }
