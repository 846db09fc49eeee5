"""The time that a request adds to iterations: learned, summed up, and worth counting."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from observations import Gpu, Scene, Waiting, random_scene
from test_olp_forecast import spec_of

import policies
from llmroute_env import evaluate
from llmroute_env.cluster.timing import from_profile
from llmroute_env.env import LLMRouteEnv
from llmroute_env.spaces import Active, Device
from policies.olp.admission import open_devices
from policies.olp.forecast import fifo_slots, read_load, remaining_slots
from policies.olp.layout import to_lanes
from policies.olp.router import OnlineLp
from policies.olp.slowdown import (
    HELD_BACK,
    NEEDED,
    kv_time,
    lost_time,
    meet,
    prepare,
    time_cost,
    watch_iterations,
)
from policies.olp.state import Load, Slow, Terms, Trend

FLUID = "olp:pricing=fluid"
WITHOUT = f"{FLUID}:slowdown=false"


@pytest.mark.parametrize("scenario", ["azure-conv-a100", "memory-bound-a100"])
def test_the_time_of_a_token_is_learned_from_telemetry(scenario: str) -> None:
    env = LLMRouteEnv(scenario, overrides={"horizon_periods": 2000})
    policy = policies.make(FLUID, env)
    evaluate(env, policy, seed=1)
    truth = from_profile("a100-80gb", "llama-2-7b", 1, 48).kv_s
    (learned,) = policy.diagnostics()["kv_time_s"]
    assert learned == pytest.approx(truth, rel=0.06)


def test_moments_are_those_of_the_observations() -> None:
    rng = np.random.default_rng(0)
    trend, group = np.zeros((1, len(Trend))), np.zeros(1, np.int64)
    seen = []
    for _ in range(int(NEEDED) + 200):
        devices = np.zeros((1, len(Device)), np.float32)
        batch = float(rng.integers(1, 40))
        kv = float(rng.integers(100, 5000)) + 200.0 * batch
        time = 0.5 + 0.01 * batch + 2e-5 * kv + 0.02 * rng.standard_normal()
        devices[0, [Device.ACTIVE, Device.KV_USED, Device.LAST_ITERATION]] = batch, kv, time
        watch_iterations(devices, group, 1.0, trend)
        seen.append((kv, batch, float(devices[0, Device.LAST_ITERATION])))
    kv, batch, time = np.array(seen).T
    design = np.stack([kv, batch, np.ones_like(kv)], axis=1)
    expected = np.linalg.lstsq(design, time, rcond=None)[0][0]  # fewer than are remembered
    assert kv_time(trend[0]) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("weights", [{}, {"objective.beta": 0, "objective.zeta1": 1}])
def test_without_effect_where_iterations_are_of_one_length(weights: dict[str, Any]) -> None:
    env = LLMRouteEnv("paper-overload", overrides={"horizon_periods": 600} | weights)
    policy = policies.make(FLUID, env, seed=0)
    ours = evaluate(env, policy, seed=3)
    other = evaluate(env, WITHOUT, seed=3)
    assert kv_time(policy.memory.trend[0]) == 0.0
    for name, column in ours.log.items():
        assert_array_equal(column, other.log[name], err_msg=name)


def prepared(scene: Scene, **changes: Any) -> tuple[OnlineLp, dict[str, np.ndarray]]:
    """A policy that has read the scene's devices; κ is 0.5 and a whole device costs 3."""
    policy = OnlineLp(spec_of(scene), pricing="fluid", lookahead=40, **changes)
    observation, scratch = scene.observe(), policy.scratch
    devices, active = observation["devices"], observation["active"]
    read_load(devices, policy.params.context_limit, policy.params.grid.block, scratch.load)
    open_devices(devices, active, scratch.load, scratch.leaving, scratch.peaks)
    scratch.slow[:, : Slow.COMPANY] = 0.0, 0.5, 3.0
    return policy, observation


