"""What a replay and Vidur's run are compared by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd


@dataclass(frozen=True)
class Measure:
    """A number of a run.

    Attributes:
        key: column name.
        label: in tables.
        unit: of the value.
        aim: largest error that the project aims for [%].
    """

    key: str
    label: str
    unit: str
    aim: float


MEASURES: Final = (
    Measure("eel_mean_s", "mean EEL", "s", 5.0),
    Measure("eel_p95_s", "P95 EEL", "s", 10.0),
    Measure("eel_p99_s", "P99 EEL", "s", 10.0),
    Measure("first_mean_s", "mean prefill completion", "s", 5.0),
    Measure("first_p99_s", "P99 prefill completion", "s", 10.0),
    Measure("tpot_mean_s", "mean TPOT", "s", 5.0),
    Measure("makespan_s", "makespan", "s", 5.0),
)


def values(
    arrival_s: np.ndarray, decode: np.ndarray, first_s: np.ndarray, finish_s: np.ndarray
) -> dict[str, float]:
    """The measures of one run; arrays are (R,), one entry per request.

    Prefill completion is the time from arrival to the first token; TPOT leaves out requests of a
    single token; the makespan ends with the last token.
    """
    eel, first = finish_s - arrival_s, first_s - arrival_s
    longer = decode > 1
    tpot = (finish_s - first_s)[longer] / (decode[longer] - 1)
    return {
        "eel_mean_s": float(eel.mean()),
        "eel_p95_s": float(np.percentile(eel, 95)),
        "eel_p99_s": float(np.percentile(eel, 99)),
        "first_mean_s": float(first.mean()),
        "first_p99_s": float(np.percentile(first, 99)),
        "tpot_mean_s": float(tpot.mean()) if longer.any() else float("nan"),
        "makespan_s": float(finish_s.max()),
    }


def compare(requests: pd.DataFrame, replayed: pd.DataFrame) -> pd.DataFrame:
    """Errors of a replay.

    Args:
        requests: of the run, see `Run`.
        replayed: of `replay`, in the same order.

    Returns:
        One row per measure: ``measure``, ``vidur``, ``replay``, ``error_percent``.
    """
    arrival, decode = requests["arrival_s"].to_numpy(), requests["decode"].to_numpy()
    theirs = values(
        arrival, decode, requests["vidur_first_s"].to_numpy(), requests["vidur_finish_s"].to_numpy()
    )
    ours = values(arrival, decode, replayed["first_s"].to_numpy(), replayed["finish_s"].to_numpy())
    return pd.DataFrame(
        [
            {
                "measure": measure.key,
                "vidur": theirs[measure.key],
                "replay": ours[measure.key],
                "error_percent": 100 * (ours[measure.key] / theirs[measure.key] - 1),
            }
            for measure in MEASURES
        ]
    )
