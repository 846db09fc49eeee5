"""Wrappers: the same episodes under another interface."""

from __future__ import annotations

import pickle
import warnings
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from llmroute_env.spaces import Active, Clock, Device, Queue
from llmroute_env.workload import RequestTable
from llmroute_env.wrappers import FlatFeatures, FlatObservation, OneRequestEnv, Scales

SMALL = {"horizon_periods": 150, "router.window": 12}


def make(scenario: str = "paper-overload", **overrides: Any) -> gym.Env[Any, Any]:
    changed = SMALL | {key.replace("__", "."): value for key, value in overrides.items()}
    return gym.make("llmroute_env:LLMRoute-v0", scenario=scenario, overrides=changed)


def table(arrivals: list[float]) -> RequestTable:
    rows = len(arrivals)
    return RequestTable(
        arrival_s=np.array(arrivals, np.float64),
        prompt=np.arange(10, 10 + rows, dtype=np.int64),
        decode=np.full(rows, 5, np.int64),
        predicted=np.full(rows, 6, np.float32),
        tier=np.zeros(rows, np.int64),
    )


# --- one request at a time -------------------------------------------------------------------


def play(env: OneRequestEnv, seed: int, hold: float) -> dict[str, Any]:
    """An episode of random legal choices: totals, and the choices of each period by request."""
    rng = np.random.default_rng(seed)
    observation, info = env.reset(seed=seed)
    played: dict[str, Any] = {"reward": 0.0, "cost": 0.0, "periods": 0, "choices": []}
    while True:
        assert env.observation_space.contains(observation)
        action = 0 if rng.random() < hold else int(rng.integers(1, env.action_space.n))
        played["choices"].append((info["request_id"], action))
        observation, reward, terminated, truncated, info = env.step(action)
        played["reward"] += reward
        played["cost"] += info["cost"]
        played["periods"] += info["periods"]
        if terminated or truncated:
            return played | {"info": info, "observation": observation}


@pytest.mark.parametrize("hold", [0.0, 0.4])
def test_one_request_plays_the_same_episode_as_the_wrapped_environment(hold: float) -> None:
    played = play(OneRequestEnv(make()), seed=5, hold=hold)
    choices = iter(played["choices"])
    bare = make()
    observation, _ = bare.reset(seed=5)
    reward, ended, info = 0.0, False, {}
    while not ended:
        action = np.zeros(bare.action_space.shape, np.int64)
        for row, request in enumerate(observation["queue_id"]):
            if request < 0:
                break
            asked, action[row] = next(choices)
            assert asked == request
        observation, step_reward, terminated, truncated, info = bare.step(action)
        reward += step_reward
        ended = terminated or truncated
    assert next(choices, None) is None
    assert played["reward"] == reward
    assert played["periods"] == 150
    assert played["info"]["metrics"] == info["metrics"]
    assert played["cost"] > 0


def test_requests_are_presented_oldest_first_and_fifos_fill_within_a_period() -> None:
    env = OneRequestEnv(make())
    env.reset(seed=0, options={"requests": table([0.0, 0.0, 0.0])})
    before = env.reset(seed=0, options={"requests": table([0.0, 0.0, 0.0])})[0]
    assert before["request"][Queue.PROMPT] == 10
    assert before["pending"].tolist() == [3, 0]

    sent, reward, _, _, info = env.step(2)
    assert (reward, info["periods"], info["request_id"]) == (0.0, 0, 1)
    assert sent["request"][Queue.PROMPT] == 11
    assert sent["pending"].tolist() == [2, 0]
    change = sent["devices"] - before["devices"]
    assert change[1, Device.FIFO_LENGTH] == 1
    assert change[1, Device.FIFO_TOKENS] == 10
    assert change[1, Device.FIFO_PREDICTED] == 6
    assert np.count_nonzero(change) == 3

    held, _, _, _, info = env.step(0)
    assert held["pending"].tolist() == [1, 1]
    assert np.array_equal(held["devices"], sent["devices"])

    after, _, _, _, info = env.step(1)
    assert info["periods"] == 1
    assert info["request_id"] == 1  # the held one is asked about again
    assert after["clock"][Clock.PERIOD] == 1
    assert after["devices"][:, Device.ACTIVE].tolist() == [1, 1, 0, 0]


