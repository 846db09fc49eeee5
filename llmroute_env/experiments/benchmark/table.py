"""A run in the terminal."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from llmroute_env.experiments.benchmark.model import Group, Summary
from llmroute_env.experiments.benchmark.report import SLOWER, Change
from llmroute_env.experiments.benchmark.targets import QUOTED, TARGETS
from llmroute_env.experiments.table import number


def measures(groups: Sequence[Group], summaries: Sequence[Summary]) -> Iterator[Table]:
    """One table per group: median, range of the repeats, and what is asked for."""
    for group in groups:
        rows = [s for s in summaries if s.measure.group == group.name]
        if not rows:
            continue
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title=group.title, title_justify="left")
        table.add_column("measure", no_wrap=True, min_width=36)
        for head in ("median", "min", "max"):
            table.add_column(head, justify="right", no_wrap=True, min_width=10)
        table.add_column("unit", no_wrap=True)
        table.add_column("asked for", no_wrap=True)
        for row in rows:
            values = (_number(v) for v in (row.median, row.low, row.high))
            table.add_row(row.measure.name, *values, row.measure.unit, _verdict(row))
        yield table


def _verdict(row: Summary) -> Text:
    text = Text()
    for target in TARGETS.get(row.measure.name, ()):
        met = target.met(row.median)
        text.append(f"{target} {'met' if met else 'not met'}", "green" if met else "bold red")
        text.append("   ")
    return text


def quoted(medians: Mapping[str, float]) -> Table:
    """Published numbers beside ours."""
    table = Table(
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        title="quoted, not measured here",
        title_justify="left",
    )
    table.add_column("what")
    table.add_column("quoted", justify="right", no_wrap=True)
    table.add_column("ours, and how many times better than the best of the quoted range")
    for anchor in QUOTED:
        ours = []
        for name in anchor.compare_with:
            if name in medians:
                value = medians[name]
                times = anchor.against / value if name.endswith("_us") else value / anchor.against
                ours.append(f"{name} {_number(value)} ({number(times, 3)}×)")
        table.add_row(anchor.what, anchor.value, "\n".join(ours) or "–")
    return table


def changes(found: Sequence[Change], path: Any) -> Table:
    """Ratios against an earlier run."""
    table = Table(
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        title=f"against {path}: above 1 is better now; below {SLOWER} is flagged",
        title_justify="left",
    )
    table.add_column("measure", no_wrap=True)
    for head in ("then", "now", "ratio"):
        table.add_column(head, justify="right", no_wrap=True)
    table.add_column("")
    for change in found:
        flag = Text("")
        if change.slower:
            flag = (
                Text("WORSE", "bold red") if change.apart else Text("worse, ranges overlap", "red")
            )
        ratio = f"{change.ratio:.2f}"
        table.add_row(change.name, _number(change.old), _number(change.new), ratio, flag)
    return table


def machine(facts: Mapping[str, Any]) -> str:
    """One line of facts."""
    versions = ", ".join(f"{key} {facts[key]}" for key in ("python", "numpy", "numba"))
    return (
        f"{facts['cpu']}, {facts['cores']} cores, load {facts['load_average'][0]:g}; {versions}; "
        f"revision {facts['revision'] or 'unknown'}"
    )


def _number(value: float) -> str:
    return "none" if math.isinf(value) else number(value)
