"""The policy ``olp`` as a whole: against the plain-Python rule, and what it promises."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from naive_olp import NaiveOlp
from numpy.testing import assert_allclose, assert_array_equal
from observations import Gpu, Scene, Waiting, at, random_scene
from test_olp_forecast import OBJECTIVE, spec_of

from llmroute_env.env import LLMRouteEnv
from llmroute_env.spaces import Device
from policies import RouterSpec, make
from policies.olp.router import OnlineLp

SMALL: dict[str, Any] = {"lookahead": 50, "history": 30, "batch": 12, "steps": 3}
TAIL: dict[str, Any] = {"alpha": 0.3, "sigma": 2.0, "zeta1": 50.0, "zeta2": 80.0}
BUSY = {
    "cluster.devices": 3,
    "cluster.batch_limit": 5,
    "cluster.kv_limit": 2500,
    "horizon_periods": 260,
    "router.window": 24,
    "workload.arrivals.rate": 0.25,
}


@pytest.fixture(scope="module")
def busy() -> LLMRouteEnv:
    return LLMRouteEnv("paper-overload", BUSY)


def naive_of(policy: OnlineLp, spec: RouterSpec, **options: Any) -> NaiveOlp:
    memory = policy.memory
    sizes = {key: value for key, value in SMALL.items() if key in ("lookahead", "history")}
    sizes |= {"batch": SMALL["batch"], "steps": SMALL["steps"]}
    return NaiveOlp(spec, memory.rng.copy(), int(memory.pointer[0]), **sizes, **options)


@pytest.mark.parametrize(
    ("parameters", "options"),
    [
        ({"step_size": 0.3}, {"step_size": 0.3}),
        ({"pricing": "none"}, {"priced": False}),
        ({"step_size": 1.0, "work_conserving": False}, {"step_size": 1.0}),
        ({"step_size": 0.3} | TAIL, {"step_size": 0.3}),
    ],
)
def test_decisions_and_prices_equal_the_plain_rule(
    busy: LLMRouteEnv, parameters: dict[str, Any], options: dict[str, Any]
) -> None:
    policy = make("olp", busy, seed=3, drift=False, **SMALL, **parameters)
    weights = {key: parameters[key] for key in TAIL if key in parameters}
    objective = policy.spec.objective.model_copy(update=weights)
    spec = replace(policy.spec, objective=objective)
    options = options | {"work_conserving": parameters.get("work_conserving", True)}
    naive = naive_of(policy, spec, **options)
    observation, _ = busy.reset(seed=5)
    over, largest, started = False, 0.0, 0
    while not over:
        action, _ = policy.predict(observation)
        assert_array_equal(action, naive.decide(observation))
        found = policy.diagnostics()
        assert_allclose(found["price_batch"], naive.bat, rtol=1e-9, atol=1e-13)
        assert_allclose(found["price_memory"], naive.mem, rtol=1e-9, atol=1e-13)
        largest = max(largest, found["price_batch"].max(), found["price_memory"].max())
        started += int((action > 0).sum())
        observation, _, terminated, truncated, _ = busy.step(action)
        over = terminated or truncated
    assert started > 30
    assert (largest > 0.01) == (parameters.get("pricing") != "none")


@pytest.mark.parametrize("priced", [True, False])
def test_decisions_equal_the_plain_rule_on_any_scene(priced: bool) -> None:
    rng = np.random.default_rng(11)
    for _ in range(60):
        scene = random_scene(rng)
        parameters = SMALL | {"pricing": "paper" if priced else "none"}
        policy = OnlineLp(spec_of(scene), int(rng.integers(100)), **parameters)
        naive = naive_of(policy, spec_of(scene), priced=priced)
        for period in range(3):  # the same queue: nothing is new after the first period
            observation = at(scene.observe(), period)
            assert_array_equal(policy.predict(observation)[0], naive.decide(observation))


def test_what_is_sent_starts_at_once(busy: LLMRouteEnv) -> None:
    policy = make("olp", busy)
    for seed in range(3):
        busy.reset(seed=seed)
        policy.run_episode(busy)
        log = busy.request_log()
        sent = ~np.isnan(log["dispatch_s"])
        assert sent.sum() > 25
        assert_array_equal(log["start_s"][sent], log["dispatch_s"][sent])  # never waits in a FIFO


def test_prices_are_near_zero_at_light_load_and_not_under_overload() -> None:
    means = {}
    for rate in (0.1, 0.6):
        env = LLMRouteEnv("paper-stable", {"workload.arrivals.rate": rate, "horizon_periods": 1200})
        policy = make("olp", env, record=64)
        env.reset(seed=1)
        policy.run_episode(env)
        series = policy.diagnostics()["series"]
        late = series["period"] > 500
        assert late.sum() > 20
        assert (np.diff(series["period"]) > 0).all()
        means[rate] = float((series["price_batch"] + series["price_memory"])[late].mean())
    assert means[0.1] < 1e-6
    assert means[0.6] > 100 * means[0.1]
    assert means[0.6] > 1e-5


@pytest.mark.parametrize("pricing", ["paper", "none"])
def test_no_device_is_favoured(pricing: str) -> None:
    env = LLMRouteEnv("paper-stable", {"horizon_periods": 1500})
    policy = make("olp", env, pricing=pricing)
    sent = np.zeros(4)
    first = np.zeros(4)
    for seed in range(4):
        env.reset(seed=seed)
        policy.reset(seed=seed)
        policy.run_episode(env)
        device = env.request_log()["device"]
        sent += np.bincount(device[device >= 0], minlength=4)
        first[device[device >= 0][0]] += 1
    assert sent.min() > 0.85 * sent.mean()
    assert sent.max() < 1.15 * sent.mean()
    assert first.max() < 4


def test_the_same_seed_the_same_run_and_another_seed_another(busy: LLMRouteEnv) -> None:
    def run(seed: int) -> tuple[np.ndarray, np.ndarray]:
        policy = make("olp", busy, seed=seed, batch=4, step_size=1.0)
        busy.reset(seed=9)
        policy.run_episode(busy)
        return busy.request_log()["device"], policy.memory.prices.copy()

    for one, two in zip(run(1), run(1), strict=True):
        assert_array_equal(one, two)
    assert (run(1)[1] != run(2)[1]).any()


@pytest.mark.parametrize(
    "change",
    [{"mem_scale": 1.0}, {"mem_scale": 1e-6}, {"reward_normalizer": 1e7}],
)
def test_scales_do_not_change_decisions(busy: LLMRouteEnv, change: dict[str, Any]) -> None:
    """A normalizer above the largest reward and mem_scale are units: the step size follows them."""

    def devices(**parameters: Any) -> np.ndarray:
        policy = make("olp", busy, seed=1, **parameters)
        busy.reset(seed=2)
        policy.run_episode(busy)
        return busy.request_log()["device"]

    assert_array_equal(devices(), devices(**change))


def test_a_prediction_beyond_the_limit_is_planned_at_the_limit() -> None:
    gpu = Gpu(kv_limit=100)
    scene = Scene([gpu, gpu], [Waiting(10, 1e9), Waiting(10, 500.0), Waiting(10, 90.0)])
    action, _ = OnlineLp(spec_of(scene)).predict(scene.observe())
    assert sorted(action[:2].tolist()) == [1, 2]  # 10 + 90 tokens: each has a device to itself
    assert action[2] == 0  # all plan 90 tokens, so the oldest two
    alone = Scene([gpu], [Waiting(99, 5.0)])
    assert OnlineLp(spec_of(alone)).predict(alone.observe())[0][0] == 1


def test_a_device_that_cannot_hold_a_request_is_never_its_column() -> None:
    scene = Scene([Gpu(kv_limit=50), Gpu(kv_limit=500)], [Waiting(60, 5.0) for _ in range(6)])
    policy = OnlineLp(spec_of(scene))
    policy.predict(scene.observe())
    assert policy.diagnostics()["columns"] == 6
    assert (policy.memory.columns[:6, 3] == 1).all()


def test_work_conserving_fills_what_the_paper_s_rule_leaves_idle() -> None:
    spec = spec_of(Scene([Gpu(slots=2)], [Waiting()]))
    spec = replace(spec, objective=OBJECTIVE.model_copy(update={"beta": 0.0, "gamma": 0.0}))
    observation = Scene([Gpu(slots=2)], [Waiting(), Waiting(5), Waiting(5)]).observe()
    spec = replace(spec, slots=2)
    assert OnlineLp(spec).predict(observation)[0][:3].tolist() == [1, 1, 0]
    assert (OnlineLp(spec, work_conserving=False).predict(observation)[0] == 0).all()


def test_shortest_first_on_latency_weights_and_longest_on_throughput() -> None:
    scene = Scene([Gpu(slots=1)], [Waiting(10, 30.0), Waiting(10, 5.0), Waiting(10, 80.0)])
    spec = spec_of(scene)
    assert OnlineLp(spec).predict(scene.observe())[0][:3].tolist() == [0, 1, 0]
    spec = replace(spec, objective=OBJECTIVE.model_copy(update={"alpha": 9.0}))
    assert OnlineLp(spec).predict(scene.observe())[0][:3].tolist() == [0, 0, 1]


def test_a_limit_that_is_passed_earns_nothing() -> None:
    weights = {"beta": 0.0, "gamma": 0.0, "zeta1": 1.0, "zeta2": 1.0}
    objective = OBJECTIVE.model_copy(update=weights | {"tail_eel_s": 30.0, "tail_ttft_s": 20.0})
    queue = [
        Waiting(10, 11.0, waited=19.0),  # starts in time, ends at 30: one of two
        Waiting(10, 10.0, waited=20.0),  # neither
        Waiting(10, 10.0, waited=19.0),  # both: 29 < 30 and 19 < 20
    ]
    scene = Scene([Gpu(slots=3)], queue)
    policy = OnlineLp(replace(spec_of(scene), objective=objective), pricing="none")
    policy.predict(scene.observe())
    assert policy.diagnostics()["margins"][:3].tolist() == [0.5, 0.0, 1.0]


@pytest.mark.parametrize(("window", "margin"), [(None, 198.0 - 40.0), (80, 160.0 - 40.0)])
def test_the_rolling_window(window: int | None, margin: float) -> None:
    """R defaults to the longest stay, 99 tokens here; r = (R - 40) + R, normalized by 2 R."""
    scene = Scene([Gpu(kv_limit=100)], [Waiting(10, 40.0)])
    policy = OnlineLp(spec_of(scene), window_periods=window, pricing="none")
    policy.predict(scene.observe())
    most = 2 * (window or 99)
    assert policy.diagnostics()["margins"][0] == pytest.approx(margin / most, rel=1e-6)
    # A window below a planned stay is raised to it: r = R, the largest of 2 R.
    policy = OnlineLp(spec_of(scene), window_periods=30, pricing="none")
    policy.predict(scene.observe())
    assert policy.diagnostics()["margins"][0] == pytest.approx(0.5)


def test_the_fixed_horizon_dies_with_the_episode() -> None:
    scene = Scene([Gpu(kv_limit=100)], [Waiting(10, 40.0)])
    margins = []
    for left in (100, 50, 20, 0):
        observation = scene.observe()
        observation["clock"][2] = left
        policy = OnlineLp(spec_of(scene), horizon="fixed", pricing="none")
        policy.predict(observation)
        margins.append(float(policy.diagnostics()["margins"][0]))
    wanted = [(60 + 100) / 200, (10 + 50) / 200, 20 / 200, 0.0]
    assert margins == pytest.approx(wanted, rel=1e-6)


def test_iterations_that_are_not_periods() -> None:
    """Half-second iterations, one-second periods: a stay of 40 tokens is 20 periods."""
    scene = Scene([Gpu(kv_limit=1000)], [Waiting(10, 40.0, waited=5.0)], period_s=1.0)
    observation = scene.observe()
    observation["devices"][:, Device.LAST_ITERATION] = 0.5
    weights = {"beta": 1.0, "gamma": 0.0, "zeta1": 1000.0, "tail_eel_s": 25.5}
    spec = replace(spec_of(scene), objective=OBJECTIVE.model_copy(update=weights))
    policy = OnlineLp(spec, window_periods=100, pricing="none")
    policy.predict(observation)
    found = policy.diagnostics()
    assert found["iteration_periods"] == 0.5
    assert found["margins"][0] == pytest.approx((80 + 1000) / 1100, rel=1e-6)
    # Prices move two slots a period.
    policy = OnlineLp(spec, lookahead=8)
    policy.predict(observation)
    policy.memory.prices[0, 0, :, 0] = np.arange(policy.params.grid.rows)
    before = policy.diagnostics()["price_batch"][0]
    policy.memory.numbers[6] = 0.0  # no history: prices only move
    policy.predict(at(observation, 1))
    after = policy.diagnostics()["price_batch"][0]
    assert_array_equal(after[:6], before[2:])
    assert_array_equal(after[6:], 0.0)


def test_wrong_parameters_say_what_is_allowed(busy: LLMRouteEnv) -> None:
    with pytest.raises(ValueError, match=r"^policy olp: pricing=guess: .*'paper'.*'none'"):
        make("olp:pricing=guess", busy)
    with pytest.raises(ValueError, match="lookahead=0"):
        make("olp:lookahead=0", busy)
    with pytest.raises(ValueError, match="beta=-1"):
        make("olp:beta=-1", busy)
    with pytest.raises(ValueError, match="did you mean step_size"):
        make("olp:stepsize=1", busy)


def test_diagnostics_have_the_shapes_that_plots_need(busy: LLMRouteEnv) -> None:
    policy = make("olp", busy, record=10)
    busy.reset(seed=1)
    policy.run_episode(busy)
    found = policy.diagnostics()
    assert found["price_batch"].shape == found["price_memory"].shape == (3, 512)
    assert found["margins"].shape == (24,)
    assert set(found["series"]) == {"period", "price_batch", "price_memory", "rate"}
    assert 0 < found["started"] <= found["ranked"]
    assert found["acceptance"] == pytest.approx(found["started"] / found["ranked"])
    assert found["started_positive"] <= min(found["started"], found["positive"])
    assert found["rate"] == pytest.approx(0.25, rel=0.35)
    arrived = (busy.request_log()["status"] != 5).sum()
    assert found["started"] <= found["columns"] <= arrived  # hidden requests are not seen