def test_empty_periods_pass_unseen() -> None:
    env = OneRequestEnv(make())
    observation, info = env.reset(seed=0, options={"requests": table([20.5, 60.0])})
    assert observation["clock"][Clock.PERIOD] == 21
    observation, _, _, truncated, info = env.step(1)
    assert observation["clock"][Clock.PERIOD] == 60
    assert info["periods"] == 21 + 39  # those before the first decision belong to the first step
    assert not truncated
    observation, _, _, truncated, info = env.step(1)
    assert truncated
    assert info["periods"] == 90
    assert info["metrics"]["completed"] == 2
    assert not observation["request"].any()


def test_an_episode_without_requests_ends_in_its_first_step() -> None:
    env = OneRequestEnv(make())
    observation, info = env.reset(seed=0, options={"requests": table([])})
    assert (info["request_id"], info["action_mask"].tolist()) == (-1, [1, 0, 0, 0, 0])
    assert env.observation_space.contains(observation)
    _, reward, terminated, truncated, info = env.step(0)
    assert (reward, terminated, truncated, info["periods"]) == (0.0, False, True, 150)


def test_masks_name_what_is_legal() -> None:
    env = OneRequestEnv(make())
    _, info = env.reset(seed=0, options={"requests": table([0.0])})
    assert info["action_mask"].tolist() == [1, 1, 1, 1, 1]
    assert info["action_mask"].dtype == np.int8
    assert env.action_masks().tolist() == [True] * 5
    env.step(1)
    assert env.action_masks().tolist() == [True, False, False, False, False]


@pytest.mark.parametrize("action", [-1, 5])
def test_actions_out_of_range_are_refused(action: int) -> None:
    env = OneRequestEnv(make().unwrapped)
    env.reset(seed=0)
    with pytest.raises(ValueError, match=f"action = {action}: must be 0 .* or 1 to 4"):
        env.step(action)


def test_shared_buffers_change_nothing() -> None:
    settings = {"scenario": "paper-overload", "overrides": SMALL}
    shared = gym.make("llmroute_env:LLMRoute-v0", **settings, copy=False, disable_env_checker=True)
    ours, theirs = play(OneRequestEnv(shared), 3, 0.2), play(OneRequestEnv(make()), 3, 0.2)
    assert ours["choices"] == theirs["choices"]
    assert ours["reward"] == theirs["reward"]


@pytest.mark.parametrize("flat", [False, True])
def test_one_request_passes_gymnasiums_checker(flat: bool) -> None:
    env: gym.Env[Any, Any] = OneRequestEnv(make().unwrapped)
    if flat:
        env = FlatObservation(env)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message=".*different from the unwrapped version.*")
        check_env(env, skip_render_check=True)


def test_wrappers_need_the_dict() -> None:
    env = FlatObservation(make())
    with pytest.raises(TypeError, match="OneRequestEnv needs LLMRoute's Dict"):
        OneRequestEnv(env)
    with pytest.raises(TypeError, match="FlatObservation needs LLMRoute's Dict"):
        FlatObservation(env)


# --- flat features ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scenario", "one_request"),
    [("paper-overload", False), ("azure-conv-a100", False), ("memory-bound-a100", True)],
)
def test_features_stay_in_their_box(scenario: str, one_request: bool) -> None:
    env = make(scenario)
    env = FlatObservation(OneRequestEnv(env) if one_request else env)
    env.action_space.seed(1)
    observation, _ = env.reset(seed=1)
    low, high = 1.0, 0.0
    for _ in range(400):
        assert env.observation_space.contains(observation)
        low, high = min(low, observation.min()), max(high, observation.max())
        observation, _, terminated, truncated, _ = env.step(env.action_space.sample())
        if terminated or truncated:
            observation, _ = env.reset()
    assert low == 0.0
    assert 0.5 < high <= 1.0


def loaded() -> tuple[gym.Env[Any, Any], dict[str, np.ndarray]]:
    """An environment and an observation of it with active, dispatched and waiting requests."""
    env = make()
    env.reset(seed=2)
    rng = np.random.default_rng(2)
    for _ in range(60):
        observation, *_ = env.step(rng.integers(0, 5, env.action_space.shape))
    for _ in range(8):  # a queue
        observation, *_ = env.step(np.zeros(env.action_space.shape, np.int64))
    return env, observation


def test_blocks_cover_the_vector_in_order_and_keep_rows() -> None:
    env, observation = loaded()
    features = FlatFeatures(env.observation_space, Scales.of(env))
    vector = features(observation)
    stop = 0
    for block in features.layout.values():
        assert block.start == stop
        stop = block.stop
    assert stop == vector.size == features.space.shape[0]
    assert list(features.layout) == ["queue", "devices", "active", "clock"]

    devices = features.layout["devices"].of(vector)
    rows = observation["devices"]
    share = rows[:, Device.ACTIVE] / rows[:, Device.BATCH_LIMIT]
    np.testing.assert_allclose(devices[:, Device.ACTIVE], share, rtol=1e-6)
    kv = features.layout["active"].of(vector)[:, :, Active.KV]
    np.testing.assert_allclose(kv, observation["active"][:, :, Active.KV] / 16000, rtol=1e-6)
    present = features.layout["queue"].of(vector)[:, len(Queue)]
    assert np.array_equal(present > 0, observation["queue_id"] >= 0)


