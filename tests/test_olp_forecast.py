"""Occupancy, scarcity and the admission check against loops over every slot."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("hypothesis")
from hypothesis import given
from hypothesis import strategies as st
from naive_olp import NaiveOlp
from numpy.testing import assert_allclose
from observations import Gpu, Scene, Waiting, random_scene

from llmroute_env.scenario.cluster import Objective
from llmroute_env.spaces import Queue
from policies import RouterSpec
from policies.olp import forecast, layout
from policies.olp.admission import open_devices
from policies.olp.candidates import fits
from policies.olp.columns import plan_on
from policies.olp.router import OnlineLp
from policies.olp.state import Load

OBJECTIVE = Objective(tail_eel_s=400.0, tail_ttft_s=49.0)
SEEDS = st.integers(0, 2**32 - 1)


def spec_of(scene: Scene) -> RouterSpec:
    return replace(scene.spec, objective=OBJECTIVE)


def both(scene: Scene, lookahead: int) -> tuple[OnlineLp, NaiveOlp, dict[str, np.ndarray]]:
    """The compiled policy with its loads read, and the naive one with its forecast made."""
    policy = OnlineLp(spec_of(scene), lookahead=lookahead)
    naive = NaiveOlp(spec_of(scene), policy.memory.rng.copy(), 0, lookahead=lookahead)
    observation = scene.observe()
    naive.read(observation)
    forecast.read_load(
        observation["devices"],
        policy.params.context_limit,
        policy.params.grid.block,
        policy.scratch.load,
    )
    return policy, naive, observation


@given(SEEDS, st.sampled_from([1, 3, 20, 64]), st.sampled_from([1, 3, 18]))
def test_scarcity_is_what_every_slot_leaves(seed: int, lookahead: int, gpus: int) -> None:
    scene = random_scene(np.random.default_rng(seed), gpus=gpus)
    policy, naive, observation = both(scene, lookahead)
    grid, scratch = policy.params.grid, policy.scratch
    share = np.linspace(0.5, 2.0, gpus)  # of a look-ahead of each device's own
    for block in range(grid.blocks):
        forecast.scarcity(
            observation["devices"],
            observation["active"],
            scratch.load,
            grid,
            block,
            7.0,
            1e-3,
            share,
            scratch.events,
            scratch.running,
            scratch.limits,
            scratch.scarcity,
        )
        lanes = np.zeros((grid.blocks, *scratch.scarcity.shape))
        lanes[block] = scratch.scarcity
        found = layout.to_devices(grid, lanes)
        for g in range(block * grid.block, min((block + 1) * grid.block, gpus)):
            scale = share[g] / 7.0
            slots = np.maximum(naive.slots[g] - np.array(naive.count[g]), 0) * scale
            tokens = 1e-3 * np.maximum(naive.limit[g] - np.array(naive.kv[g]), 0) * scale
            assert_allclose(found[0, g], slots, rtol=1e-12, atol=0)
            assert_allclose(found[1, g], tokens, rtol=1e-12, atol=0)
    assert (scratch.events == 0.0).all()
    assert (scratch.running == 0.0).all()


@given(SEEDS, st.sampled_from([1, 3, 20, 64]))
def test_a_request_fits_exactly_where_every_slot_has_room(seed: int, lookahead: int) -> None:
    scene = random_scene(np.random.default_rng(seed))
    policy, naive, observation = both(scene, lookahead)
    load, peaks = policy.scratch.load, policy.scratch.peaks
    open_devices(observation["devices"], observation["active"], load, policy.scratch.leaving, peaks)
    for row in observation["queue"][: len(scene.queue)]:
        for g in range(len(scene.gpus)):
            prompt = int(row[Queue.PROMPT])
            limit = load[g, Load.PLAN_LIMIT]
            length = plan_on(float(row[Queue.PREDICTED]), prompt, limit, naive.largest)
            assert length == naive.plan(row, g)
            found = length > 0 and load[g, Load.OPEN] == 1
            found = found and fits(load, peaks, g, length, prompt)
            assert found == naive.fits(row, g)


def test_the_peak_of_a_growing_batch_limits_the_stay() -> None:
    # 60 tokens now, 10 more slots: the batch holds 61 + h, the newcomer 11 + h at slot h.
    scene = Scene([Gpu(batch=[(60, 10.0)], kv_limit=90)], [Waiting(prompt=10, predicted=9.6)])
    policy, _, observation = both(scene, 64)
    action, _ = policy.predict(observation)
    assert action[0] == 1  # at h = 9: 70 + 20 = 90
    scene = replace(scene, gpus=[Gpu(batch=[(60, 10.0)], kv_limit=89)])
    assert OnlineLp(spec_of(scene)).predict(scene.observe())[0][0] == 0


def test_a_request_that_ends_early_makes_room() -> None:
    # The batch's request leaves before slot 3; from there the newcomer has the device to itself.
    scene = Scene([Gpu(batch=[(60, 3.0)], kv_limit=90)], [Waiting(prompt=20, predicted=60.0)])
    action, _ = OnlineLp(spec_of(scene)).predict(scene.observe())
    assert action[0] == 1  # 63 + 23 at slot 2, then up to 80


def test_admissions_of_the_period_count() -> None:
    # Each grows to 40 tokens. Two fit, three never do, though all three could start now.
    queue = [Waiting(prompt=20, predicted=20.0) for _ in range(3)]
    scene = Scene([Gpu(kv_limit=100)], queue)
    action, _ = OnlineLp(spec_of(scene)).predict(scene.observe())
    assert action[:3].tolist() == [1, 1, 0]


def test_a_running_iteration_adds_a_token_to_everyone_before_the_boundary() -> None:
    # 3 x 10 tokens; the iteration that runs and the next one make 36 of them, and 8 for this one.
    for limit, sent in ((44, 1), (43, 0)):
        gpu = Gpu(batch=[(10, 1.0)] * 3, kv_limit=limit, running=True)
        scene = Scene([gpu], [Waiting(prompt=7, predicted=1.0)])
        action, _ = OnlineLp(spec_of(scene)).predict(scene.observe())
        assert action[0] == sent


def test_what_waits_in_a_fifo_holds_its_slots() -> None:
    gpus = [Gpu(batch=[(10, 5.0)], fifo=[(10, 5.0)], slots=2), Gpu(slots=2, up=False)]
    scene = Scene(gpus, [Waiting()])
    assert (OnlineLp(spec_of(scene)).predict(scene.observe())[0] == 0).all()
