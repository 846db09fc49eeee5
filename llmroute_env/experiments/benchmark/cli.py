"""Command line of ``scripts/benchmark.py``."""

from __future__ import annotations

import argparse
import difflib
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.markup import escape

from llmroute_env.command_line import Parser
from llmroute_env.experiments.benchmark import machine, report, runner, table
from llmroute_env.experiments.benchmark.model import Group, Plan, Summary
from llmroute_env.experiments.table import console

_INTERRUPTED: Final = 130
_NAMES: Final = (
    "single", "vector", "episode", "decision", "naive", "devices", "queue", "lookahead",
    "lengths", "scale", "start",
)  # fmt: skip
_EXAMPLES: Final = """\
examples:
  benchmark.py                                   everything, about four minutes
  benchmark.py --json now.json --plot plots      record and picture
  benchmark.py --json new.json --against old.json
  benchmark.py --only single,vector              some groups
  benchmark.py --quick                           does everything run? (numbers mean little)
"""


def groups(names: Sequence[str] = _NAMES) -> list[Group]:
    """The groups of these names, in the order of a run."""
    from llmroute_env.experiments.benchmark import (
        decisions,
        episodes,
        growth,
        scale,
        start,
        stepping,
        vector,
    )

    everything = (
        stepping.GROUP,
        vector.GROUP,
        episodes.GROUP,
        decisions.GROUP,
        decisions.NAIVE,
        *growth.GROUPS,
        scale.GROUP,
        start.GROUP,
    )
    return [group for group in everything if group.name in names]


def parser() -> argparse.ArgumentParser:
    """The arguments of the benchmark."""
    made = Parser(
        prog="benchmark.py",
        description="Measure the speed of the environments, of whole episodes and of each "
        "policy's decision: medians of repeats that take turns.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = made.add_argument
    add("--json", type=Path, metavar="PATH", help="write the record")
    add("--against", type=Path, metavar="OLD", help="print ratios to an earlier record")
    add("--plot", type=Path, metavar="DIR", help="draw cost against size into DIR/benchmark.png")
    add(
        "--only",
        type=_names,
        default=_NAMES,
        metavar="NAME[,NAME]",
        help=f"groups to measure: {', '.join(_NAMES)}",
    )
    add("--quick", action="store_true", help="small sizes and few repeats")
    add("--repeats", type=_repeats, metavar="N", help="rounds of most measures (default: 7)")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status. Targets that are missed are no fault."""
    options = parser().parse_args(arguments)
    out, err = console(), console(stderr=True)
    try:
        return _main(options, out, err)
    except (ValueError, OSError, RuntimeError) as error:
        err.print(f"[bold red]error:[/] {escape(str(error))}", soft_wrap=True)
        return 2
    except KeyboardInterrupt:
        err.print("interrupted: nothing is written")
        return _INTERRUPTED


def _main(options: argparse.Namespace, out: Console, err: Console) -> int:
    old = None if options.against is None else report.read(options.against)
    plan = Plan(options.repeats or (2 if options.quick else Plan.repeats), options.quick)
    facts = machine.facts()
    out.print(table.machine(facts), soft_wrap=True)
    chosen = groups(options.only)
    start = time.perf_counter()
    with err.status("compiling where the code is new: up to a minute") as status:

        def progress(text: str) -> None:
            status.update(f"{time.perf_counter() - start:3.0f} s  {escape(text)}")

        summaries, missing = runner.run(chosen, plan, progress)
    _show(out, chosen, summaries, missing)
    content = report.record(summaries, missing, facts, plan)
    if old is not None:
        out.print(table.changes(report.changes(old, content), options.against))
        for doubt in report.doubts(old, content):
            err.print(f"[yellow]warning:[/] {escape(doubt)}", soft_wrap=True)
    if options.json is not None:
        report.write(options.json, content)
        out.print(f"record: {options.json}", soft_wrap=True)
    if options.plot is not None:
        _plot(options.plot, summaries, out, err)
    out.print(f"{time.perf_counter() - start:.0f} s")
    return 0


def _show(
    out: Console, chosen: Sequence[Group], summaries: Sequence[Summary], missing: dict[str, str]
) -> None:
    for part in table.measures(chosen, summaries):
        out.print(part)
    for name, reason in missing.items():
        out.print(f"{name}: not measured, {reason}", soft_wrap=True)
    out.print(table.quoted({s.measure.name: s.median for s in summaries}))


def _plot(directory: Path, summaries: Sequence[Summary], out: Console, err: Console) -> None:
    try:
        import matplotlib as mpl  # noqa: F401  (is it there?)
    except ImportError:
        err.print("no plot: matplotlib is not installed (pip install 'llmroute-env[report]')")
        return
    from llmroute_env.experiments.benchmark import plot

    path = plot.write(summaries, directory)
    out.print(f"plot: {path}" if path else "no plot: none of these groups has a curve")


def _names(text: str) -> tuple[str, ...]:
    names = tuple(part.strip() for part in text.split(",") if part.strip())
    for name in names:
        if name not in _NAMES:
            near = difflib.get_close_matches(name, _NAMES, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(_NAMES)}"
            raise argparse.ArgumentTypeError(f"unknown group {name!r}; {hint}")
    if not names:
        raise argparse.ArgumentTypeError(f"names no group; known: {', '.join(_NAMES)}")
    return names


def _repeats(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not an integer of at least 1")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
