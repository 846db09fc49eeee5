"""Command line of ``scripts/capacity.py``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.markup import escape

from llmroute_env.command_line import Parser, at_least, cores
from llmroute_env.experiments import cli, runner, table
from llmroute_env.experiments.capacity import model, report, slo
from llmroute_env.experiments.capacity.report import Baseline
from llmroute_env.experiments.capacity.sizing import Sizing, size
from llmroute_env.experiments.capacity.trials import CapacityDirectory, Case, Trials
from llmroute_env.experiments.records import EpisodeRecord, write_csv
from llmroute_env.scenario import Scenario, parse_assignments

DEFAULT_SCENARIO: Final = "azure-conv-a100"
DEFAULT_POLICIES: Final = "round_robin,lor,sjf"
DEFAULT_SLOS: Final = ("slo_attainment>=0.8",)
DEFAULT_OUT: Final = Path("results") / "capacity"
_EXAMPLES: Final = """\
examples:
  capacity.py --policies round_robin,lor,sjf --slo "ttft_p99_s<=0.5" --slo "rejected_share<=0.1"
  capacity.py --scenario dual-pool-azure-conv --policies dual_pool,lor --slo "ttft_p99_s<=2"
  capacity.py --scenario a.yaml --scenario b.yaml --policies lor --baseline-scenario b
  capacity.py --policies olp --baseline-gpus 16 --set workload.arrivals.rate=60 --out out/60

A size passes when each objective is met by the one-sided confidence bound of its mean over seeds.
Episodes drain (drain=true), so every request that is not rejected has a latency, unless
--no-drain. The same command goes on where it was stopped, and another --slo reuses the episodes.
"""


def parser() -> argparse.ArgumentParser:
    """The arguments of the search."""
    made = Parser(
        prog="capacity.py",
        description="Find the smallest fleet that meets service-level objectives, for each "
        "scenario and policy, by simulation.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = made.add_argument
    add(
        "--scenario",
        action="append",
        help=f"name or YAML file; may be repeated (default: {DEFAULT_SCENARIO})",
    )
    add(
        "--policies",
        default=DEFAULT_POLICIES,
        help="comma-separated name, name:key=value or module:Class (default: %(default)s)",
    )
    add(
        "--slo",
        action="append",
        metavar="KEY<=X",
        help="objective on a summary key, or on rejected_share, unfinished_share, "
        f"preemptions_per_request; may be repeated (default: {' '.join(DEFAULT_SLOS)})",
    )
    add("--confidence", type=_probability, default=0.95, help="of a bound (default: %(default)s)")
    add("--seeds", type=at_least(2), default=6, help="number of seeds (default: %(default)s)")
    add("--first-seed", type=at_least(0), default=1000, help="first seed (default: %(default)s)")
    add("--baseline", help="policy that savings are against (default: the first)")
    add("--baseline-scenario", help="its scenario's name (default: the first)")
    add(
        "--baseline-gpus",
        type=at_least(1),
        help="savings against a fleet of so many GPUs instead",
    )
    add("--max-devices", type=at_least(1), help="largest fleet to try (default: from the load)")
    add(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="override a scenario key; may be repeated",
    )
    add("--warmup", type=float, metavar="S", help="leave the first S seconds out of the metrics")
    add("--no-drain", action="store_true", help="end episodes as the scenario says")
    add(
        "--out",
        type=Path,
        help=f"directory; resumed when it is one (default: the next number under {DEFAULT_OUT})",
    )
    add("--overwrite", action="store_true", help="delete the results that --out holds")
    add("--jobs", type=at_least(1), help="processes (default: one per core)")
    add("--no-plots", action="store_true", help="write no PNG files")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status. Faults of the user end in one line."""
    options = parser().parse_args(arguments)
    out, err = table.console(), table.console(stderr=True)
    return cli.status_of(lambda: _main(options, out, err), err)


