"""What the calibration script prints: errors, the iteration-time curve, the second profile."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table as RichTable

from llmroute_env.cluster.calibration.build import Calibration
from llmroute_env.cluster.memory import plan
from llmroute_env.cluster.profiled import ProfiledTimes
from llmroute_env.cluster.profiles import ModelProfile
from llmroute_env.cluster.timing import IterationTiming, from_profile

#: Aims for the median relative error on held-out rows.
AIMS = {"layer": 0.05, "attention_decode": 0.10}

_CURVE_BATCH = (1, 8, 32, 64, 128, 256)
_CURVE_KV = (0, 20_000, 40_000, 60_000, 80_000, 112_000)


def print_report(calibration: Calibration, console: Console) -> None:
    """Print errors, curve, memory plans and the comparison with Splitwise's table."""
    console.print(_errors(calibration))
    for model in calibration.models:
        if model.name == "llama-2-7b":
            console.print(_curve(calibration, model))
    console.print(_replicas(calibration))
    table = _splitwise(calibration)
    if table is not None:
        console.print(table)


def error_rows(calibration: Calibration) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """What was fitted, its kind, and the errors on held-out rows."""
    for model in calibration.models:
        for tp, layer in model.profiles[calibration.device.name].items():
            yield f"{model.name} tp {tp} linear layers", "layer", layer.errors["layer"]
    errors = calibration.device.errors
    yield "attention, decode", "attention_decode", errors["attention_decode"]
    yield "attention, prefill", "attention_prefill", errors["attention_prefill"]
    for tp, error in errors["all_reduce"].items():
        yield f"all-reduce tp {tp}", "all_reduce", error


def _errors(calibration: Calibration) -> RichTable:
    table = RichTable(
        title="Relative error on held-out rows", caption=calibration.device.provenance["errors"]
    )
    table.add_column("fit")
    for column in ("rows", "median", "p95", "aim"):
        table.add_column(column, justify="right")
    table.add_column("median by range (tokens; KV tokens; bytes)")
    for name, kind, error in error_rows(calibration):
        aim = AIMS.get(kind)
        met = aim is None or error["median"] < aim
        ranges = "  ".join(
            f"{label}: {part['median']:.1%}" for label, part in error["ranges"].items()
        )
        median = f"{error['median']:.1%}"
        table.add_row(
            name,
            str(error["rows"]),
            median if met else f"[red]{median}[/red]",
            f"{error['p95']:.1%}",
            "" if aim is None else f"< {aim:.0%}",
            ranges,
        )
    return table


def curve(timing: IterationTiming, batch: int) -> list[float]:
    """Iteration time [ms] at each KV load of the printed curve."""
    return [1e3 * timing.iteration_s(batch, kv) for kv in _CURVE_KV]


def _curve(calibration: Calibration, model: ModelProfile) -> RichTable:
    timing = from_profile(calibration.device, model, 1, max(_CURVE_BATCH))
    table = RichTable(
        title=f"Iteration time of {model.name} on one {calibration.device.name} [ms]",
        caption=f"{1e9 * timing.kv_s:.0f} ns per KV token, {1e6 * timing.prefill_s:.1f} us per "
        f"prefill token, {1e3 * calibration.device.overhead_s:g} ms overhead",
    )
    table.add_column("batch", justify="right")
    for kv in _CURVE_KV:
        table.add_column(f"kv {kv:,}", justify="right")
    for batch in _CURVE_BATCH:
        table.add_row(str(batch), *(f"{value:.1f}" for value in curve(timing, batch)))
    return table


def _replicas(calibration: Calibration) -> RichTable:
    table = RichTable(title="Replicas: memory plan, 64 requests at M / 2")
    for column in ("model", "tp", "KV tokens M", "iteration [ms]", "prefill [us/token]"):
        table.add_column(column, justify="left" if column == "model" else "right")
    for model in calibration.models:
        for tp in model.profiles[calibration.device.name]:
            try:
                kv_limit = plan(calibration.device, model, tp).kv_limit
            except ValueError:
                table.add_row(model.name, str(tp), "does not fit", "", "")
                continue
            timing = from_profile(calibration.device, model, tp, 64)
            # Half of M, or 64 requests at the context limit where M is beyond that.
            kv = min(kv_limit / 2, 64 * model.context_limit)
            table.add_row(
                model.name,
                str(tp),
                f"{kv_limit:,}",
                f"{1e3 * timing.iteration_s(64, kv):.1f}",
                f"{1e6 * timing.prefill_s:.1f}",
            )
    return table


def splitwise_comparison(calibration: Calibration) -> dict[int, dict[str, float]]:
    """Llama-2-70B's time per output token, Splitwise's measurement against this model.

    Returns:
        Per tensor-parallel degree: ``rows``, ``measured_ms`` and ``model_ms`` (medians), and
        ``ratio`` (median of model / measured). Empty without the table or the model.
    """
    models = {model.name: model for model in calibration.models}
    measured, model = calibration.splitwise, models.get("llama-2-70b")
    if measured is None or model is None:
        return {}
    result: dict[int, dict[str, float]] = {}
    for degree, group in measured.groupby("tp"):
        tp = int(str(degree))
        if tp not in model.profiles[calibration.device.name]:
            continue
        times = ProfiledTimes(calibration.device, model, tp)
        batch = group["batch"].to_numpy(np.float64)
        # The mean KV over the generation: the prompt and half of the output.
        kv = batch * (group["prompt"] + group["output"] / 2).to_numpy(np.float64)
        ours = 1e3 * (calibration.device.overhead_s + times.batch_s(batch) + times.kv_s * kv)
        theirs = group["token_ms"].to_numpy(np.float64)
        result[tp] = {
            "rows": float(len(group)),
            "measured_ms": float(np.median(theirs)),
            "model_ms": float(np.median(ours)),
            "ratio": float(np.median(ours / theirs)),
        }
    return result


def _splitwise(calibration: Calibration) -> RichTable | None:
    comparison = splitwise_comparison(calibration)
    if not comparison:
        return None
    table = RichTable(
        title="Splitwise's Llama-2-70B, time per token",
        caption="A second, independent profile: measured end to end on an older stack, with "
        "scheduling and the launch of every kernel in it; ours has kernels and the overhead.",
    )
    for column in ("tp", "rows", "measured [ms]", "this model [ms]", "model / measured"):
        table.add_column(column, justify="right")
    for tp, row in comparison.items():
        table.add_row(
            str(tp),
            f"{row['rows']:.0f}",
            f"{row['measured_ms']:.1f}",
            f"{row['model_ms']:.1f}",
            f"{row['ratio']:.2f}",
        )
    return table
