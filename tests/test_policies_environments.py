"""Policies on every kind of environment: wrapped, vectorised, through Stable-Baselines3."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import llmroute_env  # noqa: F401  (registers the environment)
from policies import RouterSpec, make

KEYWORDS: dict[str, Any] = {
    "scenario": "paper-overload",
    "overrides": {"horizon_periods": 12, "router.window": 16, "workload.arrivals.rate": 3.0},
}


def single() -> gym.Env[Any, Any]:
    return gym.make("LLMRoute-v0", **KEYWORDS)


def test_the_facts_of_a_wrapped_environment() -> None:
    spec = RouterSpec.from_env(single())
    assert (spec.window, spec.devices, spec.slots, spec.period_s) == (16, 4, 24, 1.0)
    assert (spec.horizon_periods, spec.scenario) == (12, "paper-overload")
    assert spec.objective.beta == 1.0


def test_an_environment_of_another_kind() -> None:
    with pytest.raises(ValueError, match="CartPoleEnv is not an LLMRoute environment"):
        make("lor", gym.make("CartPole-v1"))


@pytest.mark.parametrize("mode", ["vector_entry_point", "sync"])
def test_vector_environments_drive_like_single_ones(mode: str) -> None:
    """Lane 0 of a vector environment, decided in a batch, is the single environment."""
    envs = gym.make_vec("LLMRoute-v0", num_envs=3, vectorization_mode=mode, **KEYWORDS)
    assert RouterSpec.from_env(envs) == RouterSpec.from_env(single())
    env = single()
    router, alone = make("power_of_d", envs, seed=4), make("power_of_d", env, seed=4)
    many, _ = envs.reset(seed=9)
    one, _ = env.reset(seed=9)
    for _ in range(12):
        actions, _ = router.predict(many)
        action, _ = alone.predict(one)
        np.testing.assert_array_equal(actions[0], action)
        many, rewards, *_ = envs.step(actions)
        one, reward, *_ = env.step(action)
        assert rewards[0] == pytest.approx(reward, rel=1e-12)
    envs.close()


def test_evaluate_policy_of_stable_baselines3() -> None:
    evaluation = pytest.importorskip("stable_baselines3.common.evaluation")
    vec_env = pytest.importorskip("stable_baselines3.common.vec_env")
    envs = vec_env.DummyVecEnv([single] * 2)
    envs.seed(3)
    rewards, lengths = evaluation.evaluate_policy(
        make("sjf", envs), envs, n_eval_episodes=4, return_episode_rewards=True, warn=False
    )
    assert lengths == [12] * 4
    assert min(rewards) > 0
