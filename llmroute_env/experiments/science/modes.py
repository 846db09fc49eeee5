"""OLP on fleets of unlike devices, and on devices that prefill what they decode.

The paper's model has equal devices and prefill elsewhere; its appendix A adds prefill on the device
and prices per device cover unlike ones. It reports no experiment for either.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple

from llmroute_env.env import LLMRouteEnv
from llmroute_env.evaluation import evaluate
from llmroute_env.experiments.load import at_load
from llmroute_env.experiments.science.modes_report import line, plot, render
from llmroute_env.experiments.science.registry import parallel, seeds_of
from llmroute_env.experiments.science.rows import Row
from llmroute_env.scenario import Scenario
from policies.registry import make

__all__ = ["line", "plot", "render", "run"]

SEEDS: Final = 6
_QUICK_PERIODS: Final = 600

POLICIES: Final = (
    "round_robin", "lor", "central_fifo", "sjf", "mc_sf", "olp:pricing=paper", "olp:pricing=fluid",
)  # fmt: skip
METRICS: Final = (
    "eel_mean_s", "eel_p99_s", "ttft_p99_s", "slo_attainment", "reward", "throughput_tok_s",
    "preemptions", "recomputed_tokens", "arrived", "completed", "unfinished", "misrouted",
    "hidden_share",
)  # fmt: skip


class Cell(NamedTuple):
    """A scenario of the section."""

    name: str
    scenario: str
    changes: Mapping[str, Any]
    load: float | None  #: offered load that the arrivals are scaled to; None: as they are


def _pool(name: str, devices: int, model: str, slots: int) -> dict[str, Any]:
    return {
        "name": name,
        "devices": devices,
        "timing": {"kind": "profile", "device": "a100-80gb", "model": model, "tp": 1},
        "memory": {"utilization": 0.9, "max_num_seqs": slots},
    }


#: Llama-2-7B: M 112,112, context 4,096; Llama-3-8B: M 428,768 (grouped queries), context 8,192.
_POOLS: Final = [_pool("short", 3, "llama-2-7b", 48), _pool("long", 1, "llama-3-8b", 96)]
_EQUAL: Final = ("batch_limit", "kv_limit", "context_limit", "timing", "memory")
_TWO_POOLS: Final = {f"cluster.{key}": None for key in _EQUAL} | {"cluster.groups": _POOLS}
_CHUNKED: Final = {"cluster.prefill": {"chunk_tokens": 512, "emits_token": True}}

CELLS: Final = (
    Cell("two pools, load 1.15", "azure-conv-a100", _TWO_POOLS, 1.15),
    Cell("appendix A, stable", "paper-stable", {"cluster.prefill": {}}, None),
    Cell("appendix A, overloaded", "paper-overload", {"cluster.prefill": {}}, None),
    Cell("A100, chunks of 512, load 0.95", "azure-conv-a100", _CHUNKED, 0.95),
    Cell("A100, chunks of 512, load 1.15", "azure-conv-a100", _CHUNKED, 1.15),
)


def run(quick: bool) -> list[Row]:
    """A row per episode."""
    jobs = [
        (cell, policy, seed, quick)
        for cell in CELLS
        for seed in seeds_of(quick, SEEDS)
        for policy in POLICIES
    ]
    return parallel(play, jobs)


def scenario_of(cell: Cell, quick: bool) -> Scenario:
    """The cell's scenario, its window above every queue that occurs."""
    short = {"horizon_periods": _QUICK_PERIODS} if quick else {}
    made = Scenario.load(cell.scenario, {"router.window": 2048} | dict(cell.changes) | short)
    return made if cell.load is None else at_load(made, cell.load)


@lru_cache(maxsize=2)
def _environment(name: str, quick: bool) -> LLMRouteEnv:
    (cell,) = (cell for cell in CELLS if cell.name == name)
    return LLMRouteEnv(scenario_of(cell, quick))


def play(cell: Cell, policy: str, seed: int, quick: bool) -> Row:
    """One episode."""
    env = _environment(cell.name, quick)
    played = evaluate(env, make(policy, env), seed)
    row: Row = {"cell": cell.name, "policy": policy, "seed": seed}
    row |= {key: float(played.summary[key]) for key in METRICS}
    row["invalid"] = int(played.stats.invalid_actions)
    load = env.scenario.offered_load()
    return row | {"load": load.rho, "binding": load.binding}
