"""A tape of observations of a cluster that is full, with requests waiting: what routers see most
when their speed matters.

The load is several times what the devices can serve. A first-come-first-served router fills them
and lets the rest wait, so that the queue soon fills its window and the devices stay full while
requests complete and others take their slots, as in a real backlog. Every policy then decides on
the same observations. Its own actions are not played, so that all see the same states.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

import policies
from llmroute_env.env import LLMRouteEnv, Observation
from llmroute_env.experiments.benchmark.stepping import SCENARIO
from policies.spec import RouterSpec

#: Arrivals per device and period; a device of the scenario serves 0.11.
_RATE: Final = 1.0
#: Periods before the tape is timed: the devices are full and requests have begun to complete.
_FILLING: Final = 200


@dataclass(frozen=True)
class Tape:
    """Consecutive observations.

    Attributes:
        spec: static facts of the router's environment.
        before: from the first period on, while the backlog builds up.
        timed: afterwards; each has all rows of its queue filled.
    """

    spec: RouterSpec
    before: list[Observation]
    timed: list[Observation]


def record(
    devices: int, waiting: int, timed: int, overrides: Mapping[str, Any] | None = None
) -> Tape:
    """Record a tape.

    Args:
        devices: G.
        waiting: visible requests; the window has as many rows.
        timed: periods on the part that is timed.
        overrides: further scenario keys.

    Raises:
        RuntimeError: the queue of a timed observation is not full.
    """
    filling = _FILLING + 2 * waiting // devices
    keys = {
        "cluster.devices": devices,
        "router.window": waiting,
        "workload.arrivals.rate": _RATE * devices,
        "horizon_periods": filling + timed + 1,
    }
    env = LLMRouteEnv(SCENARIO, keys | dict(overrides or {}), series_stride=0)
    pilot = policies.make("central_fifo", env)
    observation, _ = env.reset(seed=0)
    tape = [observation]
    for _ in range(filling + timed - 1):
        observation, *_ = env.step(pilot.predict(observation)[0])
        tape.append(observation)
    if any(np.any(o["queue_id"] < 0) for o in tape[filling:]):
        raise RuntimeError(f"the backlog of {devices} devices fell below {waiting} requests")
    return Tape(RouterSpec.from_env(env), tape[:filling], tape[filling:])
