"""The test for a rising arrival rate: false alarms, detection, and what it does to the history."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np
import pytest

from policies.olp import drift, history
from policies.olp.layout import Column
from policies.olp.state import Number, OlpMemory

WINDOW, SIGNIFICANCE = 400, 1e-4  # the defaults of the policy
Z = NormalDist().inv_cdf(1 - SIGNIFICANCE)


def alarms(counts: np.ndarray, window: int = WINDOW) -> list[int]:
    """Periods of alarm for (T,) arrivals per period."""
    numbers, ring = np.zeros(len(Number)), np.zeros(window, np.int32)
    found = []
    for period, count in enumerate(counts.tolist()):
        numbers[Number.PERIOD] = period
        drift.count_arrivals(numbers, ring, count)
        assert numbers[Number.RECENT] == counts[max(period - window + 1, 0) : period + 1].sum()
        if drift.rate_increased(numbers, window, Z):
            found.append(period)
            assert numbers[Number.LAST_DRIFT] == period
            assert drift.arrival_rate(numbers) == pytest.approx(
                counts[period - window + 1 : period + 1].mean()
            )
    assert numbers[Number.DRIFTS] == len(found)
    return found


def test_false_alarms_are_rare_over_a_whole_episode() -> None:
    """4,000 periods at the paper's stable rate: 0.7% of 1,000 episodes raised one."""
    rng = np.random.default_rng(1)
    raised = sum(bool(alarms(rng.poisson(0.4, 4000))) for _ in range(60))
    assert raised <= 3


def test_the_paper_s_rate_shift_is_detected() -> None:
    """0.4 to 0.6 at period 2,000: in 99.9% of 1,000 episodes, after 265 periods (median)."""
    rng = np.random.default_rng(2)
    delays = []
    for _ in range(40):
        counts = np.concatenate([rng.poisson(0.4, 2000), rng.poisson(0.6, 2000)])
        after = [period - 2000 for period in alarms(counts) if period >= 2000]
        delays += after[:1]
    assert len(delays) >= 38
    assert np.median(delays) < 350


def test_a_falling_rate_is_none_of_its_business() -> None:
    rng = np.random.default_rng(3)
    counts = np.concatenate([rng.poisson(0.6, 2000), rng.poisson(0.3, 2000)])
    assert alarms(counts) == []


def test_it_waits_for_as_much_history_as_the_window() -> None:
    counts = np.concatenate([np.zeros(100, np.int64), np.full(300, 5)])
    assert alarms(counts, window=100) == [199]  # the first period with 100 before the window


def memory(size: int) -> OlpMemory:
    empty = np.zeros(0)
    return OlpMemory(
        rng=np.ones(1, np.uint64),
        pointer=np.zeros(1, np.int64),
        numbers=np.zeros(len(Number)),
        prices=empty.reshape(0, 0, 0, 0),
        columns=np.zeros((size, 4), np.int32),
        rewards=np.zeros(size),
        arrivals=np.zeros(0, np.int32),
        margins=np.zeros(0, np.float32),
        seen=np.zeros((0, 0, 4), np.float32),
        seen_count=np.zeros((0, 2), np.int64),
        series=np.zeros((0, 4), np.float32),
        goals=np.zeros((0, 0)),
        sent=np.zeros((0, 0, 0)),
        held=np.zeros(0, np.int64),
        pace=np.zeros(1),
        trend=np.zeros((1, 0)),
    )


def test_the_ring_keeps_the_newest_columns_and_their_sums() -> None:
    ring, rng = memory(16), np.random.default_rng(0)
    kept: list[tuple[int, int, int, float]] = []
    picks = np.zeros((1, 16), np.int32)
    start = 0
    for step in range(200):
        start += int(rng.integers(0, 4))
        length, prompt = (int(x) for x in rng.integers(1, 90, 2))
        value = float(rng.random())
        history.remember(ring, start, length, prompt, 0, value, 50)
        kept = [*kept, (start, length, prompt, value)][-16:]
        if step % 23 == 0:
            history.forget_before(ring, start - 5, 50)
            kept = [column for column in kept if column[0] >= start - 5]
        assert history.sample(ring, picks) == len(kept)
        rows = picks[0, : len(kept)]
        found = [
            (*ring.columns[row, [Column.START, Column.LENGTH, Column.PROMPT]], ring.rewards[row])
            for row in rows
        ]
        assert found == kept[::-1]
        numbers = ring.numbers
        ages = [np.arange(min(length, 50)) for _, length, _, _ in kept]
        norms = [((p + 1 + age) ** 2).sum() for (_, _, p, _), age in zip(kept, ages, strict=True)]
        assert numbers[Number.SUM_BATCH] == sum(len(age) for age in ages)
        assert numbers[Number.SUM_MEMORY] == pytest.approx(sum(norms), rel=1e-12)
        assert numbers[Number.SUM_REWARD] == pytest.approx(sum(c[3] for c in kept), rel=1e-9)


def test_mini_batches_draw_from_the_kept_columns_alone() -> None:
    ring = memory(64)
    for start in range(150):
        history.remember(ring, start, 5, 5, 0, 0.5, 50)
    history.forget_before(ring, 120, 50)
    picks = np.zeros((100, 20), np.int32)
    assert history.sample(ring, picks) == 20
    starts = ring.columns[picks, Column.START]
    assert set(starts.ravel().tolist()) == set(range(120, 150))
