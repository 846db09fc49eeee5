"""Load balancers: scores, bursts, ties, devices that are down."""

from __future__ import annotations

import numpy as np
import pytest
from observations import Gpu, Scene, Waiting, at, random_scene

from policies import make

DISPATCHERS = [
    "random",
    "round_robin",
    "lor",
    "power_of_d",
    "power_of_d:d=3",
    "vllm_dp",
    "vllm_dp:variant=kv",
    "least_predicted_work",
    "least_predicted_work:measure=kv_token_steps",
]


def choices(policy: str, scene: Scene, seed: int = 0) -> list[int]:
    """Devices of the visible requests."""
    action, _ = make(policy, scene.spec, seed=seed).predict(scene.observe())
    assert action.dtype == np.int64
    assert not action[len(scene.queue) :].any()
    return [int(g) - 1 for g in action[: len(scene.queue)]]


@pytest.mark.parametrize("policy", DISPATCHERS)
def test_every_visible_request_is_sent_and_down_devices_are_not_used(policy: str) -> None:
    rng = np.random.default_rng(7)
    for _ in range(60):
        scene = random_scene(rng)
        chosen = choices(policy, scene)
        up = [g for g, gpu in enumerate(scene.gpus) if gpu.up]
        assert set(chosen) <= (set(up) if up else {-1})


@pytest.mark.parametrize("policy", DISPATCHERS)
def test_all_down_holds(policy: str) -> None:
    assert choices(policy, Scene([Gpu(up=False)] * 2, [Waiting()] * 3)) == [-1] * 3


@pytest.mark.parametrize("policy", DISPATCHERS)
def test_full_devices_still_take_requests(policy: str) -> None:
    full = Gpu(batch=[(10, 5.0)] * 8, fifo=[(10, 5.0)] * 4)
    assert -1 not in choices(policy, Scene([full, full], [Waiting()] * 5))


def test_lor_burst_of_512_over_8_devices_is_64_each() -> None:
    scene = Scene([Gpu(slots=64, kv_limit=100_000)] * 8, [Waiting()] * 512, window=512)
    for seed in range(5):
        assert np.bincount(choices("lor", scene, seed), minlength=8).tolist() == [64] * 8


def test_power_of_d_burst_does_not_pile_up() -> None:
    scene = Scene([Gpu(slots=64, kv_limit=100_000)] * 8, [Waiting()] * 512, window=512)
    for seed in range(5):
        counts = np.bincount(choices("power_of_d", scene, seed), minlength=8)
        assert counts.max() - counts.min() <= 8


@pytest.mark.parametrize(
    "policy", ["round_robin", "lor", "vllm_dp", "least_predicted_work", "power_of_d:d=4"]
)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_trickle_of_ties_goes_round(policy: str, seed: int) -> None:
    scene = Scene([Gpu()] * 4, [Waiting()])
    router = make(policy, scene.spec, seed=seed)
    observation = scene.observe()
    counts = np.zeros(4, int)
    for period in range(103):
        action, _ = router.predict(at(observation, period))
        counts[action[0] - 1] += 1
        assert counts.max() - counts.min() <= 1


@pytest.mark.parametrize("policy", DISPATCHERS)
def test_a_fresh_policy_does_not_favour_device_0(policy: str) -> None:
    scene = Scene([Gpu()] * 4, [Waiting()])
    first = [choices(policy, scene, seed)[0] for seed in range(200)]
    assert np.bincount(first, minlength=4).min() >= 30


def test_random_is_uniform_over_devices_that_are_up() -> None:
    scene = Scene([Gpu(), Gpu(up=False), Gpu(), Gpu()], [Waiting()] * 900, window=900)
    counts = np.bincount(choices("random", scene), minlength=4)
    assert counts[1] == 0
    assert counts[[0, 2, 3]].min() > 240


def test_round_robin_is_in_turn_whatever_the_load() -> None:
    gpus = [Gpu(), Gpu(batch=[(1, 1.0)] * 8), Gpu(up=False), Gpu()]
    chosen = choices("round_robin", Scene(gpus, [Waiting()] * 6))
    assert sorted(chosen) == [0, 0, 1, 1, 3, 3]
    assert chosen[:3] == chosen[3:]


