"""Pictures of a capacity search. Needs matplotlib, imported when called.

* `capacity.png`: how do the objectives depend on the size, and how large is the smallest fleet?
* `splits.png`: for two pools, which fleets were played, and which passed?
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmroute_env.experiments import style
from llmroute_env.experiments.capacity.fleets import label, names
from llmroute_env.experiments.capacity.report import Baseline, saving
from llmroute_env.experiments.capacity.sizing import Sizing
from llmroute_env.experiments.capacity.slo import Slo
from llmroute_env.metrics import METRICS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_GREY = "#7F7F7F"
_GOOD, _BAD = "#009E73", "#D55E00"
_WIDE = 30.0  #: ratio of values from which an axis is logarithmic


def write(
    directory: Path, sizings: Sequence[Sizing], slos: Sequence[Slo], baseline: Baseline
) -> list[Path]:
    """Draw; returns the files.

    Raises:
        ImportError: matplotlib is not installed.
    """
    with style.look():
        written = [_capacity(directory / "capacity.png", sizings, slos, baseline)]
        pooled = [sizing for sizing in sizings if len(names(sizing.case.scenario)) == 2]
        if pooled:
            written.append(_splits(directory / "splits.png", pooled))
    return written


def _capacity(
    path: Path, sizings: Sequence[Sizing], slos: Sequence[Slo], baseline: Baseline
) -> Path:
    labels = _labels(sizings)
    strokes = style.strokes([sizing.case.name for sizing in sizings])
    figure = style.new_figure(3.9 * (len(slos) + 1), 3.6 + 0.12 * len(sizings))
    panels = style.subplots(figure, 1, len(slos) + 1)
    for number, (axes, slo) in enumerate(zip(panels, slos, strict=False)):
        _objective(axes, slo, number, sizings, strokes, labels)
    _bars(panels[-1], sizings, strokes, labels, baseline)
    style.legend_below(figure, panels[0], 3)
    return style.save(figure, path)


def _objective(
    axes: Axes,
    slo: Slo,
    number: int,
    sizings: Sequence[Sizing],
    strokes: Mapping[str, style.Stroke],
    labels: Mapping[str, str],
) -> None:
    """Mean of a key against the size, its bound as a whisker towards the limit."""
    seen: list[float] = []
    for sizing in sizings:
        stroke = strokes[sizing.case.name]
        # Several splits may share a size: the line joins the best of each.
        best: dict[int, Any] = {}
        for trial in sizing.trials:
            verdict = trial.verdicts[number]
            if math.isnan(verdict.mean):
                continue
            known = best.get(trial.gpus)
            if known is None or slo.direction * verdict.mean < slo.direction * known.mean:
                best[trial.gpus] = verdict
        if not best:
            continue
        sizes = sorted(best)
        means = [best[gpus].mean for gpus in sizes]
        seen += means
        axes.plot(
            sizes, means, color=stroke.color, linestyle=stroke.dashes, marker="o", markersize=3.5,
            label=labels[sizing.case.name],
        )  # fmt: skip
        for gpus, mean in zip(sizes, means, strict=True):
            if not math.isnan(best[gpus].bound):
                axes.plot([gpus] * 2, [mean, best[gpus].bound], color=stroke.color, linewidth=1.0)
        found = sizing.best
        if found is not None:
            axes.plot(
                found.gpus, found.verdicts[number].mean, marker="*", markersize=13,
                color=stroke.color, markeredgecolor="white", linestyle="none",
            )  # fmt: skip
    axes.axhline(slo.limit, color=_GREY, linestyle=":", linewidth=1.2)
    positive = [value for value in (*seen, slo.limit) if value > 0]
    if positive and max(positive) / min(positive) > _WIDE and min(seen, default=0.0) > 0:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:g}")
    axes.set_title(str(slo))
    axes.set_xlabel("GPUs; star: smallest fleet, dotted: limit")
    axes.set_ylabel(style.axis_label(slo.key) if slo.key in METRICS else slo.key.replace("_", " "))


def _bars(
    axes: Axes,
    sizings: Sequence[Sizing],
    strokes: Mapping[str, style.Stroke],
    labels: Mapping[str, str],
    baseline: Baseline,
) -> None:
    """GPUs of the smallest fleets; a tick where the means alone would allow."""
    rows = range(len(sizings))
    top = max((s.best.gpus for s in sizings if s.best is not None), default=1)
    for row, sizing in zip(rows, sizings, strict=True):
        best, average = sizing.best, sizing.best_on_average
        if best is None:
            axes.text(0, row, f" none up to {sizing.ceiling} devices", va="center", fontsize=8.5)
            continue
        axes.barh(row, best.gpus, height=0.62, color=strokes[sizing.case.name].color, alpha=0.85)
        if average is not None and average.gpus != best.gpus:
            axes.plot([average.gpus] * 2, [row - 0.31, row + 0.31], color="white", linewidth=2)
        words = f" {best.gpus}" + (f" ({label(best.fleet)})" if len(best.fleet) > 1 else "")
        point = saving(sizing, baseline)[0]
        if sizing.case.name != baseline.name and not math.isnan(point):
            words += f", {point:+.0%}"
        axes.text(best.gpus, row, words, va="center", fontsize=8.5)
    axes.set_yticks(list(rows), [labels[sizing.case.name] for sizing in sizings], fontsize=8.5)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.45 * top)
    axes.grid(axis="y", visible=False)
    axes.set_title("smallest fleet")
    axes.set_xlabel(
        f"GPUs; white: by the means alone\npercent: saved against\n{baseline.name}", fontsize=9
    )


def _splits(path: Path, sizings: Sequence[Sizing]) -> Path:
    columns = min(len(sizings), 3)
    rows = -(-len(sizings) // columns)
    figure = style.new_figure(4.0 * columns, 3.8 * rows)
    panels = style.subplots(figure, rows, columns)
    for axes, sizing in zip(panels, sizings, strict=False):
        first, second = names(sizing.case.scenario)
        for passed, color, marker, word in (
            (True, _GOOD, "o", "passed"),
            (False, _BAD, "x", "failed"),
        ):
            fleets = [trial.fleet for trial in sizing.trials if trial.passed == passed]
            axes.plot(
                [fleet[0] for fleet in fleets], [fleet[1] for fleet in fleets], color=color,
                marker=marker, markersize=6, linestyle="none", label=word,
            )  # fmt: skip
        best = sizing.best
        if best is not None:
            axes.plot(
                *best.fleet, marker="*", markersize=16, color="black", markeredgecolor="white",
                linestyle="none", label="smallest",
            )  # fmt: skip
            total = best.devices
            axes.plot([0, total], [total, 0], color=_GREY, linestyle=":", linewidth=1.0)
        axes.set_xlim(left=0)
        axes.set_ylim(bottom=0)
        axes.set_xlabel(f"devices, {first}")
        axes.set_ylabel(f"devices, {second}")
        axes.set_title(style.short(sizing.case.policy, 34))
    for axes in panels[len(sizings) :]:
        axes.set_visible(False)
    style.legend_below(figure, panels[0])
    return style.save(figure, path)


def _labels(sizings: Sequence[Sizing]) -> dict[str, str]:
    """Short names: the scenario only where there are several."""
    several = len({sizing.case.scenario.name for sizing in sizings}) > 1
    return {
        sizing.case.name: style.short(sizing.case.policy)
        + (f"\n{sizing.case.scenario.name}" if several else "")
        for sizing in sizings
    }
