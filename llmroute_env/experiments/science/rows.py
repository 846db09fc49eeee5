"""Rows of a frame as plain dictionaries."""

from __future__ import annotations

from typing import Any

import pandas as pd

Row = dict[str, Any]


def records(frame: pd.DataFrame) -> list[Row]:
    """Every row."""
    return [{str(key): value for key, value in row.items()} for row in frame.to_dict("records")]


def keyed(frame: pd.DataFrame, column: str) -> dict[Any, Row]:
    """Rows by the value of a column, which is different in each."""
    return {row[column]: row for row in records(frame)}


def only(frame: pd.DataFrame, **where: Any) -> pd.DataFrame:
    """Rows that have these values."""
    for key, wanted in where.items():
        frame = frame[frame[key] == wanted]
    return frame


def first(frame: pd.DataFrame, **where: Any) -> Row:
    """The first row that has these values."""
    return records(only(frame, **where).head(1))[0]
