"""The reference's mixed devices, prefix caches, handoff and groups, by hand."""

from __future__ import annotations

from typing import Any

import pytest
from reference_cluster import ReferenceCluster
from reference_device import (
    COMPLETED,
    NOT_ARRIVED,
    REASON_CONTEXT,
    REASON_KV,
    REJECTED,
    Device,
    Handoff,
    Request,
    Timing,
)
from reference_mixed import MixedDevice, MixedTimes, PrefixCache
from reference_runs import device, finished, requests, run, send_all
from reference_view import log, mask, observe, stats

from llmroute_env.spaces import Device as Field

S = 10**9
ONE_SECOND = MixedTimes([1.0, 1.0])


def mixed(B: int, M: int, C: int | None = None, **more: Any) -> MixedDevice:
    """Iterations of 1 s; C tokens of budget."""
    return MixedDevice(B, M, more.pop("timing", ONE_SECOND), chunk_tokens=C, **more)


def times(cluster: ReferenceCluster) -> list[tuple[Any, ...]]:
    """(start, first token, finish) [s] of each request."""
    return [
        tuple(None if v is None else v / S for v in (r.started_at, r.first_token_at, r.finished_at))
        for r in cluster.requests
    ]


def play(device: Device, *rows: tuple[float, int, int], **more: Any) -> ReferenceCluster:
    """Everything to one device at once, to the end."""
    more = {"horizon": 50, "drain": True} | more
    cluster = ReferenceCluster(requests(*rows), [device], **more)
    run(cluster, send_all)
    return cluster


def chains(*names: str) -> list[tuple[int, ...]]:
    """One id per prefix: "ab" and "ac" share their first block."""
    ids: dict[str, int] = {}
    return [
        tuple(ids.setdefault(word[: k + 1], len(ids)) for k in range(len(word))) for word in names
    ]


def with_chains(rows: list[tuple[float, int, int]], *names: str) -> list[Request]:
    built = requests(*rows)
    for request, chain in zip(built, chains(*names), strict=True):
        request.chain = chain
    return built


# --- prefill --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("emits", "expected"),
    [(False, (0, 2, 4)), (True, (0, 1, 3))],
    ids=["one step more", "the prefill emits"],
)
def test_whole_prefill_takes_one_iteration(emits: bool, expected: tuple[int, ...]) -> None:
    """3 tokens: prefill and three steps, 1 + o; or prefill with a token and two steps."""
    assert times(play(mixed(4, 100, emits_token=emits), (0, 20, 3))) == [expected]


def test_a_single_token_with_its_prefill() -> None:
    cluster = play(mixed(4, 100, emits_token=True), (0, 20, 1))
    assert times(cluster) == [(0, 1, 1)]
    assert stats(cluster)["decoded_tokens"] == 1


def test_chunks_leave_room_for_decoding_requests() -> None:
    """C = 8: 8 + 8 + 4 tokens alone; the second gets what the first leaves, then 7 beside it."""
    cluster = play(mixed(4, 100, C=8), (0, 20, 4), (0, 11, 1))
    iterations = cluster.devices[0].iterations
    # 8 | 8 | 4 and 4 | 7 beside one decoding | decode both (the second ends) | 2 more
    assert [i.prefill for i in iterations] == [8, 8, 8, 7, 0, 0, 0]
    assert [i.batch for i in iterations] == [1, 1, 2, 2, 2, 1, 1]
    assert [i.tokens for i in iterations] == [0, 0, 0, 1, 2, 1, 1]
    assert times(cluster) == [(0, 4, 7), (2, 5, 5)]


def test_no_budget_no_admission_but_decoding_goes_on() -> None:
    """C = 2 and two decoding: the third waits for a slot in the budget, not in the batch."""
    cluster = play(mixed(8, 100, C=2), (0, 1, 3), (0, 1, 3), (0, 1, 1))
    assert times(cluster) == [(0, 2, 4), (0, 2, 4), (4, 6, 6)]


def test_the_duration_counts_tokens_kv_and_pairs() -> None:
    timing = MixedTimes(
        [float(n) for n in range(7)], 0.5, kv_s=0.01, chunk_s=10, query_s=2, pair_s=3
    )
    cluster = play(mixed(4, 100, C=8, timing=timing), (0, 20, 1))
    durations = [(i.end - i.start) / S for i in cluster.devices[0].iterations]
    assert durations == pytest.approx(
        [
            6 + 0.5 * 2 + 10 + 2 * 8 + 3 * 8 * 4,
            6 + 0.5 * 2 + 10 + 2 * 8 + 3 * 8 * (8 + 4),
            4 + 10 + 2 * 4 + 3 * 4 * (16 + 2),
            1 + 0.01 * 21,
        ]
    )


