"""Scores of a model on held-out seeds, paired with a reference policy."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from llmroute_env.evaluation import evaluate
from llmroute_env.scenario import Scenario
from llmroute_env.training.config import HeldOut, TrainingConfig
from policies.learned.checkpoint import Checkpoint
from policies.learned.network import weights
from policies.learned.policy import WEIGHTS, Learned
from policies.registry import make
from policies.spec import RouterSpec

#: metrics of the held-out episodes that are logged
LOGGED = ("reward", "eel_mean_s", "eel_p99_s", "ttft_p95_s", "slo_attainment", "unfinished")


#: how many times a loss on a scenario counts when checkpoints are compared
LOSS_WEIGHT = 4.0


@dataclass(frozen=True)
class Score:
    """Means over the held-out seeds.

    Attributes:
        metrics: of the model on the first scenario, by name.
        gains: objective relative to that of the reference policy, less 1, per scenario and seed
            [%].
        shift: what was added to the score of holding.
    """

    metrics: dict[str, float]
    gains: dict[str, NDArray[np.float64]]
    shift: float = 0.0

    @property
    def mean(self) -> float:
        """Mean gain, each scenario counting the same [%]."""
        return float(np.mean([gain.mean() for gain in self.gains.values()]))

    @property
    def worst(self) -> float:
        """Mean gain on the scenario where it is least [%]."""
        return float(min(gain.mean() for gain in self.gains.values()))

    @property
    def value(self) -> float:
        """What checkpoints are compared by: the mean gain, losses counting LOSS_WEIGHT times."""
        means = [float(gain.mean()) for gain in self.gains.values()]
        return float(np.mean([m if m > 0.0 else LOSS_WEIGHT * m for m in means]))

    @property
    def half_width(self) -> float:
        """Half of the normal 95% confidence interval of the mean gain; NaN for one seed."""
        if any(len(gain) < 2 for gain in self.gains.values()):
            return float("nan")
        variance = sum(gain.var(ddof=1) / len(gain) for gain in self.gains.values())
        return 1.96 * float(np.sqrt(variance)) / len(self.gains)


class _Stage:
    """One held-out scenario, with the reference's objective on its seeds."""

    def __init__(self, scenario: Scenario, reference: str, seeds: range) -> None:
        self.env = gym.make("llmroute_env:LLMRoute-v0", scenario=scenario, series_stride=0)
        self.seeds = seeds
        self.reference = self.play(make(reference, self.env))["reward"]

    def play(self, policy: Any) -> dict[str, NDArray[np.float64]]:
        """Metrics of the policy, per seed."""
        found = [evaluate(self.env, policy, seed=seed).summary for seed in self.seeds]
        return {name: np.array([summary[name] for summary in found]) for name in LOGGED}


class Scorer:
    """Plays the held-out seeds of the run's evaluation.

    Args:
        config: of the run.
    """

    def __init__(self, config: TrainingConfig) -> None:
        self.config = config
        held: HeldOut = config.evaluation
        entries = held.scenarios or config.scenarios[:1]
        self.seeds = range(held.first_seed, held.first_seed + held.seeds)
        self.stages = {
            entry.label: _Stage(entry.load(), held.reference, self.seeds) for entry in entries
        }
        self.trained: Scenario = config.scenarios[0].load()

    def score(self, model: Any) -> Score:
        """Play them with a model of stable-baselines3, deterministically.

        A policy that holds with probability 0.6 at each event still starts a request soon, and
        one that takes the likeliest choice never does. So with task pairs the deterministic
        policy is tuned by one number, a shift of the score of holding; the best of
        ``evaluation.hold_shifts`` counts.
        """
        if self.config.network.kind != "pairs":
            from policies.learned.sb3_model import Sb3Model

            return self._play(
                lambda env: _Plain(Sb3Model(model, self.config, RouterSpec.from_env(env)))
            )
        scores = [
            replace(self.score_checkpoint(self.checkpoint(model, shift, {})), shift=shift)
            for shift in self.config.evaluation.hold_shifts
        ]
        return max(scores, key=lambda score: score.value)

    def _play(self, policy: Callable[[Any], Any]) -> Score:
        with ThreadPoolExecutor(self.config.evaluation.threads) as pool:
            stages = list(self.stages.values())
            played = list(pool.map(lambda stage: stage.play(policy(stage.env)), stages))
        gains = {
            label: 100.0 * (found["reward"] / stage.reference - 1.0)
            for (label, stage), found in zip(self.stages.items(), played, strict=True)
        }
        return Score({name: float(values.mean()) for name, values in played[0].items()}, gains)

    def score_checkpoint(self, checkpoint: Checkpoint) -> Score:
        """Play them with a router without torch."""
        return self._play(lambda env: Learned(env, checkpoint=checkpoint))

    def checkpoint(self, model: Any, shift: float, about: dict[str, Any]) -> Checkpoint:
        """The actor of a model with task pairs, without torch, and with the shift in it."""
        task: Any = self.config.task
        arrays = model.policy.actor.arrays()
        arrays["hold"][-1] += shift
        objective = {key: float(getattr(self.trained.objective, key)) for key in WEIGHTS}
        return Checkpoint(
            weights(arrays),
            self.trained.name,
            objective,
            task.candidates,
            task.oldest,
            about,
        )


class _Plain:
    """A model of stable-baselines3 with `predict` for plain observations."""

    information = "predicted"

    def __init__(self, model: Any) -> None:
        self.model = model

    def predict(self, observation: Any, deterministic: bool = True) -> tuple[Any, None]:
        return self.model.decide(observation, deterministic), None
