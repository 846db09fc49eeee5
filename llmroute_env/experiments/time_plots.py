"""Curves over time: queue and utilization of the cluster, prices of a policy that has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from llmroute_env.experiments import style
from llmroute_env.experiments.records import EpisodeRecord
from llmroute_env.scenario import Scenario

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_GRID_POINTS: Final = 400
_BAND: Final = (0.1, 0.9)
_TIME_LABEL: Final = "time [s]; line: mean over seeds, band: 10th to 90th percentile"

Records = Sequence[EpisodeRecord]


def time_series(
    scenario: Scenario, records: Records, strokes: Mapping[str, style.Stroke], path: Path
) -> Path:
    """Waiting requests, and the shares of batch slots and KV memory in use, per policy."""
    figure = style.new_figure(9.5, 7.6)
    panels = style.subplots(figure, 3, 1, sharex=True)
    last = max(float(r.arrays["series/now"][-1]) for r in records if "series/now" in r.arrays)
    grid = np.linspace(0.0, last, _GRID_POINTS)
    alpha = style.band_alpha(len(strokes))
    for policy, stroke in strokes.items():
        own = [r.arrays for r in records if r.policy == policy and "series/now" in r.arrays]
        curves = (
            [a["series/queue"] + a["series/fifo"] for a in own],
            [a["series/active"] / a["capacity/batch_limit"].sum() for a in own],
            [a["series/kv"] / a["capacity/kv_limit"].sum() for a in own],
        )
        times = [arrays["series/now"] for arrays in own]
        for axes, samples in zip(panels, curves, strict=True):
            _band(axes, grid, times, samples, stroke, style.short(policy), alpha)
    panels[0].set_ylabel("waiting [requests]")
    panels[0].set_title(f"{scenario.name}: requests waiting at the router and in device FIFOs")
    panels[0].set_ylim(bottom=0)
    for axes, name in zip(panels[1:], ("batch slots", "KV memory"), strict=True):
        axes.set_ylabel("share in use")
        axes.set_title(name)
        axes.set_ylim(0, 1.03)
    panels[-1].set_xlabel(_TIME_LABEL)
    panels[-1].set_xlim(0, last)
    style.legend_below(figure, panels[0])
    return style.save(figure, path)


def prices(scenario: Scenario, records: Records, path: Path) -> list[Path]:
    """Mean price per resource over time, for policies that recorded it; no file if none did."""
    names = ("diagnostics/period", "diagnostics/price_batch", "diagnostics/price_memory")
    priced = [record for record in records if all(name in record.arrays for name in names)]
    policies = list(dict.fromkeys(record.policy for record in priced))
    if not policies:
        return []
    figure = style.new_figure(9.5, 5.6)
    panels = style.subplots(figure, 2, 1, sharex=True)
    last = max(float(record.arrays[names[0]][-1]) for record in priced) * scenario.period_s
    grid = np.linspace(0.0, last, _GRID_POINTS)
    alpha = style.band_alpha(len(policies))
    for policy, stroke in style.strokes(policies).items():
        own = [record.arrays for record in priced if record.policy == policy]
        for axes, name in zip(panels, names[1:], strict=True):
            times = [arrays[names[0]] * scenario.period_s for arrays in own]
            samples = [arrays[name] for arrays in own]
            _band(axes, grid, times, samples, stroke, style.short(policy), alpha)
    panels[0].set_title(f"{scenario.name}: price of a batch slot")
    panels[1].set_title("price of KV memory, per 1 / mem_scale tokens (by default a whole device)")
    for axes in panels:
        axes.set_ylabel("mean over devices\nand look-ahead\n[share of the top reward]")
        axes.set_ylim(bottom=0)
    panels[1].set_xlabel(_TIME_LABEL)
    panels[1].set_xlim(0, last)
    style.legend_below(figure, panels[0])
    return [style.save(figure, path)]


def _band(
    axes: Axes,
    grid: NDArray[np.float64],
    times: Sequence[NDArray[Any]],
    samples: Sequence[NDArray[Any]],
    stroke: style.Stroke,
    label: str,
    alpha: float,
) -> None:
    """Mean and band over seeds, up to where the first of them ends (drained episodes differ)."""
    on_grid = np.array(
        [np.interp(grid, t, sample, right=np.nan) for t, sample in zip(times, samples, strict=True)]
    )
    whole = ~np.isnan(on_grid).any(axis=0)
    low, high = np.quantile(on_grid[:, whole], _BAND, axis=0)
    axes.fill_between(grid[whole], low, high, color=stroke.color, alpha=alpha, linewidth=0)
    mean = on_grid[:, whole].mean(axis=0)
    axes.plot(grid[whole], mean, color=stroke.color, linestyle=stroke.dashes, label=label)
