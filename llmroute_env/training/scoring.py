"""Scores of a model on held-out seeds, paired with a reference policy."""

from __future__ import annotations

from dataclasses import dataclass
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
    """

    metrics: dict[str, float]
    gain: NDArray[np.float64]

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
        """Play them with a model of stable-baselines3, deterministically."""
        policy = self.policy(model)
        found = [evaluate(self.env, policy, seed=seed).summary for seed in self.seeds]
        rewards = np.array([summary["reward"] for summary in found])
        means = {name: float(np.mean([summary[name] for summary in found])) for name in LOGGED}
        return Score(means, rewards - self.reference)

    def policy(self, model: Any) -> Any:
        """The model as a policy for plain observations."""
        if self.config.network.kind == "pairs":
            return Learned(self.env, checkpoint=self.checkpoint(model, {}))
        from policies.learned.sb3_model import Sb3Model

        return _Plain(Sb3Model(model, self.config, RouterSpec.from_env(self.env)))

    def checkpoint(self, model: Any, about: dict[str, Any]) -> Checkpoint:
        """The actor of a model with task pairs, without torch."""
        task: Any = self.config.task
        objective = {key: float(getattr(self.scenario.objective, key)) for key in WEIGHTS}
        return Checkpoint(
            weights(model.policy.actor.arrays()),
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
