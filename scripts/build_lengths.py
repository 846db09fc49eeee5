#!/usr/bin/env python3
"""Compute an embedded length table (``configs/lengths``) from a trace file.

A table holds quantiles of the prompt and decode lengths, fine in both tails, and their rank
correlation: enough to draw requests like the trace's without shipping the trace.

With --tail, a share of requests with long prompts is mixed in: a truncated lognormal, with
decode lengths of the trace, independent of the prompt. Public traces have few of them.

Examples:
    python scripts/build_lengths.py azure_2023_conv.csv --name azure-2023-conv
    python scripts/build_lengths.py azure_2023_conv.csv --name azure-2023-conv-tail \
        --tail 0.05,16000,0.6,8192,60000
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import yaml
from scipy.special import ndtr, ndtri
from scipy.stats import spearmanr

from llmroute_env.scenario import ScenarioError, config_directory
from llmroute_env.scenario.workload import Trace
from llmroute_env.workload.quantiles import load_table
from llmroute_env.workload.traces import FORMATS, load_trace

# Every 2.5% in the middle; halving steps toward both ends.
_TAIL = [0.0005, 0.001, 0.002, 0.005, 0.01, 0.015, 0.02, 0.03, 0.04]
_MIDDLE = [round(0.025 * step, 3) for step in range(2, 39)]
LEVELS = [0.0, *_TAIL, *_MIDDLE, *[round(1.0 - level, 4) for level in reversed(_TAIL)], 1.0]


class Tail(NamedTuple):
    """Long prompts to mix in: lognormal with this median, cut off at both ends [tokens]."""

    share: float  #: of all requests
    median: float
    sigma: float
    least: float
    most: float

    @classmethod
    def parse(cls, text: str) -> Tail:
        """SHARE,MEDIAN,SIGMA,MIN,MAX."""
        try:
            tail = cls(*map(float, text.split(",")))
        except (TypeError, ValueError):
            raise argparse.ArgumentTypeError(
                f"{text!r} is not SHARE,MEDIAN,SIGMA,MIN,MAX"
            ) from None
        if not (0 < tail.share < 1 and tail.sigma > 0 and 1 <= tail.least < tail.most):
            raise argparse.ArgumentTypeError(
                f"{text!r}: needs 0 < SHARE < 1, SIGMA > 0 and 1 <= MIN < MAX"
            )
        return tail


def lengths(path: Path, tail: Tail | None) -> tuple[np.ndarray, np.ndarray]:
    """Prompt and decode tokens of a trace, with the tail mixed in."""
    trace = load_trace(Trace(path=str(path), zero_output="skip"))
    if tail is None:
        return trace.prompt, trace.decode
    rows = len(trace.prompt)
    count = round(rows * tail.share / (1 - tail.share))
    # Evenly spread levels instead of draws: the table has no sampling noise of its own.
    ends = ndtr(np.log(np.array([tail.least, tail.most]) / tail.median) / tail.sigma)
    levels = ends[0] + (ends[1] - ends[0]) * (np.arange(count) + 0.5) / count
    long = np.rint(tail.median * np.exp(tail.sigma * ndtri(levels))).astype(np.int64)
    mates = np.random.default_rng(0).integers(0, rows, count)
    return np.append(trace.prompt, long), np.append(trace.decode, trace.decode[mates])


def build(path: Path, source: str, command: str, tail: Tail | None = None) -> dict[str, object]:
    """The table of a trace, as plain data."""
    prompt, decode = lengths(path, tail)
    levels = LEVELS
    if tail is not None:  # the trace's own upper end lies in the middle now, and is as fine there
        end = [level for level in LEVELS[:-1] if level > 0.95]
        moved = [round((1.0 - tail.share) * level, 6) for level in end]
        levels = sorted({*LEVELS, *moved, round(1.0 - tail.share + 0.0005, 6)})

    def quantiles(tokens: np.ndarray) -> list[float]:
        values = np.quantile(tokens, levels, method="median_unbiased")
        return [float(round(value, 1)) for value in values]

    return {
        "source": source,
        "licence": "CC-BY-4.0" if "Azure" in source else "see the source",
        "file": path.name,
        "command": command,
        "rows": len(prompt),
        "mean_prompt": round(float(prompt.mean()), 2),
        "mean_decode": round(float(decode.mean()), 2),
        "spearman": round(float(spearmanr(prompt, decode).statistic), 4),
        "levels": levels,
        "prompt": quantiles(prompt),
        "decode": quantiles(decode),
    }


def write(table: dict[str, object], target: Path) -> None:
    """Write the table, one line a key."""
    with target.open("w", encoding="utf-8") as file:
        file.write("# Quantiles [tokens] at `levels`; `spearman` is the rank correlation.\n")
        yaml.safe_dump(table, file, default_flow_style=None, width=96, sort_keys=False)


def compare(path: Path, target: Path, tail: Tail | None) -> None:
    """Print how the table's own draws compare with the trace."""
    prompt, decode = lengths(path, tail)
    load_table.cache_clear()
    table = load_table(str(target))
    rng = np.random.default_rng(0)
    normal = rng.standard_normal(400_000)
    print(f"{target}: {table.rows} rows, Spearman {table.spearman:+.4f}")
    for name, tokens, marginal in (
        ("prompt", prompt, table.prompt),
        ("decode", decode, table.decode),
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
    parser.add_argument(
        "--tail",
        type=Tail.parse,
        metavar="SHARE,MEDIAN,SIGMA,MIN,MAX",
        help="long prompts to mix in: share of the requests, and their lognormal [tokens]",
    )
    arguments = parser.parse_args()
    command = f"scripts/build_lengths.py {arguments.trace.name} --name {arguments.name}"
    if arguments.tail is not None:
        command += " --tail " + ",".join(f"{value:g}" for value in arguments.tail)
    directory = arguments.out or config_directory() / "lengths"
    target = directory / f"{arguments.name}.yaml"
    try:
        table = build(arguments.trace, arguments.source, command, arguments.tail)
    except ScenarioError as error:
        print(error, file=sys.stderr)
        return 2
    directory.mkdir(parents=True, exist_ok=True)
    write(table, target)
    compare(arguments.trace, target, arguments.tail)
    return 0


if __name__ == "__main__":
    sys.exit(main())
