"""Draw one episode's requests."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from llmroute_env.scenario.saturation import limits
from llmroute_env.scenario.workload import Bucketed, Lengths, Mean
from llmroute_env.workload import arrivals, lengths, prediction, replay
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
        The request table, sorted by arrival; all arrivals lie in [0, horizon).

    Raises:
        TraceError: the scenario's trace cannot be read.
    """
    workload = scenario.workload
    if workload.arrivals.kind == "trace":
        count = replay.arrivals_within(scenario)
        arrival_s = replay.trace_of(scenario).arrival_s[:count].copy()
    else:
        arrival_s = arrivals.draw(workload.arrivals, streams.arrivals, scenario.horizon_s)
        count = len(arrival_s)
    if workload.lengths.kind != "trace":
        prompt, decode = lengths.draw(workload.lengths, streams.lengths, count)
    else:
        trace = replay.trace_of(scenario)
        if workload.arrivals.kind == "trace":
            prompt, decode = trace.prompt[:count].copy(), trace.decode[:count].copy()
        else:  # whole rows, so that prompt and decode length stay together
            rows = streams.lengths.integers(0, len(trace.prompt), count)
            prompt, decode = trace.prompt[rows], trace.decode[rows]
    # Only what learns from the scenario's lengths pays for looking at them.
    learns = isinstance(scenario.prediction, Bucketed | Mean)
    sample = length_sample(scenario) if learns else None
    predicted = prediction.draw(scenario.prediction, streams.prediction, decode, sample)
    return RequestTable(arrival_s, prompt, decode, predicted, np.zeros(count, np.int64))


def prepare(scenario: Scenario) -> None:
    """Read the files that the scenario needs, so that faults show before anything runs.

    Raises:
        ScenarioError: a trace, table or profile is missing or malformed, or a model does not fit.
    """
    limits(scenario)
    if "trace" in (scenario.workload.arrivals.kind, scenario.workload.lengths.kind):
        replay.trace_of(scenario)
    if isinstance(scenario.prediction, Bucketed | Mean):
        length_sample(scenario)


def length_sample(scenario: Scenario) -> LengthSample:
    """Decode lengths of the scenario at large: what a mean or bucket predictor has learned."""
    if scenario.workload.lengths.kind == "trace":
        return _trace_sample(replay.trace_of(scenario))
    return _drawn_sample(scenario.workload.lengths)


@lru_cache(maxsize=64)
def _drawn_sample(spec: Lengths) -> LengthSample:
    return LengthSample(lengths.grid(spec)[1])


@lru_cache(maxsize=8)
def _trace_sample(trace: TraceData) -> LengthSample:
    return LengthSample(trace.decode)
