"""Scores of a model on held-out seeds, paired with a reference policy."""

from __future__ import annotations

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


@dataclass(frozen=True)
class Score:
    """Means over the held-out seeds.

    Attributes:
        metrics: of the model, by name.
        gain: objective over that of the reference policy, per seed.
        shift: what was added to the score of holding.
    """

    metrics: dict[str, float]
    gain: NDArray[np.float64]
    shift: float = 0.0

    @property
    def mean(self) -> float:
        """Mean gain."""
        return float(self.gain.mean())

    @property
    def half_width(self) -> float:
        """Half of the normal 95% confidence interval of the mean gain; NaN for one seed."""
        n = len(self.gain)
        return 1.96 * float(self.gain.std(ddof=1)) / n**0.5 if n > 1 else float("nan")


class Scorer:
    """Plays the held-out seeds of the run's first scenario.

    Args:
        config: of the run.
    """

    def __init__(self, config: TrainingConfig) -> None:
        self.config = config
        self.scenario: Scenario = config.scenarios[0].load()
        self.env = gym.make("llmroute_env:LLMRoute-v0", scenario=self.scenario, series_stride=0)
        held: HeldOut = config.evaluation
        self.seeds = range(held.first_seed, held.first_seed + held.seeds)
        reference = make(held.reference, self.env)
        self.reference = np.array(
            [evaluate(self.env, reference, seed=seed).summary["reward"] for seed in self.seeds]
        )

    def score(self, model: Any) -> Score:
        """Play them with a model of stable-baselines3, deterministically.

        A policy that holds with probability 0.6 at each event still starts a request soon, and
        one that takes the likeliest choice never does. So with task pairs the deterministic
        policy is tuned by one number, a shift of the score of holding; the best of
        ``evaluation.hold_shifts`` counts.
        """
        if self.config.network.kind != "pairs":
            from policies.learned.sb3_model import Sb3Model

            return self._play(_Plain(Sb3Model(model, self.config, RouterSpec.from_env(self.env))))
        scores = [
            replace(self.score_checkpoint(self.checkpoint(model, shift, {})), shift=shift)
            for shift in self.config.evaluation.hold_shifts
        ]
        return max(scores, key=lambda score: score.mean)

    def _play(self, policy: Any) -> Score:
        found = [evaluate(self.env, policy, seed=seed).summary for seed in self.seeds]
        rewards = np.array([summary["reward"] for summary in found])
        means = {name: float(np.mean([summary[name] for summary in found])) for name in LOGGED}
        return Score(means, rewards - self.reference)

    def score_checkpoint(self, checkpoint: Checkpoint) -> Score:
        """Play them with a router without torch."""
        return self._play(Learned(self.env, checkpoint=checkpoint))

    def checkpoint(self, model: Any, shift: float, about: dict[str, Any]) -> Checkpoint:
        """The actor of a model with task pairs, without torch, and with the shift in it."""
        task: Any = self.config.task
        arrays = model.policy.actor.arrays()
        arrays["hold"][-1] += shift
        objective = {key: float(getattr(self.scenario.objective, key)) for key in WEIGHTS}
        return Checkpoint(
            weights(arrays),
            self.scenario.name,
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
