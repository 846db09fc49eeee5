"""A stable-baselines3 model, trained on flat features, as a router. Needs the extra ``rl``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from llmroute_env.spaces import Device, Queue
from llmroute_env.wrappers import FlatFeatures, OneRequestEnv, Scales
from policies.spec import RouterSpec


class Sb3Model:
    """Decides plain observations with a model of tasks ``one_request`` or ``window``.

    Args:
        model: of stable-baselines3 or sb3-contrib.
        config: the run's `TrainingConfig`.
        spec: of the environment that it shall decide for.

    Raises:
        ValueError: the environment is of another size than the one that it was trained on; flat
            features have a fixed place for each device and slot.
    """

    def __init__(self, model: Any, config: Any, spec: RouterSpec) -> None:
        self.model, self.spec = model, spec
        self.one_request = config.task.kind == "one_request"
        scenario = config.scenarios[0].load()
        self.scenario = scenario.name
        env: Any = gym.make("llmroute_env:LLMRoute-v0", scenario=scenario)
        trained = RouterSpec.from_env(env)
        sizes = ("devices", "slots") if self.one_request else ("devices", "slots", "window")
        for size in sizes:
            was, now = getattr(trained, size), getattr(spec, size)
            if was != now:
                raise ValueError(
                    f"learned: model trained on {scenario.name} with {size}={was} does not fit "
                    f"scenario {spec.scenario} with {size}={now}"
                )
        seen: Any = OneRequestEnv(env) if self.one_request else env
        self.features = FlatFeatures(
            seen.observation_space, Scales.of(env), config.task.include_active
        )
        self.masked = config.algorithm.kind == "maskable_ppo"

    @classmethod
    def load(cls, path: Path, spec: RouterSpec) -> Sb3Model:
        """Load a ``.zip`` from the directory of a run of ``scripts/train.py``.

        Raises:
            ValueError: there is none, or no ``config.yaml`` beside it; torch is not installed.
        """
        beside = path.with_name("config.yaml")
        for file in (path, beside):
            if not file.is_file():
                raise ValueError(f"checkpoint {path}: {file} is absent")
        try:
            from llmroute_env.training.build import load_model
        except ImportError as error:
            raise ValueError(
                f"checkpoint {path}: a model of stable-baselines3 needs the extra rl, "
                f'pip install "llmroute-env[rl]" ({error})'
            ) from None
        from llmroute_env.training.config import load_config

        config = load_config(beside)
        return cls(load_model(config, path, None), config, spec)

    def decide(
        self, observation: Mapping[str, np.ndarray], deterministic: bool = True
    ) -> np.ndarray:
        """Action (W,) or (N, W) for one observation or a batch."""
        if observation["queue"].ndim == 2:
            return self._decide(observation, deterministic)
        lanes = range(len(observation["queue"]))
        return np.stack(
            [self._decide({k: v[i] for k, v in observation.items()}, deterministic) for i in lanes]
        )

    def _decide(self, seen: Mapping[str, np.ndarray], deterministic: bool) -> np.ndarray:
        up = seen["devices"][:, Device.UP] > 0
        if not self.one_request:
            visible = seen["queue_id"] >= 0
            mask = np.concatenate(
                [np.ones((len(visible), 1), np.bool_), visible[:, None] & up[None]], axis=1
            )
            chosen = self._ask(self.features(seen), mask.reshape(-1), deterministic)
            action = np.array(chosen, np.int64)
            action[~mask[np.arange(len(action)), action]] = 0
            return action
        action = np.zeros(self.spec.window, np.int64)
        devices = seen["devices"].copy()
        waiting = int(np.count_nonzero(seen["queue_id"] >= 0))
        legal = np.concatenate([[True], up])
        held = 0
        for row in range(waiting):
            asked = {
                "request": seen["queue"][row],
                "devices": devices,
                "active": seen["active"],
                "clock": seen["clock"],
                "pending": np.array([waiting - row, held], np.float32),
            }
            choice = int(self._ask(self.features(asked), legal, deterministic))
            if choice == 0 or not legal[choice]:
                held += 1
                continue
            action[row] = choice
            devices[choice - 1, Device.FIFO_LENGTH] += 1
            devices[choice - 1, Device.FIFO_TOKENS] += seen["queue"][row, Queue.PROMPT]
            devices[choice - 1, Device.FIFO_PREDICTED] += seen["queue"][row, Queue.PREDICTED]
        return action

    def _ask(self, features: np.ndarray, mask: np.ndarray, deterministic: bool) -> Any:
        extra = {"action_masks": mask} if self.masked else {}
        return self.model.predict(features, deterministic=deterministic, **extra)[0]
