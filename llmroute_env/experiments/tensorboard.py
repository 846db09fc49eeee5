"""TensorBoard runs of a result directory: ``DIR/tb/<scenario>/<policy>/seed<k>``. No torch needed.

Each run has the cluster's time series (step = period), the final metrics under ``metrics/``, the
reward by component under ``reward/``, and its HParams: scenario, policy, seed, weights and load
against reward, EEL and attainment. A load sweep adds runs without time series to the HParams, in
``DIR/tb/<scenario>-load-<load>``. A custom layout puts what belongs together into one chart.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from llmroute_env.experiments.records import EpisodeRecord, ResultDirectory
from llmroute_env.metrics import METRICS, TIMINGS
from llmroute_env.scenario import Scenario

#: Points per curve: TensorBoard itself keeps at most 1,000, and files stay small.
POINTS: Final = 250

#: Outcome columns of the HParams table.
OUTCOMES: Final = ("reward", "eel_mean_s", "eel_p99_s", "slo_attainment")

_WEIGHTS: Final = ("alpha", "beta", "gamma", "sigma", "zeta1", "zeta2", "tail_eel_s", "tail_ttft_s")

_LAYOUT: Final = {
    "cluster": {
        "waiting requests": ["Multiline", ["cluster/queue", "cluster/fifo"]],
        "share in use": ["Multiline", ["cluster/batch_share", "cluster/kv_share"]],
        "cumulative": ["Multiline", ["cluster/completed", "cluster/rejected"]],
        "reward": ["Multiline", ["cluster/reward"]],
    },
    "latency": {
        "EEL [s]": ["Multiline", [f"metrics/eel_{k}_s" for k in ("mean", "p50", "p95", "p99")]],
        "TTFT [s]": ["Multiline", [f"metrics/ttft_{k}_s" for k in ("mean", "p95", "p99")]],
    },
}


def run_directory(results: ResultDirectory, record: EpisodeRecord) -> Path:
    """Directory of one run."""
    policy = results.folder(record.policy)
    return results.path / "tb" / safe(record.scenario) / policy / f"seed{record.seed}"


def write_runs(
    results: ResultDirectory,
    load: float,
    progress: Callable[[EpisodeRecord], None] | None = None,
) -> Path:
    """Write a run for every record that has none; returns the log directory.

    Args:
        results: the records.
        load: offered load of the scenario, for HParams; NaN if unknown.
        progress: called after each record.
    """
    for record in (*results.records(arrays=True), *results.sweep_records()):
        target = run_directory(results, record)
        if not any(target.glob("events.*")):
            own = load if record.load is None else record.load
            _write_run(target, results.scenario, record, own)
        if progress is not None:
            progress(record)
    return results.path / "tb"


def safe(name: str) -> str:
    """A name that is one directory on every file system."""
    kept = "".join(c if c.isalnum() or c in "._+-" else "_" for c in name)
    return kept.strip(".") or "unnamed"


def _write_run(target: Path, scenario: Scenario, record: EpisodeRecord, load: float) -> None:
    # Written beside its place and moved there, so that a run is whole or absent.
    partial = target.with_name(f".{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    with _writer(partial) as writer:
        writer.add_custom_scalars(_LAYOUT)
        for step, values in _time_series(record, scenario.period_s):
            _add_values(writer, values, step)
        final = {key: record.summary[key] for key in (*METRICS, *TIMINGS) if key in record.summary}
        last = scenario.horizon_periods
        _add_values(writer, {f"metrics/{key}": value for key, value in final.items()}, last)
        _add_values(writer, {f"reward/{key}": v for key, v in record.rewards.items()}, last)
        _add_hparams(writer, _hparams(scenario, record, load))
    if target.exists():
        shutil.rmtree(target)
    partial.rename(target)


def _time_series(record: EpisodeRecord, period_s: float) -> Iterator[tuple[int, dict[str, float]]]:
    arrays = record.arrays
    if "series/now" not in arrays:
        return
    columns = {f"cluster/{name}": arrays[f"series/{name}"] for name in _names(arrays)}
    columns["cluster/batch_share"] = arrays["series/active"] / arrays["capacity/batch_limit"].sum()
    columns["cluster/kv_share"] = columns.pop("cluster/kv") / arrays["capacity/kv_limit"].sum()
    columns |= {
        f"policy/{name.removeprefix('diagnostics/')}": array
        for name, array in arrays.items()
        if name.startswith("diagnostics/") and array.ndim == 1
    }
    periods = np.rint(arrays["series/now"].astype(np.float64) / period_s)
    count = len(periods)
    for row in np.unique(np.linspace(0, count - 1, min(POINTS, count)).round().astype(int)):
        values = {name: float(c[row]) for name, c in columns.items() if len(c) == count}
        yield int(periods[row]), values


def _names(arrays: Mapping[str, NDArray[Any]]) -> list[str]:
    names = [name.removeprefix("series/") for name in arrays if name.startswith("series/")]
    return [name for name in names if name != "now"]


def _hparams(scenario: Scenario, record: EpisodeRecord, load: float) -> dict[str, Any]:
    weights = {name: float(getattr(scenario.objective, name)) for name in _WEIGHTS}
    who = {
        "scenario": record.scenario,
        "policy": record.policy,
        "information": record.information,
        "seed": record.seed,
    }
    return who | weights | ({"load": round(load, 4)} if np.isfinite(load) else {})


@contextlib.contextmanager
def _writer(directory: Path) -> Iterator[Any]:
    from tensorboardX import SummaryWriter

    writer = SummaryWriter(logdir=str(directory), write_to_disk=True)
    try:
        yield writer
    finally:
        writer.close()


def _add_values(writer: Any, values: Mapping[str, float], step: int) -> None:
    """Write many scalars of one step as one event: ten times faster than one by one."""
    from tensorboardX.proto.summary_pb2 import Summary

    finite = {tag: value for tag, value in values.items() if np.isfinite(value)}
    entries = [Summary.Value(tag=tag, simple_value=value) for tag, value in finite.items()]
    if entries:
        writer.file_writer.add_summary(Summary(value=entries), step)


def _add_hparams(writer: Any, hparams: dict[str, Any]) -> None:
    """Mark this run itself as an HParams session.

    `SummaryWriter.add_hparams` would open a sub-run named by the time; the outcomes are already
    scalars of this run.
    """
    from tensorboardX.summary import hparams as session

    for summary in session(hparams, dict.fromkeys((f"metrics/{key}" for key in OUTCOMES), 0.0)):
        writer.file_writer.add_summary(summary)
