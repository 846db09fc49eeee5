"""The search for one case: bracket and bisect over played fleets, by confidence and by means."""

from __future__ import annotations

import math
from dataclasses import dataclass

from llmroute_env.experiments.capacity import fleets, model
from llmroute_env.experiments.capacity.search import Fleet, Found, proportional, smallest
from llmroute_env.experiments.capacity.trials import Case, Trial, Trials

#: Largest size tried, as a multiple of the first guess, unless the user sets another.
_GROWTH = 16
_LEAST_CEILING = 64


@dataclass(frozen=True)
class Sizing:
    """What was found for one case.

    Attributes:
        case: scenario and policy.
        found: outcome of the search.
        average: smallest fleet whose *means* meet the objectives, at most as large: between the
            two lies what the number of seeds leaves open. None if there is none.
        trials: every fleet played, by number of devices.
        ceiling: largest size that would have been tried.
        estimate: the analytical model, for two pools.
    """

    case: Case
    found: Found
    average: Fleet | None
    trials: tuple[Trial, ...]
    ceiling: int
    estimate: model.Estimate | None

    @property
    def best(self) -> Trial | None:
        """Trial of the smallest fleet."""
        return self._of(self.found.fleet)

    @property
    def best_on_average(self) -> Trial | None:
        """Trial of the smallest fleet by means."""
        return self._of(self.average)

    def _of(self, fleet: Fleet | None) -> Trial | None:
        return next((trial for trial in self.trials if trial.fleet == fleet), None)


def size(
    trials: Trials, *, ceiling: int | None = None, estimate: model.Estimate | None = None
) -> Sizing:
    """Find the smallest fleet of a case.

    Args:
        trials: plays its fleets.
        ceiling: largest number of devices to try; None: many times the first guess.
        estimate: of the scenario, for the proportions of its pools.
    """
    scenario = trials.case.scenario
    pools = len(fleets.own(scenario))
    guess = max(pools, math.ceil(model.devices_at_full_load(scenario, estimate)))
    most = max(ceiling or max(_GROWTH * guess, _LEAST_CEILING), pools)
    ray = proportional(model.proportions(scenario, estimate))
    found = smallest(trials.meets, ray, pools=pools, start=guess, most=most)
    # Fleets are played once, so this asks for little more.
    start = guess if found.fleet is None else sum(found.fleet)
    average = smallest(
        lambda fleet: trials.trial(fleet).passed_on_average,
        ray,
        pools=pools,
        start=start,
        most=most,
    ).fleet
    played = sorted(trials.done.values(), key=lambda trial: (trial.devices, trial.fleet))
    return Sizing(trials.case, found, average, tuple(played), most, estimate)
