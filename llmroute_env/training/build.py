"""From a configuration to an environment and a model of stable-baselines3."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
from sb3_contrib import QRDQN, MaskablePPO, RecurrentPPO
from stable_baselines3 import DQN, PPO
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecEnvWrapper, VecMonitor

from llmroute_env.training.config import (
    OneRequestTask,
    PairsNetwork,
    PairsTask,
    PolicyGradient,
    TrainingConfig,
    WindowTask,
)
from llmroute_env.training.layout import Layout
from llmroute_env.training.vec_env import DecisionVecEnv
from llmroute_env.wrappers import FlatObservation, OneRequestEnv
from llmroute_env.wrappers.sb3_vec_env import SB3VecEnv
from policies.learned.actor import PairExtractor, PairPolicy

#: algorithm of the configuration -> class
ALGORITHMS: dict[str, Any] = {
    "maskable_ppo": MaskablePPO,
    "ppo": PPO,
    "recurrent_ppo": RecurrentPPO,
    "dqn": DQN,
    "qrdqn": QRDQN,
}

#: fields of the algorithm's section that are the trainer's and not the constructor's
_OURS = ("kind", "critic_rollouts", "critic_learning_rate", "critic_epochs")


class ScaledReward(gym.RewardWrapper[Any, Any]):
    """Divides the reward: a constant factor, which changes no policy and spares the value head."""

    def __init__(self, env: gym.Env[Any, Any], scale: float) -> None:
        super().__init__(env)
        self.scale = scale

    def reward(self, reward: Any) -> float:
        """The reward in units of the scale."""
        return float(reward) / self.scale


def make_training_env(config: TrainingConfig) -> VecEnv:
    """The environment that a run learns on, with `VecMonitor`."""
    task = config.task
    scenarios = [entry.load() for entry in config.scenarios]
    if isinstance(task, PairsTask):
        env: VecEnv = DecisionVecEnv(
            scenarios,
            task.lanes,
            candidates=task.candidates,
            oldest=task.oldest,
            patience=task.patience,
            reward_scale=[e.reward_scale or task.reward_scale for e in config.scenarios],
            stagger=task.stagger,
        )
    elif isinstance(task, OneRequestTask):
        env = DummyVecEnv([one_request_maker(scenarios[0], task)] * task.lanes)
    else:
        env = ScaledVecReward(window_env(scenarios[0], task), task.reward_scale)
    env.seed(config.seed)
    return VecMonitor(env)


def one_request_maker(scenario: Any, task: OneRequestTask) -> Callable[[], gym.Env[Any, Any]]:
    """A function that makes one environment of `OneRequestEnv` with flat features."""

    def make() -> gym.Env[Any, Any]:
        env: Any = OneRequestEnv(gym.make("llmroute_env:LLMRoute-v0", scenario=scenario))
        return ScaledReward(FlatObservation(env, task.include_active), task.reward_scale)

    return make


def window_env(scenario: Any, task: WindowTask) -> SB3VecEnv:
    """The native vector environment for learners that see the whole window."""
    return SB3VecEnv.make(task.lanes, scenario, flat=True, include_active=task.include_active)


class ScaledVecReward(VecEnvWrapper):  # type: ignore[misc]
    """`ScaledReward` of a ``VecEnv``."""

    def __init__(self, env: VecEnv, scale: float) -> None:
        super().__init__(env)
        self.scale = scale

    def reset(self) -> Any:
        """Start an episode on every lane."""
        return self.venv.reset()

    def step_wait(self) -> Any:
        """Play one step on every lane."""
        observation, reward, done, infos = self.venv.step_wait()
        return observation, reward / self.scale, done, infos


def make_model(config: TrainingConfig, env: VecEnv) -> Any:
    """A new model of the configuration's algorithm and network."""
    algorithm = config.algorithm
    arguments = {k: v for k, v in algorithm.model_dump().items() if k not in _OURS}
    policy, kwargs = _policy(config)
    return ALGORITHMS[algorithm.kind](
        policy, env, policy_kwargs=kwargs, seed=config.seed, device="cpu", **arguments
    )


def load_model(config: TrainingConfig, path: Path, env: VecEnv | None) -> Any:
    """A model from its checkpoint ``.zip``."""
    return ALGORITHMS[config.algorithm.kind].load(path, env=env, device="cpu")


def make_layout(config: TrainingConfig) -> Layout:
    """Layout of the observation of a run with task pairs."""
    if not isinstance(config.task, PairsTask):
        raise TypeError(f"task {config.task.kind} has no layout of pairs")
    devices = max(int(entry.load().cluster.devices) for entry in config.scenarios)
    return Layout(config.task.candidates, devices)


def _policy(config: TrainingConfig) -> tuple[Any, dict[str, Any]]:
    network, algorithm = config.network, config.algorithm
    if isinstance(network, PairsNetwork):
        layout = make_layout(config)
        extractor = {
            "candidates": layout.candidates,
            "devices": layout.devices,
            "width": network.width,
        }
        return PairPolicy, {
            "features_extractor_class": PairExtractor,
            "features_extractor_kwargs": extractor,
        }
    layers = list(network.layers)
    if isinstance(algorithm, PolicyGradient):
        name = "MlpLstmPolicy" if algorithm.kind == "recurrent_ppo" else "MlpPolicy"
        return name, {"net_arch": {"pi": layers, "vf": layers}}
    return "MlpPolicy", {"net_arch": layers}
