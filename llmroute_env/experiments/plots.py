"""Plots of a comparison, from its records alone. Needs matplotlib, imported when called.

Which file answers which question:

* `latency_cdf.png`: what latency does a share of the requests stay under?
* `metrics.png`, `improvement.png`: how far apart are the policies, and is it more than noise?
* `time_series.png`: when does the queue build up, and what is idle meanwhile?
* `prices.png`: which resource does a pricing policy think is scarce, where and when?
* `slo_vs_load.png`: up to which load does a policy keep its service levels?
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from llmroute_env.cluster.state import COMPLETED, NOT_ARRIVED
from llmroute_env.experiments import bar_plots, style, time_plots
from llmroute_env.experiments.records import EpisodeRecord
from llmroute_env.experiments.statistics import mean_interval
from llmroute_env.scenario import Scenario

Records = Sequence[EpisodeRecord]


def write_plots(
    directory: Path,
    scenario: Scenario,
    records: Records,
    comparison: pd.DataFrame,
    sweep: Records = (),
) -> list[Path]:
    """Draw every plot for which there is data; returns the files.

    Args:
        directory: where the PNG files go.
        scenario: of the records.
        records: with their arrays, by policy and seed.
        comparison: table of `statistics.compare`.
        sweep: records of a load sweep.

    Raises:
        ImportError: matplotlib is not installed.
    """
    with style.look():
        return _draw(directory, scenario, records, comparison, sweep)


def _draw(
    directory: Path,
    scenario: Scenario,
    records: Records,
    comparison: pd.DataFrame,
    sweep: Records,
) -> list[Path]:
    policies = list(dict.fromkeys(record.policy for record in records))
    strokes = style.strokes(policies)
    written = [
        bar_plots.metric_bars(comparison, strokes, directory / "metrics.png"),
        _latency_cdf(scenario, records, strokes, directory / "latency_cdf.png"),
    ]
    if len(policies) > 1:
        written.append(bar_plots.improvement(comparison, strokes, directory / "improvement.png"))
    if any("series/now" in record.arrays for record in records):
        written.append(
            time_plots.time_series(scenario, records, strokes, directory / "time_series.png")
        )
    written += time_plots.prices(scenario, records, directory / "prices.png")
    if sweep:
        written.append(_attainment_by_load(scenario, sweep, strokes, directory / "slo_vs_load.png"))
    return written


def _latency_cdf(
    scenario: Scenario, records: Records, strokes: Mapping[str, style.Stroke], path: Path
) -> Path:
    figure = style.new_figure(9.5, 4.6)
    left, right = style.subplots(figure, 1, 2, sharey=True)
    limits = (scenario.objective.tail_eel_s, scenario.objective.tail_ttft_s)
    panels = (
        (left, "finish_s", "EEL, arrival to last token", limits[0], "limit"),
        (right, "first_token_s", "TTFT, arrival to first token", limits[1], "limit of the start"),
    )
    for axes, event, label, limit, limit_name in panels:
        for policy, stroke in strokes.items():
            latency, arrived = _reached(records, policy, event, scenario.warmup_s)
            share = np.arange(1, len(latency) + 1) / max(arrived, 1)
            axes.step(
                latency,
                share,
                where="post",
                color=stroke.color,
                linestyle=stroke.dashes,
                label=style.short(policy),
            )
        axes.axvline(limit, color="#7F7F7F", linewidth=1.0, linestyle=":")
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:g}")
        axes.set_xlabel(f"{label} [s]; dotted: {limit_name}, {limit:g} s")
        axes.set_ylim(0, 1.01)
    left.set_ylabel("share of arrived requests")
    left.set_title(f"{scenario.name}: end-to-end latency")
    right.set_title("time to first token")
    style.legend_below(figure, left)
    return style.save(figure, path)


def _reached(
    records: Records, policy: str, event: str, warmup_s: float
) -> tuple[NDArray[np.float64], int]:
    """Sorted latencies of all seeds' requests that reached an event, and how many arrived."""
    latencies, arrived = [], 0
    for record in records:
        if record.policy != policy:
            continue
        arrival, status = record.arrays["requests/arrival_s"], record.arrays["requests/status"]
        counted = (status != NOT_ARRIVED) & (arrival >= warmup_s)
        arrived += int(np.count_nonzero(counted))
        if event == "finish_s":
            counted &= status == COMPLETED
        latency = (record.arrays[f"requests/{event}"] - arrival)[counted]
        latencies.append(latency[~np.isnan(latency)])
    return np.sort(np.concatenate(latencies)) if latencies else np.empty(0), arrived


def _attainment_by_load(
    scenario: Scenario, sweep: Records, strokes: Mapping[str, style.Stroke], path: Path
) -> Path:
    figure = style.new_figure(7.2, 4.8)
    (axes,) = style.subplots(figure, 1, 1)
    axes.axvline(1.0, color="#7F7F7F", linewidth=1.0, linestyle=":")
    for policy, stroke in strokes.items():
        samples: dict[float, list[float]] = {}
        for record in sweep:
            if record.policy == policy and record.load is not None:
                samples.setdefault(record.load, []).append(record.summary["slo_attainment"])
        if not samples:
            continue
        loads = sorted(samples)
        means = [mean_interval(samples[load]) for load in loads]
        center = [mean.estimate for mean in means]
        axes.plot(
            loads,
            center,
            color=stroke.color,
            linestyle=stroke.dashes,
            marker="o",
            markersize=4,
            label=style.short(policy),
        )
        axes.fill_between(
            loads,
            [mean.low for mean in means],
            [mean.high for mean in means],
            color=stroke.color,
            alpha=style.band_alpha(len(strokes)),
            linewidth=0,
        )
    limits = scenario.objective
    axes.set_title(f"{scenario.name}: service level against load")
    axes.set_xlabel("offered load of the scarcer resource (1 = saturation)")
    axes.set_ylabel(
        f"requests with EEL < {limits.tail_eel_s:g} s and start delay < {limits.tail_ttft_s:g} s"
        "\n[share of arrived]"
    )
    axes.set_ylim(0, 1.02)
    style.legend_below(figure, axes)
    return style.save(figure, path)