def test_the_order_of_devices_is_the_order_of_rows() -> None:
    env, observation = loaded()
    features = FlatFeatures(env.observation_space, Scales.of(env))
    order = [2, 0, 3, 1]
    moved = observation | {key: observation[key][order] for key in ("devices", "active")}
    for key in ("devices", "active"):
        block = features.layout[key]
        assert np.array_equal(block.of(features(moved)), block.of(features(observation))[order])
    queue = features.layout["queue"]
    assert np.array_equal(queue.of(features(moved)), queue.of(features(observation)))


def test_a_batch_of_lanes_is_its_lanes() -> None:
    env, first = loaded()
    second, _ = make().reset(seed=9)
    features = FlatFeatures(env.observation_space, Scales.of(env))
    batch = features({key: np.stack([first[key], second[key]]) for key in first})
    assert np.array_equal(batch, np.stack([features(first), features(second)]))


def test_the_documented_scales() -> None:
    env, observation = loaded()
    features = FlatFeatures(env.observation_space, Scales.of(env))
    observation["queue"][0] = [16000, 16000, 49.0, 0]
    observation["queue"][1] = [0, 1e9, 0.0, 1]
    observation["devices"][0, Device.FIFO_LENGTH] = 24
    observation["devices"][0, Device.LAST_ITERATION] = 1.0
    observation["clock"][Clock.HIDDEN] = 12
    vector = features(observation)
    queue = features.layout["queue"].of(vector)
    assert queue[0].tolist() == pytest.approx([1, 1, 0.5, 0, 1])
    assert queue[1].tolist() == pytest.approx([0, 1, 0, 0.5, 1])  # clipped
    device = features.layout["devices"].of(vector)[0]
    assert device[Device.FIFO_LENGTH] == device[Device.LAST_ITERATION] == 0.5
    clock = features.layout["clock"].of(vector)
    assert clock.tolist() == pytest.approx([68 / 150, 82 / 150, 0.5])


def test_without_the_slots_the_vector_is_small() -> None:
    env = FlatObservation(make(), include_active=False)
    assert "active" not in env.layout
    assert (
        env.reset(seed=0)[0].shape == env.observation_space.shape == (12 * 5 + 4 * len(Device) + 3,)
    )
    assert env.action_masks().shape == (12 * 5,)


# --- stable-baselines3 -----------------------------------------------------------------------


def sb3(lanes: int = 3, window: int = 12, **settings: Any) -> Any:
    pytest.importorskip("stable_baselines3", reason="the rl extra is not installed")
    from llmroute_env.wrappers import SB3VecEnv

    return SB3VecEnv.make(lanes, "paper-overload", SMALL | {"router.window": window}, **settings)


@pytest.mark.parametrize("flat", [False, True])
def test_lanes_of_the_vec_env_are_single_environments(flat: bool) -> None:
    vec = sb3(flat=flat)
    singles = [FlatObservation(make()) if flat else make() for _ in range(3)]
    vec.seed(11)
    batch = vec.reset()
    seen = [env.reset(seed=11 + lane)[0] for lane, env in enumerate(singles)]
    rng = np.random.default_rng(0)
    ends = 0
    for _ in range(320):
        for lane in range(3):
            assert_same(lane_of(batch, lane), seen[lane])
        masks = vec.env_method("action_masks")
        actions = rng.integers(0, 5, (3, 12))
        batch, rewards, dones, infos = vec.step(actions)
        for lane, env in enumerate(singles):
            assert np.array_equal(masks[lane], env.get_wrapper_attr("action_masks")())
            seen[lane], reward, terminated, truncated, info = env.step(actions[lane])
            assert rewards[lane] == np.float32(reward)
            assert dones[lane] == (terminated or truncated)
            for key in ("rewards", "cost", "invalid_actions"):
                assert infos[lane][key] == info[key]
            assert infos[lane]["TimeLimit.truncated"] == (truncated and not terminated)
            if dones[lane]:
                ends += 1
                assert_same(infos[lane]["terminal_observation"], seen[lane])
                exactly = pytest.approx(info["metrics"], rel=0, abs=0, nan_ok=True)
                assert infos[lane]["metrics"] == exactly
                seen[lane], _ = env.reset()
    assert ends == 6
    vec.close()


