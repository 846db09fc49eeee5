"""The reference cluster against outcomes computed by hand: an oracle must be right itself."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path

import pytest
from reference_cluster import (
    COMPLETED,
    DISPATCHED,
    REASON_CONTEXT,
    REASON_KV,
    REJECTED,
    Device,
    Objective,
    Outcome,
    ReferenceCluster,
    Request,
    Timing,
)

Router = Callable[[ReferenceCluster], list[int]]


def constant(seconds: float, batch_limit: int) -> Timing:
    return Timing([seconds] * (batch_limit + 1))


def device(B: int, M: int, seconds: float = 1.0, **more: object) -> Device:
    return Device(B, M, constant(seconds, B), **more)  # type: ignore[arg-type]


def requests(*rows: tuple[float, int, int]) -> list[Request]:
    return [Request(i, at, s, o, float(o)) for i, (at, s, o) in enumerate(rows)]


def read(path: Path) -> list[Request]:
    with path.open(newline="") as lines:
        rows = [
            (
                float(row["arrived_at"]),
                int(row["num_prefill_tokens"]),
                int(row["num_decode_tokens"]),
            )
            for row in csv.DictReader(lines)
        ]
    return requests(*rows)


def send_all(cluster: ReferenceCluster) -> list[int]:
    """Everything visible to device 0 at once: FIFO."""
    rows = len(cluster.visible)
    return [1] * rows + [0] * (cluster.window - rows)


def run(cluster: ReferenceCluster, router: Router) -> tuple[list[Outcome], float]:
    cost = cluster.reset()
    outcomes = []
    while not (outcomes and (outcomes[-1].terminated or outcomes[-1].truncated)):
        outcomes.append(cluster.step(router(cluster)))
    return outcomes, cost


def finished(cluster: ReferenceCluster) -> list[float | None]:
    return [None if r.finished_at is None else r.finished_at / 1e9 for r in cluster.requests]


# --- the shared cases -----------------------------------------------------------------------


def test_oversized_head_is_rejected_and_blocks_nothing(cases: Path) -> None:
    cluster = ReferenceCluster(
        read(cases / "oversized_head.csv"), [device(8, 784)], horizon=30, window=4
    )
    _, cost = run(cluster, send_all)
    assert [r.status for r in cluster.requests] == [REJECTED, COMPLETED, COMPLETED]
    assert cluster.requests[0].reason == REASON_KV
    assert finished(cluster) == [None, 21.0, 11.0]
    assert cost == 1.0


def test_two_giants_run_one_after_the_other(cases: Path) -> None:
    cluster = ReferenceCluster(
        read(cases / "two_giants.csv"), [device(8, 130_000)], horizon=450, window=4
    )
    run(cluster, send_all)
    assert finished(cluster) == [200.0, 400.0, 220.0]
    assert [r.preemptions for r in cluster.requests] == [0, 0, 0]


def test_growth_overflow_preempts_twice(cases: Path) -> None:
    cluster = ReferenceCluster(
        read(cases / "growth_overflow.csv"), [device(8, 2_000)], horizon=1_200, window=8
    )
    run(cluster, send_all)
    assert [r.preemptions for r in cluster.requests] == [0, 0, 1, 1, 0]
    assert [r.recomputed for r in cluster.requests] == [0, 0, 666, 500, 0]
    assert finished(cluster) == [600.0, 600.0, 934.0, 1100.0, 15.0]
    assert max(i.kv for i in cluster.devices[0].iterations) <= 2_000


def test_burst_round_robin_leaves_no_pile_up(cases: Path) -> None:
    def rotate(cluster: ReferenceCluster) -> list[int]:
        rows = len(cluster.visible)
        return [row % 8 + 1 for row in range(rows)] + [0] * (cluster.window - rows)

    cluster = ReferenceCluster(
        read(cases / "burst_same_instant.csv"),
        [device(64, 100_000) for _ in range(8)],
        horizon=120,
        window=512,
    )
    run(cluster, rotate)
    assert finished(cluster) == [101.0] * 512
    assert [d.iterations[0].batch for d in cluster.devices] == [64] * 8


def test_identical_trickle_never_waits(cases: Path) -> None:
    cluster = ReferenceCluster(
        read(cases / "identical_trickle.csv"), [device(8, 10_000)], horizon=3_200, window=4
    )
    run(cluster, send_all)
    assert finished(cluster) == [50.0 * i + 10.0 for i in range(64)]


def shortest_first(aging: float) -> Router:
    """Release-when-startable; key = ô − aging × periods waited, ties by arrival."""

    def route(cluster: ReferenceCluster) -> list[int]:
        machine = cluster.devices[0]
        action = [0] * cluster.window
        if machine.ends_at is not None:
            return action
        room = machine.batch_limit - len(machine.batch)
        if room:
            # The key orders as ô + aging × arrival does: "now" is common to all.
            waiting = sorted(
                range(len(cluster.visible)),
                key=lambda row: (
                    cluster.queue[row].predicted
                    + aging * cluster.queue[row].arrival_ns / cluster.period
                ),
            )
            for row in waiting[:room]:
                action[row] = 1
        return action

    return route


@pytest.mark.parametrize("batch_limit", [1, 2])
def test_long_among_short(cases: Path, batch_limit: int) -> None:
    """FIFO serves the long one in arrival order, shortest-first last, aging in between."""
    starts: dict[str, list[int]] = {}
    for name, router in (
        ("fifo", send_all),
        ("shortest", shortest_first(0.0)),
        ("aging", shortest_first(5.0)),
    ):
        rows = read(cases / "long_among_short.csv")[:500]  # 500 of 4,001: the same shape, faster
        cluster = ReferenceCluster(
            rows,
            [device(batch_limit, 100_000)],
            horizon=460,
            drain=True,
            window=len(rows),
        )
        outcomes, _ = run(cluster, router)
        assert outcomes[-1].terminated
        assert all(r.status == COMPLETED for r in cluster.requests)
        starts[name] = [r.started_at or 0 for r in cluster.requests]
    long = 12
    assert cluster.requests[long].decode == 2_000
    assert starts["fifo"] == sorted(starts["fifo"])
    assert starts["shortest"][long] == max(starts["shortest"])
    # ô + 5 · arrival: short requests that arrive before 406.5 s go first.
    earlier = sum(r.arrival_s < 406.5 for r in cluster.requests) - 1
    served_before = sum(s < starts["aging"][long] for s in starts["aging"])
    assert abs(served_before - earlier) <= 2
    assert starts["fifo"][long] < starts["aging"][long] < starts["shortest"][long]


# --- rules, one by one ----------------------------------------------------------------------


def test_lock_step_order_at_a_boundary() -> None:
    """A slot freed at t takes a request that arrived at t, in the same period."""
    cluster = ReferenceCluster(requests((0, 5, 2), (2, 5, 1)), [device(1, 100)], horizon=5)
    run(cluster, send_all)
    assert [(r.started_at, r.finished_at) for r in cluster.requests] == [
        (0, 2 * 10**9),
        (2 * 10**9, 3 * 10**9),
    ]


def test_iterations_go_on_between_boundaries() -> None:
    """Iterations of 0.4 s: 0.4 and 0.8 inside the first period, the next ends at 1.2."""
    cluster = ReferenceCluster(
        requests((0, 5, 2), (0, 5, 1), (0, 5, 4)), [device(2, 100, 0.4)], horizon=5
    )
    cluster.reset()
    cluster.step([1, 1, 1] + [0] * 125)
    assert finished(cluster) == [0.8, 0.4, None]
    assert cluster.requests[2].started_at == 4 * 10**8  # joined at 0.4, by itself
    assert cluster.observe()["devices"][0].tolist() == pytest.approx(
        [1, 2, 6, 100, 0, 0, 0.4, 0.2, 1, 0]
    )


def test_an_iteration_that_ends_at_the_boundary_waits_for_the_dispatch() -> None:
    cluster = ReferenceCluster(requests((0, 5, 9), (1, 5, 9)), [device(2, 100, 0.5)], horizon=5)
    cluster.reset()
    cluster.step([1] + [0] * 127)
    assert cluster.devices[0].ends_at is None
    assert cluster.requests[0].emitted == 2
    cluster.step([1] + [0] * 127)
    assert cluster.requests[1].started_at == 10**9
    assert cluster.requests[1].emitted == 2


def test_dispatch_to_a_device_inside_an_iteration_waits_for_its_end() -> None:
    cluster = ReferenceCluster(requests((0, 5, 9), (0.5, 5, 9)), [device(2, 100, 1.5)], horizon=5)
    run(cluster, send_all)
    assert cluster.requests[1].started_at == 1_500_000_000


def test_the_earliest_admitted_is_never_preempted_and_prefill_is_counted() -> None:
    """M = 10: needs 4 + 4 at first, 5 + 5, then 6 + 6 breaks M and the second goes back."""
    timing = Timing([0.0, 1.0, 1.0], kv_s=0.0, prefill_s=0.25)
    cluster = ReferenceCluster(requests((0, 3, 4), (0, 3, 4)), [Device(2, 10, timing)], horizon=12)
    run(cluster, send_all)
    first, second = cluster.requests
    assert (first.preemptions, second.preemptions) == (0, 1)
    assert second.recomputed == 5  # 3 prompt tokens and 2 emitted
    # First ends at 4 s; the second then recomputes 5 tokens in 1 + 5/4 s, and ends 1 s later.
    assert (first.finished_at, second.finished_at) == (4_000_000_000, 7_250_000_000)
    assert [i.prefill for i in cluster.devices[0].iterations] == [0, 0, 0, 0, 5, 0]


def test_the_head_blocks_the_fifo_unless_skipped() -> None:
    rows = ((0, 6, 3), (0, 6, 3), (0, 1, 3))
    for skip, starts in ((False, [0, 3, 3]), (True, [0, 3, 0])):
        cluster = ReferenceCluster(requests(*rows), [device(4, 12, skip=skip)], horizon=9)
        run(cluster, send_all)
        assert [(r.started_at or 0) / 1e9 for r in cluster.requests] == starts


def test_kv_in_blocks_with_a_watermark() -> None:
    """10 blocks of 4 tokens, 2 kept free: three requests of 3 blocks would need 9 > 8."""
    rows = ((0, 9, 3), (0, 9, 3), (0, 9, 3))
    for watermark, starts in ((0.0, [0, 0, 0]), (0.2, [0, 0, 3])):
        cluster = ReferenceCluster(
            requests(*rows), [device(4, 40, block=4, watermark=watermark)], horizon=9
        )
        run(cluster, send_all)
        assert [(r.started_at or 0) / 1e9 for r in cluster.requests] == starts


def test_the_watermark_spares_an_empty_device() -> None:
    cluster = ReferenceCluster(
        requests((0, 35, 3)), [device(4, 40, block=4, watermark=0.5)], horizon=9
    )
    run(cluster, send_all)
    assert finished(cluster) == [3.0]


def test_rejection_names_its_reason() -> None:
    rows = requests((0, 90, 11), (0, 40, 21), (0, 40, 20), (0, 90, 10))
    cluster = ReferenceCluster(rows, [device(4, 100, context_limit=60)], horizon=30)
    _, cost = run(cluster, send_all)
    assert [r.reason for r in rows] == [REASON_KV, REASON_CONTEXT, 0, REASON_CONTEXT]
    assert cost == 3.0


def test_only_the_window_can_be_dispatched_and_it_refills_in_order() -> None:
    cluster = ReferenceCluster(requests(*[(0, 1, 1)] * 5), [device(9, 99)], horizon=5, window=2)
    cluster.reset()
    assert cluster.observe()["queue_id"].tolist() == [0, 1]
    assert cluster.observe()["clock"].tolist() == [0, 0, 5, 3]
    assert cluster.step([0, 1]).invalid == 0
    assert cluster.observe()["queue_id"].tolist() == [0, 2]
    assert cluster.step([2, 1]).invalid == 1  # there is no second device
    assert cluster.observe()["queue_id"].tolist() == [0, 3]


def test_reward_and_cost_by_hand() -> None:
    """T = 10; one slot: the first runs 0–3, the second 3–7, the third 7–12, cut at 10."""
    objective = Objective(1, 10, 100, 1_000, 10_000, 100_000, tail_eel_s=7.0, tail_ttft_s=7.0)
    cluster = ReferenceCluster(
        requests((0, 1, 3), (0, 1, 4), (0, 1, 5)),
        [device(1, 99)],
        horizon=10,
        objective=objective,
    )
    outcomes, cost = run(cluster, send_all)
    total = {name: sum(o.rewards[name] for o in outcomes) for name in outcomes[0].rewards}
    assert total == {
        "alpha": 10.0,
        "beta": 10.0 * (7 + 3),
        "gamma": 100.0 * (10 + 7 + 3),
        "sigma": 3_000.0,
        "zeta1": 10_000.0,  # the second ends at 7, which is not below 7
        "zeta2": 200_000.0,  # the third starts at 7, which is not below 7
    }
    assert cost == 0.0
    assert [o.cost for o in outcomes] == [0, 0, 0, 0, 0, 0, 1, 1, 0, 0]
    assert cluster.requests[2].emitted == 3
    assert outcomes[-1].truncated
    assert not outcomes[-1].terminated


def test_nothing_is_earned_after_the_horizon_but_draining_goes_on() -> None:
    objective = Objective(1, 1, 1, 1, 1, 1)
    cluster = ReferenceCluster(
        requests((0, 1, 4), (0, 1, 4)), [device(1, 99)], horizon=4, drain=True, objective=objective
    )
    outcomes, _ = run(cluster, send_all)
    assert len(outcomes) == 8
    assert outcomes[-1].terminated
    assert sum(o.reward for o in outcomes[4:]) == 0.0
    assert sum(o.rewards["alpha"] for o in outcomes) == 4.0
    assert sum(o.rewards["zeta1"] for o in outcomes) == 1.0


def test_a_preempted_request_waits_at_the_head() -> None:
    cluster = ReferenceCluster(
        requests((0, 3, 9), (0, 3, 9), (0, 3, 9)), [device(2, 12)], horizon=3
    )
    cluster.reset()
    for _ in range(3):
        cluster.step(send_all(cluster))
    # needs: 4 + 4, 5 + 5, 6 + 6, and 7 + 7 > 12 only at t = 3.
    cluster.step(send_all(cluster))
    machine = cluster.devices[0]
    assert [r.number for r in machine.batch] == [0]
    assert [r.number for r in machine.fifo] == [1, 2]
    assert machine.fifo[0].status == DISPATCHED
    assert machine.fifo[0].emitted == 3
