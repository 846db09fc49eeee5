"""Command lines of ``scripts/train.py`` and ``scripts/collect.py``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from llmroute_env.command_line import Parser
from llmroute_env.training.config import load_config
from llmroute_env.training.dataset import collect

_TRAIN_EXAMPLES = """\
examples:
  train.py --config pairs --out results/train/001
  train.py --config pairs --set seed=2 --set steps=500000 --out results/train/002
  train.py --resume --out results/train/001
  train.py --throughput
  train.py --report results/train/001
then:
  compare.py --policies lor,mc_sf,learned:path=results/train/001
  tensorboard --logdir results/train
"""

_COLLECT_EXAMPLES = """\
examples:
  collect.py --scenario paper-overload --policy mc_sf --episodes 4 --out data/mc_sf
  collect.py --scenario paper-overload --set router.window=64 --policy olp --out data/olp
"""


def _parser(prog: str, description: str, examples: str) -> argparse.ArgumentParser:
    return Parser(
        prog=prog,
        description=description,
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def train_main(arguments: Sequence[str] | None = None) -> int:
    """Entry of ``scripts/train.py``; returns the exit status."""
    parser = _parser(
        "train.py",
        "Train a router: behaviour cloning, then reinforcement; curves and checkpoints in one "
        "directory.",
        _TRAIN_EXAMPLES,
    )
    add = parser.add_argument
    add("--config", help="name under configs/training, or a YAML file")
    add("--out", type=Path, help="directory of the run; must be absent or empty")
    add("--resume", action="store_true", help="go on with the run in --out")
    add("--set", action="append", default=[], metavar="KEY=VALUE", help="override a key")
    add("--quiet", action="store_true", help="no table of numbers on the terminal")
    add("--no-progress", action="store_true", help="no progress bar")
    add(
        "--throughput",
        action="store_true",
        help="measure training frames/s of the native vector environment against DummyVecEnv and "
        "SubprocVecEnv, print them, and stop",
    )
    add(
        "--report",
        nargs="?",
        const="shipped",
        metavar="RUN",
        help="compare a run's best checkpoint (or a .npz; none named: the shipped one) with every "
        "rival on held-out seeds, print the tables, and stop; --out is a CSV for the episodes, and "
        "rivals found in it are not played again",
    )
    add("--seeds", type=int, default=64, help="of --report (default: %(default)s)")
    add("--first-seed", type=int, default=200_000, help="of --report (default: %(default)s)")
    add("--bounds", type=int, default=8, help="of --report: seeds with a hindsight bound")
    given = parser.parse_args(arguments)
    try:
        return _train(given)
    except ImportError as error:
        return _fault(f'training needs the extra rl: pip install "llmroute-env[rl]" ({error})')
    except ValueError as error:
        return _fault(str(error))


def _train(given: argparse.Namespace) -> int:
    if given.throughput:
        from llmroute_env.training.throughput import main as measure

        return measure()
    if given.report is not None:
        from llmroute_env.training.report import report

        path = None if given.report == "shipped" else Path(given.report)
        report(
            path,
            seeds=given.seeds,
            first_seed=given.first_seed,
            bounds=given.bounds,
            out=given.out,
        )
        return 0
    if given.out is None:
        raise ValueError("--out: name the directory of the run")
    from llmroute_env.training.trainer import resume, train

    show = {"progress": not given.no_progress, "quiet": given.quiet}
    if given.resume:
        if given.config or given.set:
            raise ValueError("--resume: takes its configuration from --out, not --config or --set")
        run = resume(given.out, **show)
    else:
        if given.config is None:
            raise ValueError("--config: name a training configuration")
        run = train(load_config(given.config, _overrides(given.set)), given.out, **show)
    state = run.state()
    print(
        f"{run.path}: {state['steps']:,} steps in {state['seconds'] / 60:.1f} min, best gain over "
        f"the reference on held-out seeds {state['best_gain']:+.3f}%"
    )
    return 0


def collect_main(arguments: Sequence[str] | None = None) -> int:
    """Entry of ``scripts/collect.py``; returns the exit status."""
    parser = _parser(
        "collect.py", "Record episodes of a policy as an offline dataset.", _COLLECT_EXAMPLES
    )
    add = parser.add_argument
    add("--scenario", default="paper-overload", help="name or YAML file (default: %(default)s)")
    add("--set", action="append", default=[], metavar="KEY=VALUE", help="override a scenario key")
    add("--policy", default="mc_sf", help="as in compare.py (default: %(default)s)")
    add("--episodes", type=int, default=4, help="number of episodes (default: %(default)s)")
    add("--first-seed", type=int, default=0, help="seed of the first one (default: %(default)s)")
    add("--out", type=Path, required=True, help="directory of the dataset; absent or empty")
    given = parser.parse_args(arguments)
    try:
        found = collect(
            given.scenario,
            given.policy,
            given.out,
            episodes=given.episodes,
            first_seed=given.first_seed,
            overrides=_overrides(given.set),
        )
    except ValueError as error:
        return _fault(str(error))
    size = sum(file.stat().st_size for file in given.out.iterdir())
    print(f"{given.out}: {len(found)} episodes, {found.steps:,} steps, {size / 1e6:.1f} MB")
    return 0


def _overrides(pairs: Sequence[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not (key and equals):
            raise ValueError(f"--set {pair}: must be KEY=VALUE")
        found[key] = yaml.safe_load(value)
    return found


def _fault(message: str) -> int:
    print(f"error: {message}", file=sys.stderr)
    return 2
