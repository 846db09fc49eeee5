"""The reference cluster on the shared cases, whose outcomes were computed by hand."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from reference_cluster import ReferenceCluster
from reference_device import COMPLETED, REASON_KV, REJECTED, Request
from reference_runs import Router, device, finished, requests, run, send_all


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
