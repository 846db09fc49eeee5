"""What both commands share: arguments, playing with a progress bar, one-line errors."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from llmroute_env.command_line import cores
from llmroute_env.experiments.cli import status_of
from llmroute_env.experiments.science.episodes import Cell, Episodes
from llmroute_env.experiments.science.play import play


def parser(name: str, description: str, examples: str, out: Path) -> argparse.ArgumentParser:
    """A parser with the arguments that both commands have."""
    made = argparse.ArgumentParser(
        prog=name,
        description=description,
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = made.add_argument
    add(
        "--out",
        type=Path,
        default=out,
        help="directory of the episodes; resumed (default: %(default)s)",
    )
    add("--seeds", type=int, help="number of seeds")
    add("--first-seed", type=int, help="first seed (default: 1000; tuning used those below)")
    add("--jobs", type=int, help="processes (default: one per core)")
    add(
        "--minutes",
        type=float,
        default=math.inf,
        help="stop after the last seed that fits into this time, and report on those there are",
    )
    add("--report-only", action="store_true", help="play nothing, report on what is there")
    return made


def play_all(
    episodes: Episodes,
    wanted: Sequence[tuple[Cell, str]],
    seeds: Sequence[int],
    options: argparse.Namespace,
    console: Console,
) -> None:
    """Play what is missing, in seeds that are complete one after the other."""
    jobs = episodes.missing(wanted, seeds)
    if not jobs or options.report_only:
        return
    with console.status("compiling (once after each change of the code)"):
        for job in {job.policy: job for job in jobs}.values():
            short = {"horizon_periods": 3, "warmup_s": 0.0, "drain": False}
            play(job._replace(scenario=job.scenario.with_overrides(short)))
    columns = (TextColumn("episodes"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=not console.is_terminal) as progress:
        bar = progress.add_task("episodes", total=len(jobs))
        whole = episodes.run(
            jobs,
            processes=options.jobs or cores(),
            minutes=options.minutes,
            progress=lambda count: progress.advance(bar, count),
        )
    if not whole:
        console.print(f"stopped after {options.minutes:g} minutes; the same command goes on")


def guarded(job: Callable[[], Any], console: Console) -> int:
    """Run a command; faults of the user end in one line."""

    def run() -> int:
        job()
        return 0

    return status_of(run, console)
