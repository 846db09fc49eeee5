"""Dual-pool routing: the estimator in closed form, the decision against plain Python."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from observations import Gpu, Observation, Scene, Waiting, at, random_scene

from llmroute_env.spaces import Clock, Device, Queue, Text
from policies import RouterSpec, make
from policies.dual_pool.decision import Count
from policies.dual_pool.estimator import learn, prompt_tokens

SHORT, LONG = 1000, 8000
NEVER = 1e9  #: a report that comes after the test


def two_pools(gpus: list[Gpu], short: int, *, window: int = 16) -> RouterSpec:
    """The first ``short`` devices hold 1,000 tokens, the others 8,000."""
    limits = (SHORT,) * short + (LONG,) * (len(gpus) - short)
    spec = Scene(gpus, window=window, context=limits).spec
    names = ("short",) * short + ("long",) * (len(gpus) - short)
    return replace(spec, pool=names, kv_limit=(1_000_000,) * len(gpus))


def seen(
    spec: RouterSpec,
    gpus: list[Gpu],
    sizes: list[int],
    *,
    prompts: list[int] | None = None,
    predicted: float = 8.0,
    categories: list[int] | None = None,
    ids: list[int] | None = None,
    period: int = 0,
) -> Observation:
    prompts = prompts or [max(size // 4, 1) for size in sizes]
    queue = [Waiting(prompt=prompt, predicted=predicted) for prompt in prompts]
    observation = Scene(gpus, queue, window=spec.window, period=period).observe()
    text = np.zeros((spec.window, len(Text)), np.float32)
    text[: len(sizes), Text.SIZE_BYTES] = sizes
    text[: len(sizes), Text.CATEGORY] = categories or 0
    if ids is not None:
        observation["queue_id"][: len(ids)] = ids
    return observation | {"text": text}


def chosen(router: Any, observation: Observation) -> list[int]:
    action, _ = router.predict(observation)
    count = int((observation["queue_id"] >= 0).sum())
    assert not action[count:].any()
    return [int(g) - 1 for g in action[:count]]


# --- estimator -----------------------------------------------------------------------------------


@pytest.mark.parametrize("beta", [0.0, 0.5, 0.95])
@pytest.mark.parametrize("observed", [2.0, 4.0, 4.5])
def test_estimator_in_closed_form(beta: float, observed: float) -> None:
    """Equal reports r: c_n = r + (4 - r) beta^n and sigma_n = (1 - beta) n beta^(n-1) |4 - r|."""
    ratio, deviation = np.full(3, 4.0), np.zeros(3)
    for n in range(1, 40):
        learn(ratio, deviation, 1, 1000.0 * observed, 1000.0, beta)
        assert ratio[1] == pytest.approx(observed + (4.0 - observed) * beta**n)
        expected = (1.0 - beta) * n * beta ** (n - 1) * abs(4.0 - observed)
        assert deviation[1] == pytest.approx(expected, abs=1e-12)
    assert ratio[[0, 2]].tolist() == [4.0, 4.0]
    assert deviation[[0, 2]].tolist() == [0.0, 0.0]


def test_deviation_settles_at_the_mean_deviation() -> None:
    """Lognormal texts: c tends to the mean of bytes per token, sigma to its mean deviation."""
    rng = np.random.default_rng(1)
    observed = 3.3 * np.exp(0.2 * rng.standard_normal(200_000))
    ratio, deviation = np.full(3, 4.0), np.zeros(3)
    kept = []
    for value in observed:
        learn(ratio, deviation, 0, 1e6 * value, 1e6, 0.999)
        kept.append((ratio[0], deviation[0]))
    late = np.mean(kept[20_000:], axis=0)
    assert late[0] == pytest.approx(observed.mean(), rel=0.005)
    assert late[1] == pytest.approx(np.abs(observed - observed.mean()).mean(), rel=0.01)


def test_estimate_is_ceiled_and_on_the_safe_side() -> None:
    assert prompt_tokens(4001.0, 4.0, 0.0, 2.0) == 1001.0
    assert prompt_tokens(4000.0, 4.0, 0.5, 2.0) == math.ceil(4000 / 3.0)
    assert prompt_tokens(4000.0, 4.0, 10.0, 2.0) == 4000.0  # never less than a byte a token


# --- choice of a pool ----------------------------------------------------------------------------


def test_budget_decides_the_pool() -> None:
    gpus = [Gpu()] * 4
    spec = two_pools(gpus, 2)
    router = make("dual_pool:output_factor=1.5", spec)
    # Cold start: 4 bytes a token. Output budget 1.5 * 8 = 12 tokens, so 988 tokens of prompt fit.
    found = chosen(router, seen(spec, gpus, [4 * 988, 4 * 988 + 1, 40]))
    assert [g < 2 for g in found] == [True, False, True]
    assert router.memory.counts[Count.SENT] == 3
    assert router.memory.counts[Count.SPILLED] == 0


def test_threshold_is_below_what_the_pool_holds() -> None:
    gpus = [Gpu()] * 2
    spec = two_pools(gpus, 1)
    router = make("dual_pool:threshold=500:output_factor=0", spec)
    assert chosen(router, seen(spec, gpus, [2000, 2001])) == [0, 1]
    with pytest.raises(ValueError, match="threshold = 1001: must be at most 1000"):
        make("dual_pool:threshold=1001", spec)


def test_prompt_tokens_do_not_decide() -> None:
    """Bytes say short whatever the true length; and the other way round."""
    gpus = [Gpu()] * 2
    spec = two_pools(gpus, 1)
    for size, device in ((400, 0), (40_000, 1)):
        for prompt in (1, 900, 7000):
            router = make(f"dual_pool:feedback_s={NEVER}", spec)
            observation = seen(spec, gpus, [size], prompts=[prompt])
            assert chosen(router, observation) == [device]


def test_reports_change_the_pool_when_they_come_and_not_before() -> None:
    gpus = [Gpu()] * 2
    spec = two_pools(gpus, 1)
    router = make("dual_pool:beta=0:gamma=0:feedback_s=3:output_factor=0", spec)
    dense = {"prompts": [1200]}  # 3 bytes a token: 3,600 bytes are 900 by the cold start
    found = [
        chosen(router, seen(spec, gpus, [3600], ids=[i], period=i, **dense))[0] for i in range(5)
    ]
    # Period 1 to 4 have new requests; the report of the one of period 0 comes at 3 s.
    assert found == [0, 0, 0, 1, 1]
    assert router.memory.ratio[0] == 3.0


def test_categories_learn_apart() -> None:
    gpus = [Gpu()] * 2
    spec = two_pools(gpus, 1)
    router = make("dual_pool:beta=0:gamma=0:feedback_s=0:output_factor=0", spec)
    chosen(router, seen(spec, gpus, [300, 500], prompts=[100, 100], categories=[2, 0]))
    chosen(router, seen(spec, gpus, [300], prompts=[100], categories=[2], period=1))
    assert router.memory.ratio.tolist() == [5.0, 4.0, 3.0]
    assert router.diagnostics()["bytes_per_token"] == {"prose": 5.0, "code": 4.0, "cjk": 3.0}


def test_overloaded_pool_spills_where_the_budget_fits() -> None:
    busy = Gpu(batch=[(5, 5.0)] * 8, fifo=[(5, 5.0)] * 2)  # two waiting, a quarter of 8 slots
    gpus = [busy, busy, Gpu()]
    spec = two_pools(gpus, 2)
    router = make("dual_pool", spec)
    assert chosen(router, seen(spec, gpus, [40])) == [2]
    assert router.memory.counts[Count.SPILLED] == 1
    # The long pool overloaded: the short one takes what it can hold and no more.
    gpus = [Gpu(), busy]
    spec = two_pools(gpus, 1)
    router = make("dual_pool:threshold=500:output_factor=0", spec)
    assert chosen(router, seen(spec, gpus, [2400, 4004])) == [0, 1]
    # Both overloaded: no spilling.
    gpus = [busy, busy]
    spec = two_pools(gpus, 1)
    assert chosen(make("dual_pool", spec), seen(spec, gpus, [40])) == [0]


def test_what_was_just_sent_counts_towards_overload() -> None:
    gpus = [Gpu(batch=[(5, 5.0)] * 8), Gpu()]
    spec = two_pools(gpus, 1)
    assert chosen(make("dual_pool", spec), seen(spec, gpus, [40] * 4)) == [0, 0, 1, 1]


def test_down_devices() -> None:
    gpus = [Gpu(up=False), Gpu()]
    spec = two_pools(gpus, 1)
    assert chosen(make("dual_pool", spec), seen(spec, gpus, [40])) == [1]
    gpus = [Gpu(), Gpu(up=False)]
    spec = two_pools(gpus, 1)
    assert chosen(make("dual_pool", spec), seen(spec, gpus, [40, 40_000])) == [0, -1]


def test_beyond_every_pool_is_left_to_the_cluster() -> None:
    gpus = [Gpu()] * 2
    spec = two_pools(gpus, 1)
    assert chosen(make("dual_pool", spec), seen(spec, gpus, [10_000_000])) == [1]


def test_refused_request_goes_where_its_prompt_fits() -> None:
    """Illegal actions hold: the request is there again, and its true length known."""
    gpus = [Gpu()] * 2
    spec = two_pools(gpus, 1)
    router = make(f"dual_pool:feedback_s={NEVER}", spec)
    first = seen(spec, gpus, [400, 40], prompts=[1500, 10], ids=[7, 8])
    assert chosen(router, first) == [0, 0]
    again = seen(spec, gpus, [400, 400], prompts=[1500, 100], ids=[7, 9], period=1)
    assert chosen(router, again) == [1, 0]
    assert router.memory.counts[Count.REFUSED] == 1
    later = seen(spec, gpus, [400], prompts=[10], ids=[7], period=3)
    chosen(router, seen(spec, gpus, [], period=2))  # nothing sent, nothing refused
    assert chosen(router, later) == [0]


# --- choice of a device --------------------------------------------------------------------------


def test_one_pool_is_lor() -> None:
    rng = np.random.default_rng(3)
    ours = theirs = None
    for case in range(200):
        scene = random_scene(rng)
        observation = scene.observe()
        # Of equal reach: LOR looks at what a device can hold, the pool's devices all hold the same.
        alike = (1_000_000,) * len(scene.gpus)
        spec = replace(scene.spec, context_limit=alike, kv_limit=alike)
        ours, theirs = make("dual_pool", spec, seed=case), make("lor", spec, seed=case)
        for period in range(3):
            moment = at(observation, period)
            moment["queue_id"] = moment["queue_id"] + 100 * period * (moment["queue_id"] >= 0)
            np.testing.assert_array_equal(ours.predict(moment)[0], theirs.predict(moment)[0])


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_ties_go_round_in_each_pool(seed: int) -> None:
    gpus = [Gpu()] * 7
    spec = two_pools(gpus, 4)
    router = make("dual_pool", spec, seed=seed)
    counts = np.zeros(7, int)
    for period in range(50):
        ids = [2 * period, 2 * period + 1]
        for g in chosen(router, seen(spec, gpus, [40, 20_000], ids=ids, period=period)):
            counts[g] += 1
        assert np.ptp(counts[:4]) <= 1
        assert np.ptp(counts[4:]) <= 1


def test_a_fresh_policy_does_not_favour_the_first_device() -> None:
    gpus = [Gpu()] * 4
    spec = two_pools(gpus, 2)
    first = [chosen(make("dual_pool", spec, seed=s), seen(spec, gpus, [40]))[0] for s in range(200)]
    assert 60 < first.count(0) < 140


# --- the whole decision, in plain Python ---------------------------------------------------------


@dataclass
class Twin:
    """The router's rules written plainly; no arrays, no sorting tricks."""

    pool: list[int]
    reach: list[float]
    threshold: list[float]
    turn: int
    beta: float
    gamma: float
    factor: float
    overload: float
    delay: float
    ratio: dict[int, float] = field(default_factory=lambda: dict.fromkeys(range(3), 4.0))
    sigma: dict[int, float] = field(default_factory=lambda: dict.fromkeys(range(3), 0.0))
    reports: list[tuple[float, int, float, float]] = field(default_factory=list)
    sent: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.turns = [self.turn] * len(self.reach)

    def decide(self, o: Observation) -> list[int]:
        now = float(o["clock"][Clock.NOW])
        for due, k, size, prompt in [r for r in self.reports if r[0] <= now]:
            self.reports.remove((due, k, size, prompt))
            seen_ratio = size / prompt
            off = abs(seen_ratio - self.ratio[k])
            self.sigma[k] = self.beta * self.sigma[k] + (1 - self.beta) * off
            self.ratio[k] = self.beta * self.ratio[k] + (1 - self.beta) * seen_ratio
        fifo = o["devices"][:, Device.FIFO_LENGTH].astype(float)
        answers, sent_now = [], set()
        for i, request in enumerate(o["queue_id"].tolist()):
            if request < 0:
                break
            size, k = float(o["text"][i, Text.SIZE_BYTES]), int(o["text"][i, Text.CATEGORY])
            prompt = float(o["queue"][i, Queue.PROMPT])
            tokens = math.ceil(size / max(self.ratio[k] - self.gamma * self.sigma[k], 1.0))
            if request in self.sent:
                tokens = int(prompt)
            budget = tokens + math.ceil(self.factor * float(o["queue"][i, Queue.PREDICTED]))
            g = self.device(budget, o, fifo)
            answers.append(g + 1)
            if g < 0:
                continue
            fifo[g] += 1
            self.turns[self.pool[g]] = (g + 1) % len(self.pool)
            if request not in self.sent:
                self.reports.append((now + self.delay, k, size, prompt))
            sent_now.add(request)
        self.sent = sent_now
        return answers

    def device(self, budget: float, o: Observation, fifo: np.ndarray) -> int:
        fitting = [p for p, limit in enumerate(self.threshold) if budget <= limit]
        preferred = fitting[0] if fitting else len(self.reach) - 1
        order = [preferred] + [
            p for p, limit in enumerate(self.reach) if p != preferred and budget <= limit
        ]
        best = {p: self.least(p, o, fifo) for p in order}
        calm = [
            p
            for p in order
            if best[p] is not None
            and fifo[best[p]] < self.overload * o["devices"][best[p], Device.BATCH_LIMIT]
        ]
        if calm:
            return best[calm[0]]
        up = [best[p] for p in order if best[p] is not None]
        return up[0] if up else -1

    def least(self, p: int, o: Observation, fifo: np.ndarray) -> int | None:
        n = len(self.pool)
        ring = [(self.turns[p] + step) % n for step in range(n)]
        mine = [g for g in ring if self.pool[g] == p and o["devices"][g, Device.UP] > 0]
        loads = [float(o["devices"][g, Device.ACTIVE]) + fifo[g] for g in mine]
        return mine[loads.index(min(loads))] if mine else None


