"""Shares of the hindsight bound: every arena row, what the bound gives away, a plot."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np
import pandas as pd

from llmroute_env.experiments import style
from llmroute_env.experiments.science.arena import Arena
from llmroute_env.experiments.science.bounds import Bounds
from llmroute_env.experiments.science.episodes import Episodes
from llmroute_env.experiments.science.markdown import span, table
from llmroute_env.experiments.science.rows import keyed, only, records

#: The clairvoyant schedule's name in the tables.
PLAN: Final = "hindsight plan"
#: Percent left of which the plot's axes are cut.
_CUT: Final = 40.0


def shares(arena: Arena, episodes: Episodes, bounds: Bounds) -> pd.DataFrame:
    """One row per cell and policy: mean share of the hindsight bound, and its seeds.

    Columns: scenario, weights, policy, n, share, low, high. A last row per cell is the clairvoyant
    schedule's (NaN without lock-step), a routing that the cluster can carry out: the best routing
    lies between it and 1.
    """
    rows = []
    for (name, weighting), cell in arena.cells.items():
        head = {"scenario": name, "weights": weighting}
        seeds = 0
        for policy in arena.policies:
            share, seeds = bounds.share(episodes, cell, policy)
            rows.append(
                head
                | {"policy": policy, "n": seeds, "share": share.estimate}
                | {"low": share.low, "high": share.high}
            )
        planned = {"policy": PLAN, "n": seeds, "share": bounds.plan_share(cell)}
        rows.append(head | planned | {"low": np.nan, "high": np.nan})
    return pd.DataFrame(rows)


def section(arena: Arena, bounds: Bounds, found: pd.DataFrame) -> list[str]:
    """Share of the bound of every policy in every cell, and how loose the bound may be."""
    made = found[found["share"].notna()]
    cells = len(made.groupby(["scenario", "weights"]))
    if not cells:
        return []
    own = bounds.frame()
    spent, instances = own["wall_cpu_s"].sum(), own["instance"].nunique()
    statuses = own["status"].value_counts()
    words = ", ".join(f"{count} {status}" for status, count in statuses.items())
    names = [*arena.policies, PLAN]
    rows = []
    for (name, weighting), part in found.groupby(["scenario", "weights"], sort=False):
        by = keyed(part, "policy")
        best = max((by[p]["share"] for p in arena.policies), default=np.nan)
        cells_ = [_percent(by[policy]["share"], best) for policy in names]
        rows.append([str(name), str(weighting), *cells_])
    return [
        "### Share of the hindsight bound",
        "",
        f"Percent of what no router can pass, whatever it knows: {cells} of {len(arena.cells)} "
        f"cells, {span(made['n'])} seeds each, {instances} instances in {spent:.0f} s of CPU time "
        f"({words}). Bold: the cell's best. *{PLAN}*: a clairvoyant schedule that the cluster can "
        "carry out, in the lock-step cells; the best routing lies between it (or the best router) "
        "and 100%, so what it lacks to 100 is the most that the bound itself can be loose.",
        "",
        "![share of the bound](images/arena_gaps.png)",
        "",
        *table(("scenario", "weights", *(f"`{name}`" for name in names)), rows, 2),
        *_looseness(arena, bounds, found),
    ]


def _percent(share: float, best: float) -> str:
    if np.isnan(share):
        return ""
    text = f"{100.0 * share:.2f}"
    return f"**{text}**" if share == best else text


def _looseness(arena: Arena, bounds: Bounds, found: pd.DataFrame) -> list[str]:
    """What each kind of instance gives away, and the most that this can be."""
    groups: dict[str, list[str]] = {}
    for row in records(bounds.frame()):
        groups.setdefault(str(row["loose"]), []).append(str(row["cell"]).rpartition(" [")[0])
    rows = []
    for words, cells in groups.items():
        names = [name for name in arena.scenarios if name in cells]
        part = found[found["scenario"].isin(names)]
        best = part.groupby(["scenario", "weights"])["share"].max().dropna()
        if words and len(best):
            lack = 100.0 * (1.0 - best)
            rows.append([", ".join(names), words, f"{lack.median():.2f}", f"{lack.max():.2f}"])
    head = ("scenarios", "what the relaxation gives away", "median", "largest")
    return [
        "What the best known routing (a router or the plan) lacks to the bound, in percent: no "
        "bound below it exists, so this is the most that looseness can explain.",
        "",
        *table(head, rows, 2),
    ]


def plot(arena: Arena, found: pd.DataFrame, path: Path) -> Path:
    """Share of the bound by scenario, a panel per weights and a mark per policy."""
    figure = style.new_figure(
        11.0, 1.6 + 0.24 * len(arena.scenarios) * ((len(arena.settings) + 1) // 2)
    )
    panels = style.subplots(figure, (len(arena.settings) + 1) // 2, 2, sharey=True)
    names = [*arena.policies, PLAN]
    marks = style.strokes(names)
    for axes, weighting in zip(panels, arena.settings, strict=False):
        part = only(found, weights=weighting)
        for policy in names:
            own = keyed(only(part, policy=policy), "scenario")
            at = [100.0 * own[scenario]["share"] for scenario in arena.scenarios]
            family = policy == PLAN or arena.of_family(policy)
            marker = "|" if policy == PLAN else "D" if family else "o"
            axes.plot(
                np.clip(at, _CUT, None),
                range(len(at)),
                marker,
                color="#222222" if policy == PLAN else marks[policy].color,
                markersize=9 if policy == PLAN else 4,
                alpha=0.85,
                label=policy,
            )
        axes.set_yticks(range(len(arena.scenarios)), arena.scenarios, fontsize=7.5)
        axes.set_ylim(len(arena.scenarios) - 0.5, -0.5)
        axes.set_xlim(right=100.3)
        axes.set_title(f"{weighting} weights")
        axes.set_xlabel(f"share of the hindsight bound [%], cut at {_CUT:g}", fontsize=8)
    style.legend_below(figure, panels[0])
    return style.save(figure, path)
