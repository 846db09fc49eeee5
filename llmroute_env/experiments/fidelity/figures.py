"""Plot of the replays. Needs matplotlib, imported when called."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from llmroute_env.experiments import style
from llmroute_env.experiments.fidelity.runs import Run
from llmroute_env.experiments.fidelity.variants import OURS, VIDUR

_LABELS = {OURS: "this model", VIDUR: "with Vidur's conventions"}


def write(path: Path, runs: Sequence[Run], replays: Mapping[tuple[str, str], pd.DataFrame]) -> Path:
    """Ours against Vidur's EEL, request by request and as distributions; a column per run.

    Args:
        path: of the PNG.
        runs: columns.
        replays: by run name and variant key.
    """
    with style.look():
        figure = style.new_figure(4.2 * len(runs), 7.4)
        axes = style.subplots(figure, 2, len(runs))
        for column, run in enumerate(runs):
            points, cdf = axes[column], axes[len(runs) + column]
            arrival = run.requests["arrival_s"].to_numpy()
            theirs = run.requests["vidur_finish_s"].to_numpy() - arrival
            share = np.arange(1, len(theirs) + 1) / len(theirs)
            most = float(theirs.max()) * 1.05
            points.plot([0, most], [0, most], color="#7F7F7F", linewidth=0.8)
            for color, key in zip(style.PALETTE[1:], (OURS, VIDUR), strict=False):
                eel = replays[run.name, key]["finish_s"].to_numpy() - arrival
                points.plot(theirs, eel, ".", markersize=2.2, color=color, label=_LABELS[key])
                cdf.plot(np.sort(eel), share, color=color, label=_LABELS[key])
            cdf.plot(np.sort(theirs), share, color="#000000", linestyle=(0, (4, 2)), label="Vidur")
            points.set_title(run.title)
            points.set_xlabel("EEL in Vidur [s]")
            points.set_ylabel("EEL here [s]" if column == 0 else "")
            cdf.set_xlabel("EEL [s]")
            cdf.set_ylabel("share of requests" if column == 0 else "")
        style.legend_below(figure, axes[len(runs)])
        return style.save(figure, path)
