"""Read ServeGen's chunks."""

from __future__ import annotations

import csv
import json
import math
import re
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from llmroute_env.scenario.workload import ServeGenArrivals
from llmroute_env.workload.blocks import Floats, Ints
from llmroute_env.workload.traces.rows import TraceError, TraceMissingError, place

SOURCE = "https://github.com/alibaba/ServeGen/tree/main/data"
_FIELDS = ("start", "rate", "cv", "distribution", "shape", "scale")
_NAME = re.compile(r"chunk-(\d+)-trace\.csv")
_LAST_WINDOW_S = 600.0  #: length of a window that is the only one [s]
#: name in the file -> whether gaps are Weibull rather than gamma; no name: too few for a fit
_DISTRIBUTIONS = {"gamma": False, "weibull": True, "exponential": False, "": False}


@dataclass(frozen=True, eq=False)
class Tokens:
    """A distribution of token counts."""

    value: Ints  #: (V,) [tokens]
    share: Floats  #: (V,) cumulative, the last is 1

    def draw(self, level: Floats) -> Ints:
        """Values at uniform levels (R,)."""
        return self.value[np.searchsorted(self.share[:-1], level, side="right")]


@dataclass(frozen=True, eq=False)
class Client:
    """One client's arrivals, n windows, and where its lengths are."""

    number: int
    path: Path  #: of the arrivals
    start_s: Floats  #: (n + 1,) windows' beginnings, and the end of the last [s]
    rate: Floats  #: (n,) [1/s]
    weibull: Any  #: (n,) bool: Weibull gaps, else gamma
    shape: Floats  #: (n,) shape parameter of the gaps, 1 is Poisson

    @cached_property
    def lengths(self) -> list[tuple[float, Tokens, Tokens]]:
        """Windows that have lengths: beginning [s], prompt and decode.

        Raises:
            TraceError: the file is missing or malformed, or has no lengths at all.
        """
        return _lengths(self.path.with_name(f"chunk-{self.number}-dataset.json"))

    def lengths_at(self, time_s: float) -> tuple[Tokens, Tokens]:
        """Lengths of the window that holds a time, or of the nearest window that has any.

        A window without requests has no lengths; ten minutes with requests may still lie in one
        that was cut short. Earlier windows are preferred.
        """
        windows = self.lengths
        index = max((i for i, w in enumerate(windows) if w[0] <= time_s), default=0)
        return windows[index][1:]


def clients_of(options: ServeGenArrivals) -> tuple[Client, ...]:
    """The clients that a scenario names, by number.

    Raises:
        TraceMissingError: no such files; names where to get them.
        TraceError: one line that names file, row, line, field and value.
    """
    path = Path(options.path).expanduser()
    if path.is_file():
        found = {_number(path): path}
    else:
        files = [file for file in path.glob("chunk-*-trace.csv") if _NAME.fullmatch(file.name)]
        found = {_number(file): file for file in sorted(files)}
    if not found:
        raise TraceMissingError(
            f"{options.path}: no ServeGen chunks (chunk-N-trace.csv) there: get them from "
            f"{options.source or SOURCE}, and give their folder as workload.arrivals.path"
        )
    wanted = sorted(found) if options.clients is None else options.clients
    for number in wanted:
        if number not in found:
            known = ", ".join(map(str, sorted(found)[:20]))
            raise TraceError(
                f"workload.arrivals.clients: {options.path} has no chunk-{number}-trace.csv; "
                f"there are {known}{', ...' if len(found) > 20 else ''}"
            )
    return tuple(_versioned(found[number], number) for number in wanted)


def _number(path: Path) -> int:
    match = _NAME.fullmatch(path.name)
    if match is None:
        raise TraceError(f"workload.arrivals.path = {str(path)!r}: must be named chunk-N-trace.csv")
    return int(match[1])


def _versioned(path: Path, number: int) -> Client:
    lengths = path.with_name(f"chunk-{number}-dataset.json")
    stamp = tuple(
        (file.stat().st_mtime_ns, file.stat().st_size) if file.is_file() else (0, 0)
        for file in (path, lengths)
    )
    return _client(path, number, stamp)


