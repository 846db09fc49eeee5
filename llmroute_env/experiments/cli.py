"""Command line of ``scripts/compare.py``: arguments, listings, one-line errors."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rich import box
from rich.table import Table

from llmroute_env.experiments.table import DEFAULT_METRICS, number
from llmroute_env.metrics import METRICS, TIMINGS
from llmroute_env.scenario import Scenario, list_scenarios
from llmroute_env.scenario.saturation import limits

DEFAULT_SCENARIO: Final = "paper-overload"
DEFAULT_POLICIES: Final = "round_robin,lor,power_of_d,central_fifo,sjf,mc_sf,olp"
DEFAULT_OUT: Final = Path("results") / "compare"

_EXAMPLES: Final = """\
examples:
  compare.py --scenario paper-overload --policies round_robin,lor,sjf,olp --seeds 10
  compare.py --policies lor,sjf:aging=0.2,olp:pricing=paper --set cluster.devices=8 --out out/8
  compare.py --policies lor,sjf,olp --load-sweep 0.5,0.7,0.9,1.1 --out out/sweep
  compare.py --policies lor,my_router:MyRouter --baseline lor      (./my_router.py, class MyRouter)
  compare.py --list
"""


def parser() -> argparse.ArgumentParser:
    """The arguments of the comparison."""
    made = argparse.ArgumentParser(
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
    add("--seeds", type=_positive, default=10, help="number of seeds (default: %(default)s)")
    add("--first-seed", type=_natural, default=0, help="first seed (default: %(default)s)")
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
    add("--jobs", type=_positive, help="processes (default: one per core)")
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


def scenario_table(names: Sequence[str] | None = None) -> Table:
    """Constants and offered loads of the embedded scenarios."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title="scenarios", title_justify="left")
    for head in ("name", "devices", "B", "M", "period [s]", "T", "arrivals [1/s]"):
        table.add_column(head, justify="left" if head in ("name", "arrivals [1/s]") else "right")
    for head in ("load: batch", "KV", "peak"):
        table.add_column(head, justify="right")
    table.add_column("prediction")
    table.add_column("description", max_width=52)
    for name in names or list_scenarios():
        table.add_row(*_scenario_row(name))
    return table


def policy_table() -> Table:
    """Names of the policies and what they use of the decode length."""
    import policies

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title="policies", title_justify="left")
    table.add_column("name")
    table.add_column("uses length")
    for name, information in policies.available().items():
        table.add_row(name, information)
    return table


def _scenario_row(name: str) -> list[str]:
    scenario = Scenario.load(name)
    device, cluster = limits(scenario), scenario.cluster
    load = scenario.offered_load()
    loads = [f"{x:.2f}" if math.isfinite(x) else "–" for x in (load.batch, load.kv, load.peak)]
    horizon = "trace" if scenario.horizon is None else f"{scenario.horizon:,}"
    return [
        name,
        str(cluster.devices),
        str(device.batch_limit),
        f"{device.kv_limit:,}",
        f"{scenario.period_s:g}",
        horizon,
        _pairs(scenario.workload.arrivals),
        *loads,
        _pairs(scenario.prediction),
        scenario.description,
    ]


def _pairs(section: object) -> str:
    """``kind key=value ...`` of one section."""
    data: dict[str, object] = section.model_dump(exclude_none=True)  # type: ignore[attr-defined]
    kind = str(data.pop("kind"))
    words = [f"{k}={number(v) if isinstance(v, float) else v}" for k, v in data.items()]
    return " ".join([kind, *words])


def _positive(text: str) -> int:
    return _integer(text, 1)


def _natural(text: str) -> int:
    return _integer(text, 0)


def _integer(text: str, least: int) -> int:
    try:
        value = int(text)
    except ValueError:
        value = least - 1
    if value < least:
        raise argparse.ArgumentTypeError(f"{text!r} is not an integer of at least {least}")
    return value


def _loads(text: str) -> tuple[float, ...]:
    try:
        loads = sorted({float(part) for part in text.split(",")})
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of numbers") from None
    if not all(0 < load < math.inf for load in loads):
        raise argparse.ArgumentTypeError(f"{text!r}: loads must be positive")
    return tuple(loads)


def _metrics(text: str) -> tuple[str, ...]:
    known = METRICS.keys() | TIMINGS.keys()
    keys = tuple(part.strip() for part in text.split(",") if part.strip())
    for key in keys:
        if key not in known:
            raise argparse.ArgumentTypeError(
                f"unknown metric {key!r}; known: {', '.join((*METRICS, *TIMINGS))}"
            )
    return keys or DEFAULT_METRICS