@given(st.integers(0, 2**32 - 1))
def test_lost_time_is_that_of_a_loop_over_slots(seed: int) -> None:
    rng = np.random.default_rng(seed)
    scene = random_scene(rng)
    policy, observation = prepared(scene)
    load, slow = policy.scratch.load, policy.scratch.slow
    devices, active = observation["devices"], observation["active"]
    prompt, length = int(rng.integers(1, 50)), int(rng.integers(1, 60))
    top = min(length, 40)
    for g in range(len(scene.gpus)):
        if load[g, Load.OPEN] == 0:
            continue
        meet(load, policy.scratch.leaving, g, slow)
        stays = [
            (float(active[g, row, Active.KV]), remaining_slots(float(left)))
            for row, left in enumerate(
                active[g, : int(devices[g, Device.ACTIVE]), Active.REMAINING]
            )
        ]
        queued = int(devices[g, Device.FIFO_LENGTH])  # its totals: equal requests, from slot 0
        if queued:
            mean = float(devices[g, Device.FIFO_TOKENS]) / queued
            stays += [(mean, fifo_slots(devices, g))] * queued
        lost = 0.0
        for slot in range(top):
            for kv, left in stays:
                if slot < left:
                    lost += kv + 1 + slot  # KV that the newcomer waits for
                    lost += prompt + 1 + slot  # and that the other waits for
        found = lost_time(prompt, length, g, slow)
        assert_allclose(found, 0.5 * lost * length / top, rtol=1e-9)


@pytest.mark.parametrize(("alpha", "whole"), [(0.0, 3.0), (2.0, 3.0), (2.0, 0.01)])
def test_the_cost_is_latency_and_the_larger_of_tokens_and_the_price_of_time(
    alpha: float, whole: float
) -> None:
    policy, _ = prepared(Scene([Gpu(batch=[(20, 40.0)])], []))
    slow = policy.scratch.slow
    slow[0, : Slow.COMPANY] = 0.25, 0.5, whole
    terms = Terms(*(0.0,) * len(Terms._fields))._replace(
        scale=0.1, alpha=alpha, beta=1.0, waiting=1.5
    )
    prompt, length, lost, pace = 10, 7, 4.0, 2.0
    tokens = 0.1 * alpha * lost / pace
    grown = sum(prompt + 1 + slot for slot in range(length))
    worth = whole * 0.5 / pace * grown
    cost, lenient = time_cost(prompt, length, lost, 0, pace, terms, slow)
    assert cost == pytest.approx(0.1 * (lost + 1.5 * 0.25) + max(tokens, worth))
    assert lenient == pytest.approx((1.0 - HELD_BACK) * max(worth - tokens, 0.0))


def test_the_price_of_a_device_is_that_of_its_slots_and_tokens() -> None:
    gpus = [Gpu(slots=4, kv_limit=100), Gpu(slots=2, kv_limit=300), Gpu(slots=4, kv_limit=100)]
    policy, observation = prepared(Scene(gpus, []))
    memory, slow, grid = policy.memory, policy.scratch.slow, policy.params.grid
    prices = np.random.default_rng(1).random((2, 3, 40))
    group = np.zeros(3, np.int64)
    memory.trend[0, [Trend.COUNT, Trend.KV_KV, Trend.KV_TIME]] = NEEDED, 1.0, 0.01
    args = (
        policy.scratch.load,
        grid.block,
        40,
        0.02,
        1.0,
        group,
        memory.trend,
        policy.scratch.running,
        slow,
    )
    prepare(observation["devices"], to_lanes(grid, prices), *args)
    mean = prices.mean(axis=2)
    slots, tokens = np.array([4, 2, 4]), np.array([100, 300, 100])
    assert_allclose(slow[:, Slow.WHOLE], mean[0] * slots + 0.02 * mean[1] * tokens, rtol=1e-12)


def test_a_request_goes_where_the_least_time_is_lost_not_where_most_slots_are_free() -> None:
    gpus = [Gpu(batch=[(300, 40.0)], slots=8), Gpu(batch=[(20, 40.0)] * 3, slots=8)]
    scene = Scene(gpus, [Waiting(prompt=20, predicted=30.0)])
    for chosen, flag in ((2, True), (1, False)):
        policy = OnlineLp(spec_of(scene), pricing="fluid", slowdown=flag, work_conserving=True)
        policy.predict(scene.observe())
        learn(policy)
        action, _ = policy.predict(replace(scene, period=1).observe())
        assert action[0] == chosen


def test_the_wait_for_the_boundary_is_lost_time() -> None:
    # Nothing is known of KV yet: the device on which no iteration runs starts it at once.
    gpus = [Gpu(batch=[(20, 40.0)], running=True), Gpu(batch=[(20, 40.0)] * 2)]
    scene = Scene(gpus, [Waiting(prompt=20, predicted=30.0)])
    action, _ = OnlineLp(spec_of(scene), pricing="fluid", work_conserving=True).predict(
        scene.observe()
    )
    assert action[0] == 2


