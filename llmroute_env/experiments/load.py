"""The same scenario at another offered load."""

from __future__ import annotations

import numpy as np

from llmroute_env.experiments.records import load_name
from llmroute_env.scenario import Scenario


def at_load(scenario: Scenario, load: float) -> Scenario:
    """The scenario with its arrivals sped up or slowed down to an offered load.

    The load is that of the scarcer resource, batch slots or KV memory; 1 is saturation. All rates
    are scaled by one factor, so the shape of the arrivals stays.

    Raises:
        ValueError: the load is not positive, or the scenario's own load is not known.
    """
    if not (load > 0 and np.isfinite(load)):
        raise ValueError(f"load {load:g}: must be a positive number")
    own = binding_load(scenario)
    if not np.isfinite(own):
        raise ValueError(f"scenario {scenario.name}: its offered load is not known")
    factor = load / own
    arrivals = scenario.workload.arrivals
    if arrivals.kind == "trace":
        trace = scenario.workload.trace
        assert trace is not None
        changed = {"workload.trace.rate_scale": trace.rate_scale * factor}
    else:
        rates = ("rate", "rate_after", "rate_on", "rate_off", "rate_scale")
        changed = {
            f"workload.arrivals.{key}": getattr(arrivals, key) * factor
            for key in rates
            if hasattr(arrivals, key)
        }
    return scenario.with_overrides(changed | {"name": f"{scenario.name}-{load_name(load)}"})


def binding_load(scenario: Scenario) -> float:
    """Offered load of the scarcer resource; NaN when the scenario's trace is missing."""
    return float(scenario.offered_load().rho)
