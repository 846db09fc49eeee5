"""The command ``scripts/arena.py``: every policy in every cell, scores and tests."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rich.markdown import Markdown

from llmroute_env.command_line import cores
from llmroute_env.experiments.cli import split_policies
from llmroute_env.experiments.science import arena, command
from llmroute_env.experiments.science.bounds import Bounds
from llmroute_env.experiments.science.episodes import Episodes
from llmroute_env.experiments.table import console
from llmroute_env.scenario.loading import config_directory

_EXAMPLES: Final = """\
examples:
  arena.py
  arena.py --out results/mine --policies my_router:MyRouter      (./my_router.py, class MyRouter)
  arena.py --seeds 20 --minutes 15
  arena.py --config my_arena.yaml --out results/other
"""


def arguments() -> argparse.ArgumentParser:
    """The command line."""
    made = command.parser(
        "arena.py",
        "Play every policy in every cell of an arena and say who wins what.",
        _EXAMPLES,
        Path("results") / "arena",
    )
    made.add_argument(
        "--config", type=Path, help="arena file (default: configs/arena/default.yaml)"
    )
    made.add_argument("--bound-seeds", type=int, help="seeds with a hindsight bound (0: none)")
    made.add_argument(
        "--bound-minutes",
        type=float,
        default=math.inf,
        help="time for bounds; what is missing then is left out",
    )
    made.add_argument("--policies", default="", help="policies to add, as in compare.py")
    return made


def main(given: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    options = arguments().parse_args(given)
    return command.guarded(lambda: _play(options), console(stderr=True))


def _play(options: argparse.Namespace) -> None:
    from llmroute_env.experiments.science import arena_report

    path = options.config or config_directory() / "arena" / "default.yaml"
    extra = split_policies(options.policies) if options.policies else []
    held = arena.load(path, extra)
    first = held.first_seed if options.first_seed is None else options.first_seed
    seeds = range(first, first + (options.seeds or held.seeds))
    episodes = Episodes(options.out / "episodes.csv")
    command.play_all(episodes, held.wanted(), seeds, options, console(stderr=True))
    bounds = Bounds(options.out / "bounds.csv")
    count = held.bound_seeds if options.bound_seeds is None else options.bound_seeds
    if count and not options.report_only:
        with console(stderr=True).status("hindsight bounds (seconds each)"):
            bounds.run(
                held,
                seeds[:count],
                processes=options.jobs or cores(),
                minutes=options.bound_minutes,
            )
    text = arena_report.write(held, episodes, bounds, options.out)
    console().print(Markdown(text))
