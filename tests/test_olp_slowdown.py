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
from policies.olp.forecast import read_load, remaining_slots
from policies.olp.router import OnlineLp
from policies.olp.slowdown import NEEDED, kv_time, lost_time, meet, watch_iterations
from policies.olp.state import Load, Trend

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


@given(st.integers(0, 2**32 - 1))
def test_lost_time_is_that_of_a_loop_over_slots(seed: int) -> None:
    rng = np.random.default_rng(seed)
    scene = random_scene(rng)
    policy = OnlineLp(spec_of(scene), pricing="fluid", lookahead=40)
    observation, scratch, slow = scene.observe(), policy.scratch, policy.scratch.slow
    devices, active = observation["devices"], observation["active"]
    read_load(devices, policy.params.context_limit, policy.params.grid.block, scratch.load)
    open_devices(devices, active, scratch.load, scratch.leaving, scratch.peaks)
    slow.kv_time[:] = 0.5
    prompt, length = int(rng.integers(1, 50)), int(rng.integers(1, 60))
    for g in range(len(scene.gpus)):
        if scratch.load[g, Load.OPEN] == 0 or devices[g, Device.FIFO_LENGTH] > 0:
            continue
        meet(scratch.load, scratch.leaving, g, slow)
        top = min(length, 40)
        lost = 0.0
        for slot in range(top):
            for row in range(int(devices[g, Device.ACTIVE])):
                if slot < remaining_slots(float(active[g, row, Active.REMAINING])):
                    lost += (
                        float(active[g, row, Active.KV]) + 1 + slot
                    )  # reads of the newcomer's time
                    lost += prompt + 1 + slot  # and of the other's
        found = lost_time(prompt, length, g, slow)
        assert_allclose(found, 0.5 * lost * length / top, rtol=1e-9)


def test_a_request_goes_where_the_least_time_is_lost_not_where_most_slots_are_free() -> None:
    gpus = [Gpu(batch=[(300, 40.0)], slots=8), Gpu(batch=[(20, 40.0)] * 3, slots=8)]
    scene = Scene(gpus, [Waiting(prompt=20, predicted=30.0)])
    for chosen, flag in ((2, True), (1, False)):
        policy = OnlineLp(spec_of(scene), pricing="fluid", slowdown=flag, work_conserving=True)
        policy.predict(scene.observe())
        trend = policy.memory.trend[0]
        trend[Trend.COUNT], trend[Trend.KV_KV], trend[Trend.KV_TIME] = NEEDED, 1.0, 0.01
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


def test_it_is_refused_where_devices_prefill() -> None:
    env = LLMRouteEnv("azure-conv-a100", overrides={"cluster.prefill": {"chunk_tokens": 512}})
    assert not policies.make(FLUID, env).params.slowdown
    with pytest.raises(ValueError, match="slowdown=true"):
        policies.make(f"{FLUID}:slowdown=true", env)