@lru_cache(maxsize=4096)
def _client(path: Path, number: int, version: tuple[tuple[int, int], ...]) -> Client:  # noqa: ARG001
    numbers: list[tuple[float, float, float]] = []
    kinds: list[bool] = []
    before = -math.inf
    for row, line, fields in _rows(path):
        where = place(path, row, line)
        start = _field(where, fields, 0, 0.0)
        rate = _field(where, fields, 1, 0.0)
        name = fields[3].strip().lower()
        if name not in _DISTRIBUTIONS:
            raise TraceError(
                f"{where}: distribution = {fields[3]!r}: must be Gamma, Weibull, Exponential or "
                "empty"
            )
        if start <= before:
            raise TraceError(f"{where}: start = {fields[0]!r}: must be after the row before")
        before = start
        shape = 1.0
        if rate > 0.0 and name in ("gamma", "weibull"):
            shape = _field(where, fields, 4, 0.0)
            if not 0.01 <= shape <= 1e12:  # gaps all but 0 and beyond all numbers, or all equal
                raise TraceError(f"{where}: shape = {fields[4]!r}: must be from 0.01 to 1e12")
        numbers.append((start, rate, shape))
        kinds.append(_DISTRIBUTIONS[name])
    if not numbers:
        raise TraceError(f"trace {path}: is empty")
    start_s, rates, shapes = np.array(numbers).T
    last_s = start_s[-1] - start_s[-2] if len(start_s) > 1 else _LAST_WINDOW_S
    ends = np.append(start_s, start_s[-1] + last_s)
    return Client(number, path, ends, rates.copy(), np.array(kinds), shapes.copy())


def _rows(path: Path) -> list[tuple[int, int, list[str]]]:
    """Row, line and fields of each row; blank lines left out but counted."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise TraceError(f"trace {path}: not UTF-8 text") from None
    rows: list[tuple[int, int, list[str]]] = []
    for line, fields in enumerate(csv.reader(text.splitlines()), 1):
        if not any(field.strip() for field in fields):
            continue
        if len(fields) != len(_FIELDS):
            raise TraceError(
                f"{place(path, len(rows), line)}: has {len(fields)} fields, must have "
                f"{len(_FIELDS)}: {', '.join(_FIELDS)}"
            )
        rows.append((len(rows), line, fields))
    return rows


def _field(where: str, fields: list[str], index: int, least: float) -> float:
    try:
        value = float(fields[index])
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= least):
        raise TraceError(
            f"{where}: {_FIELDS[index]} = {fields[index]!r}: must be a number of at least {least:g}"
        )
    return value


def _lengths(path: Path) -> list[tuple[float, Tokens, Tokens]]:
    if not path.is_file():
        raise TraceMissingError(
            f"{path}: not found: the lengths of the client; get it from {SOURCE}"
        )
    try:
        data = json.loads(path.read_text(encoding="utf-8-sig"))
    except (ValueError, UnicodeDecodeError) as error:
        raise TraceError(f"lengths {path}: not JSON: {error}") from None
    if not isinstance(data, dict):
        raise TraceError(f"lengths {path}: must be a JSON object of windows")
    windows = []
    for key, entry in data.items():
        try:
            start_s = float(key)
        except ValueError:
            raise TraceError(
                f"lengths {path}: window {key!r}: must be its beginning in seconds"
            ) from None
        parts = [
            _distribution(path, key, entry, name) for name in ("input_tokens", "output_tokens")
        ]
        if parts[0] is not None and parts[1] is not None:
            windows.append((start_s, parts[0], parts[1]))
    if not windows:
        raise TraceError(f"lengths {path}: no window has both input_tokens and output_tokens")
    return sorted(windows, key=lambda window: window[0])


def _distribution(path: Path, key: str, entry: Any, name: str) -> Tokens | None:
    """A distribution written as the text of a Python dict; None where it is empty.

    Counts of 0 tokens (failed calls) are left out: a request has at least one of each.
    """
    where = f"lengths {path}: window {key!r}: {name}"
    text = entry.get(name) if isinstance(entry, dict) else None
    if not isinstance(text, str):
        raise TraceError(f"{where} is missing or not text")
    body = text.strip().removeprefix("{").removesuffix("}").strip().removesuffix(",")
    if not body:
        return None
    try:
        flat = np.array(body.replace(":", ",").split(","), np.float64)
    except ValueError:
        raise TraceError(
            f"{where} = {text[:40]!r}: must be like '{{tokens: share, ...}}'"
        ) from None
    if len(flat) % 2:
        raise TraceError(f"{where} = {text[:40]!r}: must be like '{{tokens: share, ...}}'")
    value, share = flat[::2], flat[1::2]
    whole = np.isfinite(value) & (value == np.rint(value)) & (value >= 0) & (value < 2**31)
    if not whole.all():
        bad = value[~whole][0]
        raise TraceError(f"{where}: {bad:g}: must be a whole number of tokens, below 2^31")
    total = float(share.sum())
    if not ((share >= 0.0).all() and abs(total - 1.0) < 1e-3):
        raise TraceError(f"{where}: shares must be at least 0 and sum to 1, they sum to {total:g}")
    some = (value > 0) & (share > 0.0)
    if not some.any():
        return None
    order = np.argsort(value[some], kind="stable")
    cumulative = np.cumsum(share[some][order])
    return Tokens(value[some][order].astype(np.int64), cumulative / cumulative[-1])
