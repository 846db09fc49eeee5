"""Frames per second of one learner on the native vector environment and on SB3's own.

The learner, the environment and its features are the same; only who steps the lanes differs.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv, VecMonitor

from llmroute_env.wrappers import FlatObservation
from llmroute_env.wrappers.sb3_vec_env import SB3VecEnv

SCENARIO = "paper-overload"
OVERRIDES: dict[str, Any] = {"router.window": 8, "horizon_periods": 1000}


@dataclass(frozen=True)
class Throughput:
    """Frames (periods of one lane) per second.

    Attributes:
        name: who steps the lanes.
        lanes: N.
        stepping: with fixed actions, without a learner.
        collecting: of rollouts with the policy's network.
        training: of rollouts and updates together.
    """

    name: str
    lanes: int
    stepping: float
    collecting: float
    training: float


def one() -> gym.Env[Any, Any]:
    """A single environment with flat features."""
    env = gym.make("llmroute_env:LLMRoute-v0", scenario=SCENARIO, overrides=OVERRIDES)
    return FlatObservation(env, include_active=False)


def measure(name: str, make: Callable[[], VecEnv], rollouts: int = 4) -> Throughput:
    """Train PPO for ``rollouts`` rollouts of 128 steps on what ``make`` makes."""
    torch.set_num_threads(1)
    env = VecMonitor(make())
    try:
        env.seed(0)
        env.reset()
        lanes = env.num_envs
        actions = np.zeros((lanes, *env.action_space.shape), np.int64)  # hold all
        steps = 128 * rollouts
        env.step(actions)
        start = time.perf_counter()
        for _ in range(steps):
            env.step(actions)
        stepping = steps * lanes / (time.perf_counter() - start)
        model = PPO(
            "MlpPolicy", env, n_steps=128, batch_size=1024, n_epochs=4, seed=0, device="cpu"
        )
        model.learn(128 * lanes)  # one rollout to warm up
        clock = _Clock(model)
        start = time.perf_counter()
        model.learn(128 * rollouts * lanes, reset_num_timesteps=False)
        total = time.perf_counter() - start
    finally:
        env.close()
    frames = 128 * rollouts * lanes
    return Throughput(name, lanes, stepping, frames / clock.seconds, frames / total)


def compare(lanes: int = 16, rollouts: int = 4) -> list[Throughput]:
    """Measure the three of them, in one process after the other."""
    return [
        measure(
            "native (SB3VecEnv)",
            lambda: SB3VecEnv.make(lanes, SCENARIO, OVERRIDES, flat=True, include_active=False),
            rollouts,
        ),
        measure("DummyVecEnv", lambda: DummyVecEnv([one] * lanes), rollouts),
        measure(
            "SubprocVecEnv", lambda: SubprocVecEnv([one] * lanes, start_method="spawn"), rollouts
        ),
    ]


def main() -> int:
    """Print the comparison."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    found = compare()
    table = Table(
        box=box.SIMPLE_HEAD,
        title=f"PPO on {SCENARIO}, {found[0].lanes} lanes, frames/s",
        title_justify="left",
    )
    for column in ("lanes stepped by", "steps alone", "rollouts", "training", "training ×"):
        table.add_column(column, justify="left" if column == "lanes stepped by" else "right")
    slowest = min(row.training for row in found)
    for row in found:
        numbers = (row.stepping, row.collecting, row.training)
        table.add_row(row.name, *(f"{n:,.0f}" for n in numbers), f"{row.training / slowest:.1f}")
    Console().print(table)
    return 0


class _Clock:
    """Adds up the seconds that a model spends on collecting rollouts."""

    def __init__(self, model: Any) -> None:
        self.seconds = 0.0
        collect = model.collect_rollouts

        def timed(*arguments: Any, **values: Any) -> Any:
            start = time.perf_counter()
            try:
                return collect(*arguments, **values)
            finally:
                self.seconds += time.perf_counter() - start

        model.collect_rollouts = timed
