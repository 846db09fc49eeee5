"""The offered load where devices prefill: closed forms, and what an overloaded fleet serves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from llmroute_env.env import LLMRouteEnv
from llmroute_env.scenario import Scenario
from policies import make

ONE = {"mean": 1.0, "sigma": 0.0}
FIXED = {
    "workload.lengths.prompt": {**ONE, "min": 10, "max": 10},
    "workload.lengths.decode": {**ONE, "min": 3, "max": 3},
}
CONSTANT = {"kind": "constant", "iteration_s": 0.5, "prefill_s_per_token": 0.01}


def paper(**more: Any) -> Scenario:
    return Scenario.load("paper-stable", FIXED | {"cluster.timing": CONSTANT} | more)


def test_whole_prompts_in_closed_form() -> None:
    # One iteration of prefill and three of decoding; 24 slots, so 6 requests an iteration.
    load = paper(**{"cluster.prefill": {}}).offered_load()
    iteration_s = 0.5 + 6 * 10 * 0.01
    assert load.iteration_s == pytest.approx(iteration_s)
    assert load.batch == pytest.approx(0.4 * 4 * iteration_s / (4 * 24))
    assert load.kv == pytest.approx(0.4 * (10 + 11 + 12 + 13) * iteration_s / (4 * 16_000))
    assert load.budget == 0.0
    assert load.binding == "batch"


def test_a_prefill_that_emits_saves_an_iteration() -> None:
    load = paper(**{"cluster.prefill": {"emits_token": True}}).offered_load()
    iteration_s = 0.5 + 8 * 10 * 0.01
    assert load.batch == pytest.approx(0.4 * 3 * iteration_s / (4 * 24))
    assert load.kv == pytest.approx(0.4 * (10 + 12 + 13) * iteration_s / (4 * 16_000))


def test_a_token_budget_in_closed_form() -> None:
    # 13 tokens a request: 26 of them serve two, which are 20 prefilled and 6 decoding.
    load = paper(**{"cluster.prefill": {"chunk_tokens": 26}}).offered_load()
    iteration_s = 0.5 + 20 * 0.01
    assert load.iteration_s == pytest.approx(iteration_s)
    assert load.budget == pytest.approx(0.4 * 13 * iteration_s / (4 * 26))
    assert load.binding == "budget"
    assert load.rho == load.peak == load.budget


def test_equal_groups_have_the_load_of_one() -> None:
    prefill = {"cluster.prefill": {"chunk_tokens": 26}}
    group = {"batch_limit": 24, "kv_limit": 16_000, "timing": CONSTANT}
    groups = [{"name": "a", "devices": 3, **group}, {"name": "b", "devices": 1, **group}]
    gone = {f"cluster.{key}": None for key in ("batch_limit", "kv_limit", "timing")}
    fleet = gone | {"cluster.groups": groups} | prefill
    alike = Scenario.load("paper-stable", FIXED | fleet)
    assert alike.offered_load() == pytest.approx(paper(**prefill).offered_load())


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("azure-conv-a100", {"cluster.prefill": {"chunk_tokens": 512, "emits_token": True}}),
        ("azure-conv-a100", {"cluster.prefill": {"emits_token": True}}),
        ("azure-code-a100", {"cluster.prefill": {"chunk_tokens": 512, "emits_token": True}}),
        ("paper-overload", {"cluster.prefill": {"chunk_tokens": 128}, "cluster.timing": CONSTANT}),
    ],
)
def test_an_overloaded_fleet_serves_what_the_load_says(name: str, changes: dict[str, Any]) -> None:
    base = Scenario.load(name, {"cluster.devices": 2} | changes)
    assert base.workload.arrivals.kind == "poisson"
    at_saturation = base.workload.arrivals.rate / base.offered_load().rho
    over = {"workload.arrivals.rate": 1.6 * at_saturation}
    env = LLMRouteEnv(base.with_overrides(over | {"cluster.kv_watermark": 0.0}))
    env.reset(seed=0)
    make("lor", env).run_episode(env, timed=False)
    log, end = env.request_log(), env.scenario.horizon_s
    finished = log["finish_s"][~np.isnan(log["finish_s"])]
    late = (finished > 0.4 * end).sum() / (0.6 * end)
    share = 1.0 - base.offered_load().rejected_share
    assert late == pytest.approx(share * at_saturation, rel=0.03)
