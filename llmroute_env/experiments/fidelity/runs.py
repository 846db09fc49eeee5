"""Vidur's runs: what was simulated, and its per-request files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd

#: Where the files are unless the command line says otherwise.
DEFAULT_DATA: Final = Path("..") / "shared" / "fidelity"

DEVICE: Final = "a100-80gb"
MODEL: Final = "llama-2-70b"
TP: Final = 2
#: The engines that Vidur simulated: Sarathi's scheduler, four replicas.
CLUSTER: Final[dict[str, Any]] = {
    "devices": 4,
    "batch_limit": 48,
    "kv_limit": 3328 * 16,
    "kv_block": 16,
    "kv_watermark": 0.01,
    "prefill": {"chunk_tokens": 512, "emits_token": True},
}

_COLUMNS: Final = {
    "arrived": "arrival_s",
    "p": "prompt",
    "o": "decode",
    "replica": "replica",
    "prefill_done": "vidur_first_s",
    "done": "vidur_finish_s",
}


@dataclass(frozen=True, eq=False)
class Run:
    """One run of Vidur.

    Attributes:
        name: of the file, without ``vidur_`` and the suffix: traffic, rate [req/s], router.
        requests: one row per request, by arrival: ``arrival_s``, ``prompt``, ``decode``,
            ``replica``, ``vidur_first_s``, ``vidur_finish_s``.
    """

    name: str
    requests: pd.DataFrame

    @property
    def title(self) -> str:
        """Traffic, rate and router in words."""
        traffic, rate, router = self.name.split("_", 2)
        return f"{traffic}, {float(rate):g} req/s, {router.replace('_', ' ')}"


def load_all(folder: Path) -> list[Run]:
    """Every run of a folder, by name.

    Raises:
        ValueError: no run there, or a malformed one; the line names file, row and value.
    """
    paths = sorted(folder.glob("vidur_*.csv"))
    if not paths:
        raise ValueError(f"{folder}: no file named vidur_<traffic>_<rate>_<router>.csv")
    return [load(path) for path in paths]


def load(path: Path) -> Run:
    """Read one run.

    Raises:
        ValueError: as in `load_all`.
    """
    name = path.stem.removeprefix("vidur_")
    parts = name.split("_", 2)
    if len(parts) < 3 or not _is_number(parts[1]):
        raise ValueError(f"{path}: must be named vidur_<traffic>_<rate>_<router>.csv")
    try:
        frame = pd.read_csv(path)
    except (pd.errors.ParserError, pd.errors.EmptyDataError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: not a CSV file: {str(error).splitlines()[0]}") from None
    missing = [column for column in _COLUMNS if column not in frame]
    if missing:
        raise ValueError(f"{path}: no column {missing[0]!r}; it has {', '.join(frame.columns)}")
    frame = frame[list(_COLUMNS)].rename(columns=_COLUMNS)
    for column in frame:
        numbers = pd.to_numeric(frame[column], errors="coerce")
        bad = np.flatnonzero(~np.isfinite(numbers))
        if bad.size:
            value = frame[column].iloc[bad[0]]
            raise ValueError(f"{path}: row {bad[0] + 1}: {column} = {value!r} is not a number")
        frame[column] = numbers
    if frame.empty:
        raise ValueError(f"{path}: no request")
    replicas = int(CLUSTER["devices"])
    rules = {
        "arrival_s": frame["arrival_s"] >= 0,
        "prompt": frame["prompt"] >= 1,
        "decode": frame["decode"] >= 1,
        "replica": frame["replica"].isin(range(replicas)),
        "vidur_first_s": frame["vidur_first_s"] > frame["arrival_s"],
        "vidur_finish_s": frame["vidur_finish_s"] >= frame["vidur_first_s"],
    }
    for column, holds in rules.items():
        bad = np.flatnonzero(~holds)
        if bad.size:
            raise ValueError(
                f"{path}: row {bad[0] + 1}: {column} = {frame[column].iloc[bad[0]]:g} is impossible"
            )
    frame = frame.astype({"prompt": np.int64, "decode": np.int64, "replica": np.int64})
    return Run(name, frame.sort_values("arrival_s", kind="stable", ignore_index=True))


def _is_number(text: str) -> bool:
    try:
        return float(text) > 0
    except ValueError:
        return False
