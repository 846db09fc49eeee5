"""Cost against devices, queue length, look-ahead and lanes, as one picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from llmroute_env.experiments import style
from llmroute_env.experiments.benchmark.model import Summary

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Curves = Mapping[str, list[Summary]]


class _Panel(NamedTuple):
    title: str
    x: str
    y: str
    curves: dict[str, str]  #: name to label
    linear: bool  #: draw the line of linear growth through the first point
    logarithmic: bool = True


_DECISION: Final = "decision P50 [µs]"
_PANELS: Final = (
    _Panel("Devices", "devices", _DECISION, {"devices.olp": "olp"}, True),
    _Panel(
        "Queue length",
        "requests waiting",
        _DECISION,
        {f"queue.{name}": name for name in ("olp", "mc_sf", "sjf", "lor")},
        False,
    ),
    _Panel("Look-ahead", "iterations H", _DECISION, {"lookahead.olp": "olp"}, True),
    _Panel(
        "Decode length", "factor on the scenario's lengths", _DECISION, {"lengths.olp": "olp"}, True
    ),
    _Panel(
        "Lanes",
        "lanes of the vector environment",
        "env-steps/s",
        {"vector.copy.1": "1 thread", "vector.copy.2": "2 threads"},
        True,
    ),
    _Panel(
        "Memory of an episode",
        "requests",
        "growth of resident memory [MB]",
        {"scale.memory.256": "256 devices", "scale.memory.1000": "1,000 devices"},
        False,
        logarithmic=False,
    ),
)
#: Least span of an axis of costs, so that a flat curve looks flat.
_SPAN: Final = 8.0


def curves_of(summaries: Sequence[Summary]) -> dict[str, list[Summary]]:
    """Points by curve, in the order of x."""
    found: dict[str, list[Summary]] = {}
    for summary in sorted(summaries, key=lambda s: s.measure.x):
        if summary.measure.curve:
            found.setdefault(summary.measure.curve, []).append(summary)
    return found


def write(summaries: Sequence[Summary], directory: Path) -> Path | None:
    """Draw ``benchmark.png`` with the panels that this run has points for; None without any."""
    curves = curves_of(summaries)
    panels = [panel for panel in _PANELS if any(name in curves for name in panel.curves)]
    if not panels:
        return None
    with style.look():
        columns = min(len(panels), 3)
        rows = -(-len(panels) // columns)
        figure = style.new_figure(4.4 * columns, 3.6 * rows)
        axes = style.subplots(figure, rows, columns)
        for panel, ax in zip(panels, axes, strict=False):
            _draw(ax, panel, curves)
        for ax in axes[len(panels) :]:
            ax.set_visible(False)
        figure.supxlabel("medians; bars span the repeats", fontsize=9)
        return style.save(figure, directory / "benchmark.png")


def _draw(axes: Axes, panel: _Panel, curves: Curves) -> None:
    strokes = style.strokes(list(panel.curves))
    first: Summary | None = None
    last = 0.0
    for name, label in panel.curves.items():
        points = curves.get(name)
        if not points:
            continue
        first = first or points[0]
        last = max(last, points[-1].measure.x)
        middle = [point.median for point in points]
        ends = [
            [point.median - point.low for point in points],
            [point.high - point.median for point in points],
        ]
        stroke = strokes[name]
        axes.errorbar(
            [point.measure.x for point in points],
            middle,
            yerr=ends,
            label=label,
            color=stroke.color,
            linestyle=stroke.dashes,
            marker="o",
            markersize=4,
            elinewidth=0.8,
        )
    if panel.linear and first is not None and last > first.measure.x:
        ends_x = [first.measure.x, last]
        ends_y = [first.median, first.median * last / first.measure.x]
        axes.plot(ends_x, ends_y, color="#9A9A9A", linewidth=1.0, label="linear")
    if panel.logarithmic:
        _logarithmic(axes)
    else:
        axes.set_xlim(0)
        axes.set_ylim(0)
        axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.set_title(panel.title)
    axes.set_xlabel(panel.x)
    axes.set_ylabel(panel.y)
    axes.legend()


def _logarithmic(axes: Axes) -> None:
    """Both axes, with numbers as people write them."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    if high / low < _SPAN:
        widen = (_SPAN * low / high) ** 0.5
        axes.set_ylim(low / widen, high * widen)
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
        axis.set_minor_formatter(NullFormatter())
    axes.tick_params(axis="y", which="minor", length=0)
