"""Formats with a CSV header: Azure's of 2023 and 2024, Vidur's, and a plain one."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from llmroute_env.scenario.workload import Columns, Trace
from llmroute_env.workload.traces.rows import (
    Format,
    RawRows,
    numbers,
    read_csv,
    seconds_since_first,
    tokens,
)

if TYPE_CHECKING:
    pass

_UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}

_AZURE = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_VIDUR = ("arrived_at", "num_prefill_tokens", "num_decode_tokens")
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
    Format("csv", _PLAIN, "a CSV file of your own", _plain),
)
