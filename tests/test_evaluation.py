"""evaluate: one sample path for all, stepped or compiled, any object with SB3's predict."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from llmroute_env.env import LLMRouteEnv
from llmroute_env.evaluation import evaluate
from llmroute_env.metrics import METRICS, TIMINGS
from llmroute_env.spaces import Clock

NAMES = ["random", "lor", "power_of_d", "central_fifo", "sjf:aging=0.2", "mc_sf", "olp"]


@pytest.fixture(scope="module")
def env() -> LLMRouteEnv:
    overrides = {"horizon_periods": 400, "router.window": 64, "cluster.kv_limit": 5000}
    return LLMRouteEnv("paper-overload", overrides)


def same(first: dict[str, Any], second: dict[str, Any]) -> None:
    assert list(first) == list(second)
    for key in first:
        if key not in TIMINGS:
            np.testing.assert_array_equal(first[key], second[key], err_msg=key)


@pytest.mark.parametrize("name", NAMES)
def test_compiled_and_stepped_episodes_are_identical(env: LLMRouteEnv, name: str) -> None:
    compiled = evaluate(env, name, 5, path="compiled")
    stepped = evaluate(env, name, 5, path="stepped")
    same(compiled.summary, stepped.summary)
    same(compiled.log, stepped.log)
    assert compiled.rewards == stepped.rewards
    np.testing.assert_array_equal(compiled.stats.series, stepped.stats.series)


def test_summary_has_the_keys_of_the_contract_and_of_info(env: LLMRouteEnv) -> None:
    infos: list[dict[str, Any]] = []

    class Spy(gym.Wrapper):
        def step(self, action: Any) -> Any:
            result = super().step(action)
            infos.append(result[-1])
            return result

    result = evaluate(Spy(env), "lor", 0, path="stepped")
    assert list(result.summary) == [*METRICS, *TIMINGS]
    same({key: result.summary[key] for key in METRICS}, infos[-1]["metrics"])
    assert sum(info["rewards"]["beta"] for info in infos) == result.rewards["beta"]
    assert 0 < result.summary["decision_us_p50"] <= result.summary["decision_us_p99"]
    assert (result.policy, result.information, result.seed) == ("lor", "none", 0)


def test_every_policy_sees_the_same_requests(env: LLMRouteEnv) -> None:
    logs = [evaluate(env, name, 3).log for name in ("random", "lor", "olp")]
    for log in logs[1:]:
        for column in ("arrival_s", "prompt", "decode", "predicted", "tier"):
            np.testing.assert_array_equal(log[column], logs[0][column])
    other = evaluate(env, "lor", 4).log
    assert len(other["arrival_s"]) != len(logs[0]["arrival_s"]) or np.any(
        other["arrival_s"] != logs[0]["arrival_s"]
    )


def test_an_oracle_twin_knows_the_lengths_of_the_same_requests(env: LLMRouteEnv) -> None:
    plain, oracle = (evaluate(env, name, 1) for name in ("sjf", "sjf_oracle"))
    for column in ("arrival_s", "prompt", "decode"):
        np.testing.assert_array_equal(plain.log[column], oracle.log[column])
    np.testing.assert_array_equal(oracle.log["predicted"], oracle.log["decode"])
    assert np.any(plain.log["predicted"] != plain.log["decode"])
    assert oracle.information == "oracle"


def test_random_policies_are_seeded_by_the_seed_alone(env: LLMRouteEnv) -> None:
    first = evaluate(env, "random", 7)
    evaluate(env, "random", 8)
    np.random.seed(123)  # noqa: NPY002  (the global generator must not matter, nor be touched)
    before = np.random.get_state()  # noqa: NPY002
    again = evaluate(env, "random", 7)
    after = np.random.get_state()  # noqa: NPY002
    same(first.log, again.log)
    assert before[2] == after[2]
    assert np.array_equal(before[1], after[1])


def test_a_made_policy_is_as_good_as_its_name(env: LLMRouteEnv) -> None:
    from policies import make

    policy = make("power_of_d", env, seed=99)
    same(evaluate(env, policy, 2).log, evaluate(env, "power_of_d", 2).log)


def test_request_table(env: LLMRouteEnv) -> None:
    result = evaluate(env, "lor", 0)
    table = result.requests
    assert len(table) == len(result.log["arrival_s"])
    assert table.index.name == "request"
    counts = table["status"].value_counts()
    assert counts["completed"] == result.summary["completed"]
    unfinished = counts["queued"] + counts["dispatched"] + counts["active"]
    assert unfinished == result.summary["unfinished"]
    done = table[table["status"] == "completed"]
    assert done["eel_s"].mean() == pytest.approx(result.summary["eel_mean_s_completed"])
    assert done["tpot_s"].mean() == pytest.approx(result.summary["tpot_mean_s"])
    assert table.loc[table["status"] != "completed", "eel_s"].isna().all()
    assert table.loc[table["decode"] == 1, "tpot_s"].isna().all()
    assert list(result.series.columns)[:3] == ["now", "queue", "fifo"]
    assert result.series["completed"].iloc[-1] == result.summary["completed"]


# --- other people's policies ---------------------------------------------------------------------


class Recorder:
    """A user's router: holds everything, and writes down what it was given."""

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []

    def predict(
        self,
        observation: dict[str, np.ndarray],
        state: Any = None,
        episode_start: Any = None,
        deterministic: bool = False,
    ) -> tuple[np.ndarray, Any]:
        call = {"state": state, "start": episode_start, "deterministic": deterministic}
        self.calls.append(call | {"period": float(observation["clock"][Clock.PERIOD])})
        return np.zeros(observation["queue"].shape[0], np.int64), len(self.calls)