def _main(options: argparse.Namespace, out: Console, err: Console) -> int:
    slos = slo.parse_all(options.slo or DEFAULT_SLOS)
    scenarios = _scenarios(options)
    policies = cli.split_policies(options.policies)
    chosen = _baseline_case(options, scenarios, policies)
    for scenario in scenarios:
        runner.check(scenario, policies)
    directory = CapacityDirectory(options.out or _next_directory(), overwrite=options.overwrite)
    results = {scenario.name: directory.of(scenario) for scenario in scenarios}

    seeds = range(options.first_seed, options.first_seed + options.seeds)
    sizings: list[Sizing] = []
    with err.status("compiling (takes a minute, once after each change of the code)") as status:
        for scenario in scenarios:
            runner.compile_policies(scenario, policies)
        for scenario in scenarios:
            estimate = model.estimate(scenario)
            for policy in policies:
                case = Case(scenario, policy)
                trials = Trials(
                    case,
                    results[scenario.name],
                    slos,
                    seeds,
                    confidence=options.confidence,
                    jobs=options.jobs or cores(),
                    progress=_teller(status, case),
                )
                sizings.append(size(trials, ceiling=options.max_devices, estimate=estimate))

    if options.baseline_gpus is not None:
        baseline = Baseline.given(options.baseline_gpus)
    else:
        baseline = next(Baseline.of(s) for s in sizings if s.case.name == chosen.name)
    write_csv(report.episodes(sizings), directory.path / "episodes.csv")
    write_csv(report.sizes(sizings, slos), directory.path / "sizes.csv")
    write_csv(report.capacity(sizings, slos, baseline), directory.path / "capacity.csv")
    out.print(report.table(sizings, slos, baseline))
    for note in report.notes(sizings, slos, baseline):
        out.print(escape(note), soft_wrap=True)
    out.print(f"results: {directory.path}/capacity.csv, sizes.csv, episodes.csv", soft_wrap=True)
    if not options.no_plots:
        _plot(directory.path, sizings, slos, baseline, out, err)
    return 0


def _scenarios(options: argparse.Namespace) -> list[Scenario]:
    overrides: dict[str, Any] = parse_assignments(options.set)
    if options.warmup is not None:
        overrides["warmup_s"] = options.warmup
    if not options.no_drain:
        overrides.setdefault("drain", True)
    scenarios = [Scenario.load(name, overrides) for name in options.scenario or [DEFAULT_SCENARIO]]
    names = [scenario.name for scenario in scenarios]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"--scenario: {name} is named twice")
    return scenarios


def _baseline_case(
    options: argparse.Namespace, scenarios: Sequence[Scenario], policies: Sequence[str]
) -> Case:
    policy = options.baseline or policies[0]
    if policy not in policies:
        raise ValueError(f"--baseline {policy}: not among --policies {', '.join(policies)}")
    name = options.baseline_scenario or scenarios[0].name
    for scenario in scenarios:
        if scenario.name == name:
            return Case(scenario, policy)
    known = ", ".join(scenario.name for scenario in scenarios)
    raise ValueError(f"--baseline-scenario {name}: not among {known}")


def _teller(status: Any, case: Case) -> Any:
    def tell(record: EpisodeRecord) -> None:
        status.update(f"{escape(case.name)}: {record.scenario}, seed {record.seed}")

    return tell


def _plot(
    path: Path,
    sizings: Sequence[Sizing],
    slos: Sequence[slo.Slo],
    baseline: Baseline,
    out: Console,
    err: Console,
) -> None:
    try:
        import matplotlib as mpl  # noqa: F401  (is it there?)
    except ImportError:
        err.print("no plots: matplotlib is not installed (pip install 'llmroute-env[report]')")
        return
    from llmroute_env.experiments.capacity import plots

    written = plots.write(path, sizings, slos, baseline)
    out.print(f"plots:   {path}/{', '.join(file.name for file in written)}", soft_wrap=True)


def _next_directory() -> Path:
    number = 1
    while (path := DEFAULT_OUT / f"{number:03d}").exists():
        number += 1
    return path


def _probability(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.5 <= value < 1.0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0.5 to below 1")
    return value
