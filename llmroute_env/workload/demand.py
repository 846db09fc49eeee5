"""What a scenario's workload asks for on average, whatever kind it is of."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from llmroute_env.workload import arrivals, lengths, replay, sessions
from llmroute_env.workload.blocks import Ints

if TYPE_CHECKING:
    from llmroute_env.scenario import Scenario


class Demand(NamedTuple):
    """Expected arrivals, and an equally weighted sample of lengths that stands for the rest."""

    requests: float  #: expected in an episode
    rate: float  #: mean over the horizon [1/s]
    peak_rate: float  #: largest rate that lasts for a phase of the arrivals [1/s]
    prompt: Ints  #: (N,) do not write to it [tokens]
    decode: Ints  #: (N,) do not write to it [tokens]


def demand(scenario: Scenario) -> Demand:
    """See :class:`Demand`.

    Raises:
        TraceMissingError: a trace file, or a recording of clients, is not there.
        ScenarioError: it cannot be used.
    """
    workload, horizon_s = scenario.workload, scenario.horizon_s
    process, spec = workload.arrivals, workload.lengths
    if spec.kind == "trace":
        trace = replay.trace_of(scenario)
        count = replay.arrivals_within(scenario) if process.kind == "trace" else None
        prompt, decode = trace.prompt[:count], trace.decode[:count]
    elif process.kind == "servegen" and spec.kind == "servegen":
        from llmroute_env.workload import servegen

        prompt, decode = servegen.sample(process, horizon_s)
    elif spec.kind == "sessions":
        assert workload.sessions is not None  # validated
        profile = sessions.profile_of(workload.sessions)
        requests = sessions.expected_requests(workload.sessions, process, horizon_s)
        peak = arrivals.peak_rate(process, horizon_s)
        return Demand(requests, requests / horizon_s, peak, profile.prompt, profile.decode)
    else:
        prompt, decode = lengths.grid(spec)
    if process.kind == "trace":
        requests = float(replay.arrivals_within(scenario))
        return Demand(requests, requests / horizon_s, requests / horizon_s, prompt, decode)
    rate = arrivals.mean_rate(process, horizon_s)
    peak = arrivals.peak_rate(process, horizon_s)
    return Demand(rate * horizon_s, rate, peak, prompt, decode)
