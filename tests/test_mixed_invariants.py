"""Invariants of the reference with prefill, prefix caches, handoff and groups.

Compared with nothing, so what they hold is a property of the rules.
"""

from __future__ import annotations

from itertools import pairwise
from math import ceil

import pytest

hypothesis = pytest.importorskip("hypothesis")

from hypothesis import given, settings  # noqa: E402
from mixed_strategies import MixedEpisode, episodes  # noqa: E402
from reference_cluster import ReferenceCluster  # noqa: E402
from reference_device import ACTIVE, COMPLETED, REJECTED, Device, Request  # noqa: E402
from reference_mixed import MixedDevice  # noqa: E402


@settings(max_examples=150, deadline=None)
@given(episodes())
def test_invariants_of_the_reference(episode: MixedEpisode) -> None:
    cluster = episode.reference()
    before = predecessors(episode)
    act = episode.actor()
    cluster.reset()
    over = False
    while not over:
        outcome = cluster.step(act(len(cluster.visible), cluster.window).tolist())
        over = outcome.terminated or outcome.truncated
        for device in cluster.devices:
            check_device(device)
            if isinstance(device, MixedDevice):
                check_blocks(device, before)
    for request in cluster.requests:
        check_request(cluster, request)
    check_computed_tokens(cluster)


def predecessors(episode: MixedEpisode) -> dict[int, int]:
    chains = episode.chains or ()
    return {b: a for chain in chains for a, b in pairwise(chain)}


def check_device(device: Device) -> None:
    assert len(device.batch) <= device.batch_limit
    assert all(r.status == ACTIVE for r in device.batch)
    for iteration in device.iterations:
        assert iteration.end > iteration.start
        assert iteration.tokens <= iteration.batch
        assert iteration.tokens + iteration.prefill > 0
    assert all(b.start >= a.end for a, b in pairwise(device.iterations))


def check_blocks(device: MixedDevice, before: dict[int, int]) -> None:
    assert device.used() + device.unused() <= device.total_blocks
    prefilling = [r.prefilling for r in device.batch]
    assert prefilling == sorted(prefilling)  # the decoding ones first
    for request in device.batch:
        # A token that the prefill has just emitted gets its room at the next start.
        fresh = device.emits_token and request.emitted > 0 and not request.prefilling
        assert request.allocated >= ceil((request.kv_now - fresh) / device.block)
    if device.chunk_tokens is not None:
        for iteration in device.iterations:
            assert iteration.prefill <= device.chunk_tokens
    if device.cache is None:  # with one, tokens of shared blocks are in several requests
        assert all(iteration.kv <= device.kv_limit for iteration in device.iterations)
        return
    counted: dict[int, int] = {}
    for request in device.batch:
        assert request.blocks == list(request.chain[: len(request.blocks)])
        for name in request.blocks:
            counted[name] = counted.get(name, 0) + 1
    resident = device.cache.references
    assert {name: n for name, n in resident.items() if n} == counted
    assert sorted(device.cache.unused) == sorted(name for name, n in resident.items() if not n)
    assert all(before[name] in resident for name in resident if name in before)
    assert all(resident[before[name]] >= n for name, n in resident.items() if name in before)


def check_request(cluster: ReferenceCluster, request: Request) -> None:
    assert 0 <= request.emitted <= request.decode
    assert (request.status == COMPLETED) == (request.emitted == request.decode)
    assert request.cached < request.prompt
    if request.status == REJECTED:
        assert request.started_at is None
    times = [
        request.dispatched_at,
        request.started_at,
        request.first_token_at,
        request.finished_at,
    ]
    reached = [at for at in times if at is not None]
    assert reached == sorted(reached)
    if request.dispatched_at is not None:
        assert request.dispatched_at >= request.ready_ns
    if request.started_at is not None:
        assert request.started_at >= request.lands_at


def check_computed_tokens(cluster: ReferenceCluster) -> None:
    """Without caches, and everything done: prefill is the prompts, and what was lost."""
    for g, device in enumerate(cluster.devices):
        sent = [r for r in cluster.requests if r.device == g and r.status != REJECTED]
        if not isinstance(device, MixedDevice) or device.cache is not None:
            continue
        if all(r.status == COMPLETED for r in sent):
            computed = sum(i.prefill for i in device.iterations)
            assert computed == sum(r.prompt + r.recomputed for r in sent)
