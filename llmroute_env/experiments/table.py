"""The comparison as a table in the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import pandas as pd
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from llmroute_env.experiments.statistics import Interval, lookup, mean_interval
from llmroute_env.metrics import METRICS, TIMINGS

DEFAULT_METRICS: Final = (
    "eel_mean_s",
    "eel_p99_s",
    "ttft_p99_s",
    "slo_attainment",
    "throughput_tok_s",
)
_WIDTH_WITHOUT_TERMINAL: Final = 180
_FEW_SEEDS: Final = 5  #: see `statistics`

Column = tuple[str, list[Text]]  #: head and cells


def console(*, stderr: bool = False) -> Console:
    """A console that does not squeeze tables into 80 columns when its output is a file."""
    made = Console(stderr=stderr, highlight=False)
    if not made.is_terminal:
        made = Console(stderr=stderr, highlight=False, width=_WIDTH_WITHOUT_TERMINAL)
    return made


def comparison_tables(
    episodes: pd.DataFrame,
    comparison: pd.DataFrame,
    metrics: Sequence[str] = DEFAULT_METRICS,
    width: int = _WIDTH_WITHOUT_TERMINAL,
) -> list[Table]:
    """Rows are policies, columns metrics: the mean, and below it the gain over the baseline.

    Args:
        episodes: rows of `episodes.csv`.
        comparison: rows of `comparison.csv`.
        metrics: summary keys or timings, in the order of the columns. Prefix hits follow them
            where devices have caches, misrouted requests where there are any.
        width: columns of the terminal; metrics that do not fit beside each other follow in
            another table, so no cell is broken.
    """
    values = lookup(comparison)
    baseline = str(comparison["baseline"].iloc[0])
    groups = {str(name): rows for name, rows in episodes.groupby("policy", sort=False)}
    columns = [("policy", [Text(policy) for policy in groups])]
    columns.append(("uses length", [Text(r["information"].iloc[0]) for r in groups.values()]))
    fixed = len(columns)
    if "prefix_hit_rate" not in metrics and episodes["prefix_hit_rate"].notna().any():
        metrics = (*metrics, "prefix_hit_rate")
    if "misrouted" not in metrics and (episodes["misrouted"] > 0).any():
        metrics = (*metrics, "misrouted")
    for key in metrics:
        cells = [
            _metric_cell(key, policy, rows, values, baseline) for policy, rows in groups.items()
        ]
        columns.append((_head(key), cells))
    for head, column in (("unfinished", "unfinished"), ("rejected", "rejected")):
        columns.append((head, [_share(rows, column) for rows in groups.values()]))
    times = [Text(number(float(r["decision_us_p50"].mean()), 3)) for r in groups.values()]
    columns.append(("decision\nP50 [µs]", times))

    tables = [_table(part) for part in _fitting(columns, fixed, width)]
    tables[0].title = Text(str(comparison["scenario"].iloc[0]), style="bold")
    return tables


def caption(episodes: pd.DataFrame, baseline: str) -> str:
    """How to read the tables."""
    counts = episodes.groupby("policy")["seed"].nunique()
    few = "; with fewer than 5 seeds intervals are too narrow" if counts.min() < _FEW_SEEDS else ""
    return (
        f"{_range(counts)} seeds; mean ± half of its 95% bootstrap interval; below it the "
        f"improvement over {baseline}, paired by seed, with its 95% interval; positive is better"
        f"{few}"
    )


def _fitting(columns: Sequence[Column], fixed: int, width: int) -> list[list[Column]]:
    """Cut the columns into parts that fit the width; each part starts with the first `fixed`."""
    parts: list[list[Column]] = []
    used = width + 1
    for column in columns[fixed:]:
        own = _width(column)
        if used + own > width:
            parts.append(list(columns[:fixed]))
            used = sum(_width(first) for first in columns[:fixed])
        parts[-1].append(column)
        used += own
    return parts


def _width(column: Column) -> int:
    head, cells = column
    lines = [line for text in (head, *(cell.plain for cell in cells)) for line in text.split("\n")]
    return max(len(line) for line in lines) + 3


def _table(columns: Sequence[Column]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title_justify="left", caption_justify="left")
    for number_, (head, _) in enumerate(columns):
        table.add_column(Text(head), no_wrap=True, justify="left" if number_ < 2 else "right")
    for row in zip(*(cells for _, cells in columns), strict=True):
        table.add_row(*row)
    return table


def _head(key: str) -> str:
    metric = METRICS.get(key) or TIMINGS[key]
    return f"{metric.label}\n[{metric.unit}]" if metric.unit else metric.label


def _metric_cell(
    key: str,
    policy: str,
    rows: pd.DataFrame,
    values: Mapping[tuple[str, str], tuple[Interval, Interval]],
    baseline: str,
) -> Text:
    if key in METRICS:
        return _cell(*values[policy, key], policy == baseline)
    return Text(_mean(mean_interval(rows[key].to_numpy(dtype=float))))


def hidden_warning(episodes: pd.DataFrame) -> str | None:
    """A warning when the router's window hid requests from a policy; None when it never did."""
    shares = episodes.groupby("policy", sort=False)["hidden_share"].mean()
    hidden = [f"{policy} {share:.1%}" for policy, share in shares.items() if share > 0]
    if not hidden:
        return None
    return (
        f"the queue was longer than the router's window in some periods ({', '.join(hidden)}): "
        "those policies did not see every request; raise router.window for a fair comparison"
    )


def number(value: float, digits: int = 4) -> str:
    """A few significant digits, thousands with a comma, an en dash for NaN."""
    if np.isnan(value):
        return "–"
    if value == 0:
        return "0"
    decimals = max(0, digits - 1 - int(np.floor(np.log10(abs(value)))))
    return f"{value:,.{decimals}f}" if decimals < 7 else f"{value:.3g}"


def _cell(mean: Interval, gain: Interval, is_baseline: bool) -> Text:
    text = Text(_mean(mean))
    if is_baseline:
        return text.append("\nbaseline", style="dim")
    if np.isnan(gain.estimate):
        return text.append("\n–", style="dim")
    style = "bold green" if gain.low > 0 else "red" if gain.high < 0 else "dim"
    text.append(f"\n{gain.estimate:+.1f}%", style=style)
    if not np.isnan(gain.low):
        text.append(f" [{gain.low:.1f}, {gain.high:.1f}]", style="dim")
    return text


def _mean(mean: Interval) -> str:
    shown = number(mean.estimate)
    if np.isnan(mean.low):
        return shown
    decimals = len(shown.partition(".")[2])
    return f"{shown} ± {(mean.high - mean.low) / 2:,.{decimals}f}"


def _share(rows: pd.DataFrame, column: str) -> Text:
    share = float(rows[column].sum()) / max(float(rows["arrived"].sum()), 1.0)
    return Text(f"{share:.1%}", style="yellow") if share else Text("0")


def _range(counts: pd.Series[int]) -> str:
    low, high = int(counts.min()), int(counts.max())
    return str(low) if low == high else f"{low}–{high}"
