"""The main job: run policies over seeds, write the records, show them in four ways."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pandas as pd
from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from llmroute_env.command_line import cores
from llmroute_env.experiments import cli, load, runner, statistics, table
from llmroute_env.experiments.records import ResultDirectory, frame, write_csv
from llmroute_env.scenario import Scenario, parse_assignments

_RUNS_SHOWN: Final = 40  #: TensorBoard's own limit


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status. Faults of the user end in one line."""
    options = cli.parser().parse_args(arguments)
    out, err = table.console(), table.console(stderr=True)
    return cli.status_of(lambda: _main(options, out, err), err)


def _main(options: argparse.Namespace, out: Console, err: Console) -> int:
    if options.list:
        out.print(cli.scenario_listing())
        out.print(cli.policy_table())
        return 0
    return _compare(options, out, err)


def _compare(options: argparse.Namespace, out: Console, err: Console) -> int:
    overrides = parse_assignments(options.set)
    if options.warmup is not None:
        overrides["warmup_s"] = options.warmup
    scenario = Scenario.load(options.scenario, overrides)
    policies = cli.split_policies(options.policies)
    baseline = options.baseline or policies[0]
    if baseline not in policies:
        raise ValueError(f"--baseline {baseline}: not among --policies {', '.join(policies)}")
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    for asked in options.load_sweep:
        load.at_load(scenario, asked)
    runner.check(scenario, policies)

    results = ResultDirectory(
        options.out or _next_directory(), scenario, overwrite=options.overwrite
    )
    _run(options, results, policies, seeds, err)

    records = results.records()
    episodes = frame(records)
    comparison = statistics.compare(episodes, baseline)
    write_csv(episodes, results.path / "episodes.csv")
    write_csv(comparison, results.path / "comparison.csv")
    sweep = results.sweep_records()
    if sweep:
        write_csv(frame(sweep), results.path / "sweep.csv")

    for part in table.comparison_tables(episodes, comparison, options.metrics, out.width):
        out.print(part)
    out.print(table.caption(episodes, baseline))
    _warn(episodes, err)
    out.print(f"results: {results.path}/episodes.csv, comparison.csv", soft_wrap=True)
    if not options.no_plots:
        _plot(results, comparison, out, err)
    if not options.no_tensorboard:
        _tensorboard(results, out)
    return 0


def _run(
    options: argparse.Namespace,
    results: ResultDirectory,
    policies: Sequence[str],
    seeds: Sequence[int],
    err: Console,
) -> None:
    tasks = runner.missing(results, policies, seeds, options.load_sweep)
    wanted = len(policies) * len(seeds) * (1 + len(options.load_sweep))
    if len(tasks) < wanted:
        done = wanted - len(tasks)
        err.print(f"{results.path}: {done} of {wanted} episodes are there already", soft_wrap=True)
    if not tasks:
        return
    compiling = "compiling (takes a minute, once after each change of the code)"
    if not err.is_terminal:
        err.print(compiling)
    with err.status(compiling):
        runner.compile_policies(results.scenario, policies)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=err, transient=not err.is_terminal) as progress:
        bar = progress.add_task(results.scenario.name, total=len(tasks))
        jobs = options.jobs or cores()
        runner.run(tasks, jobs=jobs, progress=lambda _: progress.advance(bar))


def _warn(episodes: pd.DataFrame, err: Console) -> None:
    hidden = table.hidden_warning(episodes)
    if hidden:
        err.print(f"[yellow]warning:[/] {escape(hidden)}", soft_wrap=True)


def _plot(results: ResultDirectory, comparison: pd.DataFrame, out: Console, err: Console) -> None:
    try:
        import matplotlib as mpl  # noqa: F401  (is it there?)
    except ImportError:
        err.print("no plots: matplotlib is not installed (pip install 'llmroute-env[report]')")
        return
    from llmroute_env.experiments import plots

    written = plots.write_plots(
        results.path / "plots",
        results.scenario,
        results.records(arrays=True),
        comparison,
        results.sweep_records(),
    )
    names = ", ".join(path.name for path in written)
    out.print(f"plots:   {results.path}/plots: {names}", soft_wrap=True)


def _tensorboard(results: ResultDirectory, out: Console) -> None:
    from llmroute_env.experiments import tensorboard

    directory = tensorboard.write_runs(results, load.binding_load(results.scenario))
    out.print(f"TensorBoard: {_tensorboard_program()} --logdir {directory}", soft_wrap=True)
    if sum(1 for _ in directory.glob("*/*/seed*")) > _RUNS_SHOWN:
        out.print(
            f"             (of more than {_RUNS_SHOWN} runs it selects none at first: filter by "
            "seed0, and tick)",
            soft_wrap=True,
        )


def _tensorboard_program() -> str:
    """The program as a shell finds it: by name, or in this environment's own directory."""
    beside = Path(sys.executable).with_name("tensorboard")
    if shutil.which("tensorboard") or not beside.exists():
        return "tensorboard"
    return os.path.relpath(beside)


def _next_directory() -> Path:
    number = 1
    while (path := cli.DEFAULT_OUT / f"{number:03d}").exists():
        number += 1
    return path
