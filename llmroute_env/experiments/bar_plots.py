"""Bars with intervals, and improvements over the baseline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import pandas as pd

from llmroute_env.experiments import style
from llmroute_env.experiments.statistics import Interval, lookup
from llmroute_env.metrics import METRICS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BAR_METRICS: Final = (
    "eel_mean_s",
    "eel_p99_s",
    "ttft_p99_s",
    "slo_attainment",
    "throughput_tok_s",
    "tpot_mean_s",
)
GAIN_METRICS: Final = ("eel_mean_s", "eel_p95_s", "eel_p99_s", "ttft_mean_s", "slo_attainment")


def metric_bars(comparison: pd.DataFrame, strokes: Mapping[str, style.Stroke], path: Path) -> Path:
    """Mean and interval of the main metrics, one panel each."""
    table = lookup(comparison)
    policies = list(strokes)
    figure = style.new_figure(10.5, 1.6 + 0.52 * len(policies))
    for axes, key in zip(style.subplots(figure, 2, 3, sharey=True), BAR_METRICS, strict=True):
        means = [table[policy, key][0] for policy in policies]
        _bars(axes, policies, means, strokes)
        arrow = {1: " →", -1: " ←", 0: ""}[METRICS[key].better]
        axes.set_title(f"{style.axis_label(key)}{arrow}")
    scenario, n = comparison["scenario"].iloc[0], int(comparison["n"].max())
    figure.supxlabel(
        f"{scenario}: mean over {n} seeds, 95% interval; the arrow points to the better side",
        fontsize=9,
    )
    return style.save(figure, path)


def _bars(
    axes: Axes,
    policies: Sequence[str],
    means: Sequence[Interval],
    strokes: Mapping[str, style.Stroke],
) -> None:
    rows = np.arange(len(policies))
    values = np.array([mean.estimate for mean in means])
    axes.barh(
        rows,
        np.nan_to_num(values),
        height=0.68,
        color=[strokes[p].color for p in policies],
        alpha=0.85,
    )
    for row, mean in zip(rows, means, strict=True):
        if not np.isnan(mean.low):
            ends = [mean.low, mean.high]
            axes.plot(ends, [row, row], color="white", linewidth=3.4, solid_capstyle="butt")
            axes.plot(ends, [row, row], color="#222222", linewidth=1.4, solid_capstyle="butt")
        if np.isnan(mean.estimate):
            axes.annotate(" no value", (0, row), va="center", fontsize=8, color="#555555")
    axes.set_yticks(rows, [style.short(policy) for policy in policies])
    axes.set_ylim(len(policies) - 0.5, -0.5)
    axes.grid(axis="y", visible=False)
    axes.tick_params(axis="y", length=0)


def improvement(comparison: pd.DataFrame, strokes: Mapping[str, style.Stroke], path: Path) -> Path:
    """Paired improvement over the baseline with its interval, one panel per metric."""
    table = lookup(comparison)
    baseline = str(comparison["baseline"].iloc[0])
    policies = [policy for policy in strokes if policy != baseline]
    figure = style.new_figure(10.5, 1.5 + 0.3 * len(policies))
    for axes, key in zip(
        style.subplots(figure, 1, len(GAIN_METRICS), sharey=True), GAIN_METRICS, strict=True
    ):
        axes.axvline(0, color="#7F7F7F", linewidth=1.0)
        for row, policy in enumerate(policies):
            gain, color = table[policy, key][1], strokes[policy].color
            axes.plot(gain.estimate, row, "o", color=color, markersize=5)
            axes.plot([gain.low, gain.high], [row, row], color=color, linewidth=2.0)
        axes.set_yticks(range(len(policies)), [style.short(policy) for policy in policies])
        axes.set_ylim(len(policies) - 0.5, -0.5)
        axes.set_title(METRICS[key].label)
        axes.grid(axis="y", visible=False)
        axes.tick_params(axis="y", length=0)
    scenario = comparison["scenario"].iloc[0]
    figure.supxlabel(
        f"{scenario}: improvement over {baseline} [%], paired by seed, 95% interval; "
        "right of 0 is better",
        fontsize=9,
    )
    return style.save(figure, path)
