"""MC-SF against its definition, slot by slot in plain Python."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from observations import Gpu, Scene, Waiting, random_scene

from policies import make


def rounded(length: float, most: float) -> int:
    return int(max(1, min(math.floor(length + 0.5), most)))


class Stay:
    """A request (or a FIFO of equal ones) on a device: KV before the joining iteration, stay."""

    def __init__(self, kv: float, left: int, count: int = 1) -> None:
        self.kv, self.left, self.count = kv, left, count

    def load(self, slot: int) -> float:
        return self.kv + self.count * (slot + 1) if slot < self.left else 0.0


def residents(gpu: Gpu, limit: float) -> list[Stay]:
    ran = 1 if gpu.running else 0
    stays = [Stay(kv + ran, max(rounded(left, limit - kv) - ran, 1)) for kv, left in gpu.batch]
    if gpu.fifo:
        n = len(gpu.fifo)
        tokens, left = (sum(column) for column in zip(*gpu.fifo, strict=True))
        stays.append(Stay(tokens, rounded(left / n, limit - tokens / n), n))
    return stays


def naive(scene: Scene, *, skip: bool, fit: str, pointer: int) -> list[int]:
    n_gpus = len(scene.gpus)
    context = scene.spec.context_limit
    limits = [min(gpu.kv_limit, context[g]) for g, gpu in enumerate(scene.gpus)]
    stays = [residents(gpu, limits[g]) for g, gpu in enumerate(scene.gpus)]
    slots = [gpu.slots - len(gpu.batch) - len(gpu.fifo) for gpu in scene.gpus]
    result = [-1] * len(scene.queue)
    rows = range(len(scene.queue))
    for i in sorted(rows, key=lambda i: (scene.queue[i].predicted, i)):
        request = scene.queue[i]
        options = []
        for g, gpu in enumerate(scene.gpus):
            if not gpu.up or slots[g] <= 0 or limits[g] - request.prompt < 1:
                continue
            # s + ô must fit for ever, but no more is asked than the largest device holds.
            if min(request.prompt + max(round(request.predicted), 1), max(context)) > context[g]:
                continue
            newcomer = Stay(request.prompt, rounded(request.predicted, limits[g] - request.prompt))
            there = [*stays[g], newcomer]
            last = max(stay.left for stay in there)
            loads = [sum(stay.load(slot) for stay in there) for slot in range(last)]
            if max(loads) > gpu.kv_limit:
                continue
            left = gpu.kv_limit - loads[0]
            value = left if fit == "best" else -left / gpu.kv_limit
            if fit == "attention":
                shared = [range(min(stay.left, newcomer.left)) for stay in stays[g]]
                value = sum(
                    stay.load(slot) + stay.count * newcomer.load(slot)
                    for stay, slots_shared in zip(stays[g], shared, strict=True)
                    for slot in slots_shared
                )
            options.append((value, (g - pointer) % n_gpus, g, newcomer))
        if not options:
            if skip:
                continue
            break
        _, _, g, newcomer = min(options, key=lambda option: option[:2])
        result[i] = g
        stays[g].append(newcomer)
        slots[g] -= 1
        pointer = (g + 1) % n_gpus
    return result


@settings(max_examples=400)
@given(
    seed=st.integers(0, 2**32),
    skip=st.booleans(),
    fit=st.sampled_from(["best", "balance", "attention"]),
)
def test_against_the_definition(seed: int, skip: bool, fit: str) -> None:
    scene = random_scene(np.random.default_rng(seed))
    router = make("mc_sf", scene.spec, seed=seed, skip=skip, fit=fit)
    pointer = int(router.memory.pointer[0])
    action, _ = router.predict(scene.observe())
    expected = naive(scene, skip=skip, fit=fit, pointer=pointer)
    assert (action[: len(expected)] - 1).tolist() == expected


def test_the_random_scenes_exercise_the_rule() -> None:
    """Admissions, refusals for memory alone, and differences from sjf all occur."""
    rng = np.random.default_rng(1)
    admitted = refused_for_memory = differs = 0
    for _ in range(300):
        scene = random_scene(rng)
        mine, _ = make("mc_sf", scene.spec, skip=True).predict(scene.observe())
        theirs, _ = make("sjf", scene.spec).predict(scene.observe())
        admitted += int((mine > 0).sum())
        differs += int((mine != theirs).any())
        refused_for_memory += int((theirs > 0).sum() > (mine > 0).sum())
    assert admitted > 300
    assert differs > 30
    assert refused_for_memory > 20


def choices(policy: str, scene: Scene) -> list[int]:
    action, _ = make(policy, scene.spec).predict(scene.observe())
    return [int(g) - 1 for g in action[: len(scene.queue)]]


def test_looks_ahead_where_sjf_does_not() -> None:
    """Now 40 + 40 + 2 fit 100, but in the 20th iteration 60 + 60 would not."""
    scene = Scene([Gpu(kv_limit=100)], [Waiting(40, 20.0)] * 2)
    assert choices("sjf", scene) == [0, 0]
    assert choices("mc_sf", scene) == [0, -1]


def test_admits_a_long_one_that_outlives_the_others() -> None:
    """At the short one's end 45 + 45 fit; at the long one's, alone, 90 fit."""
    scene = Scene([Gpu(kv_limit=100)], [Waiting(40, 5.0), Waiting(40, 50.0)])
    assert choices("mc_sf", scene) == [0, 0]


def test_stops_at_the_first_that_fits_nowhere_unless_told_to_skip() -> None:
    scene = Scene([Gpu(batch=[(30, 4.0)], kv_limit=100)], [Waiting(90, 2.0), Waiting(10, 3.0)])
    assert choices("mc_sf", scene) == [-1, -1]
    assert choices("mc_sf:skip=true", scene) == [-1, 0]


def test_an_over_long_prediction_is_planned_at_the_limit() -> None:
    """Unclipped, ô = 500 with M = 100 would wait for ever; clipped, it starts on an idle device."""
    scene = Scene([Gpu(kv_limit=100)], [Waiting(20, 500.0)])
    assert choices("mc_sf", scene) == [0]
    scene.gpus = [Gpu(batch=[(20, 500.0)], kv_limit=100)]
    scene.queue = [Waiting(10, 2.0)]  # planned to end at 100, the other leaves room until then
    assert choices("mc_sf", scene) == [0]


def test_context_limit_shortens_the_plan() -> None:
    scene = Scene([Gpu(batch=[(10, 30.0)], kv_limit=100)], [Waiting(50, 35.0)])
    assert choices("mc_sf", scene) == [-1]  # in the 30th iteration 40 + 80
    scene.context = [60]
    assert choices("mc_sf", scene) == [0]  # it ends after 10 iterations: 20 + 60 in the last
