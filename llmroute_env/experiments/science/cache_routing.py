"""LMETRIC and its rivals where prompts share prefixes: conversations, agents, Mooncake's trace.

Each workload is run over a range of loads, because the published improvements are ratios to a
router that does not see the caches: near the load at which that one is overloaded they are as
large as one likes. Variants of LMETRIC, each with one ingredient less, say what does the work.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from llmroute_env.env import LLMRouteEnv
from llmroute_env.evaluation import EpisodeResult, evaluate
from llmroute_env.experiments.science.cache_routing_report import line, plot, render
from llmroute_env.experiments.science.registry import parallel, seeds_of
from llmroute_env.experiments.science.rows import Row
from llmroute_env.scenario import Scenario
from llmroute_env.workload.traces import TraceMissingError
from policies.registry import make

__all__ = ["line", "plot", "render", "run"]

SEEDS: Final = 6
#: Pieces of the trace, by arrival, that stand for seeds: the trace is one sample path.
PIECES: Final = 8

RIVALS: Final = (
    "round_robin",
    "lor",
    "vllm_dp",
    "sjf",
    "dynamo_kv",
    "sglang_cache",
    "llmd",
    "llmd:prefix=3:kv=2:queue=2",
    "linear_cache",
    "lmetric",
    "prefix_priced",
)
#: LMETRIC without one of its ingredients, and the priced rule without requests to come.
VARIANTS: Final = (
    "lmetric:queued=false",
    "lmetric:inflight=false",
    "lmetric:cache=false",
    "lmetric:guard=off",
    "prefix_priced:future=0",
)


class Workload(NamedTuple):
    """A scenario, and the loads to run it at."""

    name: str
    scenario: str
    key: str  #: of the load
    unit: str
    loads: tuple[float, ...]
    main: float  #: the scenario's own load, which routers blind to caches just hold

    @property
    def replayed(self) -> bool:
        """Whether it is a trace, one sample path."""
        return "trace" in self.key


WORKLOADS: Final = (
    Workload(
        "conversations",
        "chat-prefix",
        "workload.arrivals.rate",
        "requests/s",
        (24.0, 32.0, 36.0, 40.0, 44.0),
        32.0,
    ),
    Workload(
        "agents",
        "agent-prefix",
        "workload.arrivals.rate",
        "requests/s",
        (6.0, 8.0, 10.0, 12.0),
        8.0,
    ),
    Workload(
        "Mooncake",
        "mooncake-conversation",
        "workload.trace.rate_scale",
        "times as fast",
        (1.5, 2.0, 2.4, 2.7),
        2.0,
    ),
)


def run(quick: bool) -> list[Row]:
    """Every router at every load; quick: the main load alone, short episodes."""
    seeds = seeds_of(quick, SEEDS)
    jobs = [
        (workload, load, seed, quick)
        for workload in WORKLOADS
        if _has_its_trace(workload)
        for load in ((workload.main,) if quick else workload.loads)
        for seed in (seeds[:1] if workload.replayed else seeds)
    ]
    # The long episodes first, so that no core waits for the last one.
    jobs.sort(key=lambda job: (job[0].name != "Mooncake", -job[1]))
    rows: list[Row] = [row for found in parallel(play, jobs) for row in found]
    order = {workload.name: i for i, workload in enumerate(WORKLOADS)}
    rows.sort(key=lambda row: (order[row["workload"]], row["load"], row["unit"]))
    return rows


def play(workload: Workload, load: float, seed: int, quick: bool) -> list[Row]:
    """All routers on one sample path."""
    overrides: dict[str, Any] = {workload.key: load}
    replayed = workload.replayed
    if quick:
        short = {"workload.trace.max_requests": 1500} if replayed else {"horizon_periods": 2400}
        overrides |= short if replayed else short | {"warmup_s": 20.0}
    scenario = Scenario.load(workload.scenario, overrides)
    env = LLMRouteEnv(scenario)
    rows: list[Row] = []
    for policy in RIVALS + VARIANTS:
        router = make(policy, env)
        result = evaluate(env, router, seed)
        common: Row = {
            "workload": workload.name,
            "load": load,
            "main": load == workload.main,
            "unit_of_load": workload.unit,
            "policy": policy,
            "information": result.information,
        }
        common |= _counters(router.diagnostics())
        if replayed:
            rows += [common | piece for piece in _pieces(result)]
        else:
            rows.append(common | _of_episode(result, seed, scenario.warmup_s))
    return rows


def _has_its_trace(workload: Workload) -> bool:
    try:
        LLMRouteEnv(Scenario.load(workload.scenario))
    except TraceMissingError:
        return False
    return True


def _counters(diagnostics: Mapping[str, Any]) -> Row:
    """Shares of the requests that LMETRIC's failure detector found overloading their devices."""
    sent = diagnostics.get("sent", 0)
    keys = ("detected", "persistent")
    return {key: diagnostics[key] / sent if sent else float("nan") for key in keys}


def _of_episode(result: EpisodeResult, seed: int, warmup_s: float) -> Row:
    keys = ("ttft_mean_s", "ttft_p95_s", "ttft_p99_s", "tpot_mean_s", "eel_mean_s")
    row: Row = {"unit": seed} | {key: float(result.summary[key]) for key in keys}
    log = result.log
    started = (log["start_s"] >= 0) & (log["arrival_s"] >= warmup_s)
    row["hit"] = _hit(log, started)
    row["unfinished"] = float(result.summary["unfinished"]) / float(result.summary["arrived"])
    return row


def _pieces(result: EpisodeResult) -> list[Row]:
    """The metrics of consecutive parts of the trace; everything has finished, episodes drain."""
    log = result.log
    if not np.all(log["finish_s"] >= 0):
        raise RuntimeError(f"{result.policy}: requests of a drained episode have not finished")
    ttft = log["first_token_s"] - log["arrival_s"]
    eel = log["finish_s"] - log["arrival_s"]
    rows = []
    for number, part in enumerate(np.array_split(np.argsort(log["arrival_s"]), PIECES)):
        decode = log["decode"][part]
        gaps = (eel[part] - ttft[part])[decode > 1] / (decode[decode > 1] - 1)
        rows.append(
            {
                "unit": number,
                "ttft_mean_s": float(ttft[part].mean()),
                "ttft_p95_s": float(np.percentile(ttft[part], 95)),
                "ttft_p99_s": float(np.percentile(ttft[part], 99)),
                "tpot_mean_s": float(gaps.mean()),
                "eel_mean_s": float(eel[part].mean()),
                "hit": _hit(log, part),
                "unfinished": 0.0,
            }
        )
    return rows


def _hit(log: Mapping[str, NDArray[Any]], rows: NDArray[Any] | Sequence[int]) -> float:
    """Share of the prompt tokens that were cached when their requests joined a batch."""
    return float(log["cached"][rows].sum() / log["prompt"][rows].sum())
