"""Cache-aware routers: each formula against plain Python, LMETRIC's identity, bursts, ties."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from observations import Gpu, Observation, Scene, Waiting, at, batch, random_scene

import llmroute_env  # noqa: F401  (registers the environment)
from llmroute_env import evaluate
from llmroute_env.spaces import Device, Queue
from policies import RouterSpec, make

ROUTERS = ["lmetric", "llmd", "dynamo_kv", "sglang_cache", "linear_cache", "prefix_priced"]
BLOCK = 4


def mixed(spec: RouterSpec) -> RouterSpec:
    """The same router in a fleet that prefills and caches."""
    return replace(spec, prefill=True, prefix_block=BLOCK)


def seen(scene: Scene, prefill: list[float], cached: list[list[float]]) -> Observation:
    """A scene with tokens to prefill per device, and what each device has of each request."""
    observation = scene.observe()
    observation["devices"][:, Device.PREFILL] = prefill
    prefix = np.zeros((scene.window, len(scene.gpus)), np.float32)
    if cached:
        prefix[: len(cached)] = cached
    return observation | {"prefix": prefix}


def chosen(router: Any, observation: Observation) -> list[int]:
    action, _ = router.predict(observation)
    count = int((observation["queue_id"] >= 0).sum())
    assert not action[count:].any()
    return [int(g) - 1 for g in action[:count]]


def running(n: int) -> Gpu:
    return Gpu(batch=[(10, 5.0)] * n, slots=64)


def one(
    policy: str, gpus: list[Gpu], prefill: list[float], cached: list[float], s: int = 100
) -> int:
    """Where a single request of ``s`` prompt tokens goes."""
    scene = Scene(gpus, [Waiting(prompt=s)])
    router = make(policy, mixed(scene.spec))
    return chosen(router, seen(scene, prefill, [cached]))[0]


# --- formulas, in plain Python -------------------------------------------------------------------


def costs(
    policy: str, values: dict[str, Any], o: Observation, i: int, load: dict[str, list[float]],
    up: list[int], mean: float,
) -> dict[int, float]:  # fmt: skip
    """Cost by device of request ``i``, from the formulas as their sources state them."""
    s = float(o["queue"][i, Queue.PROMPT])
    hit = {g: float(o["prefix"][i, g]) for g in up}
    outstanding = {g: float(o["devices"][g, Device.ACTIVE]) + load["fifo"][g] for g in up}
    prefill, kv = load["prefill"], load["kv"]
    if policy == "lmetric":
        todo = {g: prefill[g] + s - hit[g] for g in up}
        return {g: max(1, todo[g]) * (outstanding[g] + 1) for g in up}
    if policy == "llmd":
        blocks = max(s // BLOCK, 1)
        fifo = [load["fifo"][g] for g in up]
        found = {}
        for g in up:
            used = float(o["devices"][g, Device.KV_USED] / o["devices"][g, Device.KV_LIMIT])
            spread = max(fifo) - min(fifo)
            queue = (max(fifo) - load["fifo"][g]) / spread if spread else 1.0
            score = 2 * (hit[g] // BLOCK) / blocks + 1 * (1 - used) + 1 * queue
            found[g] = -score
        return found
    if policy == "dynamo_kv":
        return {
            g: max(0.0, (prefill[g] + s) / BLOCK - hit[g] // BLOCK) + math.ceil((kv[g] + s) / BLOCK)
            for g in up
        }
    if policy == "sglang_cache":
        most, least = max(outstanding.values()), min(outstanding.values())
        imbalanced = most - least > values["balance_abs"] and most > values["balance_rel"] * least
        if imbalanced or max(hit.values()) / s <= values["cache_threshold"]:
            return outstanding
        return {g: -hit[g] for g in up}
    if policy == "linear_cache":
        most = max(1.0, *outstanding.values())
        return {
            g: values["weight"] * (1 - hit[g] / s) + (1 - values["weight"]) * outstanding[g] / most
            for g in up
        }
    new = {g: s - hit[g] for g in up}
    later = values["future"] / mean if mean else 0.0
    return {
        g: prefill[g] + new[g] * (1 + outstanding[g] + later * (prefill[g] + new[g])) for g in up
    }


def plain(
    policy: str, values: dict[str, Any], o: Observation, pointer: int, mean: float
) -> tuple[list[int], int, float]:
    """One period's choices; the pointer and the mean of new tokens after it."""
    d = o["devices"]
    load = {
        "fifo": d[:, Device.FIFO_LENGTH].astype(float).tolist(),
        "prefill": d[:, Device.PREFILL].astype(float).tolist(),
        "kv": (d[:, Device.KV_USED] + d[:, Device.FIFO_TOKENS]).astype(float).tolist(),
    }
    answers, n = [], len(d)
    for i in range(int((o["queue_id"] >= 0).sum())):
        s = float(o["queue"][i, Queue.PROMPT])
        up = [g for g in range(n) if d[g, Device.UP] > 0]
        if not up:
            answers.append(-1)
            continue
        found = costs(policy, values, o, i, load, up, mean)
        ring = sorted(up, key=lambda g: (g - pointer) % n)
        g = min(ring, key=lambda g: found[g])
        answers.append(g)
        pointer = (g + 1) % n
        new = s - float(o["prefix"][i, g])
        mean = mean + (0.01 if mean > 0 else 1.0) * (new - mean)
        load["fifo"][g] += 1
        load["kv"][g] += s
        load["prefill"][g] += new
    return answers, pointer, mean


