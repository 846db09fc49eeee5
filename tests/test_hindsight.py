"""Hindsight bounds against every routing of small episodes, MILP optima, policies, random play."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hindsight_cases import Outcome, every_routing, play, scenario, table
from hypothesis import given, settings
from strategies import Episode, episodes

from llmroute_env.env import LLMRouteEnv
from llmroute_env.evaluation import evaluate
from llmroute_env.scenario import Scenario
from policies import available, hindsight
from policies.hindsight.dual import Basis, Dual, _spread
from policies.hindsight.instance import Instance
from policies.hindsight.master import Usage
from policies.hindsight.schedules import from_runs, rewards

TOUGH = {"cluster__batch_limit": 3, "cluster__kv_limit": 11}
TAILS = {"objective__zeta1": 3.0, "objective__zeta2": 2.0, "objective__sigma": 0.5}

UNLIKE = {
    "groups": [
        {
            "name": name,
            "devices": 1,
            "batch_limit": batch,
            "kv_limit": kv,
            "timing": {"kind": "constant", "iteration_s": iteration},
        }
        for name, batch, kv, iteration in (("fast", 1, 8, 0.5), ("slow", 2, 12, 1.0))
    ]
}

EPISODES = {
    "memory": (TOUGH, ([0, 0, 0, 1], [1, 1, 1, 2], [5, 4, 4, 2])),
    "tails": (TOUGH | TAILS, ([0, 0.5, 0.5, 1], [1, 2, 1, 3], [6, 3, 4, 2])),
    "starts only": (TOUGH | {"objective__beta": 0.0}, ([0, 0, 1, 2], [2, 1, 1, 1], [5, 5, 4, 4])),
    "tokens": (
        TOUGH | {"objective__alpha": 1.0, "objective__beta": 0.0},
        ([0, 0, 1, 1], [3, 1, 4, 1], [5, 5, 3, 2]),
    ),
    "two devices": (
        {"cluster__devices": 2, "cluster__kv_limit": 8, "horizon_periods": 5},
        ([0, 0, 1], [1, 2, 3], [4, 4, 3]),
    ),
    "newcomers pass": (
        TOUGH | {"cluster__head_of_line_skip": True},
        ([0, 0, 0, 1], [1, 2, 1, 1], [5, 4, 5, 1]),
    ),
    "blocks": (
        {"cluster__kv_limit": 12, "cluster__kv_block": 4, "cluster__batch_limit": 3},
        ([0, 0, 0, 1], [2, 3, 3, 1], [5, 4, 3, 2]),
    ),
    "two iterations a period": (
        TOUGH | {"cluster__timing__iteration_s": 0.5, "horizon_periods": 4},
        ([0, 0, 0.3, 1], [1, 1, 2, 2], [6, 5, 5, 3]),
    ),
    "no common clock": (
        TOUGH | {"cluster__timing__iteration_s": 0.7},
        ([0, 0, 0.3, 1], [1, 1, 2, 2], [6, 5, 5, 3]),
    ),
    "unlike devices": (
        {"cluster": UNLIKE, "horizon_periods": 4},
        ([0, 0, 1], [1, 2, 3], [4, 4, 3]),
    ),
    "handoff": (
        TOUGH | {"cluster__handoff": {"prefill_base_s": 0.4, "kv_bytes_per_token": 1e9}},
        ([0, 0, 0, 1], [1, 1, 1, 2], [5, 4, 4, 2]),
    ),
}


@pytest.mark.parametrize("name", EPISODES)
def test_no_routing_beats_the_bound(name: str) -> None:
    changes, rows = EPISODES[name]
    made, requests = scenario(**changes), table(*rows)
    outcomes = every_routing(made, requests)
    for knots in (1, 3, 100):
        found = hindsight.bound(made, requests, knots=knots)
        for outcome in outcomes:
            assert outcome.reward <= found.given(outcome.preempted), (outcome, found)
        assert found.unpreempted <= found.value
    best = max(outcomes, key=lambda outcome: outcome.reward)
    # Tight enough to mean something, though small episodes have large integrality gaps, and a
    # slot is a large part of them.
    loose = {"no common clock": 0.7, "unlike devices": 0.5, "handoff": 0.7}
    assert best.reward >= loose.get(name, 0.8) * found.value
    assert any(outcome.preempted for outcome in outcomes) or name == "unlike devices"


def test_preemption_can_beat_every_schedule_without() -> None:
    """Why the bound has to allow pauses: here the best routing preempts."""
    made = scenario(**TOUGH, horizon_periods=7, objective__beta=0.0)
    requests = table([0, 0, 0], [1, 1, 1], [7, 7, 7])
    outcomes = every_routing(made, requests)
    calm = max(o.reward for o in outcomes if not o.preempted)
    assert max(o.reward for o in outcomes) > calm
    found = hindsight.bound(made, requests)
    assert found.unpreempted < max(o.reward for o in outcomes) <= found.value


def _random(seed: int, **changes: object) -> tuple[Scenario, hindsight.Instance, object]:
    rng = np.random.default_rng(seed)
    made = scenario(horizon_periods=14, cluster__devices=2, cluster__kv_limit=20, **changes)
    requests = table(rng.integers(0, 40, 12) / 4, rng.integers(1, 8, 12), rng.integers(1, 10, 12))
    return made, Instance.build(made, requests), requests


@pytest.mark.parametrize("seed", range(4))
def test_between_milp_and_lp(seed: int) -> None:
    made, one, requests = _random(seed, **(TAILS if seed % 2 else {}))
    separate, starts = hindsight.solve(hindsight.program(one))
    pooled, _ = hindsight.solve(hindsight.program(one, per_device=False))
    relaxed, _ = hindsight.solve(hindsight.program(one, per_device=False, integral=False))
    found = hindsight.bound(made, requests, knots=100)  # a knot in every slot: no coarsening
    assert separate <= pooled + 1e-6
    assert pooled <= relaxed + 1e-6
    assert relaxed <= found.unpreempted  # weak duality
    assert found.unpreempted == pytest.approx(relaxed, rel=3e-4)  # and strong, as far as searched
    # The integer optimum is what the environment pays for its schedule.
    when, where = np.full(len(requests), -1), np.zeros(len(requests), np.int64)
    taken = hindsight.program(one).starts[starts]
    when[taken[:, 0]], where[taken[:, 0]] = taken[:, 1], taken[:, 2]
    assert play(LLMRouteEnv(made), requests, when, where) == Outcome(pytest.approx(separate), 0)


@pytest.mark.parametrize("seed", range(3))
def test_a_plan_is_what_the_cluster_does(seed: int) -> None:
    made, one, requests = _random(seed, cluster__kv_block=2, cluster__kv_watermark=0.1)
    found, prices = hindsight.bound_and_order(one, knots=20, rounds=5)
    plan = hindsight.plan(one, prices.order, requests)
    outcome = play(LLMRouteEnv(made), requests, plan.start, np.maximum(plan.device, 0))
    assert outcome == Outcome(pytest.approx(plan.reward), 0)
    assert plan.reward <= found.unpreempted


@pytest.mark.parametrize("hold", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_subproblems_against_every_plan(seed: int, hold: bool) -> None:
    """At random prices, gains and schedules equal those of an enumeration of all slot sets."""
    _, one, _ = _random(seed, cluster__head_of_line_skip=not hold, objective__alpha=0.5, **TAILS)
    rng = np.random.default_rng(seed)
    prices = [rng.random(one.slots) * 60 * (rng.random(one.slots) < 0.7) for _ in range(2)]
    dual = Dual(one)
    contiguous, _ = dual.evaluate(prices, pause=False)
    runs = dual.value.copy()
    once, slopes = dual.evaluate(prices)
    made_once = from_runs(one, dual.begin, dual.resume)
    paused = dual.value.copy()
    value, schedules = dual.certify(prices, schedules=True)
    assert contiguous <= once <= value
    assert (runs <= paused + 1e-9).all()
    assert (paused <= dual.value + 1e-9).all()
    for j in range(one.requests):
        assert dual.value[j] == pytest.approx(_best_plan(one, j, prices))
    basis = Basis(one.slots, [1, 1])
    for each, gains in ((schedules, dual.value), (made_once, paused)):
        cost = np.asarray(Usage(dual, basis)(each) @ np.concatenate(prices)).ravel()
        assert rewards(one, each) - cost == pytest.approx(gains[each.request])
    used = np.asarray(Usage(dual, basis)(made_once).sum(axis=0)).ravel()
    assert 1.0 - used == pytest.approx(np.concatenate(slopes))


def _best_plan(one: Instance, j: int, prices: list[np.ndarray]) -> float:
    work, alpha = one.work, one.alpha
    slot, kv = prices[0] / one.batch_limit.sum(), prices[1] / one.kv_limit.sum()
    first, s, o = int(work.first[j]), int(work.prompt[j]), int(work.decode[j])
    best = 0.0
    for n in range(1, o + 1):
        for plan in itertools.combinations(range(first, one.slots), n):
            begin, last = plan[0], plan[-1]
            gain = work.first_value[j] if begin == first else work.start_value[begin]
            gain += work.zeta2 * (begin <= work.start_by[j]) + alpha * n
            if n == o:
                gain += work.finish_value[last] + work.zeta1 * (last <= work.finish_by[j])
            end = last + 1 if n == o else one.slots
            gain -= slot[begin:end].sum() if one.hold else slot[list(plan)].sum()
            gain -= sum((s + i) * kv[k] for i, k in enumerate(plan, 1))
            best = max(best, gain)
    return best


@settings(max_examples=60)
@given(episodes())
def test_no_random_play_beats_the_bound(episode: Episode) -> None:
    """Any blocks, watermark, clock, profile timing, drain: all that the environment offers."""
    env = LLMRouteEnv(episode.scenario, copy=False, series_stride=0)
    requests = episode.table()
    found = hindsight.bound(env.scenario, requests, knots=8, rounds=2)
    observation, _ = env.reset(options={"requests": requests})
    actor, over, reward = episode.actor(), False, 0.0
    while not over:
        visible = int((observation["queue_id"] >= 0).sum())
        action = actor(visible, len(observation["queue_id"]))
        observation, gained, terminated, truncated, _ = env.step(action)
        reward, over = reward + gained, terminated or truncated
    preempted = int(np.count_nonzero(env.request_log()["preemptions"]))
    assert reward <= found.given(preempted) <= found.value


CELLS = {
    "batch": {},
    "memory": {"cluster.kv_limit": 2000},
    "a100": {
        "cluster.timing": {"kind": "profile", "device": "a100-80gb", "model": "llama-2-7b"},
        "period_s": 0.025,
        "workload.arrivals.rate": 8.0,
        "cluster.kv_limit": 4000,
    },
}


def _no_policy_beats_the_bound(cell: str, names: list[str]) -> None:
    changes = {"horizon_periods": 300, "cluster.devices": 2, "cluster.batch_limit": 10}
    made = Scenario.load("paper-overload", changes | CELLS[cell])
    env = LLMRouteEnv(made)
    env.reset(seed=3)
    found = hindsight.bound(made, env.requests, knots=30, rounds=4)
    for name in names:
        row = hindsight.gap_row(found, evaluate(env, name, 3))
        assert row["reward"] <= row["bound_given"] <= row["bound"], name
        assert 0.0 < row["share"] <= row["share_given"] <= 1.0, name


@pytest.mark.parametrize("cell", CELLS)
def test_no_policy_beats_the_bound(cell: str) -> None:
    _no_policy_beats_the_bound(cell, ["central_fifo", "sjf", "sjf_oracle"])


@pytest.mark.slow
@pytest.mark.parametrize("cell", CELLS)
def test_none_of_all_policies_beats_the_bound(cell: str) -> None:
    _no_policy_beats_the_bound(cell, [name for name in available() if "learned" not in name])


def test_light_load_is_bounded_by_what_it_earns() -> None:
    made = Scenario.load("paper-stable", {"workload.arrivals.rate": 0.02})
    env = LLMRouteEnv(made)
    result = evaluate(env, "central_fifo", 1)
    found = hindsight.bound(made, env.requests)
    assert found.status == "unconstrained"
    assert found.value == pytest.approx(result.stats.reward, rel=1e-8)
    nothing = table([], [], [])
    assert hindsight.bound(made, nothing).value == pytest.approx(0.0, abs=1e-6)


def test_tight_at_arena_scale() -> None:
    """T = 4,000 and 2,000 requests: the optimum is known to within 0.4%."""
    made = Scenario.load("paper-overload")
    env = LLMRouteEnv(made)
    result = evaluate(env, "sjf_oracle", 0)
    one = Instance.build(made, env.requests)
    found, prices = hindsight.bound_and_order(one, knots=40, rounds=4)
    plan = hindsight.plan(one, prices.order, env.requests)
    assert 0.996 * found.value < plan.reward <= found.unpreempted
    assert 0.99 < found.share(result.stats.reward) < 0.997
    assert result.stats.reward < plan.reward  # so shortest-first is not optimal here


def test_time_prices_cover_iterations() -> None:
    prices = np.random.default_rng(0).random(9)
    for reach in (1, 2, 5, 12):
        wide = _spread(prices, reach)
        assert len(wide) == 9 + reach
        for k, price in enumerate(wide):
            assert price == max(prices[max(k - reach, 0) : k + 2], default=0.0)


def test_faults_are_one_line() -> None:
    made, requests = scenario(), table([0], [1], [2])
    with pytest.raises(ValueError, match="knots = 0"):
        hindsight.bound(made, requests, knots=0)
    loose = Instance.build(scenario(cluster__timing__iteration_s=0.7), requests)
    with pytest.raises(ValueError, match="needs lock-step"):
        hindsight.program(loose)
    with pytest.raises(ValueError, match="needs lock-step"):
        hindsight.plan(loose, np.zeros(1, np.int64), requests)
    mixed = scenario(cluster__prefill={})
    with pytest.raises(ValueError, match=r"cluster\.prefill has to be null"):
        hindsight.bound(mixed, requests)
    for wrong in ({"tolerance": -1.0}, {"seconds": -1.0}):
        with pytest.raises(ValueError, match="must be at least 0"):
            hindsight.bound(made, requests, **wrong)
    with pytest.raises(ValueError, match="more than 10: shorten"):
        hindsight.program(Instance.build(made, requests), most_columns=10)
    with pytest.raises(ValueError, match="shorten horizon_periods"):
        hindsight.bound(
            scenario(horizon_periods=2_000, cluster__timing__iteration_s=1e-6), requests
        )


def test_out_of_time_is_still_a_bound() -> None:
    """Without a single LP, and with a tolerance that ends at once, only tightness suffers."""
    made = Scenario.load("paper-overload", {"horizon_periods": 400})
    env = LLMRouteEnv(made)
    reward = evaluate(env, "sjf_oracle", 5).stats.reward
    best = hindsight.bound(made, env.requests, knots=30)
    late = hindsight.bound(made, env.requests, knots=30, seconds=0.0)
    lax = hindsight.bound(made, env.requests, knots=30, tolerance=0.05)
    assert late.status in ("stopped", "converged")
    assert reward <= best.value
    for other in (late, lax):
        assert best.value * (1.0 - 2e-4) <= other.value <= 1.05 * best.value


def test_a_bound_depends_on_no_prediction() -> None:
    """The arena shares bounds between cells whose instances have the same digest."""
    made = Scenario.load("paper-overload", {"horizon_periods": 200})
    worse = made.with_overrides({"prediction": {"kind": "lognormal", "sigma": 0.6}})
    heavier = made.with_overrides({"objective.sigma": 3.0})

    def digest(scenario: Scenario, seed: int = 4) -> str:
        env = LLMRouteEnv(scenario)
        env.reset(seed=seed)
        return Instance.build(scenario, env.requests).digest()

    assert digest(made) == digest(worse)
    others = {digest(made), digest(heavier), digest(made, 5)}
    others.add(digest(made.with_overrides({"cluster.kv_limit": 9000})))
    assert len(others) == 4
