"""The plane of mean and P99 end-to-end latency: which rivals dominate which OLP settings.

A setting is a policy, and for policies that read the weights a policy under certain weights. A
rival *dominates* a setting when its paired difference is significantly better on one axis
(one-sided t test at 5%) and not significantly worse on the other.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pandas as pd

from llmroute_env.experiments import style
from llmroute_env.experiments.science.arena import Arena
from llmroute_env.experiments.science.episodes import Cell, Episodes, is_blind
from llmroute_env.experiments.science.markdown import table
from llmroute_env.experiments.science.rows import only, records
from llmroute_env.experiments.science.verdicts import paired_test

AXES: Final = ("eel_mean_s", "eel_p99_s")
_LEVEL: Final = 0.05


def front(arena: Arena, episodes: Episodes) -> pd.DataFrame:
    """One row per scenario and setting.

    Columns: scenario, policy, weights ("" where they do not matter), family, n, mean, p99,
    on_front (no rival's means are at least as good on both axes and better on one),
    dominated_by (rivals that dominate it; only for the family's settings).
    """
    rows = []
    for name in arena.scenarios:
        settings = _settings(arena, name)
        values = {key: _values(episodes, cell, key[0]) for key, cell in settings.items()}
        rivals = [key for key in settings if not arena.of_family(key[0])]
        for key, own in values.items():
            family = arena.of_family(key[0])
            mean, p99 = (float(axis.mean()) for axis in own)
            others = [[float(axis.mean()) for axis in values[r]] for r in rivals if r != key]
            beaten = any(m <= mean and p <= p99 and (m < mean or p < p99) for m, p in others)
            better = [_name(r) for r in rivals if family and _dominates(values[r], own)]
            rows.append(
                {"scenario": name, "policy": key[0], "weights": key[1], "family": family}
                | {"n": len(own[0]), "mean": mean, "p99": p99, "on_front": not beaten}
                | {"dominated_by": ", ".join(better)}
            )
    return pd.DataFrame(rows)


def section(arena: Arena, found: pd.DataFrame) -> list[str]:
    """Per scenario: the rivals' front, and which OLP settings no rival dominates."""
    rows, free = [], 0
    for name in arena.scenarios:
        part = only(found, scenario=name)
        family, rivals = part[part["family"]], part[~part["family"]]
        good = family[family["dominated_by"] == ""]
        free += len(good) > 0
        beyond = good[good["on_front"]]
        rows.append(
            [
                name,
                _points(rivals[rivals["on_front"]]),
                f"{len(good)} of {len(family)}",
                _points(beyond if len(beyond) else good) or "none",
                "" if len(good) else _common(family),
            ]
        )
    head = ("scenario", "rivals' front (mean, P99 EEL)", "OLP not dominated", "of these, the best")
    return [
        "### Mean against P99 end-to-end latency",
        "",
        "An OLP setting is a pricing under one of the weights. *Dominated*: a rival is "
        "significantly better on one axis and not significantly worse on the other (paired, "
        f"one-sided 5%). Some OLP setting is not dominated in {free} of {len(arena.scenarios)} "
        "scenarios. *The best*: those whose means no rival beats on both axes, where there are "
        "any. All points are in the run's front.csv.",
        "",
        "![front](images/arena_front.png)",
        "",
        *table((*head, "dominates all"), rows, 1),
    ]


def plot(arena: Arena, found: pd.DataFrame, path: Path) -> Path:
    """A plane per scenario: rivals blue, their front joined; OLP orange, where dominated grey."""
    columns = 4
    lines = -(-len(arena.scenarios) // columns)
    figure = style.new_figure(13.0, 2.7 * lines + 0.3)
    panels = style.subplots(figure, lines, columns)
    for axes, name in zip(panels, arena.scenarios, strict=False):
        part = only(found, scenario=name)
        rivals, family = part[~part["family"]], part[part["family"]]
        edge = rivals[rivals["on_front"]].sort_values("mean")
        axes.plot(edge["mean"], edge["p99"], "-", color="#0072B2", linewidth=0.9)
        axes.plot(
            rivals["mean"], rivals["p99"], "o", color="#0072B2", markersize=3.5, label="rivals"
        )
        bad = family[family["dominated_by"] != ""]
        good = family[family["dominated_by"] == ""]
        axes.plot(
            bad["mean"], bad["p99"], "D", color="#9A9A9A", markersize=3.5, label="OLP, dominated"
        )
        axes.plot(good["mean"], good["p99"], "D", color="#D55E00", markersize=4.5, label="OLP")
        for row in records(edge):
            axes.annotate(f" {row['policy']}", (row["mean"], row["p99"]), fontsize=5.5)
        axes.set_title(name, fontsize=8.5)
        axes.tick_params(labelsize=7)
    for axes in panels[len(arena.scenarios) :]:
        axes.set_axis_off()
    panels[0].set_xlabel("mean EEL [s]", fontsize=7.5)
    panels[0].set_ylabel("P99 EEL [s]", fontsize=7.5)
    style.legend_below(figure, panels[0])
    return style.save(figure, path)


def _settings(arena: Arena, scenario: str) -> dict[tuple[str, str], Cell]:
    """Cell by (policy, weights); policies that do not read the weights once, without."""
    found: dict[tuple[str, str], Cell] = {}
    for (name, weighting), cell in arena.cells.items():
        if name == scenario:
            for policy in arena.policies:
                found.setdefault((policy, "" if is_blind(policy) else weighting), cell)
    return found


def _values(episodes: Episodes, cell: Cell, policy: str) -> tuple[pd.Series[float], ...]:
    return tuple(episodes.values(cell, policy, key) for key in AXES)


def _dominates(rival: Any, own: Any) -> bool:
    tests = [  # less is better, so the rival is ahead where own - rival is positive
        paired_test("", "", ("own", "rival"), mine, other)
        for mine, other in zip(own, rival, strict=True)
    ]
    better = any(test.p_ahead < _LEVEL for test in tests)
    return better and not any(test.p_behind < _LEVEL for test in tests)


def _name(key: tuple[str, str]) -> str:
    return f"{key[0]} [{key[1]}]" if key[1] else key[0]


def _points(part: pd.DataFrame) -> str:
    rows = records(part.sort_values("mean"))
    if not rows:
        return ""
    words = [
        f"`{_name((row['policy'], row['weights']))}` ({row['mean']:.4g}, {row['p99']:.4g})"
        for row in rows[:4]
    ]
    more = f" and {len(rows) - 4} more" if len(rows) > 4 else ""
    return ", ".join(words) + more


def _common(family: pd.DataFrame) -> str:
    """Rivals that dominate every setting of the family."""
    sets = [set(str(names).split(", ")) for names in family["dominated_by"]]
    return ", ".join(sorted(set.intersection(*sets))) if sets else ""
