"""The files of a result directory: one atomic record per episode, and what they belong to.

    DIR/run.json                               scenario, its digest, policies and their folders
    DIR/episodes/<policy>/seed0000.json        summary of an episode: its presence says "done"
    DIR/episodes/<policy>/seed0000.npz         request log and time series, for plots
    DIR/sweep/load-0.9/<policy>/seed0000.json  the same at another load (no .npz)

A record is written to a temporary file and moved into place, so a killed run leaves whole records
or none, and the next run does what is missing. Everything else in the directory (CSV files,
plots, TensorBoard runs) is made from the records.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from llmroute_env.metrics import METRICS, TIMINGS
from llmroute_env.scenario import Scenario

_FORMAT: Final = 1
_RUN_FILE: Final = "run.json"
#: What `ResultDirectory` and its views write; nothing else is ever deleted.
_OWN: Final = ("episodes", "sweep", "plots", "tb")
_OWN_FILES: Final = (_RUN_FILE, "episodes.csv", "comparison.csv", "sweep.csv")

#: Columns before the summary keys in `episodes.csv`.
IDENTITY: Final = ("scenario", "policy", "information", "seed")


class ResultError(ValueError):
    """A result directory that cannot be used as asked; one line."""


@dataclass(frozen=True)
class EpisodeRecord:
    """One episode of one policy."""

    scenario: str
    policy: str  #: the command-line string
    information: str
    seed: int
    summary: dict[str, float]  #: keys of `METRICS` and `TIMINGS`
    rewards: dict[str, float]  #: episode totals per component
    load: float | None = None  #: offered load in a sweep
    arrays: dict[str, NDArray[Any]] = field(default_factory=dict, compare=False)
    """Request log (``requests/<column>``), series (``series/<name>``), diagnostics."""

    def row(self) -> dict[str, Any]:
        """Row of `episodes.csv` (with ``load`` after the scenario in `sweep.csv`)."""
        row: dict[str, Any] = {"scenario": self.scenario}
        if self.load is not None:
            row["load"] = self.load
        row |= {"policy": self.policy, "information": self.information, "seed": self.seed}
        keys = (*METRICS, *TIMINGS)
        return row | {key: self.summary.get(key, math.nan) for key in keys}


class ResultDirectory:
    """Records of one scenario, in a directory that is never overwritten unasked.

    Args:
        path: the directory; made when absent.
        scenario: what the records are of. A directory of another scenario is refused.
        overwrite: delete the records that are there.

    Raises:
        ResultError: the directory holds other things, or another scenario's results.
    """

    def __init__(self, path: str | Path, scenario: Scenario, *, overwrite: bool = False) -> None:
        self.path = Path(path)
        self.scenario = scenario
        self._folders: dict[str, str] = {}
        if self.path.exists() and not self.path.is_dir():
            raise ResultError(f"--out {self.path}: is a file")
        occupied = self.path.is_dir() and any(self.path.iterdir())
        if occupied and not (self.path / _RUN_FILE).is_file():
            raise ResultError(
                f"--out {self.path}: not empty and not a result directory; name another one"
            )
        if occupied and overwrite:
            self._delete()
        elif occupied:
            self._resume()
        else:
            self.path.mkdir(parents=True, exist_ok=True)
        self._write_run_file()

    # -- policies ---------------------------------------------------------------------------

    @property
    def policies(self) -> tuple[str, ...]:
        """Policies of this directory, in the order in which they were first asked for."""
        return tuple(self._folders)

    def add_policies(self, policies: Iterable[str]) -> None:
        """Give each policy its folder, whose name is safe on every file system."""
        for policy in policies:
            if policy not in self._folders:
                self._folders[policy] = self._free_folder(policy)
        self._write_run_file()

    def folder(self, policy: str) -> str:
        """Folder name of a policy, the same under ``episodes/``, ``sweep/`` and ``tb/``."""
        return self._folders[policy]

    # -- episodes ---------------------------------------------------------------------------

    def episode_path(self, policy: str, seed: int, load: float | None = None) -> Path:
        """Path of an episode's record without its suffix."""
        top = Path("episodes") if load is None else Path("sweep") / load_name(load)
        return self.path / top / self.folder(policy) / f"seed{seed:04d}"

    def has(self, policy: str, seed: int, load: float | None = None) -> bool:
        """Whether an episode is done."""
        return self.episode_path(policy, seed, load).with_suffix(".json").is_file()

    def records(self, *, arrays: bool = False) -> list[EpisodeRecord]:
        """Every record of the scenario itself, by policy and then seed."""
        found: list[EpisodeRecord] = []
        for policy in self.policies:
            paths = (self.path / "episodes" / self.folder(policy)).glob("seed*.json")
            found += sorted((read_episode(path, arrays=arrays) for path in paths), key=_seed)
        return found

    def sweep_records(self) -> list[EpisodeRecord]:
        """Every record of a load sweep, by load, policy, seed."""
        found = [
            read_episode(path, arrays=False) for path in self.path.glob("sweep/load-*/*/seed*.json")
        ]
        order = {policy: number for number, policy in enumerate(self.policies)}
        return sorted(found, key=lambda r: (r.load, order.get(r.policy, len(order)), r.seed))

    # -- inside -----------------------------------------------------------------------------

    def _free_folder(self, policy: str) -> str:
        base = re.sub(r"[^\w.+-]", "_", policy.replace(":", ".").replace("=", "-")).strip(".")
        # Case-insensitive, as some file systems are.
        taken = {folder.lower() for folder in self._folders.values()}
        name, number = base or "policy", 2
        while name.lower() in taken:
            name, number = f"{base}+{number}", number + 1
        return name

    def _resume(self) -> None:
        try:
            known = json.loads((self.path / _RUN_FILE).read_text(encoding="utf-8"))
        except json.JSONDecodeError:
            known = {}
        digest, name = known.get("digest"), known.get("scenario")
        if known.get("format") != _FORMAT:
            raise ResultError(f"--out {self.path}: written by another version; name another one")
        if digest != self.scenario.digest() or name != self.scenario.name:
            raise ResultError(
                f"--out {self.path}: holds {name} ({digest}), asked for {self.scenario.name} "
                f"({self.scenario.digest()}); name another directory, or pass --overwrite"
            )
        self._folders = dict(known["policies"])
        for leftover in self.path.rglob(".*.tmp"):
            leftover.unlink(missing_ok=True)

    def _delete(self) -> None:
        # The run file goes last: a deletion that is cut short can be asked for again.
        for name in _OWN:
            shutil.rmtree(self.path / name, ignore_errors=True)
        for name in reversed(_OWN_FILES):
            (self.path / name).unlink(missing_ok=True)

    def _write_run_file(self) -> None:
        content = {
            "format": _FORMAT,
            "scenario": self.scenario.name,
            "digest": self.scenario.digest(),
            "policies": self._folders,
            "definition": self.scenario.to_dict(),
        }
        write_text(self.path / _RUN_FILE, json.dumps(content, indent=1) + "\n")


