"""Errors of predicted lengths, learned from the batches: against the request log, and by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from observations import Gpu, Scene
from test_olp_forecast import spec_of

import policies
from llmroute_env import evaluate
from llmroute_env.env import LLMRouteEnv
from policies.olp.errors import PRIOR, Seen, correct, correction, watch
from policies.olp.router import OnlineLp
from policies.olp.state import Number, OlpMemory

BIASED = {"prediction": {"kind": "biased", "factor": 0.6, "spread": 0.2}}
BUSY = {"cluster.devices": 3, "cluster.batch_limit": 6, "horizon_periods": 900}


def memory_of(spec: Any) -> OlpMemory:
    memory: OlpMemory = OnlineLp(spec, pricing="fluid").build().memory
    return memory


def watched(env: LLMRouteEnv) -> tuple[OlpMemory, dict[str, np.ndarray], Any]:
    """Let sjf play an episode; what was seen of it, the request log, and the last look."""
    router = policies.make("sjf", env)
    memory = memory_of(router.spec)
    observation, _ = env.reset(seed=4)
    over = False
    while not over:
        watch(observation["devices"], observation["active"], 0.0, memory)
        action, _ = router.predict(observation)
        observation, _, terminated, truncated, _ = env.step(action)
        over = terminated or truncated
    watch(observation["devices"], observation["active"], 0.0, memory)
    return memory, env.request_log(), observation


def ratio(memory: OlpMemory) -> float:
    return float(memory.numbers[Number.SUM_LENGTH] / memory.numbers[Number.SUM_PREDICTED])


def truth(log: dict[str, np.ndarray]) -> float:
    done = log["status"] == 3
    return float(log["decode"][done].sum() / log["predicted"][done].sum())


def test_in_lock_step_all_that_leaves_is_seen_exactly() -> None:
    env = LLMRouteEnv("paper-overload", BUSY | BIASED)
    memory, log, last = watched(env)
    done = (log["status"] == 3) & (log["decode"] > 1)  # one iteration only is never seen
    assert done.sum() > 50
    assert memory.numbers[Number.DEPARTED] == done.sum()
    assert memory.numbers[Number.SUM_LENGTH] == log["decode"][done].sum()
    predicted = np.maximum(log["predicted"][done], 2.0)
    assert_allclose(memory.numbers[Number.SUM_PREDICTED], predicted.sum(), rtol=1e-6)
    active = log["status"] == 2
    emitted = np.sort(log["emitted"][active])
    seen = [memory.seen[g, : int(last["devices"][g, 0]), Seen.EMITTED] for g in range(3)]
    assert_array_equal(np.sort(np.concatenate(seen)), emitted)


@pytest.mark.parametrize(
    ("scenario", "overrides"),
    [
        ("azure-conv-a100", {"horizon_periods": 900}),  # iterations that are not periods
        ("paper-overload", {"cluster.kv_limit": 4000, "cluster.batch_limit": 64}),  # preemptions
    ],
)
def test_the_ratio_is_near_the_truth(scenario: str, overrides: dict[str, Any]) -> None:
    env = LLMRouteEnv(scenario, overrides | BIASED)
    memory, log, _ = watched(env)
    if "cluster.kv_limit" in overrides:
        assert log["preemptions"].sum() > 20
    assert memory.numbers[Number.DEPARTED] > 0.15 * (log["status"] == 3).sum()
    assert ratio(memory) == pytest.approx(truth(log), rel=0.03)


def test_the_factor_of_an_episode_is_shown() -> None:
    env = LLMRouteEnv("paper-overload", BUSY | BIASED)
    for corrects, low, high in (("true", 1.5, 1.75), ("false", 1.0, 1.0)):
        policy = policies.make(f"olp:pricing=fluid:correct={corrects}", env)
        env.reset(seed=1)
        policy.run_episode(env)
        assert low <= policy.diagnostics()["correction"] <= high


def test_the_factor_is_shrunk_to_one() -> None:
    numbers = np.zeros(len(Number))
    assert correction(numbers) == 1.0
    numbers[[Number.DEPARTED, Number.SUM_LENGTH, Number.SUM_PREDICTED]] = PRIOR, 300.0, 100.0
    assert correction(numbers) == pytest.approx(2.0)


def test_an_active_request_is_corrected_by_all_of_its_prediction() -> None:
    scene = Scene([Gpu(batch=[(110, 90.0), (60, 40.0)])])
    memory = memory_of(spec_of(scene))
    for emitted in range(3):  # the first look counts one token: ô = 91 and 41
        scene.gpus = [Gpu(batch=[(110 + emitted, 90.0 - emitted), (60 + emitted, 40.0 - emitted)])]
        observation = scene.observe()
        watch(observation["devices"], observation["active"], 0.0, memory)
    out = np.zeros((1, 8, 2), np.float32)
    correct(observation["devices"], observation["active"], 2.0, memory, out)
    assert_allclose(out[0, :2], [(112, 2 * 91 - 3), (62, 2 * 41 - 3)])
    correct(observation["devices"], observation["active"], 0.01, memory, out)
    assert_allclose(out[0, :2, 1], 1.0)


def test_survivors_are_told_from_those_that_leave_and_those_that_come() -> None:
    scene = Scene([Gpu(batch=[(50, 9.0), (51, 8.0), (52, 7.0), (90, 1.0)])])
    memory = memory_of(spec_of(scene))
    first = scene.observe()
    watch(first["devices"], first["active"], 0.0, memory)
    # Two iterations on: the second is gone, the last outlives its prediction, one is new.
    scene.gpus = [Gpu(batch=[(52, 7.0), (54, 5.0), (92, 1.0), (21, 30.0)])]
    then = scene.observe()
    watch(then["devices"], then["active"], 0.0, memory)
    assert_allclose(memory.seen[0, :4, Seen.EMITTED], [3, 3, 3, 2])
    assert_allclose(memory.seen[0, :4, Seen.PREDICTED], [10, 8, 2, 32])
    assert memory.numbers[Number.DEPARTED] == 1.0
    assert memory.numbers[Number.SUM_PREDICTED] == 9.0
    assert memory.numbers[Number.SUM_LENGTH] == 1.0 + 1.5  # one or two more tokens


def test_a_biased_prediction_costs_little_once_it_is_corrected() -> None:
    weights = {"beta": 0, "gamma": 0, "zeta1": 1, "zeta2": 1}
    tail = {f"objective.{key}": value for key, value in weights.items()}
    changes = {"horizon_periods": 2000, "workload.arrivals.rate": 0.55, "router.window": 512}
    won = {}
    for name, prediction in (("biased", BIASED), ("fair", {})):
        env = LLMRouteEnv("paper-overload", changes | tail | prediction)
        for corrects in ("true", "false"):
            spec = f"olp:pricing=fluid:correct={corrects}"
            results = [evaluate(env, spec, seed=seed) for seed in (0, 1)]
            won[name, corrects] = np.mean([r.summary["reward"] for r in results])
    assert won["biased", "true"] > 1.02 * won["biased", "false"]
    assert won["biased", "true"] > 0.97 * won["fair", "true"]
    assert won["fair", "true"] > 0.99 * won["fair", "false"]
