"""The environment keeps the contracts of Gymnasium and of stable-baselines3."""

from __future__ import annotations

import pickle
import warnings
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers import RecordEpisodeStatistics, RecordVideo

import llmroute_env
from llmroute_env.wrappers import FlatObservation, OneRequestEnv

ID = "llmroute_env:LLMRoute-v0"
SMALL = {"horizon_periods": 60, "router.window": 8}


def make(scenario: str = "paper-overload", **settings: Any) -> gym.Env[Any, Any]:
    return gym.make(ID, scenario=scenario, **{"overrides": SMALL, **settings})


def make_vec(mode: str | None, **settings: Any) -> gym.vector.VectorEnv[Any, Any, Any]:
    return gym.make_vec(
        ID,
        num_envs=2,
        vectorization_mode=mode,
        scenario="paper-overload",
        overrides=SMALL,
        **settings,
    )


# --- Gymnasium -------------------------------------------------------------------------------


@pytest.mark.parametrize("render_mode", [None, "ansi", "rgb_array"])
@pytest.mark.parametrize("scenario", ["paper-overload", "azure-conv-a100", "memory-bound-a100"])
def test_gymnasiums_checker_has_no_remark(scenario: str, render_mode: str | None) -> None:
    env = make(scenario, render_mode=render_mode)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(env.unwrapped)


def test_the_default_scenario() -> None:
    env = gym.make(ID)
    assert env.unwrapped.scenario.name == "azure-conv-a100"
    assert env.spec.max_episode_steps is None
    env.reset(seed=0)
    mask = env.reset(seed=0)[1]["action_mask"]
    env.action_space.seed(0)
    *_, info = env.step(env.action_space.sample(mask=tuple(mask)))
    assert info["invalid_actions"] == 0


def test_every_listed_scenario_makes_an_environment() -> None:
    names = [
        name
        for name in llmroute_env.list_scenarios()
        if llmroute_env.Scenario.load(name).workload.trace is None
    ]
    assert len(names) >= 8
    for name in names:
        env = make(name, overrides={**SMALL, "warmup_s": 0.0})
        observation, _ = env.reset(seed=0)
        assert env.observation_space.contains(observation), name


def test_the_end_of_an_episode_is_python_bools() -> None:
    env = make().unwrapped
    env.reset(seed=0)
    hold = np.zeros(env.action_space.shape, np.int64)
    for period in range(60):
        _, reward, terminated, truncated, info = env.step(hold)
        assert type(reward) is float
        assert type(terminated) is bool
        assert (terminated, truncated) == (False, period == 59)
        assert ("metrics" in info) == truncated
    with pytest.raises(gym.error.ResetNeeded):
        env.step(hold)


def test_record_episode_statistics() -> None:
    env = RecordEpisodeStatistics(make())
    env.reset(seed=0)
    total = 0.0
    for _ in range(60):
        _, reward, _, _, info = env.step(np.ones(env.action_space.shape, np.int64))
        total += reward
    assert info["episode"]["l"] == 60
    assert info["episode"]["r"] == pytest.approx(total)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_record_video(tmp_path: Path) -> None:
    pytest.importorskip("moviepy", reason="the dev extra is not installed")
    env = RecordVideo(
        make(render_mode="rgb_array"), str(tmp_path / "v"), video_length=20, disable_logger=True
    )
    env.reset(seed=0)
    for _ in range(25):
        env.step(np.ones(env.action_space.shape, np.int64))
    env.close()
    (video,) = tmp_path.glob("v/*.mp4")
    assert video.stat().st_size > 5_000


# --- vector environments ---------------------------------------------------------------------


def test_make_vec_builds_the_native_environment() -> None:
    for mode in (None, "vector_entry_point"):
        envs = make_vec(mode)
        assert isinstance(envs.unwrapped, llmroute_env.LLMRouteVectorEnv)
        assert envs.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
        envs.close()