def test_lor_counts_batch_fifo_and_just_sent() -> None:
    gpus = [Gpu(batch=[(1, 1.0)] * 3), Gpu(fifo=[(1, 1.0)] * 2), Gpu(batch=[(1, 1.0)], slots=8)]
    assert choices("lor", Scene(gpus, [Waiting()]))[0] == 2
    counts = np.bincount(choices("lor", Scene(gpus, [Waiting()] * 6)), minlength=3)
    assert counts.tolist() == [1, 2, 3]


def test_power_of_d_with_all_devices_is_lor_up_to_ties() -> None:
    gpus = [Gpu(batch=[(1, 1.0)] * k) for k in (5, 3, 7, 4)]
    assert choices("power_of_d:d=4", Scene(gpus, [Waiting()])) == [1]
    assert choices("power_of_d:d=9", Scene(gpus, [Waiting()])) == [1]


def test_power_of_d_samples_distinct_devices() -> None:
    """With two devices d=2 sees both, so the busier one is never taken."""
    gpus = [Gpu(batch=[(1, 1.0)] * 5), Gpu()]
    assert all(choices("power_of_d", Scene(gpus, [Waiting()]), seed) == [1] for seed in range(50))


def test_power_of_1_is_random() -> None:
    gpus = [Gpu(batch=[(1, 1.0)] * 5), Gpu()]
    seen = {choices("power_of_d:d=1", Scene(gpus, [Waiting()]), seed)[0] for seed in range(50)}
    assert seen == {0, 1}


def test_vllm_weighs_a_waiting_request_as_four_running_ones() -> None:
    gpus = [Gpu(batch=[(1, 1.0)] * 3), Gpu(fifo=[(1, 1.0)])]
    assert choices("vllm_dp", Scene(gpus, [Waiting()])) == [0]
    gpus = [Gpu(batch=[(1, 1.0)] * 5), Gpu(fifo=[(1, 1.0)])]
    assert choices("vllm_dp", Scene(gpus, [Waiting()])) == [1]
    # the first one sent counts 4 for the second
    assert choices("vllm_dp", Scene(gpus, [Waiting()] * 2)) == [1, 0]


def test_vllm_kv_variant_shuns_a_queue_on_a_device_short_of_kv() -> None:
    tight = Gpu(batch=[(900, 5.0)], fifo=[(10, 5.0)])  # 1 + 1 + 6 * 0.4 = 4.4
    roomy = Gpu(batch=[(10, 5.0)] * 3, fifo=[(10, 5.0)])  # 3 + 1 + 0 = 4
    assert choices("vllm_dp:variant=kv", Scene([tight, roomy], [Waiting()])) == [1]
    assert choices("vllm_dp", Scene([tight, roomy], [Waiting()])) == [0]  # 5 against 7


def test_least_predicted_work_by_tokens() -> None:
    gpus = [Gpu(batch=[(500, 9.0), (1, 2.0)]), Gpu(batch=[(1, 6.0)], fifo=[(1, 6.0)])]
    scene = Scene(gpus, [Waiting(predicted=2.5), Waiting()])
    assert choices("least_predicted_work", scene) == [0, 1]  # 11 < 12, then 13.5 > 12


def test_least_predicted_work_by_kv_token_steps() -> None:
    # 3 * 100 + 6 = 306 against (10 + 20) * 5 + 2 * 15 = 180 in the FIFO and 10 * 10 + 55 = 155
    gpus = [Gpu(batch=[(100, 3.0)]), Gpu(batch=[(10, 10.0)], fifo=[(10, 5.0), (20, 5.0)])]
    policy = "least_predicted_work:measure=kv_token_steps"
    assert choices(policy, Scene(gpus, [Waiting()])) == [0]
    # 306 + (3 * 6 + 6) = 330 < 335, then + 10 * 0.5 ...: the second request goes to device 0 too
    scene = Scene(gpus, [Waiting(prompt=6, predicted=3.0), Waiting(prompt=1, predicted=1.0)])
    assert choices(policy, scene) == [0, 0]
    scene = Scene(gpus, [Waiting(prompt=6, predicted=4.0), Waiting(prompt=1, predicted=1.0)])
    assert choices(policy, scene) == [0, 1]  # 306 + (4 * 6 + 10) = 340 > 335
