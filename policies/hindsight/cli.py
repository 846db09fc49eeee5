"""Command line of ``scripts/export_instance.py``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from llmroute_env.command_line import Parser
from llmroute_env.scenario import Scenario
from llmroute_env.scenario.overrides import parse_assignments
from policies.hindsight.bounds import ROUNDS, bound_and_order
from policies.hindsight.exports import FORMATS, MODELS, cut, draw, export
from policies.hindsight.gaps import gap_line, gap_table, plot_gaps, summarize_gaps
from policies.hindsight.instance import Instance
from policies.hindsight.plans import plan

_EXAMPLES = """\
examples:
  export_instance.py --scenario paper-overload --seed 0 --horizon 400 --out out/instance
  export_instance.py --model lp --pooled --stride 20 --gzip --format csv --out out/coarse
  export_instance.py --model none --bound --policies sjf,mc_sf,olp --out out/gap
"""


def _natural(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 0")
    return int(text)


def parser() -> argparse.ArgumentParser:
    """The arguments of the export."""
    made = Parser(
        prog="export_instance.py",
        description="Export an episode as an optimisation instance: its requests (parquet or CSV), "
        "its time-indexed MILP or LP (MPS), its hindsight bound, and policies' gaps to it.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = made.add_argument
    add("--scenario", default="paper-overload", help="name or YAML file (default: %(default)s)")
    add("--set", action="append", default=[], metavar="KEY=VALUE", help="override a scenario key")
    add("--seed", type=_natural, default=0, help="seed of the episode (default: %(default)s)")
    add("--out", type=Path, required=True, help="directory of the files")
    add("--format", choices=FORMATS, default="csv", help="of the requests (default: %(default)s)")
    add("--model", choices=(*MODELS, "none"), default="milp", help="(default: %(default)s)")
    add("--horizon", type=int, metavar="T", help="only the first T periods")
    add("--requests", type=int, metavar="N", help="only the first N requests")
    add("--stride", type=int, default=1, metavar="K", help="starts only at every K-th slot")
    add("--pooled", action="store_true", help="one device with what all hold together")
    add("--gzip", action="store_true", help="compress the MPS file")
    add("--most-columns", type=int, default=2_000_000, help="refuse more (default: %(default)s)")
    add("--bound", action="store_true", help="compute the hindsight bound")
    add("--knots", type=int, default=100, help="of its prices (default: %(default)s)")
    add("--policies", default="", help="comma-separated: their gaps, whole episodes")
    add(
        "--seeds", type=_natural, default=1, help="episodes of the gap table (default: %(default)s)"
    )
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Export; returns the exit code."""
    given = parser().parse_args(arguments)
    try:
        _run(given)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _run(given: argparse.Namespace) -> None:
    scenario = Scenario.load(given.scenario, parse_assignments(given.set))
    whole = draw(scenario, given.seed)
    short, requests = cut(scenario, whole, horizon=given.horizon, first=given.requests)
    files = export(
        short,
        requests,
        given.out,
        seed=given.seed,
        table=given.format,
        model=None if given.model == "none" else given.model,
        compress=given.gzip,
        per_device=not given.pooled,
        stride=given.stride,
        most_columns=given.most_columns,
    )
    for path in (files.requests, files.model, files.description):
        if path is not None:
            print(path)
    if given.bound:
        one = Instance.build(short, requests)
        found, prices = bound_and_order(one, knots=given.knots, rounds=ROUNDS)
        print(f"bound {found.value:.10g} ({found.status}, {found.seconds:.1f} s)")
        print(f"without preemption {found.unpreempted:.10g}")
        print("\n".join(f"loose: {note}" for note in found.looseness))
        planned = plan(one, prices.order, requests).reward if one.exact else None
        print(gap_line(found, planned))
    policies = [name for name in given.policies.split(",") if name]
    if policies:
        seeds = range(given.seed, given.seed + given.seeds)
        table = gap_table(scenario, policies, seeds, knots=given.knots)
        path = given.out / "gaps.csv"
        table.to_csv(path, index=False)
        print(path)
        plotted = plot_gaps(table, given.out / "gaps.png")
        print(plotted or "gaps.png: not drawn, matplotlib is not installed (the report extra)")
        print(summarize_gaps(table).to_string(float_format=lambda value: f"{value:.6g}"))
