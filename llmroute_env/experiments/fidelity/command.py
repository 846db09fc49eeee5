"""The command ``scripts/fidelity.py``: replay Vidur's runs, and say how far off we are."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import pandas as pd

from llmroute_env.command_line import Parser
from llmroute_env.experiments.fidelity import figures, report, runs, variants
from llmroute_env.experiments.fidelity.measures import compare
from llmroute_env.experiments.fidelity.store import Store
from llmroute_env.experiments.science.command import guarded
from llmroute_env.experiments.table import console

_EXAMPLES: Final = """\
examples:
  fidelity.py --out results/fidelity                    table, CSV files and a plot
  fidelity.py --out results/fidelity --docs docs        and docs/fidelity.md with its image
  fidelity.py --out results/mine --data my/vidur/runs
"""


def arguments() -> argparse.ArgumentParser:
    """The command line."""
    made = Parser(
        prog="fidelity.py",
        description="Replay runs of Vidur on this environment and compare the latencies.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = made.add_argument
    add("--out", type=Path, required=True, help="directory of the results; resumed")
    add("--data", type=Path, help=f"runs of Vidur (default: {runs.DEFAULT_DATA})")
    add(
        "--profiles",
        type=Path,
        default=variants.DEFAULT_PROFILES,
        help="profile CSVs, for the causes of what remains (default: %(default)s)",
    )
    add("--docs", type=Path, help="also write fidelity.md and its image there")
    add("--overwrite", action="store_true", help="replace replays of other inputs")
    return made


def main(given: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    options = arguments().parse_args(given)
    if options.data is None:
        if not runs.DEFAULT_DATA.is_dir():
            console().print(
                f"skipped: no runs of Vidur in {runs.DEFAULT_DATA} (--data names another folder)",
                soft_wrap=True,
            )
            return 0
        options.data = runs.DEFAULT_DATA
    return guarded(lambda: _compare(options), console(stderr=True))


def _per_request(run: runs.Run, replays: Mapping[tuple[str, str], pd.DataFrame]) -> pd.DataFrame:
    """The run's requests with the times of both replays."""
    columns = {}
    for prefix, key in (("here", variants.OURS), ("conventions", variants.VIDUR)):
        for name, values in replays[run.name, key].items():
            columns[f"{prefix}_{name}"] = values
    return run.requests.assign(**columns)


def _compare(options: argparse.Namespace) -> None:
    found = runs.load_all(options.data)
    wanted = variants.conventions()
    if options.profiles.is_dir():
        wanted += variants.readings(options.profiles)
    elif options.docs is not None:
        raise ValueError(f"--docs needs the profile CSVs: {options.profiles} is not there")
    else:
        console(stderr=True).print(
            f"{options.profiles} is not there: the causes end with Vidur's conventions",
            soft_wrap=True,
        )
    store = Store(options.out, overwrite=options.overwrite)
    jobs = [(run, variant) for run in found for variant in wanted]
    for job in jobs:  # refuse before anything is played
        store.check(*job)
    replays = {}
    with console(stderr=True).status("replaying") as status:
        for number, (run, variant) in enumerate(jobs):
            status.update(f"replaying {number + 1} of {len(jobs)}: {run.name}, {variant.key}")
            replays[run.name, variant.key] = store.get(run, variant)
    errors = pd.concat(
        [
            compare(run.requests, replays[run.name, variant.key]).assign(
                run=run.name, variant=variant.key
            )
            for run, variant in jobs
        ],
        ignore_index=True,
    )
    errors = errors[["run", "variant", "measure", "vidur", "replay", "error_percent"]]
    errors.to_csv(options.out / "errors.csv", index=False)
    for run in found:
        _per_request(run, replays).to_csv(options.out / f"requests_{run.name}.csv", index=False)
    image = figures.write(options.out / "fidelity.png", found, replays)
    if options.docs is not None:
        images = options.docs / "images"
        images.mkdir(parents=True, exist_ok=True)
        (images / "fidelity.png").write_bytes(image.read_bytes())
        text = report.page(errors, found, wanted)
        (options.docs / "fidelity.md").write_text(text, encoding="utf-8")
    console().print(report.rich_table(errors, found))
