"""The command ``scripts/reproduce_paper.py``: play, tabulate, judge, write the report."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rich.markdown import Markdown

from llmroute_env.env import LLMRouteEnv
from llmroute_env.experiments.science import command, curves, registry, sweeps
from llmroute_env.experiments.science.claims import OLP_FLUID
from llmroute_env.experiments.science.episodes import Episodes
from llmroute_env.experiments.table import console
from llmroute_env.scenario import Scenario
from policies.registry import make

FIRST_SEED: Final = 1000
SEEDS: Final = 20
QUICK_SEEDS: Final = 2
QUICK_DETECTIONS: Final = 100
DETECTIONS: Final = 1_000

_EXAMPLES: Final = """\
examples:
  reproduce_paper.py                                         all of it, into docs/results.md
  reproduce_paper.py --minutes 10                            as many seeds as fit
  reproduce_paper.py --out results/quick --quick             2 seeds, into results/quick/results.md
  reproduce_paper.py --report-only                           the report anew
  reproduce_paper.py --section targets --quick               one further section alone, printed
"""


def arguments() -> argparse.ArgumentParser:
    """The command line."""
    made = command.parser(
        "reproduce_paper.py",
        "Reproduce the figures of arXiv 2607.03948, say which hold and where the gain comes from.",
        _EXAMPLES,
        Path("results") / "paper",
    )
    add = made.add_argument
    add("--quick", action="store_true", help=f"{QUICK_SEEDS} seeds; the report stays under --out")
    add(
        "--docs",
        type=Path,
        help="directory of results.md and images/ (default: docs; with --quick: --out)",
    )
    add(
        "--arena",
        type=Path,
        default=Path("results") / "arena",
        help="results of scripts/arena.py, in the report when they are there (default: "
        "%(default)s)",
    )
    add("--section", help="run one of the further sections alone and print it")
    return made


def main(given: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    options = arguments().parse_args(given)
    err = console(stderr=True)
    return command.guarded(lambda: _reproduce(options), err)


def has_fluid() -> bool:
    """Whether the router offers ``pricing=fluid``."""
    try:
        make(OLP_FLUID, LLMRouteEnv(Scenario.load("paper-stable")))
    except ValueError:
        return False
    return True


def _reproduce(options: argparse.Namespace) -> None:
    from llmroute_env.experiments.science.report import Study, write

    if options.section:
        _section(options)
        return
    fluid = has_fluid()
    episodes = Episodes(options.out / "episodes.csv")
    count = options.seeds or (QUICK_SEEDS if options.quick else SEEDS)
    first = FIRST_SEED if options.first_seed is None else options.first_seed
    wanted = [*sweeps.everything(fluid), *curves.plane_wanted(fluid)]
    command.play_all(episodes, wanted, range(first, first + count), options, console(stderr=True))
    if not episodes.rows:
        raise ValueError(f"{options.out}: there are no episodes to report on")
    study = Study(
        episodes,
        options.out,
        options.docs or (options.out if options.quick else Path("docs")),
        fluid,
        QUICK_DETECTIONS if options.quick else DETECTIONS,
        options.arena,
        options.quick,
        not options.report_only,
    )
    console().print(f"report: {write(study)}")


def _section(options: argparse.Namespace) -> None:
    """One further section, its rows into the CSV file of the whole run."""
    play = not options.report_only
    rows = registry.rows_of(options.section, options.out, quick=options.quick, play=play)
    plot = getattr(registry.section(options.section), "plot", None)
    if plot is not None and rows:
        plot(rows, options.out / "images")
    console().print(Markdown(registry.section(options.section).render(rows)))
