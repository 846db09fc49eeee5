"""LMETRIC's failure detector: signatures, the inequality with its margin, the filter."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from observations import Gpu, Scene, Waiting, at

from llmroute_env.spaces import Device
from policies import make
from policies.cache_aware.detector import CALM, DETECTED, PERSISTENT, judge, signature


def test_signature_is_the_devices_with_deep_hits() -> None:
    assert signature(np.array([0, 0, 0], np.float32)) == 0
    assert signature(np.array([0, 64, 0], np.float32)) == 0b010
    assert signature(np.array([32, 64, 31], np.float32)) == 0b011  # at least half of the best


def judged(stream: list[int], *, n: int = 100, devices: int = 4, z: float = 3.0) -> list[int]:
    recent, at_ = np.zeros(n, np.int64), np.zeros(1, np.int64)
    return [judge(recent, at_, bits, devices, z) for bits in stream]


@pytest.mark.parametrize(("bits", "cached_on"), [(0b0001, 1), (0b0110, 2), (0b1101, 3)])
def test_detected_above_the_share_of_its_devices_and_the_margin(bits: int, cached_on: int) -> None:
    """Of the last 100 requests so many may be of a class with |M| of 4 devices, not one more."""
    share = cached_on / 4
    limit = 100 * share + 3 * math.sqrt(100 * share * (1 - share))
    most = math.floor(limit)
    calm = [0] * (100 - most) + [bits] * most
    assert judged(calm)[-1] == CALM
    if most < 100:
        assert judged([0] * (100 - most - 1) + [bits] * (most + 1))[-1] == DETECTED


def test_persistent_when_both_halves_exceed() -> None:
    mix = [0b0001, 0b0001, 0b0001, 0] * 25  # three quarters of the traffic on a quarter of devices
    assert judged([0, *mix[:-1]])[-1] == PERSISTENT
    late = [0] * 50 + [0b0001] * 50
    assert judged(late)[-1] == DETECTED


def test_calm_before_the_window_is_full_and_without_hits_and_with_hits_everywhere() -> None:
    assert set(judged([0b0001] * 99)) == {CALM}
    assert judged([0b0001] * 100)[-1] == PERSISTENT
    assert set(judged([0] * 300)) == {CALM}
    assert set(judged([0b1111] * 300)) == {CALM}


def test_balanced_affinity_seldom_raises_a_false_alarm() -> None:
    """Each request's prefix on one device at random: the bare inequality holds half of the time."""
    rng = np.random.default_rng(1)
    stream = [1 << int(g) for g in rng.integers(0, 4, 20_000)]
    found = np.array(judged(stream, n=256))
    assert np.mean(found == PERSISTENT) < 0.001
    assert np.mean(found >= DETECTED) < 0.02
    bare = np.array(judged(stream, n=256, z=0.0))
    assert np.mean(bare >= DETECTED) > 0.3


def hot(policy: str) -> tuple[list[int], dict[str, int]]:
    """200 requests of one class whose prefix is on a device that is busy; where they go."""
    scene = Scene([Gpu(batch=[(9, 5.0)] * 8), Gpu(), Gpu(), Gpu()], [Waiting(prompt=1000)])
    spec = replace(scene.spec, prefill=True, prefix_block=16)
    router = make(policy, spec)
    prefix = np.zeros((scene.window, 4), np.float32)
    prefix[0, 0] = 992
    seen = scene.observe() | {"prefix": prefix}
    assert seen["devices"][0, Device.ACTIVE] == 8
    found = [int(router.predict(at(seen, k))[0][0]) - 1 for k in range(200)]
    return found, router.diagnostics()


def test_filter_keeps_a_persistent_class_off_its_devices_and_detect_only_counts() -> None:
    off, counts = hot("lmetric:guard=off:guard_window=100")
    assert set(off) == {0}
    assert counts["detected"] == counts["filtered"] == 0
    watched, counts = hot("lmetric:guard=detect:guard_window=100")
    assert watched == off
    assert counts["persistent"] == 101
    assert counts["filtered"] == 0
    kept, counts = hot("lmetric:guard=filter:guard_window=100")
    assert kept[:99] == off[:99]
    assert 0 not in kept[99:]
    assert counts["filtered"] == 101


def test_fleets_beyond_63_devices_go_without() -> None:
    scene = Scene([Gpu()] * 64, [Waiting()])
    router = make("lmetric:guard_window=2", scene.spec)
    for k in range(5):
        router.predict(at(scene.observe(), k))
    assert router.params.guard == 0
    assert router.diagnostics()["detected"] == 0
