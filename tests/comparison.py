"""Run the environment and the reference cluster side by side and compare all that they show."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from reference_cluster import COMPONENTS, Outcome, ReferenceCluster
from strategies import Episode

import llmroute_env  # noqa: F401 (registers LLMRoute-v0)
from llmroute_env.spaces import Clock, Device, Queue

#: Columns of the log that are counts or codes, and those that are times.
EXACT = (
    "prompt",
    "decode",
    "predicted",
    "tier",
    "status",
    "device",
    "emitted",
    "preemptions",
    "recomputed",
    "reject_reason",
)
TIMES = ("arrival_s", "dispatch_s", "start_s", "first_token_s", "finish_s")

#: Integer nanoseconds become seconds by one rounding on each side, and float32 by another.
ONE_ROUNDING = 4e-16
ONE_ROUNDING_32 = 2.5e-7


def make(scenario: dict[str, Any], **options: Any) -> Any:
    """The bare environment: no checker, no wrapper."""
    return gym.make("LLMRoute-v0", scenario=scenario, disable_env_checker=True, **options).unwrapped


def same_observation(observation: dict[str, np.ndarray], reference: dict[str, np.ndarray]) -> None:
    assert set(observation) == set(reference)
    for key, expected in reference.items():
        value = observation[key]
        assert value.shape == expected.shape, key
        assert value.dtype == expected.dtype, key
    np.testing.assert_array_equal(observation["queue_id"], reference["queue_id"])
    times = {
        "queue": [Queue.WAITED],
        "devices": [Device.LAST_ITERATION, Device.TIME_TO_END, Device.FIFO_PREDICTED],
        "active": [],
        "clock": [Clock.NOW],
    }
    for key, rounded in times.items():
        value, expected = observation[key], reference[key]
        exact = [i for i in range(expected.shape[-1]) if i not in rounded]
        np.testing.assert_array_equal(value[..., exact], expected[..., exact], err_msg=key)
        np.testing.assert_allclose(
            value[..., rounded], expected[..., rounded], rtol=ONE_ROUNDING_32, err_msg=key
        )


def same_log(log: dict[str, np.ndarray], reference: dict[str, np.ndarray]) -> None:
    assert set(reference) <= set(log)
    for column in EXACT:
        np.testing.assert_array_equal(log[column], reference[column], err_msg=column)
    for column in TIMES:
        np.testing.assert_allclose(
            log[column], reference[column], rtol=ONE_ROUNDING, err_msg=column
        )


def same_outcome(
    reward: float, terminated: bool, truncated: bool, info: dict[str, Any], expected: Outcome
) -> None:
    assert type(terminated) is bool
    assert type(truncated) is bool
    assert (terminated, truncated) == (expected.terminated, expected.truncated)
    assert info["invalid_actions"] == expected.invalid
    assert info["cost"] == expected.cost
    assert set(info["rewards"]) == set(COMPONENTS)
    for name in COMPONENTS:
        np.testing.assert_allclose(
            info["rewards"][name], expected.rewards[name], rtol=1e-12, err_msg=name
        )
    np.testing.assert_allclose(reward, expected.reward, rtol=1e-12)


def play(env: Any, episode: Episode, seed: int = 0) -> ReferenceCluster:
    """Play one episode in both, comparing after the reset and after every step."""
    reference = episode.reference()
    act = episode.actor()
    observation, info = env.reset(seed=seed, options={"requests": episode.table()})
    cost_at_reset = reference.reset()
    same_observation(observation, reference.observe())
    np.testing.assert_array_equal(info["action_mask"], reference.mask())
    carried = cost_at_reset - info.get("cost", 0.0)
    while True:
        action = act(len(reference.visible), reference.window)
        observation, reward, terminated, truncated, info = env.step(action)
        expected = reference.step(action.tolist())
        expected.cost += carried  # rejections at reset may be told with the first step
        carried = 0.0
        same_observation(observation, reference.observe())
        np.testing.assert_array_equal(info["action_mask"], reference.mask())
        same_outcome(reward, terminated, truncated, info, expected)
        same_log(env.request_log(), reference.log())
        if terminated or truncated:
            return reference
