"""Fluid prices and the index: what binds, what is urgent, and what it is worth."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from observations import Gpu, Scene, Waiting
from test_olp_forecast import OBJECTIVE, spec_of

import policies
from llmroute_env import evaluate
from policies.olp.router import OnlineLp

TAIL = {
    "objective.beta": 0,
    "objective.gamma": 0,
    "objective.zeta1": 1,
    "objective.zeta2": 1,
}


def make(overrides: dict[str, Any] | None = None, scenario: str = "paper-overload") -> Any:
    base = {"horizon_periods": 1500, "workload.arrivals.rate": 0.55}
    return gym.make(
        "llmroute_env:LLMRoute-v0", scenario=scenario, overrides=base | (overrides or {})
    ).unwrapped


def played(env: Any, spec: str = "olp:pricing=fluid") -> dict[str, Any]:
    policy = policies.make(spec, env, seed=3)
    env.reset(seed=11)
    policy.run_episode(env)
    found: dict[str, Any] = policy.diagnostics()
    return found


def test_prices_vanish_at_light_load() -> None:
    light = played(make({"workload.arrivals.rate": 0.1}))
    heavy = played(make())
    assert light["mean_price_batch"] < 0.05 * heavy["mean_price_batch"]
    assert light["mean_price_memory"] == 0.0


def test_the_binding_resource_is_priced() -> None:
    slots = played(make())
    assert slots["mean_price_batch"] > 0.0
    assert slots["mean_price_memory"] < 0.01 * 24 * slots["mean_price_batch"]
    memory = played(make({"cluster.kv_limit": 5000, "cluster.batch_limit": 64}))
    # prices are per slot and per device's whole KV
    assert 64 * memory["mean_price_batch"] < 0.01 * memory["mean_price_memory"]


def test_prices_reach_over_the_whole_look_ahead_and_no_device_is_favoured() -> None:
    prices = played(make())["price_batch"]
    far = prices[:, prices.shape[1] // 2 : -64]
    assert (far.mean(axis=1) > 0.0).all()
    published = played(make(), "olp:pricing=paper")["price_batch"]
    assert published[:, published.shape[1] // 2 :].max() == 0.0  # absolute slots price the past
    by_device = prices.mean(axis=1)
    assert np.ptp(by_device) < 0.35 * by_device.mean()


def test_compiled_equals_stepped() -> None:
    env = make(TAIL | {"horizon_periods": 300})
    for spec in ("olp:pricing=fluid", "olp:pricing=fluid:work_conserving=true:aging=0.1"):
        compiled = evaluate(env, spec, seed=5, path="compiled")
        stepped = evaluate(env, spec, seed=5, path="stepped")
        for name, column in compiled.log.items():
            np.testing.assert_array_equal(column, stepped.log[name], err_msg=name)


@pytest.mark.parametrize("fluid", ["olp:pricing=fluid", "olp:pricing=fluid:work_conserving=true"])
def test_tail_objective_is_served_better_than_by_shortest_first(fluid: str) -> None:
    env = make(TAIL | {"horizon_periods": 2500})
    gains = [
        evaluate(env, fluid, seed=s).summary["reward"]
        / evaluate(env, "sjf", seed=s).summary["reward"]
        for s in range(3)
    ]
    assert min(gains) > 1.0
    assert np.mean(gains) > 1.02  # 1.04 and more in ten seeds at 20% overload


def test_what_does_not_fit_waits_and_devices_stay_busy() -> None:
    env = make({"cluster.kv_limit": 3000})
    result = evaluate(env, "olp:pricing=fluid", seed=1)
    assert result.summary["preemptions"] <= evaluate(env, "lor", seed=1).summary["preemptions"]
    assert (
        result.summary["throughput_tok_s"]
        > evaluate(env, "lor", seed=1).summary["throughput_tok_s"]
    )


def test_token_and_start_rewards_are_earned_as_by_shortest_first() -> None:
    """Prices of tokens are all noise: they must neither order the queue nor leave slots idle."""
    weights = {"beta": 0, "gamma": 0, "alpha": 1, "sigma": 1}
    env = make({f"objective.{key}": value for key, value in weights.items()})
    ours, other = (evaluate(env, policy, seed=2).rewards for policy in ("olp:pricing=fluid", "sjf"))
    assert ours["alpha"] > 0.999 * other["alpha"]
    assert ours["sigma"] > 0.99 * other["sigma"]


def test_where_memory_binds_the_mean_and_the_tail_are_better_than_mc_sf() -> None:
    change = {"cluster.kv_limit": 5000, "cluster.batch_limit": 64, "router.window": 512}
    env = make(change)
    for key in ("eel_mean_s", "eel_p99_s"):
        ours, other = (
            np.mean([evaluate(env, policy, seed=s).summary[key] for s in range(3)])
            for policy in ("olp:pricing=fluid", "mc_sf")
        )
        assert ours < 0.97 * other, key


@pytest.mark.parametrize(("waited", "aging", "first"), [(200, 0, 1), (90, 1, 1), (110, 1, 2)])
def test_with_aging_a_long_request_overtakes_a_short_one(
    waited: float, aging: float, first: int
) -> None:
    """Twice as long: first when 1 + (w / D)^2 > 2. Without prices the length is the cost."""
    scene = Scene([Gpu(slots=1)], [Waiting(10, 60.0, waited), Waiting(10, 30.0)])
    weights = {"alpha": 0.0, "beta": 1.0, "gamma": 1.0, "sigma": 0.0, "tail_ttft_s": 100.0}
    spec = replace(spec_of(scene), objective=OBJECTIVE.model_copy(update=weights))
    policy = OnlineLp(spec, pricing="none", rank="index", aging=aging)
    action, _ = policy.predict(scene.observe())
    assert action[:2].tolist() == ([0, 1] if first == 1 else [1, 0])
