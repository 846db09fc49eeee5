#!/usr/bin/env python3
"""Compute an embedded length table (``configs/lengths``) from a trace file.

A table holds quantiles of the prompt and decode lengths, fine in both tails, and their rank
correlation: enough to draw requests like the trace's without shipping the trace.

Example:
    python scripts/build_lengths.py azure_2023_conv.csv --name azure-2023-conv
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
import yaml
from scipy.stats import spearmanr

from llmroute_env.scenario import ScenarioError, config_directory
from llmroute_env.scenario.workload import Trace
from llmroute_env.workload.quantiles import load_table
from llmroute_env.workload.traces import FORMATS, load_trace

# Every 2.5% in the middle; halving steps toward both ends.
_TAIL = [0.0005, 0.001, 0.002, 0.005, 0.01, 0.015, 0.02, 0.03, 0.04]
_MIDDLE = [round(0.025 * step, 3) for step in range(2, 39)]
LEVELS = [0.0, *_TAIL, *_MIDDLE, *[round(1.0 - level, 4) for level in reversed(_TAIL)], 1.0]


def build(path: Path, source: str, command: str) -> dict[str, object]:
    """The table of a trace, as plain data."""
    trace = load_trace(Trace(path=str(path), zero_output="skip"))

    def quantiles(tokens: np.ndarray) -> list[float]:
        values = np.quantile(tokens, LEVELS, method="median_unbiased")
        return [float(round(value, 1)) for value in values]

    return {
        "source": source,
        "licence": "CC-BY-4.0" if "Azure" in source else "see the source",
        "file": path.name,
        "command": command,
        "rows": trace.report.requests,
        "mean_prompt": round(float(trace.prompt.mean()), 2),
        "mean_decode": round(float(trace.decode.mean()), 2),
        "spearman": round(float(spearmanr(trace.prompt, trace.decode).statistic), 4),
        "levels": LEVELS,
        "prompt": quantiles(trace.prompt),
        "decode": quantiles(trace.decode),
    }


def write(table: dict[str, object], target: Path) -> None:
    """Write the table, one line a key."""
    with target.open("w", encoding="utf-8") as file:
        file.write("# Quantiles [tokens] at `levels`; `spearman` is the rank correlation.\n")
        yaml.safe_dump(table, file, default_flow_style=None, width=96, sort_keys=False)


def compare(path: Path, target: Path) -> None:
    """Print how the table's own draws compare with the trace."""
    trace = load_trace(Trace(path=str(path), zero_output="skip"))
    load_table.cache_clear()
    table = load_table(str(target))
    rng = np.random.default_rng(0)
    normal = rng.standard_normal(400_000)
    print(f"{target}: {table.rows} rows, Spearman {table.spearman:+.4f}")
    for name, tokens, marginal in (
        ("prompt", trace.prompt, table.prompt),
        ("decode", trace.decode, table.decode),
    ):
        drawn = marginal.tokens(normal)
        row = [
            f"{label} {tokens_value:.1f} / {drawn_value:.1f}"
            for label, tokens_value, drawn_value in (
                ("mean", tokens.mean(), drawn.mean()),
                ("std", tokens.std(), drawn.std()),
                ("p99", np.quantile(tokens, 0.99), np.quantile(drawn, 0.99)),
            )
        ]
        print(f"  {name:6s} trace / table: {', '.join(row)}")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("trace", type=Path, help="trace file, in any known format")
    parser.add_argument("--name", required=True, help="name of the table")
    parser.add_argument("--out", type=Path, help="directory (default: configs/lengths)")
    parser.add_argument(
        "--source", default=FORMATS["azure"].source, help="public address of the trace"
    )
    arguments = parser.parse_args()
    command = f"scripts/build_lengths.py {arguments.trace.name} --name {arguments.name}"
    directory = arguments.out or config_directory() / "lengths"
    target = directory / f"{arguments.name}.yaml"
    try:
        table = build(arguments.trace, arguments.source, command)
    except ScenarioError as error:
        print(error, file=sys.stderr)
        return 2
    directory.mkdir(parents=True, exist_ok=True)
    write(table, target)
    compare(arguments.trace, target)
    return 0


if __name__ == "__main__":
    sys.exit(main())
