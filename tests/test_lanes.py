"""Lane i of the vector environment is the single environment with seed s + i, bit for bit."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from comparison import make
from strategies import STYLES, Actor

from llmroute_env.vector import LLMRouteVectorEnv

LANES = 5
SMALL = {"horizon_periods": 25, "router.window": 12}
SCENARIOS: dict[str, dict[str, Any]] = {
    "paper-overload": {**SMALL, "workload.arrivals.rate": 3.0, "cluster.batch_limit": 3},
    "memory-bound-a100": {**SMALL, "cluster.kv_limit": 4_000, "workload.arrivals.rate": 40.0},
    # Drains end at different periods, so that lanes start anew at different times.
    "azure-conv-a100": {
        **SMALL,
        "drain": True,
        "max_drain_periods": 150,
        "workload.arrivals.rate": 8.0,
    },
    # Prefill in chunks and prefix caches.
    "chat-prefix": {
        **SMALL,
        "warmup_s": 0.0,
        "workload.arrivals.rate": 60.0,
        "cluster.kv_limit": 12_000,
        "drain": True,
        "max_drain_periods": 60,
    },
}


class Single:
    """The single environment of one lane, with the actions that both sides take."""

    def __init__(self, scenario: str, seed: int, lane: int) -> None:
        self.env = make(scenario, overrides=SCENARIOS[scenario])
        devices = self.env.scenario.cluster.devices
        self.actor = Actor(STYLES[lane % len(STYLES)], devices, lane)
        self.observation, self.info = self.env.reset(seed=seed + lane)
        self.over = False

    def act(self) -> np.ndarray:
        ids = self.observation["queue_id"]
        return self.actor(int((ids >= 0).sum()), len(ids))

    def restart(self) -> None:
        self.observation, self.info = self.env.reset()


def pick(infos: dict[str, Any], lane: int) -> dict[str, Any]:
    """A lane's part of batched infos, in Gymnasium's layout."""
    found: dict[str, Any] = {}
    for key, value in infos.items():
        if key.startswith("_") or not infos[f"_{key}"][lane]:
            continue
        found[key] = pick(value, lane) if isinstance(value, dict) else value[lane]
    return found


def same(value: Any, expected: Any, where: str) -> None:
    """Equal to the last bit, NaN included."""
    if isinstance(expected, dict):
        assert set(value) == set(expected), where
        for key in expected:
            same(value[key], expected[key], f"{where}.{key}")
        return
    left, right = np.asarray(value), np.asarray(expected)
    assert left.shape == right.shape, where
    if isinstance(expected, np.ndarray):
        assert left.dtype == right.dtype, where
    np.testing.assert_array_equal(left, right, err_msg=where)


def lane_of(observation: dict[str, np.ndarray], lane: int) -> dict[str, np.ndarray]:
    return {key: value[lane] for key, value in observation.items()}


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
@pytest.mark.parametrize("scenario", list(SCENARIOS))
def test_lane_equals_single_environment(scenario: str, mode: str) -> None:
    seed, threads = 40, 2 if scenario == "paper-overload" else None
    vector = gym.make_vec(
        "LLMRoute-v0",
        num_envs=LANES,
        scenario=scenario,
        overrides=SCENARIOS[scenario],
        autoreset_mode=mode,
        threads=threads,
    )
    assert isinstance(vector.unwrapped, LLMRouteVectorEnv)  # the default of gym.make_vec
    assert vector.metadata["autoreset_mode"].value == mode
    singles = [Single(scenario, seed, lane) for lane in range(LANES)]
    observation, infos = vector.reset(seed=seed)
    for lane, single in enumerate(singles):
        same(lane_of(observation, lane), single.observation, f"reset {lane}")
        same(pick(infos, lane), single.info, f"reset info {lane}")
    episodes = np.zeros(LANES, int)
    for step in range(600):
        actions = np.stack([single.act() for single in singles])
        observation, rewards, terminated, truncated, infos = vector.step(actions)
        for lane, single in enumerate(singles):
            where = f"step {step} lane {lane}"
            info = pick(infos, lane)
            if single.over:  # NEXT_STEP: the action is ignored, the step is a reset
                single.restart()
                single.over = False
                same(lane_of(observation, lane), single.observation, where)
                same(info["action_mask"], single.info["action_mask"], where)
                assert (rewards[lane], terminated[lane], truncated[lane]) == (0.0, False, False)
                continue
            single.observation, reward, ends, cut, single.info = single.env.step(actions[lane])
            assert (rewards[lane], terminated[lane], truncated[lane]) == (reward, ends, cut)
            if not (ends or cut):
                same(lane_of(observation, lane), single.observation, where)
                same(info, single.info, where)
                continue
            episodes[lane] += 1
            if mode == "NextStep":
                same(lane_of(observation, lane), single.observation, where)
                same(info, single.info, where)
                same(vector.request_log(lane), single.env.request_log(), where)
                single.over = True
            else:
                same(info["final_obs"], single.observation, where)
                same(info["final_info"], single.info, where)
                single.restart()
                same(lane_of(observation, lane), single.observation, where)
                same(info["action_mask"], single.info["action_mask"], where)
        if episodes.min() >= 3:
            break
    assert episodes.min() >= 3
    vector.close()


def test_lanes_do_not_depend_on_their_number_or_threads() -> None:
    """The same lane among 3, among 9, and stepped by several threads."""
    runs = []
    for lanes, threads in ((3, 1), (9, 1), (9, 3)):
        vector = gym.make_vec(
            "LLMRoute-v0",
            num_envs=lanes,
            scenario="memory-bound-a100",
            overrides=SCENARIOS["memory-bound-a100"],
            threads=threads,
        )
        actors = [Actor("spread", 4, lane) for lane in range(lanes)]
        observation, _ = vector.reset(seed=7)
        seen = []
        for _ in range(60):
            visible = (observation["queue_id"] >= 0).sum(axis=1)
            actions = np.stack([a(int(n), 12) for a, n in zip(actors, visible, strict=True)])
            observation, rewards, *_ = vector.step(actions)
            seen.append((rewards[:3].copy(), {k: v[:3].copy() for k, v in observation.items()}))
        runs.append(seen)
        vector.close()
    for other in runs[1:]:
        for (reward, observation), (reward_0, observation_0) in zip(other, runs[0], strict=True):
            same(reward, reward_0, "reward")
            same(observation, observation_0, "observation")