@pytest.mark.parametrize("mode", ["vector_entry_point", "sync", "async"])
def test_the_three_modes_of_make_vec_agree(mode: str) -> None:
    """Over an episode's end, with new processes (spawn), which import everything anew."""
    reference = make_vec("sync")
    kwargs = {"vector_kwargs": {"context": "spawn"}} if mode == "async" else {}
    envs = make_vec(mode, **kwargs)
    rng = np.random.default_rng(0)
    try:
        ours, theirs = envs.reset(seed=7), reference.reset(seed=7)
        for _ in range(70):
            for key in theirs[0]:
                assert np.array_equal(ours[0][key], theirs[0][key]), key
            assert np.array_equal(ours[-1]["action_mask"], theirs[-1]["action_mask"])
            actions = rng.integers(0, 5, (2, 8))
            ours, theirs = envs.step(actions), reference.step(actions)
            for ours_part, theirs_part in zip(ours[1:4], theirs[1:4], strict=True):
                assert np.array_equal(ours_part, theirs_part)
            if theirs[3].any():
                for name, value in theirs[4]["metrics"].items():
                    np.testing.assert_array_equal(ours[4]["metrics"][name], value, name)
    finally:
        envs.close()
        reference.close()


def test_vector_wrappers_of_gymnasium() -> None:
    envs = gym.wrappers.vector.RecordEpisodeStatistics(make_vec("vector_entry_point"))
    envs.reset(seed=0)
    for _ in range(60):
        *_, infos = envs.step(np.ones((2, 8), np.int64))
    assert infos["episode"]["l"].tolist() == [60, 60]
    envs.close()


# --- pickling --------------------------------------------------------------------------------


@pytest.mark.parametrize("started", [False, True])
@pytest.mark.parametrize("wrapped", [False, True])
def test_a_pickled_environment_goes_on_in_the_same_way(started: bool, wrapped: bool) -> None:
    env: Any = FlatObservation(OneRequestEnv(make())) if wrapped else make()
    if started:
        env.reset(seed=3)
        for _ in range(20):
            env.step(env.action_space.sample())
    twin = pickle.loads(pickle.dumps(env))
    if not started:
        env.reset(seed=3)
        twin.reset(seed=3)
    for _ in range(20):
        action = env.action_space.sample()
        ours, theirs = env.step(action), twin.step(action)
        assert ours[1:4] == theirs[1:4]
        pairs = zip(arrays(ours[0]), arrays(theirs[0]), strict=True)
        assert all(np.array_equal(one, other) for one, other in pairs)


def arrays(observation: Any) -> list[np.ndarray]:
    return list(observation.values()) if isinstance(observation, dict) else [observation]


# --- stable-baselines3 -----------------------------------------------------------------------


def remarks(env: gym.Env[Any, Any]) -> list[str]:
    checker = pytest.importorskip(
        "stable_baselines3.common.env_checker", reason="the rl extra is not installed"
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        checker.check_env(env)
    return [str(warning.message) for warning in caught]


@pytest.mark.parametrize("one_request", [False, True])
def test_sb3s_checker_has_no_remark_on_the_flat_wrapper(one_request: bool) -> None:
    env = make().unwrapped
    assert remarks(FlatObservation(OneRequestEnv(env) if one_request else env)) == []


def test_sb3s_checker_remarks_on_shapes_alone() -> None:
    """It takes the three axes of ``active`` for an image's."""
    found = remarks(make().unwrapped)
    assert len(found) == 5
    assert all("unconventional shape" in text or "image" in text for text in found), found


def test_evaluate_policy_of_sb3() -> None:
    evaluation = pytest.importorskip(
        "stable_baselines3.common.evaluation", reason="the rl extra is not installed"
    )
    import policies

    env = make()
    policy = policies.make("round_robin", env, seed=0)
    mean, spread = evaluation.evaluate_policy(policy, env, n_eval_episodes=2, warn=False)
    assert mean > 0
    assert spread >= 0
