"""Command line of ``scripts/compare.py``: arguments, listings, one-line errors."""

from __future__ import annotations

import argparse
import difflib
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from pydantic import BaseModel
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from llmroute_env.command_line import Parser, at_least
from llmroute_env.experiments import runner
from llmroute_env.experiments.table import DEFAULT_METRICS
from llmroute_env.metrics import METRICS, TIMINGS
from llmroute_env.scenario import Scenario, list_scenarios
from llmroute_env.scenario.cluster import Cluster, Group
from llmroute_env.scenario.saturation import Limits, limits
from llmroute_env.scenario.workload import Workload

DEFAULT_SCENARIO: Final = "paper-overload"
DEFAULT_POLICIES: Final = "round_robin,lor,power_of_d,central_fifo,sjf,mc_sf,olp"
_INTERRUPTED: Final = 130
DEFAULT_OUT: Final = Path("results") / "compare"

_EXAMPLES: Final = """\
examples:
  compare.py --scenario paper-overload --policies round_robin,lor,sjf,olp --seeds 10
  compare.py --policies lor,sjf:aging=0.2,olp:pricing=paper --set cluster.devices=8 --out out/8
  compare.py --policies lor,sjf,olp --load-sweep 0.5,0.7,0.9,1.1 --out out/sweep
  compare.py --policies lor,my_router:MyRouter --baseline lor      (./my_router.py, class MyRouter)
  compare.py --list
"""


def status_of(command: Callable[[], int], err: Console) -> int:
    """Exit status of a command that plays episodes; faults of the user end in one line."""
    try:
        return command()
    except runner.EpisodeError as error:
        err.print(escape(error.details.rstrip()))
        err.print(f"[bold red]error:[/] {escape(str(error))}", soft_wrap=True)
        return 1
    except (ValueError, OSError) as error:
        err.print(f"[bold red]error:[/] {escape(str(error))}", soft_wrap=True)
        return 2
    except KeyboardInterrupt:
        err.print("interrupted: the same command goes on with what is missing")
        return _INTERRUPTED


def parser() -> argparse.ArgumentParser:
    """The arguments of the comparison."""
    made = Parser(
        prog="compare.py",
        description="Run routers on the same sample paths and compare them: table, CSV, plots, "
        "TensorBoard.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = made.add_argument
    add("--scenario", default=DEFAULT_SCENARIO, help="name or YAML file (default: %(default)s)")
    add(
        "--policies",
        default=DEFAULT_POLICIES,
        help="comma-separated name, name:key=value or module:Class (default: %(default)s)",
    )
    add("--baseline", help="policy that improvements are against (default: the first)")
    add("--seeds", type=at_least(1), default=10, help="number of seeds (default: %(default)s)")
    add("--first-seed", type=at_least(0), default=0, help="first seed (default: %(default)s)")
    add(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="override a scenario key; may be repeated",
    )
    add("--warmup", type=float, metavar="S", help="leave the first S seconds out of the metrics")
    add(
        "--load-sweep",
        type=_loads,
        default=(),
        metavar="LOADS",
        help="also run at these offered loads (1 = saturation), e.g. 0.5,0.8,1.1",
    )
    add(
        "--out",
        type=Path,
        help="result directory; resumed when it holds the same scenario "
        f"(default: the next number under {DEFAULT_OUT})",
    )
    add("--overwrite", action="store_true", help="delete the results that --out holds")
    add("--jobs", type=at_least(1), help="processes (default: one per core)")
    add(
        "--metrics",
        type=_metrics,
        default=DEFAULT_METRICS,
        help=f"columns of the table (default: {','.join(DEFAULT_METRICS)})",
    )
    add("--no-plots", action="store_true", help="write no PNG files")
    add("--no-tensorboard", action="store_true", help="write no TensorBoard runs")
    add("--list", action="store_true", help="list scenarios and policies, and stop")
    return made


def split_policies(text: str) -> list[str]:
    """Policies of a comma-separated list.

    Raises:
        ValueError: nothing, or the same policy twice.
    """
    policies = [part.strip() for part in text.split(",") if part.strip()]
    if not policies:
        raise ValueError("--policies: name at least one policy")
    for policy in policies:
        if policies.count(policy) > 1:
            raise ValueError(f"--policies: {policy} is named twice")
    return policies


def scenario_listing() -> Text:
    """Every constant of the embedded scenarios, and their offered loads."""
    listing = Text()
    for name in list_scenarios():
        scenario = Scenario.load(name)
        listing.append(name, style="bold").append(f"  {scenario.description}\n")
        for head, words in _facts(scenario).items():
            listing.append(f"  {head:<11}", style="dim").append(f"{words}\n")
    return listing


def policy_table() -> Table:
    """Names of the policies and what they use of the decode length."""
    import policies

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title="policies", title_justify="left")
    table.add_column("name")
    table.add_column("uses length")
    for name, information in policies.available().items():
        table.add_row(name, information)
    return table


