"""Every registered policy on unlike devices, prefilling ones, prefix caches and handoff."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from llmroute_env.cluster.state import ACTIVE, COMPLETED, NOT_ARRIVED, REJECTED
from llmroute_env.env import LLMRouteEnv
from policies import available, make

#: Iterations that do not divide the period, so that decisions fall into them.
TIMING = {"kind": "constant", "iteration_s": 0.7, "prefill_s_per_token": 0.003}
LENGTHS = {
    "workload.lengths.prompt": {"mean": 60.0, "sigma": 1.0, "min": 1, "max": 400},
    "workload.lengths.decode": {"mean": 25.0, "sigma": 0.9, "min": 1, "max": 200},
}
BASE: dict[str, Any] = LENGTHS | {
    "horizon_periods": 120,
    "router.window": 24,
    "cluster.devices": 3,
    "cluster.batch_limit": 6,
    "cluster.kv_limit": 700,
    "cluster.timing": TIMING,
    "workload.arrivals.rate": 0.9,
}
PREFILLING = BASE | {"cluster.kv_block": 4}
EQUAL = ("devices", "batch_limit", "kv_limit", "context_limit", "timing", "memory")
UNEVEN = {key: value for key, value in BASE.items() if not key.startswith("cluster.")} | {
    **{f"cluster.{key}": None for key in EQUAL},
    "cluster.groups": [
        {"name": "short", "devices": 2, "batch_limit": 4, "kv_limit": 400, "context_limit": 150,
         "timing": {"kind": "constant", "iteration_s": 0.5}},
        {"name": "long", "devices": 1, "batch_limit": 8, "kv_limit": 900,
         "timing": {"kind": "constant", "iteration_s": 1.3}},
    ],
}  # fmt: skip
SESSIONS = {
    "workload.lengths": {"kind": "sessions"},
    "workload.sessions": {
        "kind": "chat",
        "applications": {"count": 3, "prompt": {"mean": 60, "sigma": 0.5, "max": 120}},
        "turns": {"kind": "geometric", "mean": 3.0, "max": 6},
        "message": {"mean": 20, "sigma": 0.8, "max": 60},
        "answer": {"mean": 20, "sigma": 0.8, "max": 60},
        "think": {"mean_s": 10.0, "sigma": 0.5},
        "max_context": 600,
    },
}
HANDOFF = {
    "prefill_base_s": 0.3,
    "prefill_s_per_token": 0.01,
    "kv_bytes_per_token": 1000.0,
    "link_bytes_per_s": 60_000.0,
}
SCENARIOS: dict[str, dict[str, Any]] = {
    "uneven": UNEVEN,
    "whole": PREFILLING | {"cluster.prefill": {}},
    "chunked": PREFILLING | {"cluster.prefill": {"chunk_tokens": 32, "emits_token": True}},
    "prefix": {key: value for key, value in PREFILLING.items() if key not in LENGTHS}
    | SESSIONS
    | {
        "cluster.prefill": {"chunk_tokens": 32, "emits_token": True},
        "cluster.prefix_cache": {"block": 8},
    },
    "handoff": BASE | {"cluster.handoff": HANDOFF},
}


@pytest.fixture(scope="module", params=list(SCENARIOS))
def env(request: pytest.FixtureRequest) -> LLMRouteEnv:
    return LLMRouteEnv("paper-overload", SCENARIOS[request.param])


@pytest.mark.filterwarnings("ignore:learned")
@pytest.mark.parametrize("policy", list(available()))
def test_runs_and_its_compiled_episode_is_the_stepped_one(env: LLMRouteEnv, policy: str) -> None:
    stepped, compiled = make(policy, env, seed=5), make(policy, env, seed=5)
    observation, info = env.reset(seed=3, options={"prediction": stepped.prediction})
    over = False
    while not over:
        action, _ = stepped.predict(observation)
        assert info["action_mask"][np.arange(len(action)), action].all()
        observation, _, terminated, truncated, info = env.step(action)
        over = terminated or truncated
    stats, log = env.episode_stats(), env.request_log()
    assert stats.invalid_actions == 0
    conserved(info["metrics"], log)
    env.reset(seed=3, options={"prediction": compiled.prediction})
    compiled.run_episode(env)
    for key, column in env.request_log().items():
        np.testing.assert_array_equal(column, log[key], err_msg=key)
    assert env.episode_stats().rewards == stats.rewards


def conserved(summary: dict[str, float], log: dict[str, np.ndarray]) -> None:
    """Every request that arrived is somewhere, and the work done is that of the devices."""
    arrived = log["status"] != NOT_ARRIVED
    served = summary["completed"] + summary["unfinished"] + summary["rejected"]
    assert summary["arrived"] == served == np.count_nonzero(arrived)
    assert summary["completed"] > 20
    done = log["status"] == COMPLETED
    assert (log["emitted"][done] == log["decode"][done]).all()
    assert (log["emitted"] <= log["decode"]).all()
    assert (log["device"][done | (log["status"] == ACTIVE)] >= 0).all()
    assert (log["emitted"][log["status"] == REJECTED] == 0).all()
