"""What all plots share: colours, labels, figures without global state, atomic files."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from llmroute_env.metrics import METRICS, TIMINGS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Okabe and Ito's colours, which colour-blind readers can tell apart, without the pale yellow.
PALETTE: Final = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#56B4E9",
    "#E69F00",
    "#000000",
    "#7F7F7F",
)
_DASHES: Final = ("-", (0, (5, 1.5)), (0, (1.5, 1.2)), (0, (6, 1.5, 1.5, 1.5)))

_SETTINGS: Final[Any] = {
    "font.size": 9.5,
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#E4E4E4",
    "grid.linewidth": 0.7,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "lines.linewidth": 1.6,
    "savefig.dpi": 150,
}


class Stroke(NamedTuple):
    """Colour and dashes of one policy, the same in every plot."""

    color: str
    dashes: Any


def strokes(policies: Sequence[str]) -> dict[str, Stroke]:
    """A stroke per policy; 32 policies differ.

    Neighbours differ in colour and in dashes, so that curves on top of each other both show.
    """
    colors, dashes = len(PALETTE), len(_DASHES)
    return {
        policy: Stroke(PALETTE[i % colors], _DASHES[(i + i // colors) % dashes])
        for i, policy in enumerate(policies)
    }


@contextlib.contextmanager
def look() -> Iterator[None]:
    """The project's settings for what is drawn inside; matplotlib's own are left as they were."""
    import matplotlib as mpl

    with mpl.rc_context(_SETTINGS):
        yield


def band_alpha(curves: int) -> float:
    """Opacity of one band, so that a pile of them still shows the lines."""
    return max(0.05, min(0.15, 0.4 / max(curves, 1)))


def new_figure(width: float, height: float) -> Figure:
    """A figure that pyplot does not know, so nothing stays behind and no display is needed."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def subplots(figure: Figure, rows: int, columns: int, **options: Any) -> list[Axes]:
    """Axes of a grid, row by row."""
    grid = figure.subplots(rows, columns, squeeze=False, **options)
    return [axes for row in grid for axes in row]


def save(figure: Figure, path: Path) -> Path:
    """Write a PNG, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp")
    figure.savefig(temporary, format="png", metadata={"Software": None})
    temporary.replace(path)
    return path


def legend_below(figure: Figure, axes: Axes, columns: int = 4) -> None:
    """One legend for the whole figure, under it, where it covers nothing."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside lower center", ncols=min(columns, max(len(labels), 1))
    )


def short(policy: str, width: int = 24) -> str:
    """A command-line string in lines of about `width` characters, cut at its colons."""
    lines = [""]
    for number, part in enumerate(policy.split(":")):
        piece = part if number == 0 else f":{part}"
        if lines[-1] and len(lines[-1]) + len(piece) > width:
            lines.append(f"  {piece}")
        else:
            lines[-1] += piece
    return "\n".join(lines)


def axis_label(key: str) -> str:
    """Label of a summary key with its unit."""
    metric = METRICS.get(key) or TIMINGS[key]
    return f"{metric.label} [{metric.unit}]" if metric.unit else metric.label
