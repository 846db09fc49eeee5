"""Small lock-step episodes for the hindsight tests, and every routing of them."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
from strategies import workload

from llmroute_env.env import LLMRouteEnv
from llmroute_env.scenario import Scenario
from llmroute_env.workload.table import RequestTable


def scenario(**changes: Any) -> Scenario:
    """A lock-step scenario; ``changes`` are dotted keys with underscores for the dots."""
    base = {
        "name": "tiny",
        "period_s": 1.0,
        "horizon_periods": 6,
        "cluster": {
            "devices": 1,
            "batch_limit": 2,
            "kv_limit": 12,
            "timing": {"kind": "constant", "iteration_s": 1.0},
        },
        "router": {"window": 8},
        "workload": workload(),
        "prediction": {"kind": "perfect"},
        "objective": {"beta": 1.0, "gamma": 1.0, "tail_eel_s": 4.0, "tail_ttft_s": 2.0},
    }
    return Scenario.load(base, {key.replace("__", "."): value for key, value in changes.items()})


def table(arrival: Any, prompt: Any, decode: Any) -> RequestTable:
    order = np.argsort(np.asarray(arrival, np.float64), kind="stable")
    o = np.asarray(decode, np.int64)[order]
    return RequestTable(
        np.asarray(arrival, np.float64)[order],
        np.asarray(prompt, np.int64)[order],
        o,
        o.astype(np.float32),
        np.zeros(len(o), np.int64),
    ).validate()


@dataclass
class Outcome:
    reward: float
    preempted: int  #: requests that were preempted


def play(env: LLMRouteEnv, requests: RequestTable, when: Any, where: Any) -> Outcome:
    """Dispatch request j in period ``when[j]`` (-1: never) to device ``where[j]``."""
    observation, _ = env.reset(options={"requests": requests})
    reward, over, k = 0.0, False, 0
    while not over:
        ids = observation["queue_id"]
        seen = np.maximum(ids, 0)
        action = np.where((ids >= 0) & (when[seen] == k), where[seen] + 1, 0)
        observation, gained, terminated, truncated, _ = env.step(action)
        reward, over, k = reward + gained, terminated or truncated, k + 1
    return Outcome(reward, int(np.count_nonzero(env.request_log()["preemptions"])))


def every_routing(made: Scenario, requests: RequestTable) -> list[Outcome]:
    """The outcomes of all dispatch periods and devices of all requests."""
    env = LLMRouteEnv(made, series_stride=0, copy=False)
    devices = made.cluster.devices
    options = []
    for at in requests.arrival_s:
        periods = range(int(np.ceil(at / made.period_s)), made.horizon_periods)
        options.append([(-1, 0), *itertools.product(periods, range(devices))])
    outcomes = []
    for choice in itertools.product(*options):
        when, where = np.array(choice, np.int64).T
        outcomes.append(play(env, requests, when, where))
    return outcomes