def lane_of(batch: Any, lane: int) -> Any:
    return {key: batch[key][lane] for key in batch} if isinstance(batch, dict) else batch[lane]


def assert_same(ours: Any, theirs: Any) -> None:
    if isinstance(ours, dict):
        assert ours.keys() == theirs.keys()
        for key in ours:
            assert np.array_equal(ours[key], theirs[key]), key
    else:
        assert np.array_equal(ours, theirs)


def test_the_vec_env_speaks_stable_baselines3() -> None:
    vec = sb3()
    from stable_baselines3.common.monitor import Monitor

    vec.seed(0)
    vec.reset()
    assert vec.has_attr("action_masks")
    assert not vec.has_attr("nonsense")
    assert vec.get_attr("render_mode") == [None] * 3
    assert vec.get_attr("scenario", indices=1)[0].name == "paper-overload"
    assert vec.env_is_wrapped(Monitor) == [False] * 3
    assert [mask.shape for mask in vec.env_method("action_masks", indices=[0, 2])] == [(60,)] * 2
    assert vec.get_attr("action_masks", indices=2)[0]().shape == (60,)
    assert vec.env_method("episode_stats", indices=1)[0].periods == 0
    with pytest.raises(AttributeError, match="a lane has action_masks"):
        vec.env_method("nonsense")
    vec.set_attr("label", "x")
    assert vec.get_attr("label") == ["x"] * 3
    with pytest.raises(ValueError, match="lanes share attributes"):
        vec.set_attr("label", "y", indices=[0])


def test_seeds_and_options_reach_the_lanes_once() -> None:
    vec = sb3()
    vec.seed(4)
    first = vec.reset()
    second = vec.reset()
    vec.seed(4)
    assert_same(vec.reset(), first)
    assert_same(vec.reset(), second)
    vec.set_options({"requests": table([0.0, 0.0])})
    assert vec.reset()["queue_id"][:, :3].tolist() == [[0, 1, -1]] * 3
    vec.set_options([{"prediction": "perfect"}, {}, {}])
    with pytest.raises(ValueError, match="the same options for all lanes"):
        vec.reset()


def test_the_vec_env_pickles() -> None:
    vec = sb3()
    vec.seed(1)
    vec.reset()
    twin = pickle.loads(pickle.dumps(vec))
    action = np.ones((3, 12), np.int64)
    for _ in range(5):
        ours, theirs = vec.step(action), twin.step(action)
    assert_same(ours[0], theirs[0])
    assert np.array_equal(ours[1], theirs[1])


def test_the_vec_env_refuses_what_would_mislead_a_learner() -> None:
    pytest.importorskip("stable_baselines3", reason="the rl extra is not installed")
    from llmroute_env.vector import LLMRouteVectorEnv
    from llmroute_env.wrappers import SB3VecEnv

    with pytest.raises(ValueError, match=r"needs AutoresetMode\.SAME_STEP"):
        SB3VecEnv(LLMRouteVectorEnv(2, "paper-overload", SMALL))
    shared = LLMRouteVectorEnv(2, "paper-overload", SMALL, copy=False, autoreset_mode="SameStep")
    with pytest.raises(ValueError, match="needs copy=True unless flat=True"):
        SB3VecEnv(shared)


@pytest.mark.parametrize("flat", [False, True])
def test_maskable_ppo_learns_on_the_vec_env(flat: bool) -> None:
    pytest.importorskip("sb3_contrib", reason="the rl extra is not installed")
    from sb3_contrib import MaskablePPO
    from stable_baselines3.common.vec_env import VecMonitor

    vec = VecMonitor(sb3(window=2, flat=flat))
    policy = "MlpPolicy" if flat else "MultiInputPolicy"
    model = MaskablePPO(policy, vec, n_steps=80, batch_size=240, n_epochs=1, seed=0)
    model.learn(480)
    assert len(model.ep_info_buffer) == 3
    assert {int(episode["l"]) for episode in model.ep_info_buffer} == {150}


def test_dqn_learns_on_one_request() -> None:
    pytest.importorskip("stable_baselines3", reason="the rl extra is not installed")
    from stable_baselines3 import DQN

    env = FlatObservation(OneRequestEnv(make()), include_active=False)
    model = DQN("MlpPolicy", env, learning_starts=50, buffer_size=500, seed=0)
    model.learn(200)
    action, _ = model.predict(env.reset(seed=0)[0])
    assert env.action_space.contains(int(action))
