"""The published estimate of what two pools save: dG/G = alpha * (1 - 1/rho).

alpha is the share of the traffic that the short pool takes and rho how much more of it a short
device serves than a long one. (arXiv 2604.08075; against a homogeneous fleet of long devices.) The
estimate counts devices in proportion to work, so it holds for a share of the *work*. By requests
alpha is larger, as long requests are more work each; both are given. It knows no rounding to whole
devices, no queueing and no loss from splitting a fleet in two.

Here rho is measured as an operator would: one device of each pool, with more short traffic than
it can serve, and completions counted.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from llmroute_env.env import LLMRouteEnv
from llmroute_env.evaluation import evaluate
from llmroute_env.experiments.capacity.search import Fleet
from llmroute_env.scenario import Scenario
from llmroute_env.scenario.saturation import limits
from llmroute_env.workload.demand import demand

_REQUESTS: Final = 3000  #: that a device serves while it is measured
_OVERLOAD: Final = 2.0  #: offered to it, as a multiple of what it can serve
_FILLING: Final = 0.2  #: share of that time in which the device fills, not measured
_SETTLED: Final = 0.1  #: relative change that ends the measurement
_ROUNDS: Final = 8
_LEAST_RATIO: Final = 0.05  #: of one round to the next: nothing may complete in a short episode
_SEED: Final = 1000


class Estimate(NamedTuple):
    """The analytical model of a scenario with two pools."""

    alpha: float  #: share of the requests that fit a short device
    alpha_work: float  #: their share of the device time on long devices
    rho: float  #: short requests per second, short device over long device
    short_rps: float  #: short requests per second of a saturated short device
    long_rps: float  #: short requests per second of a saturated long device
    mixed_rps: float  #: requests per second of all lengths of a saturated long device

    @property
    def saving(self) -> float:
        """dG/G with alpha by requests, as published."""
        return self.alpha * (1.0 - 1.0 / self.rho)

    @property
    def saving_work(self) -> float:
        """dG/G with alpha by work."""
        return self.alpha_work * (1.0 - 1.0 / self.rho)

    def devices(self, rate: float) -> tuple[float, float]:
        """Fully loaded short and long devices for ``rate`` requests per second, not rounded."""
        short = self.alpha * rate / self.short_rps
        return short, max(rate / self.mixed_rps - self.alpha * rate / self.long_rps, 0.0)


def order(scenario: Scenario) -> tuple[int, int] | None:
    """Indices of the short and the long group; None unless there are two of unlike reach."""
    if scenario.cluster.groups is None or len(scenario.cluster.groups) != 2:
        return None
    if scenario.workload.lengths.kind == "servegen":  # has no arrivals but its own to saturate with
        return None
    reach = [min(found.kv_limit, found.context_limit or 2**31) for found in limits(scenario)]
    if reach[0] == reach[1]:
        return None
    return (0, 1) if reach[0] < reach[1] else (1, 0)


def estimate(scenario: Scenario) -> Estimate | None:
    """Measure alpha and rho; None unless the scenario has a short and a long pool."""
    found = order(scenario)
    if found is None:
        return None
    short, long = found
    reach = limits(scenario)[short]
    largest = min(reach.kv_limit, reach.context_limit or reach.kv_limit)
    alpha = _share_within(scenario, largest)
    short_rps = saturated_rps(scenario, short, largest)
    long_rps = saturated_rps(scenario, long, largest)
    mixed_rps = saturated_rps(scenario, long)
    return Estimate(
        alpha, alpha * mixed_rps / long_rps, short_rps / long_rps, short_rps, long_rps, mixed_rps
    )


def saturated_rps(scenario: Scenario, group: int, largest: int | None = None) -> float:
    """Requests per second that one device of a group completes under overload.

    Args:
        scenario: where group, lengths and everything else come from.
        group: index into the cluster's groups.
        largest: leave out requests of more than so many tokens s + o; None keeps all.
    """
    alone = _one_device(scenario, group, largest)
    load = alone.offered_load()
    rps = load.requests / (alone.horizon_s * load.rho)
    # The load foresees no prefill, so the first rate may be far too high and its episode too short
    # to leave the transient: measure anew at the rate just found until it no longer matters.
    for _ in range(_ROUNDS):
        found = _completed_rps(alone, _OVERLOAD * rps, _REQUESTS / rps)
        settled = abs(found / rps - 1.0) < _SETTLED
        rps = max(found, _LEAST_RATIO * rps)
        if settled:
            break
    return rps


def _completed_rps(alone: Scenario, rate: float, horizon_s: float) -> float:
    """Completions per second of a scenario's fleet at an arrival rate."""
    offered = alone.with_overrides(
        {
            "workload.arrivals": {"kind": "poisson", "rate": rate},
            "horizon_periods": int(np.ceil(horizon_s / alone.period_s)),
            "warmup_s": 0.0,
        }
    )
    finish = evaluate(LLMRouteEnv(offered), "round_robin", _SEED).log["finish_s"]
    begin, end = _FILLING * offered.horizon_s, offered.horizon_s
    return float(np.count_nonzero((finish > begin) & (finish <= end)) / (end - begin))


def devices_at_full_load(scenario: Scenario, estimated: Estimate | None) -> float:
    """Devices that serve the scenario's mean rate without a moment's rest, not rounded.

    Two pools count as the model has them, other groups in the proportions of the scenario. Where
    arrivals and lengths come together and no other rate can be had, by the offered load.
    """
    load = scenario.offered_load()
    rate = load.requests / scenario.horizon_s
    if estimated is not None:
        return sum(estimated.devices(rate))
    fleet = [group.devices for group in scenario.cluster.fleet]
    if scenario.workload.lengths.kind == "servegen":
        return sum(fleet) * load.rho
    served = sum(n * saturated_rps(scenario, group) for group, n in enumerate(fleet))
    return sum(fleet) * rate / served


def proportions(scenario: Scenario, estimated: Estimate | None) -> Fleet | tuple[float, ...]:
    """Weights of the groups for the first sizes to try: by the model, else as the scenario has."""
    found = order(scenario)
    if estimated is None or found is None:
        return tuple(group.devices for group in scenario.cluster.fleet)
    needed = estimated.devices(1.0)
    weights = [0.0, 0.0]
    weights[found[0]], weights[found[1]] = needed
    return tuple(weights)


def _one_device(scenario: Scenario, group: int, largest: int | None) -> Scenario:
    data = scenario.to_dict()
    cluster = data["cluster"]
    chosen = dict((cluster.pop("groups") or [{"name": ""}])[group])
    chosen.pop("name")
    context = limits(scenario)[group].context_limit
    if largest is not None:
        context = largest if context is None else min(context, largest)
    cluster |= chosen | {"devices": 1, "context_limit": context}
    data |= {"drain": False}
    if data["horizon_periods"] is None:  # a trace's own length; its arrivals are replaced
        data["horizon_periods"] = scenario.horizon_periods
    return Scenario.load(data)


def _share_within(scenario: Scenario, largest: int) -> float:
    """Share of the requests with s + o of at most ``largest`` tokens, among those that fit."""
    wanted = demand(scenario)
    tokens = wanted.prompt + wanted.decode
    most = max(min(found.kv_limit, found.context_limit or 2**31) for found in limits(scenario))
    fitting = tokens[tokens <= most]
    return float((fitting <= largest).mean()) if len(fitting) else 1.0
