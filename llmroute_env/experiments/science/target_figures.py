"""Plots of the section on targets. Needs matplotlib, imported when called."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from llmroute_env.experiments import style

_GREY = "#7F7F7F"
_COLORS = {"met": "#009E73", "at it": "#56B4E9", "missed": "#D55E00", "loose": "#7F7F7F"}


def draw(
    achieved: pd.DataFrame, rows: pd.DataFrame, names: Mapping[str, str], directory: Path
) -> list[Path]:
    """Draw both plots; returns the files.

    Args:
        achieved: of ``targets.achieved``.
        rows: of ``targets.run``, for the traces.
        names: of the kinds of targets.
    """
    with style.look():
        return [
            _achieved(achieved, names, directory / "targets.png"),
            _traces(rows[rows["part"] == "trace"], directory / "target_traces.png"),
        ]


def _achieved(found: pd.DataFrame, names: Mapping[str, str], path: Path) -> Path:
    figure = style.new_figure(11.0, 6.0)
    panels = style.subplots(figure, 2, len(names))
    for column, (kind, name) in enumerate(names.items()):
        own = found[found["kind"] == kind].sort_values("asked")
        top, below = panels[column], panels[column + len(names)]
        ends = [own["asked"].min(), own["asked"].max()]
        top.plot(ends, ends, color=_GREY, linewidth=1.0, label="achieved = target")
        top.axhline(
            own["plain"].iloc[0], color=_GREY, linestyle=":", linewidth=1.2, label="no target"
        )
        for word, color in _COLORS.items():
            part = own[own["verdict"] == word]
            for axes, keys in (
                (top, ("achieved", "low", "high")),
                (below, ("cost", "cost_low", "cost_high")),
            ):
                axes.vlines(part["asked"], part[keys[1]], part[keys[2]], color=color, linewidth=2.0)
                axes.plot(part["asked"], part[keys[0]], "o", color=color, ms=5, label=word)
        below.axhline(0.0, color=_GREY, linewidth=1.0)
        top.set_title(name)
        top.set_ylabel("achieved")
        below.set_ylabel("mean EEL over no target [%]")
        below.set_xlabel(f"target: {name}")
        if kind != "target_attainment":
            for axes in (top, below):
                axes.set_xscale("log")
            top.set_yscale("log")
            ticks = [float(asked) for asked in own["asked"]]
            for axis in (top.xaxis, top.yaxis, below.xaxis):
                axis.set_ticks(ticks, [f"{asked:g}" for asked in ticks])
                axis.set_ticks([], minor=True)
    style.legend_below(figure, panels[0], 6)
    return style.save(figure, path)


def _traces(rows: pd.DataFrame, path: Path) -> Path:
    places = list(dict.fromkeys(rows["kind"]))
    figure = style.new_figure(10.0, 5.0)
    panels = style.subplots(figure, 2, len(places), sharex=True)
    for column, where in enumerate(places):
        own = rows[(rows["kind"] == where) & (rows["inside"] > 0.0)]  # 0: none is settled yet
        for axes, key, color in (
            (panels[column], "multiplier", "#0072B2"),
            (panels[column + len(places)], "inside", "#009E73"),
        ):
            grouped = own.groupby("period")[key]
            axes.fill_between(
                grouped.min().index, grouped.min(), grouped.max(), color=color, alpha=0.2, lw=0
            )
            axes.plot(grouped.median().index, grouped.median(), color=color)
        panels[column].set_title(where, fontsize=9)
        panels[column].set_yscale("symlog", linthresh=10.0)
        panels[column].set_ylim(bottom=0.0)
        panels[column].set_ylabel("multiplier")
        below = panels[column + len(places)]
        below.axhline(0.95, color=_GREY, linewidth=1.0)
        below.set_ylim(0.6, 1.01)
        below.set_ylabel("share of TTFT inside 60 s")
        below.set_xlabel("period")
    return style.save(figure, path)
