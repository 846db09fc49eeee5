"""One episode of a study: what it is, how it is played, and the row that it leaves."""

from __future__ import annotations

import hashlib
import math
import os
import warnings
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from llmroute_env.env import LLMRouteEnv
from llmroute_env.evaluation import evaluate
from llmroute_env.scenario import Scenario

WEIGHTS: Final = ("alpha", "beta", "gamma", "sigma", "zeta1", "zeta2")


class Job(NamedTuple):
    """One episode."""

    digest: str
    cell: str
    scenario: Scenario
    policy: str
    seed: int


def play(job: Job) -> dict[str, Any]:
    """Play one episode; returns its row."""
    with warnings.catch_warnings():
        # In an arena a learned router meets scenarios and weights that it was not trained on.
        warnings.filterwarnings("ignore", message="learned: trained on")
        result = evaluate(_environment(job.scenario), job.policy, job.seed)
    row: dict[str, Any] = {
        "digest": job.digest,
        "cell": job.cell,
        "policy": job.policy,
        "information": result.information,
        "seed": job.seed,
        "code": code_version(),
    }
    row |= result.summary
    row |= {f"r_{name}": result.rewards[name] for name in WEIGHTS}
    prices = result.diagnostics
    for name in ("price_batch", "price_memory"):
        series = prices.get(name)
        row[name] = float(np.mean(series[len(series) // 2 :])) if series is not None else math.nan
    return row


@cache
def code_version() -> str:
    """Eight hex digits that stand for the code that can change an episode."""
    import policies

    root = Path(__file__).resolve().parents[2]
    places = [root / "cluster", root / "workload", Path(policies.__file__).parent]
    seen = hashlib.sha256()
    for place in places:
        for path in sorted(place.rglob("*.py")):
            seen.update(path.read_bytes())
    return seen.hexdigest()[:8]


def play_at(directory: str, job: Job) -> dict[str, Any]:
    """Play an episode in a worker that may have been started elsewhere."""
    os.chdir(directory)  # a user's own module is found in the directory of this run
    return play(job)


@lru_cache(maxsize=6)
def _environment(scenario: Scenario) -> LLMRouteEnv:
    return LLMRouteEnv(scenario)