@pytest.mark.parametrize("seed", range(25))
def test_decision_equals_plain_python(seed: int) -> None:
    rng = np.random.default_rng(seed)
    pools = int(rng.integers(1, 4))
    scene = random_scene(rng, gpus=6)
    scene.gpus[0].slots = 8  # the largest, so that all scenes have observations of one shape
    reach = sorted(rng.choice([60, 100, 250, 600], pools, replace=False).tolist())
    pool = [*range(pools), *rng.integers(0, pools, 6 - pools).tolist()]
    spec = replace(
        scene.spec,
        pool=tuple("abc"[p] for p in pool),
        context_limit=tuple(reach[p] for p in pool),
        kv_limit=(10_000,) * 6,
    )
    values = {"beta": 0.7, "gamma": 1.5, "output_factor": 0.5, "overload": 0.4, "feedback_s": 2.0}
    threshold = [float(r) for r in reach]
    if pools > 1:
        values["threshold"] = int(reach[0]) - 20
        threshold[0] -= 20
    router = make("dual_pool", spec, seed=seed, **values)
    twin = Twin(pool, [float(r) for r in reach], threshold, int(router.memory.turn[0]),
                beta=0.7, gamma=1.5, factor=0.5, overload=0.4, delay=2.0)  # fmt: skip
    kept: list[int] = []
    fresh = 0
    for period in range(40):
        scene = random_scene(rng, gpus=6)
        scene.gpus[0].slots, scene.period = 8, period
        observation = scene.observe()
        count = int((observation["queue_id"] >= 0).sum())
        # Some of the last period's requests are still there, then new ones.
        ids = sorted(kept[: int(rng.integers(0, min(count, len(kept)) + 1))])
        ids += list(range(fresh, fresh + count - len(ids)))
        fresh += count
        observation["queue_id"][:count] = ids
        text = np.zeros((spec.window, len(Text)), np.float32)
        text[:count, Text.CATEGORY] = rng.integers(0, 3, count)
        text[:count, Text.SIZE_BYTES] = np.ceil(
            observation["queue"][:count, Queue.PROMPT] * rng.uniform(2.0, 5.0, count)
        )
        observation["text"] = text
        expected = twin.decide(observation)
        action, _ = router.predict(observation)
        assert action[:count].tolist() == expected
        kept = ids
    assert router.memory.ratio.tolist() == pytest.approx(list(twin.ratio.values()), rel=1e-12)
    assert len(set(twin.ratio.values())) == 3, "the estimator has learned nothing: no test"


