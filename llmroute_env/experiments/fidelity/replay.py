"""Play a run on the environment: same arrivals, lengths and routing, another clock."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd
import yaml
from pydantic import BaseModel

from llmroute_env.experiments.fidelity.runs import CLUSTER, TP, Run
from llmroute_env.experiments.fidelity.variants import Variant
from llmroute_env.workload.table import RequestTable

#: The router decides this often; Vidur's decides at each arrival [s].
PERIOD_S: Final = 0.002
#: Visible requests: far more than arrive in a period.
WINDOW: Final = 16


def write_profiles(variant: Variant, folder: Path) -> tuple[Path, Path]:
    """Write a variant's device and model files, so that a scenario can name them."""
    paths = []
    for kind, profile in zip(("device", "model"), variant.profiles, strict=True):
        path = folder / f"{variant.key}-{kind}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(_yaml(profile), encoding="utf-8")
        paths.append(path)
    return paths[0], paths[1]


def _yaml(profile: BaseModel) -> str:
    # The C writer where PyYAML has it: a profile is some hundred numbers.
    writer = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    return str(yaml.dump(profile.model_dump(), Dumper=writer, sort_keys=False))


def scenario(run: Run, device: Path, model: Path, period_s: float = PERIOD_S) -> dict[str, Any]:
    """The scenario of a replay; the requests come with the reset."""
    last = float(run.requests["arrival_s"].max())
    one = {"mean": 1.0, "sigma": 0.0}
    return {
        "name": f"fidelity-{run.name}",
        "period_s": period_s,
        "horizon_periods": math.ceil(last / period_s) + 1,
        "drain": True,
        "max_drain_periods": math.ceil(3600 / period_s),
        "cluster": CLUSTER
        | {
            "timing": {"kind": "profile", "device": str(device), "model": str(model), "tp": TP},
        },
        "router": {"window": WINDOW},
        # Never drawn from, but a scenario has one.
        "workload": {
            "arrivals": {"kind": "poisson", "rate": 1.0},
            "lengths": {"kind": "lognormal", "prompt": dict(one), "decode": dict(one)},
        },
        "prediction": {"kind": "perfect"},
        "objective": {"tail_eel_s": 3600.0, "tail_ttft_s": 3600.0},
    }


def replay(run: Run, device: Path, model: Path, period_s: float = PERIOD_S) -> pd.DataFrame:
    """Play ``run`` with the iteration times of two profile files.

    Returns:
        One row per request of the run: ``first_s`` and ``finish_s``, the times of its first and of
        its last token [s].

    Raises:
        RuntimeError: a request did not finish.
    """
    import gymnasium as gym

    import llmroute_env  # noqa: F401 (registers LLMRoute-v0)
    from llmroute_env.env import LLMRouteEnv

    made = gym.make(
        "LLMRoute-v0",
        scenario=scenario(run, device, model, period_s),
        disable_env_checker=True,
        copy=False,
    )
    env = made.unwrapped
    assert isinstance(env, LLMRouteEnv)
    table = requests(run)
    replica = run.requests["replica"].to_numpy()
    action = np.zeros(WINDOW, np.int64)
    observation, _ = env.reset(seed=0, options={"requests": table})
    over = False
    while not over:
        waiting = observation["queue_id"]
        if waiting[0] >= 0:
            there = waiting >= 0
            action[there] = replica[waiting[there]] + 1
            observation, _, terminated, truncated, _ = env.step(action)
            action[:] = 0
        else:
            observation, _, terminated, truncated, _ = env.step(action)
        over = terminated or truncated
    log = env.request_log()
    unfinished = np.flatnonzero(np.isnan(log["finish_s"]))
    if unfinished.size:
        raise RuntimeError(f"{run.name}: request {unfinished[0]} did not finish")
    return pd.DataFrame({"first_s": log["first_token_s"], "finish_s": log["finish_s"]})


def requests(run: Run) -> RequestTable:
    """The run's requests with perfect predictions."""
    rows = run.requests
    return RequestTable(
        rows["arrival_s"].to_numpy(np.float64),
        rows["prompt"].to_numpy(np.int64),
        rows["decode"].to_numpy(np.int64),
        rows["decode"].to_numpy(np.float32),
        np.zeros(len(rows), np.int64),
    ).validate()
