"""Formats with a CSV header: Azure's, Vidur's, BurstGPT's, splitwise-sim's, and a plain one."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from llmroute_env.scenario.workload import Columns, Trace
from llmroute_env.workload.traces.rows import (
    Format,
    RawRows,
    TraceError,
    numbers,
    place,
    read_csv,
    seconds_since_first,
    tokens,
)

if TYPE_CHECKING:
    import pandas as pd

    from llmroute_env.workload.blocks import Bools, Ints

_UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}

_AZURE = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_VIDUR = ("arrived_at", "num_prefill_tokens", "num_decode_tokens")
_BURSTGPT = ("Timestamp", "Request tokens", "Response tokens")
_SPLITWISE = ("arrival_timestamp", "prompt_size", "token_size")
_PLAIN = ("arrival_s", "prompt", "decode")


def _azure(path: Path, options: Trace) -> RawRows:  # noqa: ARG001
    """Azure LLM inference traces: dates; 7-digit fractions and CRLF in 2023, zones in 2024."""
    frame, lines = read_csv(path, _AZURE)
    arrival_s = seconds_since_first(path, frame[_AZURE[0]], lines)
    prompt = tokens(path, frame[_AZURE[1]], lines, 1)
    return RawRows(arrival_s, prompt, tokens(path, frame[_AZURE[2]], lines, 0), lines, _AZURE)


def _vidur(path: Path, options: Trace) -> RawRows:  # noqa: ARG001
    """Vidur's processed traces: seconds."""
    frame, lines = read_csv(path, _VIDUR)
    arrival_s = numbers(path, frame[_VIDUR[0]], lines, 0.0)
    prompt = tokens(path, frame[_VIDUR[1]], lines, 1)
    return RawRows(arrival_s, prompt, tokens(path, frame[_VIDUR[2]], lines, 0), lines, _VIDUR)


def _burstgpt(path: Path, options: Trace) -> RawRows:  # noqa: ARG001
    """BurstGPT: seconds since a midnight, here since the first request.

    Failed calls have no response tokens; some have no request tokens either.
    """
    frame, lines = read_csv(path, _BURSTGPT)
    arrival_s = numbers(path, frame[_BURSTGPT[0]], lines, 0.0)
    prompt = tokens(path, frame[_BURSTGPT[1]], lines, 0)
    decode = tokens(path, frame[_BURSTGPT[2]], lines, 0)
    answered = (prompt == 0) & (decode > 0)
    _refuse(
        path, frame[_BURSTGPT[1]], lines, answered, "a call with a response must have at least 1"
    )
    return RawRows(arrival_s - arrival_s.min(), prompt, decode, lines, _BURSTGPT)


def _splitwise(path: Path, options: Trace) -> RawRows:  # noqa: ARG001
    """splitwise-sim's generated traces: seconds; one request of LLM inference per row."""
    frame, lines = read_csv(path, _SPLITWISE)
    arrival_s = numbers(path, frame[_SPLITWISE[0]], lines, 0.0)
    prompt = tokens(path, frame[_SPLITWISE[1]], lines, 1)
    decode = tokens(path, frame[_SPLITWISE[2]], lines, 0)
    for name, only, meaning in (
        ("batch_size", 1, "must be 1, a row is one request"),
        ("request_type", 2, "must be 2, LLM inference"),
    ):
        if name in frame.columns:
            other = tokens(path, frame[name], lines, 0) != only
            _refuse(path, frame[name], lines, other, meaning)
    return RawRows(arrival_s, prompt, decode, lines, _SPLITWISE)


def _refuse(path: Path, text: pd.Series[str], lines: Ints, bad: Bools, needed: str) -> None:
    """Raise a TraceError about the first bad row, if any."""
    rows = np.flatnonzero(bad)
    if rows.size:
        row = int(rows[0])
        where = place(path, row, int(lines[row]))
        raise TraceError(f"{where}: {text.name} = {text.iloc[row]!r}: {needed}")


def _plain(path: Path, options: Trace) -> RawRows:
    """Any CSV whose columns ``workload.trace.columns`` names; numbers or dates."""
    columns = options.columns or Columns()
    names = (columns.arrival, columns.prompt, columns.decode)
    frame, lines = read_csv(path, names)
    arrival = frame[names[0]]
    if _is_date(str(arrival.iloc[0])):
        arrival_s = seconds_since_first(path, arrival, lines)
    else:
        arrival_s = numbers(path, arrival, lines, 0.0) * _UNITS[options.time_unit]
    prompt = tokens(path, frame[names[1]], lines, 1)
    return RawRows(arrival_s, prompt, tokens(path, frame[names[2]], lines, 0), lines, names)


def _is_date(text: str) -> bool:
    """Whether the first arrival looks like an ISO date rather than a number."""
    try:
        datetime.fromisoformat(text.strip()[:10])
    except ValueError:
        return False
    return "-" in text.strip()[1:10]


CSV_FORMATS = (
    Format("azure", _AZURE, "https://github.com/Azure/AzurePublicDataset", _azure),
    Format("vidur", _VIDUR, "https://github.com/microsoft/vidur/tree/main/data", _vidur),
    Format("burstgpt", _BURSTGPT, "https://github.com/HPMLL/BurstGPT", _burstgpt),
    Format("splitwise", _SPLITWISE, "https://github.com/Mutinifni/splitwise-sim", _splitwise),
    Format("csv", _PLAIN, "a CSV file of your own", _plain),
)
