"""predict: lanes, snapshots, episodes, seeds, and what it refuses."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
from observations import Gpu, Observation, Scene, Waiting, at, batch, random_scene

from policies import Policy, available, make

#: policies whose decisions depend on their memory
STATEFUL = ["random", "round_robin", "power_of_d", "lor", "sjf", "mc_sf"]
SCENE = Scene([Gpu(slots=64, kv_limit=10_000)] * 5, [Waiting()] * 7)


def play(router: Policy, periods: int, start: int = 0) -> np.ndarray:
    observation = SCENE.observe()
    steps = range(start, start + periods)
    return np.stack([router.predict(at(observation, k))[0] for k in steps])


@pytest.mark.parametrize("policy", STATEFUL)
def test_seeds_reproduce(policy: str) -> None:
    first = play(make(policy, SCENE.spec, seed=4), 6)
    assert (play(make(policy, SCENE.spec, seed=4), 6) == first).all()
    again = make(policy, SCENE.spec, seed=1)
    play(again, 3)
    again.reset(4)
    assert (play(again, 6) == first).all()
    others = [play(make(policy, SCENE.spec, seed=s), 6) for s in range(8)]
    assert any((other != first).any() for other in others)


@pytest.mark.parametrize("policy", STATEFUL)
def test_observations_are_not_written(policy: str) -> None:
    observation = SCENE.observe()
    before = copy.deepcopy(observation)
    make(policy, SCENE.spec).predict(observation)
    assert all((observation[key] == before[key]).all() for key in before)


@pytest.mark.parametrize("policy", STATEFUL)
def test_actions_are_fresh_arrays(policy: str) -> None:
    router = make(policy, SCENE.spec)
    first, _ = router.predict(at(SCENE.observe(), 0))
    kept = first.copy()
    second, _ = router.predict(at(SCENE.observe(), 1))
    assert first is not second
    assert (first == kept).all()


@pytest.mark.parametrize("policy", STATEFUL)
def test_a_snapshot_replays_as_often_as_one_likes(policy: str) -> None:
    router = make(policy, SCENE.spec, seed=2)
    observation = SCENE.observe()
    play(router, 3)
    _, state = router.predict(at(observation, 3))
    frozen = pickle.dumps(state)
    expected = play(router, 5, start=4)  # goes on by itself
    for _ in range(2):
        current, actions = state, []
        for k in range(4, 9):
            action, current = router.predict(at(observation, k), state=current)
            actions.append(action)
        assert (np.stack(actions) == expected).all()
    for thawed in (pickle.loads(frozen), copy.deepcopy(state)):
        action, _ = make(policy, SCENE.spec, seed=99).predict(at(observation, 4), state=thawed)
        assert (action == expected[0]).all()


def test_all_of_many_snapshots_stay_what_they_were() -> None:
    router = make("random", SCENE.spec)
    observation = SCENE.observe()
    history = [router.predict(at(observation, k)) for k in range(20)]
    for k in range(19):
        action, _ = router.predict(at(observation, k + 1), state=history[k][1])
        assert (action == history[k + 1][0]).all()


def test_a_given_state_becomes_the_policys_own() -> None:
    router = make("round_robin", SCENE.spec)
    observation = SCENE.observe()
    _, early = router.predict(at(observation, 0))
    expected = play(router, 2, start=1)
    play(router, 3, start=3)
    first, _ = router.predict(at(observation, 1), state=early)
    second, _ = router.predict(at(observation, 2))
    assert (np.stack([first, second]) == expected).all()


def test_states_cost_no_allocation_in_the_steady_state() -> None:
    router = make("lor", SCENE.spec)
    observation = SCENE.observe()
    state, seen = None, set()
    for k in range(50):
        _, state = router.predict(at(observation, k), state=state)
        seen.add(id(state.memory))
    assert len(seen) == 2


@pytest.mark.parametrize("policy", STATEFUL)
def test_an_episode_starts_when_the_period_does_not_increase(policy: str) -> None:
    router = make(policy, SCENE.spec, seed=5)
    first = play(router, 4)
    second = play(router, 4)
    third = play(router, 4)
    assert (first != second).any() or (first != third).any()  # a stream of its own each
    router.reset()
    assert (play(router, 4) == first).all()
    assert (play(router, 4) == second).all()
    # not dependent on how the first episode went
    router.reset()
    play(router, 1)
    assert (play(router, 4) == second).all()


@pytest.mark.parametrize("policy", STATEFUL)
def test_episode_start_says_the_same(policy: str) -> None:
    observation = SCENE.observe()
    implicit = make(policy, SCENE.spec, seed=5)
    first, second = play(implicit, 4), play(implicit, 4)
    explicit = make(policy, SCENE.spec, seed=5)
    state = None
    for expected in (first, second):
        for k in range(4):
            start = np.array([k == 0])
            action, state = explicit.predict(at(observation, k), state, episode_start=start)
            assert (action == expected[k]).all()


def test_without_episode_start_a_given_state_is_not_reset() -> None:
    router = make("round_robin", SCENE.spec)
    observation = SCENE.observe()
    _, state = router.predict(at(observation, 9))
    following, _ = router.predict(at(observation, 10))
    action, _ = router.predict(at(observation, 0), state=state)
    assert (action == following).all()


def lanes_at(k: int, lanes: int, seed: int = 0) -> list[Observation]:
    rng = np.random.default_rng([seed, k])
    fixed = [64, 32, 16]
    scenes = []
    for _ in range(lanes):
        scene = random_scene(rng)
        for gpu, slots in zip(scene.gpus, fixed, strict=True):
            gpu.slots = slots
        scene.context, scene.period = None, k
        scenes.append(scene)
    return [scene.observe() for scene in scenes]


SPEC = Scene([Gpu(slots=64), Gpu(slots=32), Gpu(slots=16)], window=12).spec
BUILT_IN = [name for name in available() if not name.startswith(("olp", "learned"))]


@pytest.mark.parametrize("policy", BUILT_IN)
def test_a_batch_is_its_lanes_and_lane_0_is_the_single_one(policy: str) -> None:
    router, single = make(policy, SPEC, seed=3), make(policy, SPEC, seed=3)
    for k in (0, 1, 2, 0, 1):
        lanes = lanes_at(k, 4)
        action, _ = router.predict(batch(lanes))
        assert action.shape == (4, 12)
        assert action.dtype == np.int64
        alone, _ = single.predict(lanes[0])
        assert (action[0] == alone).all()


@pytest.mark.parametrize("policy", STATEFUL)
def test_lanes_do_not_see_each_other(policy: str) -> None:
    """Lane 2 does the same whatever the others see, and whenever they start anew."""
    one, two = make(policy, SPEC, seed=3), make(policy, SPEC, seed=3)
    for k in range(6):
        mine = lanes_at(k, 1, seed=1)[0]
        others = lanes_at(k, 2, seed=2)
        restarted = [at(o, k % 2) for o in lanes_at(k, 2, seed=3)]
        first, _ = one.predict(batch([*others, mine]))
        second, _ = two.predict(batch([*restarted, mine]))
        assert (first[2] == second[2]).all()


def test_episode_start_of_some_lanes() -> None:
    observation = SCENE.observe()
    router = make("round_robin", SCENE.spec, seed=1)
    fresh = make("round_robin", SCENE.spec, seed=1)
    both = batch([observation] * 2)
    start, _ = fresh.predict(both)
    _, state = router.predict(both)
    action, _ = router.predict(both, state, episode_start=np.array([False, True]))
    continued, _ = fresh.predict(batch([at(observation, 1)] * 2))
    assert (action[0] == continued[0]).all()
    restarted, _ = fresh.predict(batch([observation] * 2))
    assert (action[1] == restarted[1]).all()
    assert (start[0] == make("round_robin", SCENE.spec, seed=1).predict(observation)[0]).all()


def test_more_lanes_later_keep_the_first_ones() -> None:
    observation = SCENE.observe()
    router, single = make("lor", SCENE.spec, seed=8), make("lor", SCENE.spec, seed=8)
    for k, lanes in enumerate((1, 3, 2, 5)):
        action, _ = router.predict(batch([at(observation, k)] * lanes))
        alone, _ = single.predict(at(observation, k))
        assert (action[0] == alone).all()


def test_arrays_that_are_not_contiguous_or_of_another_type() -> None:
    observation = SCENE.observe()
    odd: Observation = {
        "queue": np.asfortranarray(observation["queue"].astype(np.float64)),
        "queue_id": observation["queue_id"].astype(np.int32),
        "devices": np.asfortranarray(observation["devices"]),
        "active": np.repeat(observation["active"], 2, axis=1)[:, ::2],
        "clock": observation["clock"].astype(np.float64),
    }
    expected, _ = make("mc_sf", SCENE.spec).predict(observation)
    action, _ = make("mc_sf", SCENE.spec).predict(odd)
    assert (action == expected).all()


def test_refuses_another_environments_observation_and_state() -> None:
    router = make("lor", SCENE.spec)
    other = Scene([Gpu(slots=64)] * 3, window=16)
    with pytest.raises(ValueError, match=r"lor: observation\['devices'\] is \(3, 11\), expected"):
        router.predict(other.observe())
    with pytest.raises(ValueError, match=r"observation\['queue_id'\]"):
        router.predict(SCENE.observe() | {"queue_id": np.zeros(3, np.int64)})
    _, foreign = make("sjf", SCENE.spec).predict(SCENE.observe())
    with pytest.raises(ValueError, match="state is not one"):
        router.predict(SCENE.observe(), state=foreign)
    with pytest.raises(ValueError, match="state is not one"):
        router.predict(SCENE.observe(), state=(np.zeros(3),))
    _, state = router.predict(SCENE.observe())
    with pytest.raises(ValueError, match="state has 1 lanes, the observation 2"):
        router.predict(batch([SCENE.observe()] * 2), state=state)


@pytest.mark.parametrize("policy", STATEFUL)
def test_a_policy_pickles_with_its_state(policy: str) -> None:
    router = make(policy, SCENE.spec, seed=6)
    play(router, 3)
    twin = pickle.loads(pickle.dumps(router))
    assert (play(router, 4, start=3) == play(twin, 4, start=3)).all()
