"""Bid prices: O(1) column costs and range-update subgradients against sums over slots."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("hypothesis")
from hypothesis import given
from hypothesis import strategies as st
from naive_olp import Column, column_cost, window
from numpy.testing import assert_allclose, assert_array_equal

from policies.olp import layout, prices
from policies.olp.columns import memory_norm
from policies.olp.pricing import learn

DEVICES = st.sampled_from([1, 2, 3, 4, 7, 16, 17, 33])
LOOKAHEAD = st.sampled_from([1, 2, 5, 31, 64, 100, 512])
SEEDS = st.integers(0, 2**32 - 1)


class Board:
    """Prices, scarcity and working arrays of one random instance, in lanes and as (G, H)."""

    def __init__(self, devices: int, lookahead: int, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.grid = layout.make_grid(devices, lookahead)
        shape = (2, devices, lookahead)
        # Prices of very different sizes, many of them 0, as projection leaves them.
        size = 10.0 ** self.rng.uniform(-6, 0, shape)
        self.by_device = self.rng.random(shape) * size * (self.rng.random(shape) < 0.7)
        self.scarcity = self.rng.random(shape) * (self.rng.random(shape) < 0.8)
        self.mem_scale = 1.0 / self.rng.integers(1, 20_000)
        grid = self.grid
        block = (grid.rows, grid.lanes)
        self.prices = layout.to_lanes(grid, self.by_device)
        self.sums = np.full((grid.blocks, 2, *block), np.nan)
        self.carry = np.full((grid.blocks, 2, grid.lanes), np.nan)
        self.running = np.zeros((4, grid.lanes))
        self.events = np.zeros((2, *block))
        for b in range(grid.blocks):
            prices.make_sums(
                self.prices[b],
                self.sums[b],
                self.carry[b],
                self.running,
                grid.slot0,
                grid.block,
                self.mem_scale,
            )

    def history(self, size: int, now: int) -> list[Column]:
        """Random columns: past, running, future, and beyond the look-ahead."""
        H = self.grid.lookahead
        return [
            Column(
                start=now + int(self.rng.integers(-H - 3, H + 4)),
                length=int(self.rng.integers(1, 2 * H + 2)),
                prompt=int(self.rng.integers(1, 4000)),
                device=int(self.rng.integers(self.grid.devices)),
                reward=float(self.rng.random()),
            )
            for _ in range(size)
        ]

    def learn(self, columns: list[Column], now: int, steps: tuple[float, float], k: int) -> None:
        """K steps on the whole history."""
        table = np.array([[c.start, c.length, c.prompt, c.device] for c in columns], np.int32)
        rewards = np.array([c.reward for c in columns])
        picks = np.tile(np.arange(len(columns), dtype=np.int32), (k, 1))
        scarcity = layout.to_lanes(self.grid, self.scarcity)
        for b in range(self.grid.blocks):
            learn(
                self.prices,
                scarcity[b],
                self.events,
                self.sums,
                self.carry,
                self.running,
                self.grid,
                b,
                table,
                rewards,
                picks,
                len(columns),
                now,
                self.mem_scale,
                *steps,
            )

    def prices_by_device(self) -> np.ndarray:
        return layout.to_devices(self.grid, self.prices)

    def cost(self, g: int, first: int, last: int, lead: float) -> float:
        block, lane = divmod(g, self.grid.block)
        return prices.column_cost(
            self.sums, self.carry, block, self.grid.bits, lane, self.grid.block, first, last, lead
        )

    def naive_cost(self, g: int, first: int, last: int, lead: float) -> float:
        bat, mem = self.by_device[:, g].tolist()
        return column_cost(bat, mem, first, last, lead, self.mem_scale)

    def naive_learn(self, columns: list[Column], now: int, steps: tuple[float, float]) -> None:
        H = self.grid.lookahead
        gradient = self.scarcity.copy()
        for column in columns:
            first, last, lead = window(column, now, H)
            if last <= first:
                continue
            if column.reward > self.naive_cost(column.device, first, last, lead):
                for h in range(first, last):
                    gradient[0, column.device, h] -= 1.0 / len(columns)
                    gradient[1, column.device, h] -= self.mem_scale * (lead + h) / len(columns)
        step = np.array(steps)[:, None, None]
        self.by_device = np.maximum(self.by_device - step * gradient, 0.0)


@given(DEVICES, LOOKAHEAD, SEEDS)
def test_the_layout_is_a_permutation(devices: int, lookahead: int, seed: int) -> None:
    grid = layout.make_grid(devices, lookahead)
    values = np.random.default_rng(seed).random((2, devices, lookahead))
    lanes = layout.to_lanes(grid, values)
    assert lanes.shape == (grid.blocks, 2, grid.rows, grid.lanes)
    assert_array_equal(layout.to_devices(grid, lanes), values)
    g, h = devices - 1, lookahead - 1
    block, lane = divmod(g, grid.block)
    row, at = h & (grid.rows - 1), (h >> grid.bits) * grid.block + lane
    assert lanes[block, 1, row, at] == values[1, g, h]
    assert grid.slot0[at] + row == h


@given(DEVICES, LOOKAHEAD, SEEDS)
def test_column_cost_equals_the_sum_over_slots(devices: int, lookahead: int, seed: int) -> None:
    board = Board(devices, lookahead, seed)
    for _ in range(20):
        g = int(board.rng.integers(devices))
        first, last = sorted(board.rng.choice(lookahead + 1, 2, replace=False).tolist())
        if board.rng.random() < 0.5:
            first = 0
        lead = float(board.rng.integers(2, 4000) - first)
        # A difference of prefix sums is exact relative to the prefix; from 0, to the cost itself.
        scale = board.naive_cost(g, 0, last, lead + first + lookahead)
        wanted = board.naive_cost(g, first, last, lead)
        allowed = 1e-12 * (wanted if first == 0 else scale)
        assert abs(board.cost(g, first, last, lead) - wanted) <= allowed


@given(DEVICES, LOOKAHEAD, SEEDS)
def test_a_projected_step_equals_the_naive_one(devices: int, lookahead: int, seed: int) -> None:
    board = Board(devices, lookahead, seed)
    now = int(board.rng.integers(0, 10**6))
    columns = board.history(int(board.rng.integers(1, 40)), now)
    steps = (0.3 / lookahead, 0.3 * board.rng.random())
    for _ in range(3):
        board.learn(columns, now, steps, 1)
        board.naive_learn(columns, now, steps)
        learned = layout.to_devices(board.grid, board.prices)
        assert_allclose(learned, board.by_device, rtol=1e-12, atol=1e-15)
        assert (board.events == 0.0).all()
        assert (board.running == 0.0).all()
    # The sums that the decision reads are those of the last prices.
    for g in range(devices):
        wanted = board.naive_cost(g, 0, lookahead, 7.0)
        assert board.cost(g, 0, lookahead, 7.0) == pytest.approx(wanted, rel=1e-12)


@given(SEEDS)
def test_k_steps_in_one_call_are_k_calls(seed: int) -> None:
    one, many = Board(5, 64, seed), Board(5, 64, seed)
    columns = one.history(20, 100)
    many.history(20, 100)
    one.learn(columns, 100, (0.01, 0.05), 4)
    for _ in range(4):
        many.learn(columns, 100, (0.01, 0.05), 1)
    assert_array_equal(one.prices, many.prices)
    assert_array_equal(one.sums, many.sums)


@given(DEVICES, LOOKAHEAD, st.integers(0, 700), SEEDS)
def test_prices_move_with_the_clock(devices: int, lookahead: int, slots: int, seed: int) -> None:
    board = Board(devices, lookahead, seed)
    grid = board.grid
    buffer = np.full((2, grid.rows, grid.lanes), np.nan)
    for b in range(grid.blocks):
        prices.advance(board.prices[b], buffer, grid.bits, grid.block, slots)
    wanted = np.zeros_like(board.by_device)
    kept = max(lookahead - slots, 0)
    wanted[..., :kept] = board.by_device[..., slots : slots + kept]
    assert_array_equal(layout.to_devices(grid, board.prices), wanted)
    assert board.prices.sum() == pytest.approx(wanted.sum(), rel=1e-12)  # nothing in the padding


@given(st.integers(1, 10**5), st.integers(1, 10**4))
def test_memory_norm_in_closed_form(prompt: int, length: int) -> None:
    ages = np.arange(length, dtype=np.float64)
    assert memory_norm(prompt, length) == pytest.approx(((prompt + 1 + ages) ** 2).sum(), rel=1e-12)


@pytest.mark.parametrize("devices", [1, 4, 16, 17, 100, 256, 1000])
def test_the_grid_wastes_little_and_keeps_blocks_small(devices: int) -> None:
    grid = layout.make_grid(devices, 512)
    assert grid.block <= layout.BLOCK_DEVICES
    assert 0 <= grid.blocks * grid.block - devices < grid.blocks
    assert grid.rows * grid.chunks == 512
