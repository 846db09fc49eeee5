"""Draw one episode's requests."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from llmroute_env.scenario.saturation import limits
from llmroute_env.scenario.workload import Bucketed, Lengths, Mean, Sessions
from llmroute_env.workload import arrivals, lengths, prediction, replay, sessions, text
from llmroute_env.workload.blocks import Chains, Floats, Ints
from llmroute_env.workload.demand import demand
from llmroute_env.workload.prediction import LengthSample
from llmroute_env.workload.table import RequestTable, Streams

if TYPE_CHECKING:
    from llmroute_env.scenario import Scenario
    from llmroute_env.workload.traces import TraceData


def generate(scenario: Scenario, streams: Streams) -> RequestTable:
    """Draw the requests of one episode.

    Arrivals, lengths and prediction errors come from their own streams: two scenarios that differ
    in their prediction have the same requests under the same seed, and two that differ in their
    rate have the same lengths.

    Args:
        scenario: what to draw.
        streams: the episode's random streams; ``streams.episode`` is not touched.

    Returns:
        The request table, sorted by arrival, or with prefill elsewhere (``cluster.handoff``) by
        when that is done; all arrivals lie in [0, horizon). Prefix blocks are those of the
        scenario's prefix caches, and left out where it has none.

    Raises:
        ScenarioError: the scenario's trace, or another file it needs, cannot be used.
    """
    rows = _rows(scenario, streams)
    # Only what learns from the scenario's lengths pays for looking at them.
    learns = isinstance(scenario.prediction, Bucketed | Mean)
    sample = length_sample(scenario) if learns else None
    predicted = prediction.draw(scenario.prediction, streams.prediction, rows.decode, sample)
    size_bytes, category = None, None
    if scenario.workload.text is not None:
        # A child of the lengths stream, which spawning leaves as it is: texts change nothing else.
        child = streams.lengths.spawn(1)[0]
        size_bytes, category = text.draw(scenario.workload.text, child, rows.prompt, rows.session)
    table = RequestTable(
        arrival_s=rows.arrival_s,
        prompt=rows.prompt,
        decode=rows.decode,
        predicted=predicted,
        tier=np.zeros(len(rows.arrival_s), np.int64),
        size_bytes=size_bytes,
        category=category,
        block_ids=None if rows.chains is None else rows.chains.ids,
        block_start=None if rows.chains is None else rows.chains.start,
    )
    handoff = scenario.cluster.handoff
    if handoff is None:
        return table
    # Everything is drawn by arrival, so that the requests are the same however long prefill takes.
    ready_s = table.arrival_s + handoff.prefill_base_s + handoff.prefill_s_per_token * table.prompt
    return replace(table, ready_s=ready_s).take(np.argsort(ready_s, kind="stable"))


class _Rows(NamedTuple):
    """What arrives, before anything is predicted."""

    arrival_s: Floats
    prompt: Ints
    decode: Ints
    chains: Chains | None = None
    session: Ints | None = None


def _rows(scenario: Scenario, streams: Streams) -> _Rows:
    workload, horizon_s = scenario.workload, scenario.horizon_s
    process, spec = workload.arrivals, workload.lengths
    block = _cache_block(scenario)
    if spec.kind == "sessions":
        assert workload.sessions is not None  # validated
        turns = sessions.draw(
            workload.sessions, process, streams.arrivals, streams.lengths, horizon_s
        )
        chains = sessions.chains(workload.sessions, turns, block) if block else None
        return _Rows(turns.arrival_s, turns.prompt, turns.decode, chains, turns.session)
    if process.kind == "servegen" and spec.kind == "servegen":
        from llmroute_env.workload import servegen

        drawn = servegen.draw(process, streams.arrivals, streams.lengths, horizon_s)
        return _Rows(drawn.arrival_s, drawn.prompt, drawn.decode)
    if process.kind == "trace":
        count = replay.arrivals_within(scenario)
        arrival_s = replay.trace_of(scenario).arrival_s[:count].copy()
    else:
        arrival_s = arrivals.draw(process, streams.arrivals, horizon_s)
        count = len(arrival_s)
    if spec.kind != "trace":
        return _Rows(arrival_s, *lengths.draw(spec, streams.lengths, count))
    trace = replay.trace_of(scenario)
    if process.kind == "trace":
        shared = replay.chains_within(scenario, block, count) if block else None
        return _Rows(arrival_s, trace.prompt[:count].copy(), trace.decode[:count].copy(), shared)
    # Whole rows, so that prompt and decode length stay together. Prefix blocks are left out: a
    # row drawn twice would be a hit that the trace does not have.
    rows = streams.lengths.integers(0, len(trace.prompt), count)
    return _Rows(arrival_s, trace.prompt[rows], trace.decode[rows])


def _cache_block(scenario: Scenario) -> int:
    """Tokens per block of the devices' prefix caches, 0 without: then nobody needs chains."""
    cache = scenario.cluster.prefix_cache
    return 0 if cache is None else cache.block


def prepare(scenario: Scenario) -> None:
    """Read the files that the scenario needs, so that faults show before anything runs.

    Raises:
        ScenarioError: a trace, table or profile is missing or malformed, or a model does not fit.
    """
    limits(scenario)
    workload = scenario.workload
    if "trace" in (workload.arrivals.kind, workload.lengths.kind):
        replay.trace_of(scenario)
        block = _cache_block(scenario)
        if block and workload.lengths.kind == "trace":
            replay.chains_within(scenario, block, 0)
    if workload.arrivals.kind == "servegen":
        demand(scenario)
    if workload.sessions is not None:
        sessions.profile_of(workload.sessions)
    if isinstance(scenario.prediction, Bucketed | Mean):
        length_sample(scenario)


def length_sample(scenario: Scenario) -> LengthSample:
    """Decode lengths of the scenario at large: what a mean or bucket predictor has learned."""
    workload = scenario.workload
    if workload.lengths.kind == "trace":
        return _trace_sample(replay.trace_of(scenario))
    if workload.lengths.kind == "servegen":
        return _servegen_sample(scenario)
    return _drawn_sample(workload.lengths, workload.sessions)


@lru_cache(maxsize=64)
def _drawn_sample(spec: Lengths, turns: Sessions | None) -> LengthSample:
    if turns is not None:
        return LengthSample(sessions.profile_of(turns).decode)
    return LengthSample(lengths.grid(spec)[1])


@lru_cache(maxsize=8)
def _servegen_sample(scenario: Scenario) -> LengthSample:
    return LengthSample(demand(scenario).decode)


@lru_cache(maxsize=8)
def _trace_sample(trace: TraceData) -> LengthSample:
    return LengthSample(trace.decode)