def _group(group: Group, device: Limits) -> str:
    context = "none" if device.context_limit is None else f"{device.context_limit:,} tokens"
    timing = group.timing.model_dump(exclude_none=True)
    return (
        f"{'' if group.name == 'default' else group.name + ': '}G {group.devices}, "
        f"B {device.batch_limit}, M {device.kv_limit:,} tokens, context limit {context}, "
        f"iteration {timing.pop('kind')} {_pairs(timing)}"
    )


def _modes(cluster: Cluster) -> str:
    """The optional parts of the cluster that are on."""
    parts = {"prefill": cluster.prefill, "prefix cache": cluster.prefix_cache,
             "handoff": cluster.handoff}  # fmt: skip
    return "".join(
        f"; {name} {_pairs(part.model_dump())}" for name, part in parts.items() if part is not None
    )


def _facts(scenario: Scenario) -> dict[str, str]:
    cluster, load = scenario.cluster, scenario.offered_load()
    horizon = "as the trace" if scenario.horizon is None else f"{scenario.horizon:,} periods"
    loads = f"batch {load.batch:.2f}, KV {load.kv:.2f}"
    loads += f", token budget {load.budget:.2f}" if load.budget else ""
    loads += f", at the peak {load.peak:.2f}"
    loads += ", nothing cached" if cluster.prefix_cache is not None else ""
    return {
        "cluster": "; ".join(
            _group(*pair) for pair in zip(cluster.fleet, limits(scenario), strict=True)
        )
        + f"; KV block {cluster.kv_block}{_modes(cluster)}",
        "time": f"period {scenario.period_s:g} s, T {horizon}"
        f"{' and drain' if scenario.drain else ''}",
        "router": f"W {scenario.router.window}",
        "arrivals": _section(scenario.workload.arrivals),
        "lengths": _lengths(scenario.workload),
        "prediction": _section(scenario.prediction),
        "objective": _pairs(scenario.objective.model_dump()),
        "load": loads if math.isfinite(load.batch) else "unknown: the trace file is not here",
    }


def _lengths(workload: Workload) -> str:
    words = _section(workload.lengths)
    if workload.sessions is not None:
        words += f"; {_section(workload.sessions)}"
    if workload.text is not None:
        words += f"; text {_pairs(workload.text.model_dump())}"
    return words


def _section(section: BaseModel) -> str:
    """``kind key=value ...`` of a part of the scenario."""
    data = section.model_dump(exclude_none=True)
    return f"{data.pop('kind')} {_pairs(data)}".rstrip()


def _pairs(data: Mapping[str, object]) -> str:
    words = []
    for key, value in data.items():
        if isinstance(value, Mapping):
            words.append(f"{key}({_pairs(value)})")
        else:
            words.append(f"{key}={value:g}" if isinstance(value, float) else f"{key}={value}")
    return " ".join(words)


def _loads(text: str) -> tuple[float, ...]:
    try:
        loads = sorted({float(part) for part in text.split(",")})
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of numbers") from None
    if not all(0 < load < math.inf for load in loads):
        raise argparse.ArgumentTypeError(f"{text!r}: loads must be positive")
    return tuple(loads)


def _metrics(text: str) -> tuple[str, ...]:
    known = (*METRICS, *TIMINGS)
    keys = tuple(part.strip() for part in text.split(",") if part.strip())
    for key in keys:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=3, cutoff=0.5)
            hint = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(known)}"
            raise argparse.ArgumentTypeError(f"unknown metric {key!r}; {hint}")
    return keys or DEFAULT_METRICS
