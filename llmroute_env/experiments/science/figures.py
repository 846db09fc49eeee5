"""Plots of the report, from its tables alone. Needs matplotlib, imported when called."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd

from llmroute_env.experiments import style
from llmroute_env.experiments.science.claims import OLP

Frames = Mapping[str, pd.DataFrame]

_GREY: Final = "#7F7F7F"
#: Percent left of which the sweep's axis is cut.
_CUT: Final = -130.0


def write(directory: Path, frames: Frames) -> list[Path]:
    """Draw every plot; returns the files.

    Raises:
        ImportError: matplotlib is not installed.
    """
    with style.look():
        return [
            _ladder(frames["ladder"], directory / "ladder.png"),
            _constants(frames["constants"], directory / "constants.png"),
            _tradeoff(frames["plane"], directory / "tradeoff.png"),
            _zeta2(frames["zeta2"], directory / "zeta2.png"),
            _plane(frames["plane"], directory / "plane.png"),
            _prices(frames["prices"], directory / "prices.png"),
            _series(frames["price_series"], directory / "price_series.png"),
        ]


def _ladder(table: pd.DataFrame, path: Path) -> Path:
    cells = list(dict.fromkeys(table["cell"]))
    steps = max(table.groupby("cell")["policy"].nunique())
    figure = style.new_figure(11.5, 1.0 + (0.6 + 0.19 * steps) * len(cells))
    panels = style.subplots(figure, len(cells), 3)
    metrics = ("eel_mean_s", "eel_p99_s", "slo_attainment")
    for row, cell in enumerate(cells):
        for column, key in enumerate(metrics):
            axes = panels[3 * row + column]
            own = table[(table["cell"] == cell) & (table["metric"] == key)]
            for at, (_, one) in enumerate(own.iterrows()):
                color = style.PALETTE[at % len(style.PALETTE)]
                _whisker(axes, one, at, color)
            axes.set_yticks(range(len(own)), own["policy"], fontsize=7)
            axes.set_ylim(len(own) - 0.5, -0.5)
            axes.tick_params(axis="y", length=0, labelleft=column == 0)
            axes.grid(axis="y", visible=False)
            axes.set_xlabel(style.axis_label(key), fontsize=8)
            if column == 0:
                axes.set_title(cell, fontsize=9)
    return style.save(figure, path)


def _whisker(axes: Any, row: pd.Series, at: float, color: str) -> None:
    axes.plot(row["mean"], at, "o", color=color, markersize=5)
    axes.plot([row["low"], row["high"]], [at, at], color=color, linewidth=2.0)


def _constants(table: pd.DataFrame, path: Path) -> Path:
    figures = ("avg EEL", "P95 EEL", "P99 EEL")
    points = list(dict.fromkeys(table["point"]))
    figure = style.new_figure(10.5, 1.4 + 0.34 * len(points))
    lines = {
        ("average", "rolling horizon"): "OLP, average weights",
        ("tail", "rolling horizon"): "OLP, tail weights",
        ("tail", "as in the text"): "OLP as in the text, tail weights",
        ("average", "shortest first"): "shortest first",
    }
    panels = style.subplots(figure, 1, 3, sharey=True)
    for axes, name in zip(panels, figures, strict=True):
        part = table[table["figure"] == name]
        axes.axvline(0, color=_GREY, linewidth=1.0)
        axes.axvline(float(part["published"].iloc[0]), color="#D55E00", linestyle=":")
        for number, ((weighting, method), label) in enumerate(lines.items()):
            own = part[(part["weights"] == weighting) & (part["method"] == method)]
            at = np.arange(len(points)) + 0.2 * (number - 1.5)
            values = own.set_index("point").loc[points]
            color = style.PALETTE[number]
            axes.plot(values["ours"], at, "o", color=color, markersize=4, label=label)
            axes.hlines(at, values["low"], values["high"], color=color, linewidth=1.6)
        axes.set_yticks(range(len(points)), points)
        axes.set_ylim(len(points) - 0.5, -0.5)
        axes.set_title(f"{name} (dotted: published)", fontsize=9)
        axes.set_xlabel("gain over round robin [%]", fontsize=8)
        axes.set_xlim(left=max(axes.get_xlim()[0], _CUT))
    style.legend_below(figure, panels[0])
    return style.save(figure, path)


def _tradeoff(table: pd.DataFrame, path: Path) -> Path:
    """Mean and P99 of the weight settings beside the rivals', batch-bound."""
    part = table[table["where"] == "batch binds"]
    return _planes(part, path, lambda row: not row["family"] or row["policy"] == OLP)