def test_a_prompt_reserves_its_blocks_when_it_joins() -> None:
    """M = 20: 12 in chunks of 4, so at 1 s only 4 are in KV, yet 9 more do not fit."""
    cluster = ReferenceCluster(requests((0, 12, 2), (0, 9, 1)), [mixed(4, 20, C=4)], horizon=20)
    cluster.reset()
    cluster.step([1, 1] + [0] * 126)
    shown = observe(cluster)
    assert shown["devices"][0][Field.KV_USED] == 4
    assert shown["active"][0, :2].tolist() == [[4, 2], [0, 0]]
    assert cluster.devices[0].prefill_left() == 8 + 9
    run(cluster, send_all)
    assert [r.started_at for r in cluster.requests] == [0, 5 * S]


def test_the_last_admitted_loses_its_progress_and_keeps_its_tokens() -> None:
    """M = 10, C = 3. The second (6) prefills beside the growing first and has to go at 4 s.

    First: prefill 3 | +1 | +1 | +1 …, needs 4, 5, 6, 7. Second: 6 reserved; 4 + 6 fits, 5 + 6
    does not: it goes back with 2 tokens done, and returns when the first (o = 4) has ended at 5 s.
    """
    cluster = play(mixed(4, 10, C=3), (0, 3, 4), (0, 6, 2))
    first, second = cluster.requests
    assert (first.preemptions, second.preemptions) == (0, 1)
    assert second.recomputed == 2
    assert times(cluster) == [(0, 2, 5), (1, 8, 9)]
    assert [i.prefill for i in cluster.devices[0].iterations] == [3, 2, 0, 0, 0, 3, 3, 0, 0]


@pytest.mark.parametrize(("emits", "finish"), [(False, [5, 8]), (True, [4, 6])])
def test_recomputation_is_a_prefill_of_prompt_and_emitted(emits: bool, finish: list[int]) -> None:
    """M = 10: two of 3 + 4 tokens. Needs 4 + 4, 5 + 5, 6 + 6: the second goes with 2 emitted.

    Its 5 tokens are computed again when the first has ended; two steps follow. Where the prefill
    emits a token, all of it is a step earlier, and the second prefill emits the third token.
    """
    cluster = play(mixed(4, 10, emits_token=emits), (0, 3, 4), (0, 3, 4))
    first, second = cluster.requests
    assert (first.preemptions, second.preemptions) == (0, 1)
    assert second.recomputed == 5
    assert finished(cluster) == finish
    assert [i.prefill for i in cluster.devices[0].iterations if i.prefill] == [6, 5]


def test_skip_passes_what_does_not_fit_but_not_the_budget() -> None:
    rows = ((0, 6, 2), (0, 6, 2), (0, 2, 2))
    for skip, starts in ((False, [0, 3, 3]), (True, [0, 3, 0])):
        cluster = play(mixed(4, 11, skip=skip), *rows)
        assert [(r.started_at or 0) / S for r in cluster.requests] == starts
    assert [r.started_at for r in play(mixed(4, 11, C=6, skip=True), *rows).requests][2] == S


def test_alpha_counts_emitted_tokens_and_slots_are_busy_while_prefilling() -> None:
    cluster = play(mixed(4, 100, C=5), (0, 10, 2), (0, 5, 1))
    counted = stats(cluster)
    assert counted["decoded_tokens"] == 3
    # 0–2 the first prefills, 2–3 it decodes beside 4 tokens of the second, 3–4 with its last one.
    assert counted["busy_slot_s"] == [1 + 1 + 2 + 2 + 1]
    # At the end of each iteration: 5 | 10 | 11 + 4 | 12 + 5 | 6
    assert counted["kv_token_s"] == [5 + 10 + 15 + 17 + 6]


# --- prefix cache ---------------------------------------------------------------------------------


def cached(M: int, P: int = 4, **more: Any) -> MixedDevice:
    more = {"C": None, "emits_token": True} | more
    return mixed(8, M, cache=PrefixCache(P), **more)


def resident(device: MixedDevice) -> dict[int, int]:
    assert device.cache is not None
    return dict(device.cache.references)


def test_a_second_request_starts_from_the_shared_prefix() -> None:
    """Prompts of 10: "ab" and 2 tokens. The second comes after the first has prefilled."""
    rows = with_chains([(0, 10, 3), (1, 10, 1), (1, 8, 1)], "ab", "ab", "ab")
    cluster = ReferenceCluster(rows, [cached(100)], horizon=9, drain=True)
    run(cluster, send_all)
    assert [r.cached for r in rows] == [0, 8, 4]  # of "ab" whole, one token has to be computed
    assert [i.prefill for i in cluster.devices[0].iterations] == [10, 2 + 4, 0]
    assert log(cluster)["cached"].tolist() == [0, 8, 4]