def test_a_foreign_policy_gets_its_state_back(env: LLMRouteEnv) -> None:
    policy = Recorder()
    result = evaluate(env, policy, 0)
    assert [call["period"] for call in policy.calls] == list(range(400))
    assert [call["state"] for call in policy.calls] == [None, *range(1, 400)]
    assert [bool(call["start"][0]) for call in policy.calls] == [True] + [False] * 399
    assert policy.calls[0]["deterministic"] is True
    assert result.summary["unfinished"] == result.summary["arrived"] > 0
    assert result.policy == "Recorder"


def test_masks_are_given_to_a_policy_that_takes_them(env: LLMRouteEnv) -> None:
    from llmroute_env.wrappers.one_request import OneRequestEnv

    class Masked:
        def predict(
            self, observation: dict[str, np.ndarray], action_masks: np.ndarray
        ) -> tuple[np.ndarray, None]:
            assert action_masks.dtype == bool
            legal = np.flatnonzero(action_masks.reshape(-1))
            return np.array(legal[-1]), None  # the last device, as SB3 does: a 0-d array

    result = evaluate(OneRequestEnv(env), Masked(), 0)
    assert result.summary["completed"] > 0
    devices = result.log["device"]
    assert set(devices[devices >= 0]) == {3}
    assert result.stats.invalid_actions == 0


def test_a_heuristic_reads_through_wrappers(env: LLMRouteEnv) -> None:
    from llmroute_env.wrappers.one_request import OneRequestEnv

    plain = evaluate(env, "lor", 0)
    for path in ("auto", "stepped"):
        same(evaluate(OneRequestEnv(env), "lor", 0, path=path).log, plain.log)
        wrapped = gym.wrappers.RecordEpisodeStatistics(env)
        same(evaluate(wrapped, "lor", 0, path=path).log, plain.log)


def test_a_policy_of_ones_own_that_can_be_seeded_is(env: LLMRouteEnv) -> None:
    class Coin(Recorder):
        seeds: list[int] = []  # noqa: RUF012

        def reset(self, seed: int | None = None) -> None:
            assert seed is not None
            self.seeds.append(seed)

    evaluate(env, Coin(), 1)
    evaluate(env, Coin(), 1)
    evaluate(env, Coin(), 2)
    assert Coin.seeds[0] == Coin.seeds[1] != Coin.seeds[2]
    assert 1 not in Coin.seeds


def test_faults_end_in_one_clear_line(env: LLMRouteEnv) -> None:
    class NoState:
        def predict(self, observation: dict[str, np.ndarray]) -> np.ndarray:
            return np.zeros(64, np.int64)

    with pytest.raises(ValueError, match="NoState: predict must return"):
        evaluate(env, NoState(), 0)
    with pytest.raises(ValueError, match="auto, compiled or stepped"):
        evaluate(env, "lor", 0, path="fast")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no compiled episode"):
        evaluate(env, Recorder(), 0, path="compiled")
    with pytest.raises(ValueError, match="unknown policy"):
        evaluate(env, "lro", 0)
    with pytest.raises(ValueError, match="not a single LLMRoute environment"):
        evaluate(gym.make("CartPole-v1"), "lor", 0)
