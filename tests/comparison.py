"""Run the environment and the reference cluster side by side and compare all that they show."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from reference_cluster import COMPONENTS, Outcome, ReferenceCluster
from reference_view import log, mask, observe, stats
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

#: Fields of an observation that are not whole numbers and not copied from the table.
ROUNDED = {
    "queue": [Queue.WAITED],
    "devices": [Device.LAST_ITERATION, Device.TIME_TO_END, Device.FIFO_PREDICTED],
    "clock": [Clock.NOW],
}

#: Integer nanoseconds become seconds by one rounding on each side, and float32 by another.
ONE_ROUNDING = 4e-16
ONE_ROUNDING_32 = 2.5e-7


def make(scenario: dict[str, Any], **options: Any) -> Any:
    """The bare environment: no checker, no wrapper."""
    return gym.make("LLMRoute-v0", scenario=scenario, disable_env_checker=True, **options).unwrapped


def equal(value: np.ndarray, expected: np.ndarray, what: str) -> None:
    """Equal to the last bit; NaN equals NaN. numpy's own check, slow, only words the message."""
    if not np.array_equal(value, expected, equal_nan=True):
        np.testing.assert_array_equal(value, expected, err_msg=what)


def close(value: Any, expected: Any, tolerance: float, what: str) -> None:
    """Equal up to a relative tolerance; NaN equals NaN."""
    if not np.array_equal(value, expected, equal_nan=True):
        np.testing.assert_allclose(value, expected, rtol=tolerance, err_msg=what)


def same_observation(observation: dict[str, np.ndarray], reference: dict[str, np.ndarray]) -> None:
    assert set(observation) == set(reference)
    for key, expected in reference.items():
        value = observation[key]
        assert value.shape == expected.shape, key
        assert value.dtype == expected.dtype, key
        rounded = ROUNDED.get(key, [])
        close(value[..., rounded], expected[..., rounded], ONE_ROUNDING_32, key)
        if rounded:
            value, expected = value.copy(), expected.copy()
            value[..., rounded] = expected[..., rounded] = 0.0
        equal(value, expected, key)


def same_log(shown: dict[str, np.ndarray], reference: dict[str, np.ndarray]) -> None:
    assert set(reference) <= set(shown)
    for column in EXACT:
        equal(shown[column], reference[column], column)
    for column in TIMES:
        close(shown[column], reference[column], ONE_ROUNDING, column)


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
        close(info["rewards"][name], expected.rewards[name], 1e-12, name)
    close(reward, expected.reward, 1e-12, "reward")


def same_stats(counters: Any, reference: ReferenceCluster) -> None:
    for name, expected in stats(reference).items():
        close(getattr(counters, name), expected, 1e-9, name)


def play(env: Any, episode: Episode, *, seed: int = 0, stride: int = 1) -> ReferenceCluster:
    """Play one episode in both; compare after the reset and after every step.

    The request log and the counters are compared every ``stride`` steps and at the end.
    """
    reference = episode.reference()
    act = episode.actor()
    invalid, total = 0, dict.fromkeys(COMPONENTS, 0.0)
    observation, info = env.reset(seed=seed, options={"requests": episode.table()})
    carried = reference.reset()  # rejections at reset are told with the first step
    same_observation(observation, observe(reference))
    equal(info["action_mask"], mask(reference), "action_mask")
    over = False
    while not over:
        action = act(len(reference.visible), reference.window)
        observation, reward, terminated, truncated, info = env.step(action)
        expected = reference.step(action.tolist())
        expected.cost += carried
        carried = 0.0
        same_observation(observation, observe(reference))
        equal(info["action_mask"], mask(reference), "action_mask")
        same_outcome(reward, terminated, truncated, info, expected)
        over = terminated or truncated
        if over or reference.k % stride == 0:
            same_log(env.request_log(), log(reference))
        if over or reference.k % (4 * stride) == 0:
            same_stats(env.episode_stats(), reference)
        invalid += expected.invalid
        total = {name: total[name] + expected.rewards[name] for name in COMPONENTS}
    counters = env.episode_stats()
    assert counters.invalid_actions == invalid
    for name in COMPONENTS:
        close(counters.rewards[name], total[name], 1e-12, name)
    close(counters.reward, sum(total.values()), 1e-12, "reward")
    return reference