def test_blocks_computed_twice_are_kept_once() -> None:
    """Both prefill "ab" at once: 10 + 10 tokens of KV before, 8 + 2 + 2 after."""
    rows = with_chains([(0, 10, 3), (0, 10, 3)], "ab", "ab")
    cluster = ReferenceCluster(rows, [cached(100)], horizon=9)
    cluster.reset()
    device = cluster.devices[0]
    cluster.step([1, 1] + [0] * 126)
    assert [i.prefill for i in device.iterations] == [20]
    assert resident(device) == {0: 2, 1: 2}
    assert observe(cluster)["devices"][0][Field.KV_USED] == 8 + 2 + 2
    cluster.step([0] * 128)
    assert observe(cluster)["devices"][0][Field.KV_USED] == 8 + 4 + 4  # s + emitted + 1 = 12


def test_the_answer_becomes_a_prefix_of_the_next_turn() -> None:
    """Turn 1: 6 + 6 = "abc". Turn 2's prompt begins with it: 12 of its 15 tokens are cached."""
    rows = with_chains([(0, 6, 6), (10, 15, 1)], "abc", "abc")
    cluster = ReferenceCluster(rows, [cached(100)], horizon=20, drain=True)
    run(cluster, send_all)
    assert rows[1].cached == 12
    assert resident(cluster.devices[0]) == {0: 0, 1: 0, 2: 0}
    assert observe(cluster)["devices"][0][Field.KV_USED] == 0


def test_the_oldest_unused_block_goes_first_and_deep_ones_before_their_prefix() -> None:
    """M = 21: "ab" stays (8), then "cd" (8). 7 tokens of "e" want room: "b" goes, of the oldest.

    The 9 that "e" grows to fit beside the other 12. Then "ab" again finds "a" only.
    """
    rows = with_chains([(0, 8, 1), (2, 8, 1), (4, 7, 2), (8, 9, 1)], "ab", "cd", "e", "ab")
    cluster = ReferenceCluster(rows, [cached(21)], horizon=20, drain=True)
    cluster.reset()
    for _ in range(4):
        cluster.step(send_all(cluster))
    device = cluster.devices[0]
    assert device.cache is not None
    assert device.cache.unused == [1, 0, 3, 2]  # b, a, d, c
    cluster.step(send_all(cluster))  # 7 reserved: 21 - 16 = 5, so "b" goes
    assert device.cache.unused == [0, 3, 2]
    assert resident(device) == {0: 0, 2: 0, 3: 0, 4: 1}  # and "e" has its whole block
    run(cluster, send_all)
    assert rows[3].cached == 4


def test_blocks_in_use_are_never_evicted_and_do_not_count_twice() -> None:
    """M = 21: "ab" in use (8 + 2 of 9 + 1). A second of 9 shares 8: 12 in all. A third does not."""
    rows = with_chains([(0, 9, 5), (1, 9, 5), (1, 12, 1)], "ab", "ab", "cde")
    cluster = ReferenceCluster(rows, [cached(21)], horizon=30, drain=True)
    run(cluster, send_all)
    assert [r.started_at for r in rows[:2]] == [0, S]
    assert rows[1].cached == 8
    assert (rows[2].started_at or 0) > S


def test_unreferenced_blocks_count_when_they_are_taken_again() -> None:
    """M = 12. "ab" is cached and unused. A request of 9 with it needs 9 beside one of 4: no.

    The one of 4 grows to 8, so "b" goes, and "a" is still there when the other can join.
    """
    rows = with_chains([(0, 8, 1), (2, 4, 4), (2, 9, 1)], "ab", "c", "ab")
    cluster = ReferenceCluster(rows, [cached(12)], horizon=30, drain=True)
    run(cluster, send_all)
    assert rows[1].started_at == 2 * S
    assert rows[2].started_at == rows[1].finished_at == 6 * S
    assert rows[2].cached == 4


def test_a_preempted_request_finds_its_own_blocks_again() -> None:
    """M = 22: two of 9 + 4 with chains of their own; the second goes, and returns to its blocks.

    Needs 11 + 11 after the prefill, 12 + 12 then: the second goes with 11 tokens (2 emitted), 8 of
    them in blocks that stay (12 + 8 and 13 + 8 fit), and has 3 to compute when the first has ended.
    """
    rows = with_chains([(0, 9, 4), (0, 9, 4)], "ab", "cd")
    cluster = ReferenceCluster(rows, [cached(22)], horizon=30, drain=True)
    run(cluster, send_all)
    assert rows[1].preemptions == 1
    assert rows[1].recomputed == 11 - 8
    assert rows[1].cached == 0  # of the first admission
    prefills = [i.prefill for i in cluster.devices[0].iterations]
    assert [n for n in prefills if n] == [18, 3]


