"""Numbers and tables as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from llmroute_env.experiments.statistics import Interval
from llmroute_env.experiments.table import number

#: Marks of verdicts in dense tables.
MARKS = {
    "reproduces": "yes",
    "reproduces, larger": "yes, larger",
    "partly": "partly",
    "does not": "no",
    "not decided": "–",
}


def table(head: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> list[str]:
    """A Markdown table; the first `left` columns are aligned left, the others right."""
    bars = ["---" if i < left else "---:" for i in range(len(head))]
    lines = ["| " + " | ".join(head) + " |", "| " + " | ".join(bars) + " |"]
    lines += ["| " + " | ".join(str(c).replace("|", "\\|") for c in row) + " |" for row in rows]
    return [*lines, ""]


def percent(estimate: float, low: float, high: float) -> str:
    """``+12.3 [10.1, 14.0]``, in percent without the sign of it."""
    if np.isnan(estimate):
        return "–"
    if np.isnan(low):
        return f"{estimate:+.1f}"
    digits = 1 if max(abs(estimate), abs(low), abs(high)) >= 1 else 2
    estimate, low, high = (round(number_, digits) + 0.0 for number_ in (estimate, low, high))
    return f"{estimate:+.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


def value(mean: float, low: float, high: float) -> str:
    """Mean with its interval."""
    if np.isnan(low):
        return number(mean)
    return f"{number(mean)} [{number(low)}, {number(high)}]"


def of(interval: Interval) -> str:
    """A percentage with its sign and interval for running text."""
    return f"{percent(*interval)}%".replace("] %", "]%")


def span(values: Iterable[int]) -> str:
    """``20`` or ``12–20``."""
    found = sorted(set(values))
    if not found:
        return "0"
    return str(found[0]) if len(found) == 1 else f"{found[0]}–{found[-1]}"
