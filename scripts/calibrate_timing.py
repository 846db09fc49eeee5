"""Fit the iteration-time model from profile CSVs and write configs/devices and configs/models.

    python scripts/calibrate_timing.py --profiles ../shared/profiles --check
    python scripts/calibrate_timing.py --profiles ../shared/profiles --force

The CSVs have the format of microsoft/vidur's data/profiling (MIT), which has those of the A100.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rich.console import Console

from llmroute_env.cluster import calibration as cal
from llmroute_env.cluster.calibration.facts import A100, MODELS
from llmroute_env.scenario import config_directory


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--profiles",
        type=Path,
        default=Path("../shared/profiles"),
        help="directory with the profile CSVs (default: %(default)s)",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=config_directory(),
        help="configs directory to write to (default: the project's)",
    )
    parser.add_argument(
        "--models",
        default=",".join(model.name for model in MODELS),
        help="comma-separated models (default: %(default)s)",
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="of the held-out split (default: %(default)s)"
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--check",
        action="store_true",
        help="fit and compare with the files; write nothing; exit 1 if they differ",
    )
    what.add_argument("--force", action="store_true", help="overwrite existing files")
    options = parser.parse_args(arguments)  # fmt: skip
    try:
        return _run(options)
    except (ValueError, OSError) as error:
        print(f"calibrate_timing: {error}", file=sys.stderr)
        return 2


def _run(options: argparse.Namespace) -> int:
    names = [name.strip() for name in options.models.split(",") if name.strip()]
    known = {model.name: model for model in MODELS}
    if not names or set(names) - set(known):
        raise ValueError(f"--models {options.models!r}: known are {', '.join(known)}")
    there = cal.existing(A100.name, names, options.out)
    if there and not (options.check or options.force):
        raise ValueError(f"{there[0]} exists: --force overwrites, --check compares")

    fitted = cal.calibrate(
        options.profiles, seed=options.seed, models=[known[name] for name in names]
    )
    console = Console(width=None if sys.stdout.isatty() else 160)
    cal.print_report(fitted, console)
    if options.check:
        lines = cal.differences(fitted, options.out)
        for line in lines:
            print(line)
        print(f"check: {len(lines)} difference(s) from {options.out}")
        return 1 if lines else 0
    for path in cal.write(fitted, options.out):
        print(f"wrote {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
