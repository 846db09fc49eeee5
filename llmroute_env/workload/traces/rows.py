"""What a format's parser hands on, and the error that names a place in a file."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from llmroute_env.scenario.errors import ScenarioError
from llmroute_env.scenario.workload import Trace
from llmroute_env.workload.blocks import Bools, Chains, Floats, Ints

if TYPE_CHECKING:  # pandas takes a third of a second to import: only where a trace is read
    import pandas as pd


class TraceError(ScenarioError):
    """A trace file that cannot be used. One line: file, row, line, column, value."""


class TraceMissingError(TraceError):
    """The trace file is not there; the message names its public address."""


@dataclass(frozen=True, eq=False)
class RawRows:
    """Rows in file order, not yet sorted or selected. R rows."""

    arrival_s: Floats  #: (R,) [s], as written or from the earliest row
    prompt: Ints  #: (R,) [tokens], at least 1
    decode: Ints  #: (R,) [tokens], at least 0
    line: Ints  #: (R,) line in the file, 1-based
    columns: tuple[str, str, str]  #: the file's names of the three, for messages
    chains: Chains | None = None  #: prefix blocks, where the format has them
    odd_chain: Bools | None = None  #: (R,) rows with more or fewer blocks than their prompt


@dataclass(frozen=True)
class Head:
    """What detection may look at: the first line, a CSV header or a JSON object."""

    line: str

    @cached_property
    def is_json(self) -> bool:
        """Whether the line is not a CSV header but JSON."""
        return self.line.startswith(("{", "["))

    @cached_property
    def header(self) -> list[str]:
        """Header fields without surrounding blanks, or the keys of the first JSON object."""
        if not self.is_json:
            return [field.strip().strip('"') for field in self.line.split(",")]
        try:
            row = json.loads(self.line)
        except ValueError:
            return []
        return list(row) if isinstance(row, dict) else []


@dataclass(frozen=True)
class Format:
    """One trace format: how to recognise it by content, and how to read it."""

    name: str
    columns: tuple[str, ...]  #: CSV header or JSON keys that it is recognised by
    source: str  #: public address of files in this format
    parse: Callable[[Path, Trace], RawRows]
    is_json: bool = False  #: one JSON object per line

    def recognises(self, head: Head) -> bool:
        """Whether a file that starts like this is in this format."""
        return head.is_json == self.is_json and set(self.columns) <= set(head.header)


def place(path: Path, row: int, line: int) -> str:
    """Where a fault lies: file, 1-based data row and line."""
    return f"trace {path}: row {row + 1} (line {line})"


def read_csv(path: Path, columns: tuple[str, ...]) -> tuple[pd.DataFrame, Ints]:
    """Read a CSV as text; blank lines are left out but counted.

    Returns:
        the rows, and the line in the file of each (R,).

    Raises:
        TraceError: a column is missing, a row has too many fields, or there are no rows.
    """
    import pandas as pd

    try:
        frame = pd.read_csv(
            path, dtype=str, keep_default_na=False, skip_blank_lines=False, encoding="utf-8-sig"
        )
    except pd.errors.EmptyDataError:
        raise TraceError(f"trace {path}: is empty, not even a header") from None
    except pd.errors.ParserError as error:
        text = str(error).strip().rsplit("error: ", 1)[-1].replace("\n", " ")
        raise TraceError(f"trace {path}: not a CSV of one row per request: {text}") from None
    except UnicodeDecodeError:
        raise TraceError(f"trace {path}: not UTF-8 text") from None
    frame.columns = frame.columns.str.strip()
    missing = [column for column in columns if column not in frame.columns]
    if missing:
        raise TraceError(
            f"trace {path}: column {missing[0]} is missing; the header has "
            f"{', '.join(frame.columns)}"
        )
    if not isinstance(frame.index, pd.RangeIndex):
        raise TraceError(f"trace {path}: rows have more fields than the header")
    lines = np.arange(2, len(frame) + 2, dtype=np.int64)
    filled = (frame.fillna("") != "").any(axis=1).to_numpy()
    if not filled.any():
        raise TraceError(f"trace {path}: has a header but no rows")
    return frame.loc[filled].reset_index(drop=True), lines[filled]


def numbers(path: Path, text: pd.Series[str], lines: Ints, least: float) -> Floats:
    """A column of finite numbers, at least ``least``.

    Raises:
        TraceError: naming file, row, line, column and value of the first bad one.
    """
    import pandas as pd

    values = pd.to_numeric(text, errors="coerce").to_numpy(np.float64)
    bad = np.flatnonzero(~(np.isfinite(values) & (values >= least)))
    if bad.size:
        row = int(bad[0])
        raise TraceError(
            f"{place(path, row, int(lines[row]))}: {text.name} = {text.iloc[row]!r}: "
            f"must be a number of at least {least:g}"
        )
    return values


def tokens(path: Path, text: pd.Series[str], lines: Ints, least: int) -> Ints:
    """A column of whole numbers, at least ``least``.

    Raises:
        TraceError: naming file, row, line, column and value of the first bad one.
    """
    values = numbers(path, text, lines, least)
    bad = np.flatnonzero((values != np.rint(values)) | (values > 2**31 - 1))
    if bad.size:
        row = int(bad[0])
        raise TraceError(
            f"{place(path, row, int(lines[row]))}: {text.name} = {text.iloc[row]!r}: "
            "must be a whole number of tokens, below 2^31"
        )
    return values.astype(np.int64)


def seconds_since_first(path: Path, text: pd.Series[str], lines: Ints) -> Floats:
    """A column of dates to seconds since the earliest.

    Any ISO 8601 form, mixed within a column: fractions of 0 to 9 digits (Azure writes 7 in 2023,
    6 or none in 2024), with or without a time zone (none means UTC).

    Raises:
        TraceError: naming file, row, line, column and value of the first that is no date.
    """
    import pandas as pd

    dates = pd.to_datetime(text, format="ISO8601", utc=True, errors="coerce")
    bad = np.flatnonzero(dates.isna().to_numpy())
    if bad.size:
        row = int(bad[0])
        raise TraceError(
            f"{place(path, row, int(lines[row]))}: {text.name} = {text.iloc[row]!r}: "
            "must be a date and time"
        )
    nanoseconds = dates.dt.as_unit("ns").astype("int64").to_numpy(np.int64)
    # Integers until the last step: a float holds today's date to 2e-7 s only.
    return np.asarray((nanoseconds - nanoseconds.min()) / 1e9, np.float64)
