"""The search for the smallest fleet, against brute force over synthetic pass regions."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest

from llmroute_env.experiments.capacity.search import (
    Fleet,
    below,
    bisect,
    proportional,
    smallest,
)


class Counted:
    """A pass region that counts how often it is asked."""

    def __init__(self, region: Callable[[Fleet], bool]) -> None:
        self.region, self.asked = region, []

    def __call__(self, fleet: Fleet) -> bool:
        assert fleet not in self.asked, "a fleet was simulated twice"
        self.asked.append(fleet)
        return self.region(fleet)


@pytest.mark.parametrize("need", [1, 2, 3, 7, 8, 63, 100, 101, 500])
@pytest.mark.parametrize("start", [1, 8, 100, 900])
def test_one_pool_finds_the_threshold_in_few_simulations(need: int, start: int) -> None:
    meets = Counted(lambda fleet: fleet[0] >= need)
    found = smallest(meets, proportional((1.0,)), start=start, most=1000)
    assert found.fleet == (need,)
    assert not found.contradictions
    # Both neighbours were simulated, and gallop and bisection need two logarithms of the distance.
    assert need == 1 or (need - 1,) in found.tested
    assert (need + 1,) in found.tested
    assert len(meets.asked) <= 2 * math.log2(abs(start - need) + 2) + 4


def test_nothing_passes_up_to_the_ceiling() -> None:
    meets = Counted(lambda _: False)
    found = smallest(meets, proportional((1.0,)), start=5, most=40)
    assert found.fleet is None
    assert max(found.tested) == (40,)


def test_a_lucky_size_below_a_failure_is_not_the_answer() -> None:
    # 6 passes, 7 fails, from 8 on all pass: the answer is where larger fleets pass too.
    found = smallest(lambda f: f[0] == 6 or f[0] >= 8, proportional((1.0,)), start=6, most=100)
    assert found.fleet == (8,)
    assert found.contradictions == [((6,), (7,))]


def test_all_sizes_lucky_ends() -> None:
    found = smallest(lambda f: f[0] % 2 == 0, proportional((1.0,)), start=3, most=9)
    assert found.fleet is None
    assert ((4,), (5,)) in found.contradictions


def _staircase(rng: np.random.Generator, pools: int) -> list[Fleet]:
    """Corners of a random monotone region: a fleet passes when it is above one of them."""
    corners = rng.integers(1, 12, (rng.integers(1, 5), pools))
    return [tuple(map(int, corner)) for corner in corners]


@pytest.mark.parametrize("seed", range(60))
@pytest.mark.parametrize("pools", [2, 3])
def test_pools_equal_brute_force_over_all_splits(seed: int, pools: int) -> None:
    rng = np.random.default_rng((seed, pools))
    corners = _staircase(rng, pools)
    meets = Counted(lambda fleet: any(below(corner, fleet) for corner in corners))
    weights = tuple(rng.uniform(0.1, 1.0, pools))
    found = smallest(
        meets, proportional(weights), pools=pools, start=int(rng.integers(2, 40)), most=400
    )
    assert found.fleet is not None
    assert any(below(corner, found.fleet) for corner in corners)
    assert sum(found.fleet) == min(sum(corner) for corner in corners)
    assert not found.contradictions
    assert found.fleet in found.tested


def test_two_pools_leave_most_splits_alone() -> None:
    meets = Counted(lambda fleet: fleet[0] >= 31 and fleet[1] >= 9)
    found = smallest(meets, proportional((3.0, 1.0)), pools=2, start=30, most=400)
    assert found.fleet == (31, 9)
    # 39 splits of 40 devices and 38 of 39: bounds per pool rule nearly all of them out.
    assert len(meets.asked) < 30


def test_a_pool_that_cannot_help_is_as_small_as_can_be() -> None:
    found = smallest(lambda f: f[1] >= 20, proportional((9.0, 1.0)), pools=2, start=4, most=400)
    assert found.fleet == (1, 20)


@pytest.mark.parametrize("weights", [(1.0,), (3.0, 1.0), (0.001, 5.0), (2.0, 3.0, 5.0), (0.0, 1.0)])
def test_proportional_sizes_grow_in_every_pool(weights: tuple[float, ...]) -> None:
    ray = proportional(weights)
    sizes = [ray(n) for n in range(len(weights), 200)]
    assert [sum(fleet) for fleet in sizes] == list(range(len(weights), 200))
    assert all(min(fleet) >= 1 for fleet in sizes)
    assert all(below(a, b) for a, b in itertools.pairwise(sizes))
    share = np.array(sizes[-1]) / sum(sizes[-1])
    assert share == pytest.approx(np.array(weights) / sum(weights), abs=0.02)


def test_bisect() -> None:
    for need in range(1, 20):
        assert bisect(lambda n, need=need: n >= need, 0, 19) == need
