"""What a size is: device counts per group of the scenario's cluster, and what they cost."""

from __future__ import annotations

from llmroute_env.experiments.capacity.search import Fleet
from llmroute_env.scenario import Scenario


def names(scenario: Scenario) -> tuple[str, ...]:
    """Names of the groups whose sizes are searched, in the order of a `Fleet`."""
    return tuple(group.name for group in scenario.cluster.fleet)


def own(scenario: Scenario) -> Fleet:
    """The scenario's own fleet."""
    return tuple(group.devices for group in scenario.cluster.fleet)


def resized(scenario: Scenario, fleet: Fleet) -> Scenario:
    """The scenario with other device counts.

    Raises:
        ScenarioError: a count of 0.
    """
    groups = scenario.cluster.groups
    if groups is None:
        return scenario.with_overrides({"cluster.devices": fleet[0]})
    data = scenario.to_dict()
    data["cluster"]["devices"] = sum(fleet)
    for group, devices in zip(data["cluster"]["groups"], fleet, strict=True):
        group["devices"] = devices
    return Scenario.load(data)


def gpus(scenario: Scenario, fleet: Fleet) -> int:
    """GPUs of a fleet: devices times the tensor-parallel degree, 1 with a constant timing."""
    degrees = (getattr(group.timing, "tp", 1) for group in scenario.cluster.fleet)
    return sum(devices * int(tp) for devices, tp in zip(fleet, degrees, strict=True))


def gpu_hours(gpu_count: int, makespan_s: float) -> float:
    """GPU-hours of an episode; a fleet is paid for as long as the last request runs."""
    return gpu_count * makespan_s / 3600.0


def label(fleet: Fleet) -> str:
    """``12``, or ``9+3`` for two pools."""
    return "+".join(map(str, fleet))
