"""Central queues: what can start, in which order, and on which device."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from observations import Gpu, Scene, Waiting, at, random_scene

from llmroute_env.spaces import Device, Queue
from policies import make

CENTRAL = ["central_fifo", "sjf", "mc_sf"]


def choices(policy: str, scene: Scene, seed: int = 0) -> list[int]:
    action, _ = make(policy, scene.spec, seed=seed).predict(scene.observe())
    assert not action[len(scene.queue) :].any()
    return [int(g) - 1 for g in action[: len(scene.queue)]]


def occupied(scene: Scene, g: int) -> tuple[int, float]:
    """Batch slots and KV tokens at the joining boundary, before anything new. By the letter."""
    gpu = scene.gpus[g]
    ran = 1 if gpu.running else 0
    kv = sum(kv + 1 + ran for kv, _ in gpu.batch) + sum(kv + 1 for kv, _ in gpu.fifo)
    return len(gpu.batch) + len(gpu.fifo), kv


def naive(scene: Scene, *, order: str, fit: str, aging: float, pointer: int) -> list[int]:
    """The rules of central_fifo and sjf, as slowly as they read."""
    used = [occupied(scene, g) for g in range(len(scene.gpus))]
    rows = list(range(len(scene.queue)))
    if order == "sjf":
        rows.sort(
            key=lambda i: (
                scene.queue[i].predicted - aging * scene.queue[i].waited / scene.period_s,
                i,
            )
        )
    result = [-1] * len(rows)
    for i in rows:
        need = scene.queue[i].prompt + 1
        # In the end it needs s + ô, as far as ô is read, but no more than the largest device holds.
        length = max(round(scene.queue[i].predicted), 1) if order == "sjf" else 1
        final = min(scene.queue[i].prompt + length, max(scene.spec.context_limit))
        options = []
        for g, gpu in enumerate(scene.gpus):
            count, kv = used[g]
            if final > scene.spec.context_limit[g]:
                continue
            if gpu.up and count < gpu.slots and kv + need <= gpu.kv_limit:
                left = gpu.kv_limit - kv - need
                value = left if fit == "best" else -left / gpu.kv_limit
                options.append((value, (g - pointer) % len(scene.gpus), g))
        if not options:
            if order == "fifo":
                break
            continue
        g = min(options)[2]
        result[i] = g
        used[g] = (used[g][0] + 1, used[g][1] + need)
        pointer = (g + 1) % len(scene.gpus)
    return result


@settings(max_examples=400)
@given(
    seed=st.integers(0, 2**32),
    order=st.sampled_from(["fifo", "sjf"]),
    fit=st.sampled_from(["best", "balance"]),
    aging=st.sampled_from([0.0, 0.5, 7.0]),
    period_s=st.sampled_from([1.0, 0.025]),
)
def test_the_rules_by_the_letter(
    seed: int, order: str, fit: str, aging: float, period_s: float
) -> None:
    scene = random_scene(np.random.default_rng(seed))
    scene.period_s = period_s
    if order == "fifo":
        router = make("central_fifo", scene.spec, seed=seed, fit=fit)
    else:
        router = make("sjf", scene.spec, seed=seed, fit=fit, aging=aging)
    pointer = int(router.memory.pointer[0])
    action, _ = router.predict(scene.observe())
    expected = naive(scene, order=order, fit=fit, aging=aging, pointer=pointer)
    assert (action[: len(expected)] - 1).tolist() == expected


@pytest.mark.parametrize("policy", CENTRAL)
def test_what_is_sent_can_start_at_the_next_boundary(policy: str) -> None:
    rng = np.random.default_rng(11)
    for _ in range(200):
        scene = random_scene(rng)
        chosen = choices(policy, scene)
        for g, gpu in enumerate(scene.gpus):
            sent = [w.prompt + 1 for w, h in zip(scene.queue, chosen, strict=True) if h == g]
            count, kv = occupied(scene, g)
            if sent:
                assert gpu.up
                assert count + len(sent) <= gpu.slots
                assert kv + sum(sent) <= gpu.kv_limit


@pytest.mark.parametrize("policy", CENTRAL)
def test_fills_an_empty_cluster_to_its_slots_and_holds_the_rest(policy: str) -> None:
    scene = Scene([Gpu(slots=3)] * 2, [Waiting()] * 10)
    chosen = choices(policy, scene)
    assert sorted(chosen) == [-1] * 4 + [0] * 3 + [1] * 3
    assert chosen[6:] == [-1] * 4  # equal lengths: by age


@pytest.mark.parametrize("policy", CENTRAL)
@pytest.mark.parametrize(("prompt", "sent"), [(487, True), (488, False)])
def test_kv_bound_is_exact_in_lock_step(policy: str, prompt: int, sent: bool) -> None:
    # 501 for the batch and 11 for the FIFO leave room for s + 1 = 488 of 1000
    gpu = Gpu(batch=[(500, 1.0)], fifo=[(10, 1.0)])
    assert (choices(policy, Scene([gpu], [Waiting(prompt, 1.0)])) == [0]) is sent


@pytest.mark.parametrize("policy", CENTRAL)
@pytest.mark.parametrize(("prompt", "sent"), [(486, True), (487, False)])
def test_a_running_iteration_adds_a_token_before_the_boundary(
    policy: str, prompt: int, sent: bool
) -> None:
    gpu = Gpu(batch=[(500, 1.0)], fifo=[(10, 1.0)], running=True)
    assert (choices(policy, Scene([gpu], [Waiting(prompt, 1.0)])) == [0]) is sent


def test_fifo_is_blocked_by_its_head_and_sjf_passes_over_it() -> None:
    queue = [Waiting(900, 1.0), Waiting(5, 9.0)]
    gpu = Gpu(batch=[(500, 30.0)])
    assert choices("central_fifo", Scene([gpu], queue)) == [-1, -1]
    assert choices("sjf", Scene([gpu], queue)) == [-1, 0]


def test_best_fit_and_balance() -> None:
    gpus = [Gpu(batch=[(100, 9.0)]), Gpu(batch=[(700, 9.0)]), Gpu(batch=[(960, 9.0)])]
    scene = Scene(gpus, [Waiting(50)])
    assert choices("central_fifo", scene) == [0]
    # 2 is too full; 1 keeps less free than 0 would
    assert choices("central_fifo:fit=best", scene) == [1]
    # balance goes by the share of M: 400 of 4000 is less than 150 of 1000
    gpus = [Gpu(batch=[(150, 9.0)]), Gpu(batch=[(400, 9.0)], kv_limit=4000)]
    assert choices("sjf:fit=balance", Scene(gpus, [Waiting(50)])) == [1]


def test_shortest_first_and_aging() -> None:
    queue = [Waiting(1, 100.0, waited=50.0), Waiting(1, 20.0, waited=2.0), Waiting(1, 30.0)]
    scene = Scene([Gpu(slots=1)], queue)
    assert choices("sjf", scene) == [-1, 0, -1]
    assert choices("sjf:aging=1.6", scene) == [-1, 0, -1]  # 20 against 16.8
    assert choices("sjf:aging=1.7", scene) == [0, -1, -1]  # 15 against 16.6
    scene.period_s = 0.5  # the same seconds are twice as many periods
    assert choices("sjf:aging=0.85", scene) == [0, -1, -1]


def test_long_request_among_short_ones_waits_less_with_aging() -> None:
    """One slot, a short request arrives in every period; the long one came first."""
    starts = {}
    for policy in ("central_fifo", "sjf", "sjf:aging=5"):
        scene = Scene([Gpu(slots=1)], window=4)
        router = make(policy, scene.spec)
        starts[policy] = 200
        for period in range(200):
            scene.queue = [Waiting(1, 300.0, waited=float(period)), Waiting(1, 10.0)]
            action, _ = router.predict(at(scene.observe(), period))
            if action[0]:
                starts[policy] = period
                break
    assert starts == {"central_fifo": 0, "sjf": 200, "sjf:aging=5": 58}


@pytest.mark.parametrize("policy", [*CENTRAL, "sjf:fit=balance", "mc_sf:fit=balance"])
def test_ties_go_round(policy: str) -> None:
    scene = Scene([Gpu()] * 4, [Waiting()])
    router = make(policy, scene.spec, seed=3)
    counts = np.zeros(4, int)
    for period in range(41):
        action, _ = router.predict(at(scene.observe(), period))
        counts[action[0] - 1] += 1
        assert counts.max() - counts.min() <= 1


def test_central_fifo_reads_no_predicted_length() -> None:
    rng = np.random.default_rng(5)
    for fit in ("best", "balance"):
        for _ in range(50):
            scene = random_scene(rng)
            observation = scene.observe()
            blind = {key: value.copy() for key, value in observation.items()}
            blind["queue"][:, Queue.PREDICTED] = 1.0
            blind["active"][..., 1] = 1.0
            blind["devices"][:, Device.FIFO_PREDICTED] = 0.0
            a, _ = make("central_fifo", scene.spec, fit=fit).predict(observation)
            b, _ = make("central_fifo", scene.spec, fit=fit).predict(blind)
            assert (a == b).all()
