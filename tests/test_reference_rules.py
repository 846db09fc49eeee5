"""The reference cluster's rules, one by one, by hand: an oracle must be right itself."""

from __future__ import annotations

import pytest
from reference_cluster import Objective, ReferenceCluster
from reference_device import DISPATCHED, REASON_CONTEXT, REASON_KV, Device, Timing
from reference_runs import device, finished, requests, run, send_all
from reference_view import observe


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
    assert observe(cluster)["devices"][0].tolist() == pytest.approx(
        [1, 2, 6, 100, 0, 0, 0.4, 0.2, 1, 0, 0]
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
    assert observe(cluster)["queue_id"].tolist() == [0, 1]
    assert observe(cluster)["clock"].tolist() == [0, 0, 5, 3]
    assert cluster.step([0, 1]).invalid == 0
    assert observe(cluster)["queue_id"].tolist() == [0, 2]
    assert cluster.step([2, 1]).invalid == 1  # there is no second device
    assert observe(cluster)["queue_id"].tolist() == [0, 3]


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