def test_full_ring_of_reports_loses_and_counts() -> None:
    gpus = [Gpu(slots=64, kv_limit=100_000)] * 2
    spec = two_pools(gpus, 1, window=600)
    router = make(f"dual_pool:feedback_s={NEVER}", spec)
    for period in range(3):
        ids = list(range(600 * period, 600 * (period + 1)))
        chosen(router, seen(spec, gpus, [40] * 600, ids=ids, period=period))
    assert router.memory.counts[Count.LOST_REPORTS] == 1800 - 1024


def test_under_estimates_fall_with_gamma() -> None:
    """The same texts near the limit: a wider margin sends fewer of the long ones short."""
    rng = np.random.default_rng(5)
    prompts = rng.integers(600, 1600, 3000)
    categories = rng.integers(0, 3, 3000)
    mean = np.array([4.5, 3.3, 3.2])[categories]
    sizes = np.ceil(prompts * mean * np.exp(0.15 * rng.standard_normal(3000))).astype(int)
    gpus = [Gpu(slots=64, kv_limit=100_000)] * 2
    spec = two_pools(gpus, 1)
    too_long, too_short = [], []
    for gamma in (0.0, 1.0, 2.0, 3.0):
        router = make(f"dual_pool:gamma={gamma}:output_factor=0:feedback_s=0", spec)
        short = []
        for i in range(0, 3000, 10):
            part = slice(i, i + 10)
            observation = seen(
                spec,
                gpus,
                sizes[part].tolist(),
                prompts=prompts[part].tolist(),
                categories=categories[part].tolist(),
                ids=list(range(i, i + 10)),
                period=i,
            )
            short += [g == 0 for g in chosen(router, observation)]
        too_long.append(int(np.sum(np.array(short) & (prompts > SHORT))))
        too_short.append(int(np.sum(~np.array(short) & (prompts <= SHORT))))
    assert too_long == sorted(too_long, reverse=True)
    assert too_long[0] > 150
    assert too_long[-1] < 0.1 * too_long[0]
    assert too_short == sorted(too_short)  # the price: short ones in the long pool
