"""An episode inside one compiled call is, bit for bit, the episode stepped with ``predict``."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from llmroute_env.env import LLMRouteEnv
from policies import Policy, available, make

SCENARIOS: dict[str, tuple[str, dict[str, Any]]] = {
    "lock-step, memory binds, preemption": (
        "paper-overload",
        {"cluster.kv_limit": 2500, "horizon_periods": 150, "workload.arrivals.rate": 2.0},
    ),
    "hidden queue, drain": (
        "paper-stable",
        {
            "router.window": 4,
            "cluster.batch_limit": 3,
            "horizon_periods": 40,
            "drain": True,
            "workload.arrivals.rate": 1.0,
        },
    ),
    "iterations of their own length, blocks": (
        "azure-conv-a100",
        {"cluster.kv_block": 16, "horizon_periods": 150, "router.window": 32},
    ),
}
POLICIES = [name for name in available() if not name.startswith("learned")] + [
    "power_of_d:d=3",
    "vllm_dp:variant=kv",
    "least_predicted_work:measure=kv_token_steps",
    "central_fifo:fit=balance",
    "sjf:aging=0.5:fit=balance",
    "mc_sf:skip=true",
]


@pytest.fixture(scope="module", params=list(SCENARIOS))
def env(request: pytest.FixtureRequest) -> LLMRouteEnv:
    scenario, overrides = SCENARIOS[request.param]
    return LLMRouteEnv(scenario, overrides)


def episode(env: LLMRouteEnv, router: Policy, *, compiled_after: int, seed: int | None) -> Any:
    """Play one episode, stepped up to a period and compiled from there; return all it left."""
    observation, _ = env.reset(seed=seed, options={"prediction": router.prediction})
    over, period = False, 0
    while not over and period < compiled_after:
        action, _ = router.predict(observation)
        observation, _, terminated, truncated, _ = env.step(action)
        over, period = terminated or truncated, period + 1
    times = router.run_episode(env)
    stats = env.episode_stats()
    assert len(times) == stats.periods - period
    assert (times > 0).all()
    log = env.request_log()
    return log, stats.rewards, [field.copy() for field in router.memory], stats.invalid_actions


@pytest.mark.parametrize("policy", POLICIES)
def test_compiled_episodes_equal_stepped_ones(env: LLMRouteEnv, policy: str) -> None:
    stepped, compiled, mixed = (make(policy, env, seed=7) for _ in range(3))
    for seed in (1, None):  # the second episode goes on with the same generators
        a = episode(env, stepped, compiled_after=10**9, seed=seed)
        if seed is None:
            break
        for router, after in ((compiled, 0), (mixed, 20)):
            b = episode(env, router, compiled_after=after, seed=seed)
            for key, column in a[0].items():
                np.testing.assert_array_equal(column, b[0][key], err_msg=key)
            assert a[1] == b[1]
            for mine, its in zip(a[2], b[2], strict=True):
                np.testing.assert_array_equal(mine, its)
            assert a[3] == b[3] == 0


def test_the_next_episode_has_a_stream_of_its_own_and_reproduces(env: LLMRouteEnv) -> None:
    runs = []
    for compiled_after in (0, 10**9, 0):
        router = make("random", env, seed=7)
        first = episode(env, router, compiled_after=compiled_after, seed=1)
        second = episode(env, router, compiled_after=compiled_after, seed=1)
        assert (first[0]["device"] != second[0]["device"]).any()
        runs.append(second[0]["device"])
    assert (runs[0] == runs[1]).all()
    assert (runs[0] == runs[2]).all()


def test_without_times() -> None:
    env = LLMRouteEnv("paper-stable", {"horizon_periods": 20})
    env.reset(seed=0)
    assert make("lor", env).run_episode(env, timed=False).size == 0
    assert env.episode_stats().periods == 20


def test_an_episode_that_is_over_stays_as_it_is() -> None:
    env = LLMRouteEnv("paper-stable", {"horizon_periods": 20})
    env.reset(seed=0)
    router = make("round_robin", env)
    router.run_episode(env)
    before = [field.copy() for field in router.memory]
    assert router.run_episode(env).size == 0
    assert all((a == b).all() for a, b in zip(before, router.memory, strict=True))


def test_refuses_an_environment_of_other_sizes() -> None:
    env = LLMRouteEnv("paper-stable", {"cluster.devices": 3})
    router = make("lor", LLMRouteEnv("paper-stable"))
    env.reset(seed=0)
    with pytest.raises(ValueError, match="lor: made for devices=4, the environment has 3"):
        router.run_episode(env)


def test_decisions_are_legal_at_every_step(env: LLMRouteEnv) -> None:
    for policy in ("power_of_d", "sjf", "mc_sf"):
        router = make(policy, env, seed=2)
        observation, info = env.reset(seed=3)
        over = False
        while not over:
            action, _ = router.predict(observation)
            rows = np.arange(len(action))
            assert info["action_mask"][rows, action].all()
            observation, _, terminated, truncated, info = env.step(action)
            assert info["invalid_actions"] == 0
            over = terminated or truncated


def test_what_a_central_policy_sends_starts_in_the_same_period_in_lock_step() -> None:
    """Release when startable: no request waits in a FIFO, but for one that was preempted."""
    overrides = {"cluster.kv_limit": 2500, "horizon_periods": 300, "workload.arrivals.rate": 2.0}
    env = LLMRouteEnv("paper-overload", overrides)
    for policy in ("central_fifo", "central_fifo:fit=balance", "sjf", "sjf:aging=1", "mc_sf"):
        router = make(policy, env)
        env.reset(seed=5)
        router.run_episode(env)
        log = env.request_log()
        sent = ~np.isnan(log["dispatch_s"])
        assert sent.sum() > 50
        np.testing.assert_array_equal(log["dispatch_s"][sent], log["start_s"][sent])