def random_moment(rng: np.random.Generator, gpus: int) -> tuple[Scene, Observation]:
    scene = random_scene(rng, gpus=gpus)
    scene.context = None
    scene.gpus[0].slots = 8  # the largest, so that all scenes have observations of one shape
    prefill = rng.choice([0, 0, 20, 50, 333], gpus).tolist()
    cached = [
        [float(rng.integers(0, (w.prompt - 1) // BLOCK + 1) * BLOCK * rng.integers(0, 2))
         for _ in range(gpus)]
        for w in scene.queue
    ]  # fmt: skip
    return scene, seen(scene, prefill, cached)


VALUES: dict[str, dict[str, Any]] = {
    "sglang_cache": {"cache_threshold": 0.4, "balance_abs": 3, "balance_rel": 1.5},
    "linear_cache": {"weight": 0.4},
    "prefix_priced": {"future": 1.5},
}


@pytest.mark.parametrize("policy", ROUTERS)
@pytest.mark.parametrize("seed", range(6))
def test_decision_equals_plain_python(policy: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    values = VALUES.get(policy, {})
    scene, _ = random_moment(rng, 5)
    router = make(policy, mixed(scene.spec), seed=seed, **values)
    pointer, mean, sent = None, 0.0, 0
    for period in range(30):
        _, observation = random_moment(rng, 5)
        moment = at(observation, period)
        if pointer is None:
            pointer = _first_pointer(router, moment)
        expected, pointer, mean = plain(policy, values, moment, pointer, mean)
        assert chosen(router, moment) == expected
        sent += len([g for g in expected if g >= 0])
    assert sent > 50
    assert router.memory.pointer[0] == pointer
    assert router.diagnostics()["sent"] == sent


def _first_pointer(router: Any, moment: Observation) -> int:
    """Where a fresh lane's search starts: decide an empty queue, which changes nothing else."""
    empty = moment | {"queue_id": np.full_like(moment["queue_id"], -1)}
    router.predict(at(empty, -1))
    return int(router.memory.pointer[0])


# --- LMETRIC -------------------------------------------------------------------------------------


def test_lmetric_weighs_new_tokens_by_batch() -> None:
    # 20 new tokens on a device with 8 requests cost 180, 100 on one with one 200, with none 100.
    assert one("lmetric", [running(8), running(1)], [0, 0], [80, 0]) == 0
    assert one("lmetric", [running(10), running(1)], [0, 0], [80, 0]) == 1
    assert one("lmetric", [running(8), running(0)], [0, 0], [80, 0]) == 1
    # What is queued counts like the request's own tokens.
    assert one("lmetric", [running(1), running(1)], [90, 0], [80, 0]) == 1
    assert one("lmetric:queued=false", [running(1), running(1)], [90, 0], [80, 0]) == 0
    assert one("lmetric:cache=false", [running(2), running(1)], [0, 0], [80, 0]) == 1


def test_full_hit_costs_one_token_times_batch_and_nothing_as_published() -> None:
    """Full hits on 0 and 1: the published cost is 0 on both, whatever their batches."""
    gpus = [running(30), running(2), running(0)]
    assert one("lmetric", gpus, [0, 0, 0], [100, 100, 0]) == 1
    picks = set()
    for seed in range(20):
        scene = Scene(gpus, [Waiting(prompt=100)])
        router = make("lmetric:legacy=true", mixed(scene.spec), seed=seed)
        picks.add(chosen(router, seen(scene, [0, 0, 0], [[100, 100, 0]]))[0])
    assert picks == {0, 1}


def test_burst_does_not_pile_up_with_updates_in_flight() -> None:
    scene = Scene([running(0) for _ in range(4)], [Waiting(prompt=100)] * 12)
    hits = [[50.0, 0, 0, 0]] * 12
    spec = mixed(scene.spec)
    counts = Counter(chosen(make("lmetric", spec), seen(scene, [0] * 4, hits)))
    assert max(counts.values()) <= 4
    assert min(counts[g] for g in range(4)) >= 2
    stale = chosen(make("lmetric:inflight=false", spec), seen(scene, [0] * 4, hits))
    assert stale == [0] * 12


@pytest.mark.parametrize("policy", ["lmetric", "prefix_priced"])
def test_decode_only_is_join_shortest_queue_action_by_action(policy: str) -> None:
    """Hand-made moments: the same device for every request, the same ties, the same memory."""
    rng = np.random.default_rng(5)
    for case in range(150):
        scene = random_scene(rng, gpus=4)
        scene.context = None
        ours = make(policy, scene.spec, seed=case)
        theirs = make("lor", scene.spec, seed=case)
        for period in range(3):
            moment = at(scene.observe(), period)
            np.testing.assert_array_equal(ours.predict(moment)[0], theirs.predict(moment)[0])
        assert ours.memory.pointer[0] == theirs.memory.pointer[0]


@pytest.mark.parametrize("policy", ["lmetric", "prefix_priced"])
def test_decode_only_episode_is_join_shortest_queue(policy: str) -> None:
    """A whole episode with real feedback, ties included."""
    overrides = {"horizon_periods": 600}
    env = gym.make("LLMRoute-v0", scenario="paper-overload", overrides=overrides)
    ours, theirs = (evaluate(env, name, seed=3) for name in (policy, "lor"))
    for column, values in theirs.log.items():
        np.testing.assert_array_equal(ours.log[column], values, err_msg=column)
    assert (ours.log["device"] >= 0).sum() > 100


# --- rivals --------------------------------------------------------------------------------------


def test_llmd_adds_prefix_kv_and_queue() -> None:
    full, empty = Gpu(batch=[(900, 5.0)]), Gpu()
    # 2 * 0.4 + 0.1 + 1 = 1.9 against 0 + 1 + 1 = 2; with 0.6 it is 2.3.
    assert one("llmd", [full, empty], [0, 0], [40, 0]) == 1
    assert one("llmd", [full, empty], [0, 0], [60, 0]) == 0
    waiting = Gpu(fifo=[(1, 1.0)])  # 2 * 0.4 + 1 + 0 against 0 + 1 + 1
    assert one("llmd", [waiting, empty], [0, 0], [40, 0]) == 1
    assert one("llmd:queue=0.5", [waiting, empty], [0, 0], [40, 0]) == 0


def test_sglang_thresholds() -> None:
    policy = "sglang_cache:cache_threshold=0.5:balance_abs=3:balance_rel=1.5"
    assert one(policy, [running(5), running(4)], [0, 0], [60, 0]) == 0
    assert one(policy, [running(5), running(4)], [0, 0], [48, 0]) == 1  # match at most one half
    assert one(policy, [running(8), running(4)], [0, 0], [60, 0]) == 1  # 4 apart, twice as many
    assert one(policy, [running(12), running(9)], [0, 0], [60, 0]) == 0  # 3 apart
    assert one(policy, [running(20), running(16)], [0, 0], [60, 0]) == 0  # 1.25 times as many


def test_dynamo_temperature_draws_by_normalized_cost() -> None:
    """Costs 0.1 apart or 100 apart: the same frequencies, exp(-x / T) of the normalized cost."""
    gpus = [Gpu(batch=[(kv, 5.0)]) for kv in (1, 201, 401)]  # normalized: 0, 1/2, 1
    scene = Scene(gpus, [Waiting(prompt=100)] * 3000, window=3000)
    router = make("dynamo_kv:temperature=0.5:inflight=false", mixed(scene.spec), seed=1)
    counts = Counter(chosen(router, seen(scene, [0] * 3, [])))
    weights = np.exp([0.0, -1.0, -2.0])
    shares = np.array([counts[g] for g in range(3)]) / 3000
    np.testing.assert_allclose(shares, weights / weights.sum(), atol=0.03)
    equal = Scene([Gpu()] * 3, [Waiting()] * 3000, window=3000)
    counts = Counter(chosen(router, seen(equal, [0] * 3, [])))
    assert min(counts.values()) > 900


def test_linear_ends_are_hit_alone_and_load_alone() -> None:
    assert one("linear_cache:weight=1", [running(60), running(0)], [0, 0], [4, 0]) == 0
    assert one("linear_cache:weight=0", [running(1), running(0)], [0, 0], [96, 0]) == 1


def test_priced_keeps_its_prefix_where_queues_are_long_and_alike() -> None:
    """LMETRIC sends away: (5000 + 20) * 11 > (5000 + 100) * 10. The priced rule stays."""
    gpus, queued = [running(10), running(9)], [5000.0, 5000.0]
    assert one("lmetric", gpus, queued, [80, 0]) == 1
    assert one("prefix_priced", gpus, queued, [80, 0]) == 0


# --- all -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ROUTERS)
def test_ties_go_round_and_do_not_favour_the_first_device(policy: str) -> None:
    scene = Scene([Gpu()] * 4, [Waiting()])
    observation = seen(scene, [0] * 4, [])
    router = make(policy, mixed(scene.spec))
    counts = Counter(chosen(router, at(observation, k))[0] for k in range(101))
    assert max(counts.values()) - min(counts[g] for g in range(4)) <= 1
    first = [chosen(make(policy, mixed(scene.spec), seed=s), observation)[0] for s in range(120)]
    assert min(Counter(first)[g] for g in range(4)) >= 15


@pytest.mark.parametrize("policy", ROUTERS)
def test_down_and_too_small_devices_are_no_candidates(policy: str) -> None:
    scene = Scene([Gpu(up=False), Gpu(), Gpu()], [Waiting(prompt=50), Waiting(prompt=200)])
    spec = replace(mixed(scene.spec), context_limit=(1000, 50, 201))
    cached = [[48.0, 48.0, 0], [196.0, 196.0, 0]]
    assert chosen(make(policy, spec), seen(scene, [0, 0, 900], cached)) == [2, 2]
    spec = replace(spec, context_limit=(1000, 50, 200))
    assert chosen(make(policy, spec), seen(scene, [0, 0, 900], cached)) == [2, -1]


@pytest.mark.parametrize("policy", ROUTERS)
def test_lanes_compiled_and_stepped_agree(policy: str) -> None:
    overrides = {"horizon_periods": 400, "warmup_s": 0.0}
    env = gym.make("LLMRoute-v0", scenario="chat-prefix", overrides=overrides)
    runs = [evaluate(env, policy, seed=2, path=path) for path in ("compiled", "stepped")]  # type: ignore[arg-type]
    for column, values in runs[0].log.items():
        np.testing.assert_array_equal(runs[1].log[column], values, err_msg=column)
    rng = np.random.default_rng(8)
    moments = [random_moment(rng, 5)[1] for _ in range(3)]
    spec = mixed(random_moment(rng, 5)[0].spec)
    action, _ = make(policy, spec, seed=4).predict(batch(moments))
    assert action.shape == (3, 12)
    assert (action > 0).any()


def test_hits_are_what_separates_them_from_blind_routers() -> None:
    """On conversations every cache-aware router hits more often than LOR, at the same load."""
    overrides = {"horizon_periods": 2400, "warmup_s": 0.0}
    env = gym.make("LLMRoute-v0", scenario="chat-prefix", overrides=overrides)

    def hit_share(policy: str) -> float:
        log = evaluate(env, policy, seed=1).log
        held = log["start_s"] >= 0
        return float(log["cached"][held].sum() / log["prompt"][held].sum())

    blind = hit_share("lor")
    for policy in ROUTERS:
        assert hit_share(policy) > blind + 0.05, policy
    assert hit_share("lmetric:cache=false") < blind + 0.02