def _seed(record: EpisodeRecord) -> int:
    return record.seed


def load_name(load: float) -> str:
    """Folder and scenario suffix of one load of a sweep."""
    return f"load-{load:g}"


def frame(records: Iterable[EpisodeRecord]) -> pd.DataFrame:
    """One row per record, in the columns of the CSV files."""
    return pd.DataFrame([record.row() for record in records])


def write_csv(table: pd.DataFrame, path: Path) -> None:
    """Write a table; NaN is an empty cell, floats round-trip, lines end in a bare newline."""
    write_text(path, table.to_csv(index=False, lineterminator="\n"))


def write_episode(stem: Path, record: EpisodeRecord) -> None:
    """Write a record: arrays first, because the ``.json`` says that the episode is done."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    if record.arrays:
        temporary = _temporary(stem.with_suffix(".npz"))
        with temporary.open("wb") as stream:
            np.savez_compressed(stream, **record.arrays)  # type: ignore[arg-type]
        temporary.replace(stem.with_suffix(".npz"))
    content = asdict(record)
    del content["arrays"]
    content["summary"] = _without_nan(record.summary)
    write_text(stem.with_suffix(".json"), json.dumps(content, indent=1, allow_nan=False) + "\n")


def read_episode(path: Path, *, arrays: bool) -> EpisodeRecord:
    """Read a record from its ``.json`` file, with the arrays beside it if asked for."""
    content = json.loads(path.read_text(encoding="utf-8"))
    content["summary"] = {
        key: math.nan if value is None else value for key, value in content["summary"].items()
    }
    stored = path.with_suffix(".npz")
    if arrays and stored.is_file():
        with np.load(stored) as archive:
            content["arrays"] = dict(archive)
    return EpisodeRecord(**content)


def write_text(path: Path, text: str) -> None:
    """Replace a file by another content, whole or not at all."""
    temporary = _temporary(path)
    temporary.write_text(text, encoding="utf-8", newline="\n")
    temporary.replace(path)


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}.tmp")


def _without_nan(values: Mapping[str, float]) -> dict[str, float | None]:
    return {key: value if math.isfinite(value) else None for key, value in values.items()}
