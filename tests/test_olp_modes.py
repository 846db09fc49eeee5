"""OLP where devices prefill, and on unlike devices: against loops over every slot."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from naive_olp import NaiveOlp
from numpy.testing import assert_allclose, assert_array_equal
from observations import Gpu, Scene, Waiting, at, random_scene
from test_olp_forecast import OBJECTIVE, spec_of

from llmroute_env.env import LLMRouteEnv
from llmroute_env.spaces import Active, Device
from policies import RouterSpec, make
from policies.olp.modes import by_arrivals, keep_pace
from policies.olp.router import OnlineLp

SMALL: dict[str, Any] = {"lookahead": 50, "history": 30, "batch": 12, "steps": 3}


def mixed_scene(rng: np.random.Generator, *, emits_token: bool, chunk_tokens: int) -> Scene:
    """A random moment of prefilling devices: several whole prompts, or one that is half done."""
    scene = random_scene(rng)
    gpus = []
    for gpu in scene.gpus:
        kv, prompt = (0, int(rng.integers(1, 60)))
        count = int(rng.integers(0, 3))
        if chunk_tokens and rng.random() < 0.5:
            kv, prompt, count = int(rng.integers(1, 30)), int(rng.integers(31, 60)), 1
        free = gpu.slots - len(gpu.batch)
        remaining = float(rng.integers(2, 80)) / 2
        rest = [(kv, prompt, remaining)] * min(count, free)
        gpus.append(replace(gpu, prefilling=rest))
    return replace(
        scene, gpus=gpus, prefill=True, emits_token=emits_token, chunk_tokens=chunk_tokens
    )


def naive_of(policy: OnlineLp, spec: RouterSpec, **options: Any) -> NaiveOlp:
    memory = policy.memory
    return NaiveOlp(spec, memory.rng.copy(), int(memory.pointer[0]), **SMALL, **options)


@pytest.mark.parametrize("priced", [True, False])
@pytest.mark.parametrize(("emits_token", "chunk_tokens"), [(False, 0), (True, 0), (True, 40)])
def test_decisions_equal_the_plain_rule(priced: bool, emits_token: bool, chunk_tokens: int) -> None:
    rng = np.random.default_rng(5)
    sent = 0
    for _ in range(60):
        scene = mixed_scene(rng, emits_token=emits_token, chunk_tokens=chunk_tokens)
        parameters = SMALL | {"pricing": "paper" if priced else "none"}
        policy = OnlineLp(spec_of(scene), int(rng.integers(100)), **parameters)
        rest = [[(prompt, left) for _, prompt, left in gpu.prefilling] for gpu in scene.gpus]
        naive = naive_of(policy, spec_of(scene), priced=priced, prefilling=rest)
        for period in range(3):
            observation = at(scene.observe(), period)
            action = policy.predict(observation)[0]
            assert_array_equal(action, naive.decide(observation))
            sent += int((action > 0).sum())
        if priced:
            found = policy.diagnostics()
            assert_allclose(found["price_batch"], naive.bat, rtol=1e-9, atol=1e-13)
            assert_allclose(found["price_memory"], naive.mem, rtol=1e-9, atol=1e-13)
    assert sent > 30


def test_episodes_equal_the_plain_rule_in_lock_step() -> None:
    env = LLMRouteEnv(
        "paper-overload",
        {
            "cluster.devices": 3,
            "cluster.batch_limit": 5,
            "cluster.kv_limit": 2500,
            "cluster.prefill": {},
            "horizon_periods": 200,
            "router.window": 24,
            "workload.arrivals.rate": 0.25,
        },
    )
    policy = make("olp", env, seed=3, drift=False, **SMALL)
    naive = naive_of(policy, policy.spec)
    observation, _ = env.reset(seed=5)
    over = False
    while not over:
        # In lock-step whole prompts are done at every boundary, so no row prefills.
        assert (observation["devices"][:, Device.PREFILL] == 0.0).all()
        action, _ = policy.predict(observation)
        assert_array_equal(action, naive.decide(observation))
        observation, _, terminated, truncated, _ = env.step(action)
        over = terminated or truncated
    log = env.request_log()
    sent = ~np.isnan(log["dispatch_s"])
    assert sent.sum() > 25
    assert_array_equal(log["start_s"][sent], log["dispatch_s"][sent])


def test_perfect_prediction_and_the_papers_kernel_never_preempt() -> None:
    """Memory is planned to the token: with true lengths nothing overflows, and it is used."""
    tight = {"cluster.kv_limit": 2500, "cluster.batch_limit": 64, "horizon_periods": 400}
    for emits in (False, True):
        prefill = {"emits_token": emits}
        env = LLMRouteEnv("paper-overload", tight | {"cluster.prefill": prefill})
        router = make("olp_oracle", env)
        env.reset(seed=1, options={"prediction": router.prediction})
        router.run_episode(env)
        log = env.request_log()
        assert log["preemptions"].sum() == 0
        assert env.episode_stats().kv_token_s.sum() > 0.6 * 400 * 4 * 2500


def test_a_prompt_that_prefills_holds_all_of_it() -> None:
    # 60 tokens to come, 10 there; the newcomer of 10 + 5 fits beside 70 + growth, or does not.
    for limit, sent in ((90, 1), (89, 0)):
        gpu = Gpu(prefilling=[(10, 70, 6.0)], kv_limit=limit)
        scene = Scene([gpu], [Waiting(prompt=10, predicted=5.0)], prefill=True)
        # Age 5 of both: 70 + 5 and 10 + 5, and at the boundary before 70 and 10.
        assert OnlineLp(spec_of(scene)).predict(scene.observe())[0][0] == sent


def test_nothing_is_sent_behind_a_spent_token_budget() -> None:
    queue = [Waiting(prompt=30), Waiting(prompt=30), Waiting(prompt=30)]
    scene = Scene([Gpu()], queue, prefill=True, emits_token=True, chunk_tokens=40)
    assert (OnlineLp(spec_of(scene)).predict(scene.observe())[0] > 0).sum() == 2
    scene = replace(scene, gpus=[Gpu(prefilling=[(0, 50, 5.0)])])
    assert (OnlineLp(spec_of(scene)).predict(scene.observe())[0] == 0).all()


# --- unlike devices --------------------------------------------------------------------------


def test_a_short_device_is_no_candidate_for_a_long_request() -> None:
    short, long = Gpu(kv_limit=100), Gpu(batch=[(10, 50.0)] * 7, kv_limit=1000)
    for pricing in ("paper", "fluid", "none"):
        for predicted, device in ((60.0, 1), (61.0, 2), (5000.0, 2)):
            queue = [Waiting(prompt=40, predicted=predicted)]
            scene = Scene([short, long], queue)
            policy = OnlineLp(spec_of(scene), pricing=pricing)
            assert policy.predict(scene.observe())[0][0] == device
        # The long one is full: what is short enough goes to the other one, the rest waits.
        queue = [Waiting(prompt=40, predicted=61.0), Waiting(prompt=40, predicted=60.0)]
        full = replace(long, batch=[(10, 50.0)] * 8)
        scene = Scene([short, full], queue)
        policy = OnlineLp(spec_of(scene), pricing=pricing)
        assert policy.predict(scene.observe())[0][:2].tolist() == [0, 1]
    scene = Scene([replace(short, kv_limit=1000), full], queue, context=[100, 1000])
    assert OnlineLp(spec_of(scene)).predict(scene.observe())[0][:2].tolist() == [0, 1]


def test_pace_is_learned_by_group() -> None:
    devices = np.zeros((4, len(Device)), np.float32)
    devices[:, Device.LAST_ITERATION] = (1.0, 3.0, 0.0, 8.0)
    known, pace = np.zeros(2), np.zeros(4)
    group = np.array([0, 0, 0, 1])
    keep_pace(devices, group, 2.0, 0.5, 7.0, known, pace)
    assert pace.tolist() == [1.0, 1.0, 1.0, 4.0]
    devices[:, Device.LAST_ITERATION] = (5.0, 5.0, 5.0, 0.0)
    keep_pace(devices, group, 2.0, 0.5, 7.0, known, pace)
    assert pace.tolist() == [1.75, 1.75, 1.75, 4.0]
    keep_pace(devices, np.zeros(4, np.int64), 2.0, 0.5, 7.0, np.zeros(1), pace)
    assert pace.tolist() == [7.0] * 4


def test_a_slower_device_sees_more_arrivals_in_its_look_ahead() -> None:
    share = np.zeros(3)
    found = by_arrivals(10.0, 40.0, 2.0, np.array([1.0, 2.0, 4.0]), share)
    assert found == 50.0
    assert_allclose(50.0 / share, [10.0 + 20.0, 50.0, 10.0 + 80.0])


@pytest.mark.parametrize("pricing", ["paper", "fluid", "none"])
def test_the_faster_of_two_free_devices_is_preferred(pricing: str) -> None:
    for fast in (0, 1):
        scene = Scene([Gpu(), Gpu()], [Waiting()])
        spec = replace(spec_of(scene), pool=("a", "b"), objective=OBJECTIVE)
        observation = scene.observe()
        observation["devices"][:, Device.LAST_ITERATION] = 4.0
        observation["devices"][fast, Device.LAST_ITERATION] = 2.0
        policy = OnlineLp(spec, pricing=pricing, rank="margin")
        assert policy.predict(observation)[0][0] == fast + 1


def test_one_group_under_many_names_decides_alike() -> None:
    """Equal devices in two pools, in lock-step: the path for unlike devices is the same rule."""
    env = LLMRouteEnv("paper-overload", {"horizon_periods": 200, "workload.arrivals.rate": 0.6})
    for pricing in ("paper", "fluid"):
        logs = []
        for pool in (("a",) * 4, ("a", "b", "a", "b")):
            spec = replace(RouterSpec.from_env(env), pool=pool)
            router = OnlineLp(spec, 3, pricing=pricing)
            env.reset(seed=2)
            router.run_episode(env)
            logs.append(env.request_log())
        assert_array_equal(logs[0]["device"], logs[1]["device"])
        assert_array_equal(logs[0]["start_s"], logs[1]["start_s"])


def test_rows_of_shared_blocks_are_scaled_to_what_is_used() -> None:
    gpu = Gpu(batch=[(60, 5.0), (60, 5.0)], kv_limit=200)
    scene = Scene([gpu], [Waiting(prompt=100, predicted=3.0)], prefill=True, emits_token=True)
    observation = scene.observe()
    assert OnlineLp(spec_of(scene)).predict(observation)[0][0] == 0  # 120 and growth
    observation["devices"][0, Device.KV_USED] = 80  # 40 tokens are shared
    shared = replace(spec_of(scene), prefix_block=8)
    policy = OnlineLp(shared)
    assert policy.predict(observation)[0][0] == 1
    assert policy.scratch.active[0, :2, Active.KV].sum() == 80
