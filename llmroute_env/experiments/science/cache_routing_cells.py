"""Rows of the section on cached prefixes by cell, and routers compared within one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from llmroute_env.experiments.science.rows import Row
from llmroute_env.experiments.statistics import Interval, paired_improvement


def cells_of(rows: Iterable[Row]) -> list[tuple[str, float]]:
    """Workload and load of every cell, in order."""
    return list(dict.fromkeys((row["workload"], float(row["load"])) for row in rows))


def mains_of(rows: Iterable[Row]) -> list[tuple[str, float]]:
    """The cells at the scenarios' own loads."""
    return cells_of(row for row in rows if row["main"])


def policies_of(rows: Iterable[Row]) -> list[str]:
    """Routers, in order."""
    return list(dict.fromkeys(row["policy"] for row in rows))


def select(rows: Iterable[Row], workload: str, load: float, policy: str) -> list[Row]:
    """Rows of one router in one cell, a seed or a piece of the trace each, in one order."""
    found = [
        row for row in rows
        if (row["workload"], float(row["load"]), row["policy"]) == (workload, load, policy)
    ]  # fmt: skip
    return sorted(found, key=lambda row: row["unit"])


def gain_of(
    rows: Sequence[Row], workload: str, load: float, policy: str, base: str, key: str
) -> Interval:
    """Improvement of a router over another in a cell, paired, in percent; positive is better."""
    own, other = (select(rows, workload, load, p) for p in (policy, base))
    return paired_improvement(key, [row[key] for row in other], [row[key] for row in own])


def counts_of(rows: Sequence[Row], policy: str, base: str, key: str) -> tuple[int, int, int]:
    """In how many cells a router is ahead, behind (intervals apart from 0), and cells in all."""
    gains = [gain_of(rows, w, load, policy, base, key) for w, load in cells_of(rows)]
    return sum(g.low > 0 for g in gains), sum(g.high < 0 for g in gains), len(gains)