def _plane(table: pd.DataFrame, path: Path) -> Path:
    return _planes(table, path, lambda _: True)


def _planes(table: pd.DataFrame, path: Path, shown: Any) -> Path:
    places = list(dict.fromkeys(table["where"]))
    figure = style.new_figure(5.4 * len(places) + 0.6, 4.6)
    for axes, where in zip(style.subplots(figure, 1, len(places)), places, strict=True):
        part = table[table["where"] == where]
        for _, row in part.iterrows():
            if not shown(row):
                continue
            color = "#D55E00" if row["policy"] == OLP else "#009E73" if row["family"] else "#0072B2"
            axes.plot([row["mean_low"], row["mean_high"]], [row["p99"]] * 2, color=color, lw=0.8)
            axes.plot([row["mean"]] * 2, [row["p99_low"], row["p99_high"]], color=color, lw=0.8)
            axes.plot(row["mean"], row["p99"], "s" if row["family"] else "o", color=color, ms=5)
            pricing = row["policy"].rpartition("=")[2]
            name = f"OLP {pricing}, {row['weights']}" if row["family"] else row["policy"]
            axes.annotate(
                f" {name}", (row["mean"], row["p99"]), fontsize=7.5, color=color, va="bottom"
            )
        axes.set_xlabel("EEL, mean [s]")
        axes.set_ylabel("EEL, P99 [s]")
        axes.set_title(f"{where}: left and down is better")
    return style.save(figure, path)


def _zeta2(table: pd.DataFrame, path: Path) -> Path:
    figure = style.new_figure(7.2, 4.2)
    (axes,) = style.subplots(figure, 1, 1)
    policies = list(dict.fromkeys(table["policy"]))
    for policy, stroke in style.strokes(policies).items():
        own = table[table["policy"] == policy]
        if str(policy).startswith("olp"):
            axes.errorbar(
                own["zeta2"].clip(lower=30.0),
                own["mean"],
                [own["mean"] - own["low"], own["high"] - own["mean"]],
                color=stroke.color,
                marker="o",
                markersize=4,
                capsize=2,
                label=policy,
            )
        else:
            axes.axhline(
                float(own["mean"].iloc[0]), color=stroke.color, linestyle="--", lw=1.1, label=policy
            )
    axes.set_xscale("log")
    axes.set_xlabel("ζ2 (leftmost point: 0)")
    axes.set_ylabel("share of arrived requests that\nstart inside 49 periods")
    axes.set_title("tail weight and what it buys, λ 0.5")
    style.legend_below(figure, axes)
    return style.save(figure, path)


def _prices(table: pd.DataFrame, path: Path) -> Path:
    policies = list(dict.fromkeys(table["policy"]))
    places = list(dict.fromkeys(table["where"]))
    figure = style.new_figure(10.0, 0.9 + 0.5 * len(places) + 0.4)
    for axes, policy in zip(
        style.subplots(figure, 1, len(policies), sharey=True), policies, strict=True
    ):
        own = table[table["policy"] == policy].set_index("where").loc[places]
        for shift, name, color in ((-0.18, "batch", "#0072B2"), (0.18, "memory", "#D55E00")):
            at = np.arange(len(places)) + shift
            axes.barh(at, 1e6 * own[name], height=0.34, color=color, label=name)
            axes.hlines(at, 1e6 * own[f"{name}_low"], 1e6 * own[f"{name}_high"], color="#222222")
        axes.set_yticks(range(len(places)), places)
        axes.set_ylim(len(places) - 0.5, -0.5)
        axes.set_title(policy)
        axes.set_xlabel("price that a mean request pays per iteration [10⁻⁶]", fontsize=8)
    style.legend_below(figure, axes)
    return style.save(figure, path)


def _series(table: pd.DataFrame, path: Path) -> Path:
    """Prices over time, a panel per workload and router."""
    panels = list(table.groupby(["where", "policy"], sort=False))
    figure = style.new_figure(10.0, 2.5 * ((len(panels) + 1) // 2))
    all_axes = style.subplots(figure, (len(panels) + 1) // 2, 2)
    for axes, ((where, policy), own) in zip(all_axes, panels, strict=False):
        for name, color in (("batch", "#0072B2"), ("memory", "#D55E00")):
            axes.plot(own["period"], 1e6 * own[name], color=color, label=name)
        axes.set_title(f"{where}: {policy}", fontsize=9)
        axes.set_xlabel(f"period; mean over {own['n'].iloc[0]} seeds", fontsize=8)
        axes.set_ylabel("price [10⁻⁶]")
        axes.set_ylim(bottom=0)
    style.legend_below(figure, all_axes[0])
    return style.save(figure, path)
