"""Learned prices against the dual of the linear program, solved by HiGHS."""

from __future__ import annotations

import numpy as np
import pytest
from naive_olp import Column, window
from scipy.optimize import linprog
from test_olp_prices import Board


class Program:
    """min over p, y >= 0 of d.p + mean(y), y_j >= r_j - a_j.p: the SAA problem as an LP."""

    def __init__(self, board: Board, columns: list[Column]) -> None:
        G, H, m = board.grid.devices, board.grid.lookahead, len(columns)
        self.shape = (2, G, H)
        self.d = board.scarcity.ravel()
        self.a = np.zeros((m, 2, G, H))
        for j, column in enumerate(columns):
            first, last, lead = window(column, 0, H)
            for h in range(first, last):
                self.a[j, 0, column.device, h] = 1.0
                self.a[j, 1, column.device, h] = board.mem_scale * (lead + h)
        self.a = self.a.reshape(m, -1)
        self.r = np.array([column.reward for column in columns])
        self.cost = np.concatenate([self.d, np.full(m, 1.0 / m)])
        self.rows = -np.hstack([self.a, np.eye(m)])
        self.optimum = self.solve(self.cost).fun

    def solve(self, cost: np.ndarray, within: float | None = None) -> object:
        rows, right = self.rows, -self.r
        if within is not None:
            rows = np.vstack([rows, self.cost])
            right = np.append(right, within)
        found = linprog(cost, A_ub=rows, b_ub=right, bounds=(0, None), method="highs")
        assert found.success
        return found

    def value(self, prices: np.ndarray) -> float:
        p = prices.ravel()
        return float(self.d @ p + np.maximum(self.r - self.a @ p, 0.0).mean())

    def range_of(self, i: int) -> tuple[float, float]:
        """Least and largest value of price i among the optimal solutions."""
        cost = np.zeros_like(self.cost)
        cost[i] = 1.0
        within = self.optimum + 1e-9
        return self.solve(cost, within).fun, -self.solve(-cost, within).fun


def instance(seed: int) -> tuple[Board, list[Column]]:
    """Two devices, five slots; entries, capacity and rewards of a size, so that both bind."""
    board = Board(2, 5, seed)
    rng = board.rng
    board.mem_scale = 1.0 / 40.0
    board.scarcity = rng.uniform(0.02, 0.5, board.scarcity.shape)
    columns = [
        Column(
            start=int(rng.integers(-2, 4)),
            length=int(rng.integers(1, 6)),
            prompt=int(rng.integers(5, 60)),
            device=int(rng.integers(2)),
            reward=float(rng.uniform(0.3, 1.0)),
        )
        for _ in range(14)
    ]
    return board, columns


def descend(board: Board, columns: list[Column]) -> np.ndarray:
    """80,000 steps of decreasing size from 0; return the prices, (2, G, H)."""
    board.prices[:] = 0.0
    board.sums[:] = 0.0
    board.carry[:] = 0.0
    step = 0.5
    for _ in range(200):
        board.learn(columns, 0, (step, step), 400)
        step *= 0.95
    return board.prices_by_device()


@pytest.mark.parametrize("seed", range(6))
def test_many_steps_reach_the_optimum_and_the_prices_of_the_dual(seed: int) -> None:
    board, columns = instance(seed)
    program = Program(board, columns)
    learned = descend(board, columns)
    at_zero = program.value(np.zeros(program.shape))
    assert program.optimum < at_zero - 0.01  # prices matter in this instance
    assert program.value(learned) == pytest.approx(program.optimum, abs=1e-6)
    assert program.value(learned) >= program.optimum - 1e-9
    binding = 0
    for i, price in enumerate(learned.ravel()):
        low, high = program.range_of(i)
        assert low - 1e-4 <= price <= high + 1e-4
        binding += high - low < 1e-6 and high > 0.05
    assert binding >= 2  # prices that the dual determines, and not as 0


def test_strong_duality_with_the_routing_program() -> None:
    """The prices are the dual of: max mean(r x), mean of a x <= d, 0 <= x <= 1."""
    board, columns = instance(1)
    program = Program(board, columns)
    m = len(columns)
    primal = linprog(
        -program.r / m, A_ub=program.a.T / m, b_ub=program.d, bounds=(0, 1), method="highs"
    )
    assert program.value(descend(board, columns)) == pytest.approx(-primal.fun, abs=1e-6)
    assert program.optimum == pytest.approx(-primal.fun, abs=1e-9)
