"""A scenario's trace, read once per file version and shared by its episodes."""

from __future__ import annotations

import warnings
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from llmroute_env.scenario.errors import ScenarioError
from llmroute_env.scenario.saturation import largest_context
from llmroute_env.scenario.workload import Trace
from llmroute_env.workload.blocks import Chains, compact, regroup

if TYPE_CHECKING:
    from llmroute_env.scenario import Scenario
    from llmroute_env.workload.traces import TraceData


@lru_cache(maxsize=8)
def _load(options: Trace, context_limit: int | None, version: tuple[int, int]) -> TraceData:  # noqa: ARG001
    from llmroute_env.workload.traces import load_trace  # pandas: only where a trace is read

    return load_trace(options, context_limit)


def trace_of(scenario: Scenario) -> TraceData:
    """The scenario's trace.

    Raises:
        TraceMissingError: no such file; names where to get it.
        TraceError: one line about what is wrong with the file.
    """
    options = scenario.workload.trace
    assert options is not None  # validated wherever a kind is trace
    path = Path(options.path).expanduser()
    if not path.is_file():
        return _load(options, None, (0, 0))  # raises, with the message that belongs to it
    stat = path.stat()
    return _load(options, largest_context(scenario), (stat.st_mtime_ns, stat.st_size))


def last_arrival_s(scenario: Scenario) -> float:
    """Arrival of the trace's last request [s]."""
    return trace_of(scenario).report.last_arrival_s


@lru_cache(maxsize=8)
def _warn_cut(path: str, beyond: int, rows: int, horizon_periods: int) -> None:
    """Say once per file and horizon that a part of the trace lies beyond the horizon."""
    warnings.warn(
        f"trace {path}: {beyond} of {rows} requests arrive at or after the horizon "
        f"(horizon_periods = {horizon_periods}) and are left out; horizon_periods = null "
        "covers the trace",
        stacklevel=4,
    )


def arrivals_within(scenario: Scenario) -> int:
    """How many of the trace's first requests arrive before the horizon; warns if not all do."""
    trace = trace_of(scenario)
    count = int(np.searchsorted(trace.arrival_s, scenario.horizon_s, side="left"))
    if count < len(trace.arrival_s):
        beyond = len(trace.arrival_s) - count
        _warn_cut(trace.report.path, beyond, len(trace.arrival_s), scenario.horizon_periods)
    return count


def chains_within(scenario: Scenario, block: int, count: int) -> Chains | None:
    """Chains of the trace's first ``count`` prompts in blocks of ``block`` tokens.

    Returns:
        arrays of the caller's own; None where the trace has no prefix blocks.

    Raises:
        ScenarioError: the block sizes do not fit together.
    """
    trace = trace_of(scenario)
    if trace.chains is None:
        return None
    if trace.chains.block % block and block % trace.chains.block:
        raise ScenarioError(
            f"cluster.prefix_cache.block = {block}: must divide the {trace.chains.block} tokens "
            f"per block of {trace.report.path}, or be a multiple of them"
        )
    whole = _regrouped(trace, block)
    start = whole.start[: count + 1].copy()
    ids = whole.ids[: start[-1]]
    return Chains(block, ids.copy() if count == len(trace.prompt) else compact(ids), start)


@lru_cache(maxsize=2)
def _regrouped(trace: TraceData, block: int) -> Chains:
    assert trace.chains is not None
    return regroup(trace.chains, block, trace.prompt)
