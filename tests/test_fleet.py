"""Fleets of unlike devices: groups in a scenario, legal choices, what mis-routing costs."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import policies
from llmroute_env import evaluate
from llmroute_env.cluster.state import RejectReason, Status
from llmroute_env.scenario import Scenario, ScenarioError
from llmroute_env.workload import RequestTable

UNIT = {"kind": "constant", "iteration_s": 1.0}
SHORT = {"name": "short", "devices": 2, "batch_limit": 8, "kv_limit": 400, "timing": UNIT}
LONG = {"name": "long", "devices": 1, "batch_limit": 2, "kv_limit": 2000, "timing": UNIT}


def scenario(*groups: dict[str, Any], **cluster: Any) -> dict[str, Any]:
    data = Scenario.load("paper-stable").to_dict()
    return data | {"name": "pools", "cluster": {"groups": list(groups), **cluster}}


def table(*rows: tuple[float, int, int]) -> RequestTable:
    arrival, prompt, decode = (np.array(column) for column in zip(*rows, strict=True))
    return RequestTable(
        arrival.astype(np.float64),
        prompt.astype(np.int64),
        decode.astype(np.int64),
        decode.astype(np.float32),
        np.zeros(len(rows), np.int64),
    ).validate()


def make(*rows: tuple[float, int, int], **cluster: Any) -> Any:
    env = gym.make("LLMRoute-v0", scenario=scenario(SHORT, LONG, **cluster)).unwrapped
    env.reset(seed=0, options={"requests": table(*rows)})
    return env


def act(env: Any, *choices: int) -> dict[str, Any]:
    action = np.zeros(env.action_space.shape, np.int64)
    action[: len(choices)] = choices
    return env.step(action)[4]  # type: ignore[no-any-return]


def test_devices_are_those_of_the_groups_in_order() -> None:
    env = make((0.0, 5, 5))
    spec = env.spec_cluster
    assert spec.pool == ("short", "short", "long")
    assert spec.batch_limit.tolist() == [8, 8, 2]
    assert spec.kv_limit.tolist() == [400, 400, 2000]
    assert env.scenario.cluster.devices == 3
    assert env.observation_space["active"].shape == (3, 8, 2)


def test_one_group_is_the_fleet_of_equal_devices() -> None:
    """The same fleet written both ways plays the same episode."""
    alike = Scenario.load("paper-stable", {"horizon_periods": 300})
    cluster = alike.to_dict()["cluster"]
    group = {key: cluster[key] for key in ("devices", "batch_limit", "kv_limit", "timing")}
    written = alike.to_dict() | {"cluster": {"groups": [group]}}
    results = []
    for source in (alike, written):
        env = gym.make("LLMRoute-v0", scenario=source)
        results.append(evaluate(env, policies.make("lor", env), seed=3).summary["reward"])
    assert results[0] == results[1]
    assert Scenario.load(written).offered_load() == alike.offered_load()


def test_a_prompt_that_a_device_cannot_hold_makes_it_illegal() -> None:
    env = make((0.0, 399, 1), (0.0, 400, 1), (0.0, 5, 5))
    assert env.action_masks().reshape(-1, 4)[:3].tolist() == [
        [True, True, True, True],
        [True, False, False, True],
        [True, True, True, True],
    ]
    info = act(env, 0, 1)
    assert info["invalid_actions"] == 1
    assert env.request_log()["status"].tolist() == [Status.QUEUED] * 3


def test_the_mask_follows_the_requests_as_the_window_moves() -> None:
    env = make((0.0, 5, 50), (0.0, 400, 1), (0.0, 5, 5))
    info = act(env, 1)
    assert info["action_mask"][:2].tolist() == [[1, 0, 0, 1], [1, 1, 1, 1]]


@pytest.mark.parametrize(
    ("context", "reason"), [(None, RejectReason.KV_LIMIT), (300, RejectReason.CONTEXT_LIMIT)]
)
def test_its_device_rejects_what_it_can_never_hold(
    context: int | None, reason: RejectReason
) -> None:
    """The prompt fits the short pool, the whole request only the long one."""
    group = SHORT | {"context_limit": context}
    prompt, decode = (200, 150) if context else (390, 20)
    env = gym.make("LLMRoute-v0", scenario=scenario(group, LONG)).unwrapped
    env.reset(seed=0, options={"requests": table((0.0, prompt, decode), (0.0, prompt, decode))})
    info = act(env, 1, 3)
    log = env.request_log()
    assert log["status"].tolist() == [Status.REJECTED, Status.ACTIVE]
    assert log["reject_reason"].tolist() == [reason, RejectReason.NONE]
    assert log["device"].tolist() == [0, 2]
    assert info["cost"] == 1.0
    assert info["invalid_actions"] == 0


def test_what_no_device_can_hold_is_rejected_at_arrival() -> None:
    env = make((0.0, 1990, 20), (0.0, 5, 5))
    log = env.request_log()
    assert log["status"].tolist() == [Status.REJECTED, Status.QUEUED]
    assert log["device"].tolist() == [-1, -1]


def test_capacity_is_the_sum_over_the_groups() -> None:
    both = Scenario.load(scenario(SHORT | {"kv_limit": 4000}, LONG | {"kv_limit": 4000}))
    one = Scenario.load(scenario({**SHORT, "devices": 1, "batch_limit": 18, "kv_limit": 4000}))
    assert both.offered_load().batch == pytest.approx(one.offered_load().batch)


@pytest.mark.parametrize(
    ("cluster", "message"),
    [
        ({"groups": []}, "cluster.groups = []: must hold at least one group"),
        ({"groups": [SHORT, SHORT]}, "cluster.groups: name 'short' occurs twice"),
        ({"groups": [SHORT], "devices": 5}, "devices = 5: the groups have 2"),
        ({"groups": [SHORT], "kv_limit": 5}, "cluster.kv_limit: with groups, each group has"),
        ({"groups": [SHORT | {"kv_limit": -1}]}, "groups.0.kv_limit = -1: must be at least 1"),
        ({"groups": [SHORT | {"kv_limits": 5}]}, "groups.0.kv_limits; did you mean 'kv_limit'?"),
        ({"devices": 3}, "cluster.timing is missing"),
        ({"groups": [SHORT], "prefix_cache": {"block": 16}}, "prefix_cache: needs prefill"),
        (
            {"groups": [SHORT], "handoff": {}, "prefill": {}},
            "handoff: not together with prefill",
        ),
    ],
)
def test_a_bad_fleet_is_one_line(cluster: dict[str, Any], message: str) -> None:
    with pytest.raises(ScenarioError) as error:
        Scenario.load(Scenario.load("paper-stable").to_dict() | {"cluster": cluster})
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_an_override_reaches_into_a_group() -> None:
    loaded = Scenario.load(scenario(SHORT, LONG), {"cluster.groups.1.batch_limit": 7})
    assert [group.batch_limit for group in loaded.cluster.fleet] == [8, 7]
    with pytest.raises(ScenarioError, match=r"'2' must be a number from 0 to 1"):
        Scenario.load(scenario(SHORT, LONG), {"cluster.groups.2.batch_limit": 7})


@pytest.mark.parametrize(
    "name",
    ["random", "round_robin", "lor", "power_of_d", "vllm_dp", "least_predicted_work",
     "central_fifo", "sjf", "mc_sf"],
)  # fmt: skip
def test_routers_choose_among_the_devices_that_can_hold_a_request(name: str) -> None:
    """No illegal choice; and who reads exact lengths has nothing rejected at a device."""
    data = scenario(SHORT, LONG) | {"horizon_periods": 400, "prediction": {"kind": "perfect"}}
    env = gym.make("LLMRoute-v0", scenario=data)
    policy = policies.make(name, env)
    result = evaluate(env, policy, seed=5)
    assert env.unwrapped.episode_stats().invalid_actions == 0  # type: ignore[attr-defined]
    rejected = result.requests[result.requests["status"] == "rejected"]
    misrouted = int((rejected["device"] >= 0).sum())
    assert misrouted == 0 if policies.available()[name] == "predicted" else misrouted > 0
    assert result.summary["completed"] > 10
    stepped = evaluate(env, policies.make(name, env), seed=5, path="stepped")
    assert stepped.summary["reward"] == result.summary["reward"]