@pytest.mark.parametrize(
    "weights", [{}, {"objective.beta": 0, "objective.gamma": 0, "objective.alpha": 1}]
)
def test_it_pays_where_attention_costs_time(weights: dict[str, Any]) -> None:
    change = {"horizon_periods": 1600, "workload.arrivals.rate": 50.0, "router.window": 1024}
    env = LLMRouteEnv("azure-conv-a100", overrides=change | weights)
    gains = [
        evaluate(env, FLUID, seed=s).summary["reward"]
        - evaluate(env, WITHOUT, seed=s).summary["reward"]
        for s in range(4)
    ]
    assert min(gains) > 0.0


def test_a_request_is_not_held_back_by_one_device_where_it_is_worth_it_on_a_like_one() -> None:
    """Less time is lost on the first device, but its slots cost more than the request is worth."""
    gpus = [Gpu(batch=[(20, 40.0)] * 2), Gpu(batch=[(300, 40.0)])]
    scene = Scene(gpus, [Waiting(prompt=20, predicted=30.0)])
    for high, chosen in ((0.1, 2), (0.0, 1)):
        policy = OnlineLp(spec_of(scene), pricing="fluid", steps=0, lookahead=64)
        policy.predict(scene.observe())
        learn(policy)
        prices = np.zeros((2, 2, 64))
        prices[0, 0] = high
        policy.memory.prices[:] = to_lanes(policy.params.grid, prices)
        action, _ = policy.predict(replace(scene, period=1).observe())
        assert action[0] == chosen


def learn(policy: OnlineLp) -> None:
    """Let κ be 0.01 periods per token."""
    trend = policy.memory.trend[0]
    trend[Trend.COUNT], trend[Trend.KV_KV], trend[Trend.KV_TIME] = NEEDED, 1.0, 0.01


def two_pools() -> dict[str, Any]:
    """Overrides of an A100 scenario: two pools of unlike devices."""
    groups = [
        {"name": name, "devices": 2, "memory": {"utilization": 0.9, "max_num_seqs": 48}}
        | {"timing": {"kind": "profile", "device": "a100-80gb", "model": model, "tp": 1}}
        for name, model in (("long", "llama-3-8b"), ("short", "llama-2-7b"))
    ]
    keys = ("batch_limit", "kv_limit", "context_limit", "timing", "memory")
    change: dict[str, Any] = {f"cluster.{key}": None for key in keys}
    return change | {"cluster.groups": groups, "horizon_periods": 300}


def test_unlike_pools_learn_apart_and_compiled_equals_stepped() -> None:
    env = LLMRouteEnv("azure-conv-a100", overrides=two_pools() | {"workload.arrivals.rate": 60.0})
    policy = policies.make(FLUID, env, seed=0)
    compiled = evaluate(env, policy, seed=5, path="compiled")
    long, short = policy.diagnostics()["kv_time_s"]
    assert 0.0 < long < 0.5 * short  # grouped queries: a quarter of the KV bytes
    stepped = evaluate(env, FLUID, seed=5, path="stepped")
    for name, column in compiled.log.items():
        assert_array_equal(column, stepped.log[name], err_msg=name)


def test_lanes_learn_apart() -> None:
    envs = [
        LLMRouteEnv("azure-conv-a100", overrides={"workload.arrivals.rate": rate})
        for rate in (40.0, 15.0)
    ]
    alone, both = (policies.make(FLUID, envs[0], seed=4) for _ in range(2))
    seen = [env.reset(seed=3)[0] for env in envs]
    for _ in range(300):
        action, _ = alone.predict(seen[0])
        actions, _ = both.predict({key: np.stack([o[key] for o in seen]) for key in seen[0]})
        assert_array_equal(actions[0], action)
        seen = [env.step(own)[0] for env, own in zip(envs, actions, strict=True)]


def test_it_is_refused_where_devices_prefill() -> None:
    env = LLMRouteEnv("azure-conv-a100", overrides={"cluster.prefill": {"chunk_tokens": 512}})
    assert not policies.make(FLUID, env).params.slowdown
    with pytest.raises(ValueError, match="slowdown=true"):
        policies.make(f"{FLUID}:slowdown=true", env)


def test_it_is_refused_without_prices() -> None:
    with pytest.raises(ValueError, match="pricing=none"):
        policies.make("olp:pricing=none:slowdown=true", LLMRouteEnv("paper-stable"))