def test_what_the_router_sees_of_a_cache() -> None:
    rows = with_chains([(0, 10, 1), (2, 10, 5), (2, 3, 1)], "ab", "ab", "")
    cluster = ReferenceCluster(rows, [cached(100), cached(100)], horizon=30, window=4)
    cluster.reset()
    cluster.step([2, 0, 0, 0])
    cluster.step([0, 0, 0, 0])
    assert observe(cluster)["prefix"].tolist() == [[0, 8], [0, 0], [0, 0], [0, 0]]
    cluster.dispatch([2, 0, 0, 0])
    assert cluster.devices[1].prefill_left() == 2


# --- handoff --------------------------------------------------------------------------------------


def test_kv_travels_before_a_request_joins() -> None:
    """100 bytes a token over 400 bytes/s: 5 tokens take 1.25 s, 1 token 0.25 s, in FIFO order."""
    link = Handoff(100, 400)
    cluster = ReferenceCluster(
        requests((0, 5, 2), (0, 1, 1), (3, 1, 1)),
        [device(4, 100, 0.5, handoff=link)],
        horizon=9,
        drain=True,
    )
    run(cluster, send_all)
    assert [(r.started_at or 0) / S for r in cluster.requests] == [1.25, 1.25, 3.25]
    assert finished(cluster) == [2.25, 1.75, 3.75]


def test_with_skip_small_caches_overtake() -> None:
    link = Handoff(100, 400)
    cluster = ReferenceCluster(
        requests((0, 5, 2), (0, 1, 1)), [device(4, 100, 0.5, handoff=link, skip=True)], horizon=9
    )
    run(cluster, send_all)
    assert [(r.started_at or 0) / S for r in cluster.requests] == [1.25, 0.25]


def test_a_landing_at_a_boundary_waits_for_the_dispatch() -> None:
    link = Handoff(100, 100)
    rows = requests((0, 1, 1), (1, 1, 1))
    cluster = ReferenceCluster(rows, [device(4, 100, 0.5, handoff=link)], horizon=9)
    run(cluster, send_all)
    assert [(r.started_at or 0) / S for r in rows] == [1, 2]


def test_the_router_sees_a_request_when_its_prefill_is_done() -> None:
    rows = requests((0, 5, 2), (0.5, 5, 2), (8, 5, 2))
    for request, ready in zip(rows, (0.9, 1.1, 9.5), strict=True):
        request.ready_s = ready
    cluster = ReferenceCluster(rows, [device(4, 100)], horizon=9, drain=True)
    cluster.reset()
    assert cluster.visible == []
    cluster.step([0] * 128)
    assert observe(cluster)["queue"][0].tolist()[:3] == [5, 2, 1]  # waited since its arrival
    run(cluster, send_all)
    assert finished(cluster) == [3, 4, None]
    assert rows[2].status == NOT_ARRIVED  # ready after the horizon


# --- groups ---------------------------------------------------------------------------------------


def test_each_device_has_its_own_limits_and_rejects_what_it_cannot_hold() -> None:
    """The first may take the prompt of 15 (the router sees no more) but not its 10 tokens."""
    short, long = Device(2, 20, Timing([1.0] * 3)), Device(1, 100, Timing([2.0] * 2), 40)
    rows = requests((0, 15, 10), (0, 25, 3), (0, 30, 30), (0, 90, 20), (0, 15, 5))
    cluster = ReferenceCluster(rows, [short, long], horizon=20, drain=True, window=5)
    assert cluster.reset() == 2.0  # nobody takes 30 + 30 (context) or 90 + 20
    assert [r.reason for r in rows] == [0, 0, REASON_CONTEXT, REASON_KV, 0]
    assert mask(cluster).tolist() == [[1, 1, 1], [1, 0, 1], [1, 1, 1], [1, 0, 0], [1, 0, 0]]
    outcome = cluster.step([1, 1, 1, 0, 0])
    assert outcome.invalid == 1  # the prompt of 25 stays
    assert outcome.cost == 1.0
    assert (rows[0].status, rows[0].reason, rows[0].device) == (REJECTED, REASON_KV, 0)
    assert (rows[0].dispatched_at, rows[0].started_at) == (0, None)
    assert rows[4].emitted == 1
    cluster.step([2, 0, 0, 0, 0])
    run(cluster, send_all)
    assert [r.status for r in rows] == [REJECTED, COMPLETED, REJECTED, REJECTED, COMPLETED]
    assert (rows[1].started_at, rows[1].finished_at) == (S, 7 * S)  # 2 s an iteration there


def test_a_context_limit_of_the_device_is_named() -> None:
    rows = requests((0, 15, 10))
    cluster = ReferenceCluster(
        rows, [device(4, 100, context_limit=20), device(4, 100)], horizon=9, window=1
    )
    cluster.reset()
    cluster.step([1])
    assert rows[0].reason == REASON_CONTEXT
