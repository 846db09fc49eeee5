"""Two pools against equal devices: the smallest fleets, and fleets of the same size.

The published comparison (arXiv 2604.08075) is with a fleet in which every device is set up for the
longest context and takes 16 sequences for that reason. An engine with paged KV memory need not be:
it takes as many sequences as memory holds and preempts when they outgrow it. Both are baselines.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from llmroute_env.cluster.state import REJECTED
from llmroute_env.env import LLMRouteEnv
from llmroute_env.evaluation import EpisodeResult, evaluate
from llmroute_env.experiments.capacity import fleets, model, slo
from llmroute_env.experiments.capacity.report import Baseline, saving
from llmroute_env.experiments.capacity.search import Fleet, proportional
from llmroute_env.experiments.capacity.sizing import Sizing, size
from llmroute_env.experiments.capacity.trials import Case, Trials
from llmroute_env.experiments.records import EpisodeRecord
from llmroute_env.experiments.science.pools_report import line, plot, render
from llmroute_env.experiments.science.registry import parallel, seeds_of
from llmroute_env.experiments.science.rows import Row
from llmroute_env.experiments.statistics import mean_interval, paired_improvement
from llmroute_env.scenario import Scenario
from policies.dual_pool.decision import Count
from policies.registry import make

__all__ = ["line", "plot", "render", "run"]

_ALWAYS: Final = ("ttft_p99_s<=20", "rejected_share<=0.002")
#: Objectives of the smallest fleets: shares of the requests within the limits of the scenarios
#: (started within 2 s, finished within 120 s). With 5% long prompts a share alone would let a fleet
#: give up the long pool, so the P99 TTFT, which is a long prompt's, has a limit too.
OBJECTIVES: Final = {
    "90% in time": ("slo_attainment>=0.9", *_ALWAYS),
    "97% in time": ("slo_attainment>=0.97", *_ALWAYS),
}
SEEDS: Final = 6
GAMMAS: Final = (0.0, 1.0, 3.0)  #: beside the default, 2
SAME_SIZE: Final = (
    "ttft_p99_s", "ttft_mean_s", "eel_mean_s", "eel_p99_s", "slo_attainment",
    "preemptions_per_request", "rejected_share",
)  # fmt: skip


class Cell(NamedTuple):
    """A workload, and where its prompts are prefilled."""

    name: str
    workload: str  #: end of the scenarios' names
    changes: Mapping[str, Any]


_DECODE_ONLY: Final = "decode only"
CELLS: Final = (
    Cell("conversation + long", "conv", {}),
    Cell("conversation", "conv", {"workload.lengths.table": "azure-2023-conv"}),
    Cell("code + long", "code", {}),
    Cell(f"conversation + long, {_DECODE_ONLY}", "conv", {"cluster.prefill": None}),
    # Room for 77,000 tokens: a context of 65,536 and little more.
    Cell(
        f"conversation + long, {_DECODE_ONLY}, little memory",
        "conv",
        {"cluster.prefill": None, "memory.utilization": 0.54},
    ),
)


class Fleets(NamedTuple):
    """How the devices of a fleet are set up, and the routers to try on it."""

    scenario: str  #: first words of the scenarios' names
    changes: Mapping[str, Any]
    sized: tuple[str, ...]  #: routers whose smallest fleet is sought
    compared: tuple[str, ...]  #: routers at the same number of devices


FLEETS: Final[Mapping[str, Fleets]] = {
    "equal, 16 sequences": Fleets("homogeneous", {}, ("lor", "lmetric"), ("lor", "sjf", "lmetric")),
    "equal, 128 sequences": Fleets(
        "homogeneous",
        {"cluster.memory.max_num_seqs": 128},
        ("lor", "sjf", "lmetric"),
        ("lor", "sjf", "lmetric"),
    ),
    # Routers that ignore pools are no case for a search over splits: a short device more is little
    # help to them, or none.
    "two pools": Fleets(
        "dual-pool",
        {},
        ("dual_pool",),
        ("dual_pool", "lor", "sjf", *(f"dual_pool:gamma={gamma:g}" for gamma in GAMMAS)),
    ),
}
BASELINE: Final = ("equal, 16 sequences", "lor")
#: The same number of devices, twice: as many as the baseline needs, or as two pools need.
SIZES: Final = {"the baseline's": BASELINE, "the pools'": ("two pools", "dual_pool")}


def routers(cell: Cell, fleet: str, *, sized: bool) -> list[str]:
    """Routers of a fleet; on devices that only decode `lmetric` is join-shortest-queue, so none."""
    found = FLEETS[fleet].sized if sized else FLEETS[fleet].compared
    return [name for name in found if name != "lmetric" or _DECODE_ONLY not in cell.name]


def scenario_of(cell: Cell, fleet: str, quick: bool) -> Scenario:
    """The scenario of a cell on a kind of fleet; episodes drain, so every request has its end."""
    setup = FLEETS[fleet]
    name = f"{setup.scenario}-azure-{cell.workload}"
    changes: dict[str, Any] = {"drain": True, **setup.changes}
    groups = ("groups.0.", "groups.1.") if fleet == "two pools" else ("",)
    for key, value in cell.changes.items():
        if key.startswith("memory."):
            changes |= {f"cluster.{group}{key}": value for group in groups}
        else:
            changes[key] = value
    if quick:
        changes |= {"horizon_periods": 600, "workload.arrivals.rate": 10.0}
    return Scenario.load(name, changes)


def run(quick: bool) -> list[Row]:
    """Every row; ``kind`` says which table it belongs to."""
    cells = CELLS[:2] if quick else CELLS
    rows = [row for part in parallel(_model, [(cell, quick) for cell in cells]) for row in part]
    cases = [
        (cell, fleet, policy, quick)
        for cell in cells
        for fleet in FLEETS
        for policy in routers(cell, fleet, sized=True)
    ]
    sized = _by_cell(cases, parallel(_sized, cases))
    for cell in cells:
        for objective in OBJECTIVES:
            own = {case: found[objective] for case, found in sized[cell.name].items()}
            rows += _capacity(cell, objective, own)
    first = next(iter(OBJECTIVES))
    jobs = []
    for cell in cells:
        for size_of, case in SIZES.items():
            best = sized[cell.name][case][first].best
            if best is None:
                continue
            split = best.fleet if len(best.fleet) > 1 else None
            jobs += [
                (cell, fleet, policy, size_of, best.devices, split, quick)
                for fleet in FLEETS
                for policy in routers(cell, fleet, sized=False)
            ]
    for name, played in _by_cell(jobs, parallel(_played, jobs)).items():
        for size_of in SIZES:
            rows += _same_size(name, size_of, {k[:2]: e for k, e in played.items() if size_of in k})
    return rows


def _by_cell(
    jobs: Sequence[tuple[Any, ...]], results: Sequence[Any]
) -> dict[str, dict[tuple[str, ...], Any]]:
    """Results by the cell's name, then by fleet, policy, and which size where there are two."""
    found: dict[str, dict[tuple[str, ...], Any]] = {}
    for (cell, *case), result in zip(jobs, results, strict=True):
        key = tuple(word for word in case if isinstance(word, str))
        found.setdefault(cell.name, {})[key] = result
    return found


def _model(cell: Cell, quick: bool) -> list[Row]:
    """What the analytical model foresees, with fully loaded fleets in fractions of a device."""
    pools = scenario_of(cell, "two pools", quick)
    estimate = model.estimate(pools)
    assert estimate is not None  # the scenario has a short and a long pool
    rate = pools.offered_load().requests / pools.horizon_s
    row: Row = {"kind": "model", "cell": cell.name, "rate": rate} | estimate._asdict()
    row |= {"saving": estimate.saving, "saving_work": estimate.saving_work}
    for fleet in FLEETS:
        known = estimate if fleet == "two pools" else None
        full = model.devices_at_full_load(scenario_of(cell, fleet, quick), known)
        row[f"full load, {fleet}"] = full
    return [row]


def _sized(cell: Cell, fleet: str, policy: str, quick: bool) -> dict[str, Sizing]:
    """The smallest fleet for each objective; the searches share their episodes."""
    scenario = scenario_of(cell, fleet, quick)
    estimate = model.estimate(scenario)
    played: dict[tuple[Fleet, int], EpisodeRecord] = {}
    found = {}
    for name, texts in OBJECTIVES.items():
        aims = slo.parse_all(texts)
        case = Case(scenario, policy)
        trials = Trials(case, None, aims, seeds_of(quick, SEEDS), played=played)
        found[name] = size(trials, estimate=estimate)
    return found


def _capacity(cell: Cell, objective: str, sized: Mapping[tuple[str, ...], Sizing]) -> list[Row]:
    names = ("saving", "low", "high")
    equal = [key for key in sized if key[0] != "two pools"]
    best_equal = min(equal, key=lambda key: _hours(sized[key]))
    baselines = {"": BASELINE, "_paged": ("equal, 128 sequences", BASELINE[1]), "_best": best_equal}
    rows = []
    for (fleet, policy), sizing in sized.items():
        best, average = sizing.best, sizing.best_on_average
        row: Row = {
            "kind": "capacity",
            "cell": cell.name,
            "objective": objective,
            "fleet": fleet,
            "policy": policy,
            "devices": np.nan if best is None else best.devices,
            "on_average": np.nan if average is None else average.devices,
            "split": "" if best is None else fleets.label(best.fleet),
            "gpus": np.nan if best is None else best.gpus,
            "gpu_hours": _hours(sizing),
            "best_equal": " ".join(best_equal),
            "played": len(sizing.trials),
            "contradictions": len(sizing.found.contradictions),
        }
        for suffix, key in baselines.items():
            gain = saving(sizing, Baseline.of(sized[key]))
            row |= {f"{name}{suffix}": g for name, g in zip(names, gain, strict=True)}
        if best is not None:
            summaries = [slo.with_shares(record.summary) for record in best.records]
            row |= {key: float(np.mean([s[key] for s in summaries])) for key in SAME_SIZE}
        rows.append(row)
    return rows


def _hours(sizing: Sizing) -> float:
    """GPU-hours of the smallest fleet, mean over seeds; infinite where there is none."""
    best = sizing.best
    return np.inf if best is None else float(np.mean(list(best.gpu_hours.values())))


def _played(
    cell: Cell,
    fleet: str,
    policy: str,
    size_of: str,  # noqa: ARG001  (part of the job's name)
    devices: int,
    split: Fleet | None,
    quick: bool,
) -> list[Row]:
    """Episodes of a fleet of so many devices: summary and what became of the routing."""
    scenario = scenario_of(cell, fleet, quick)
    if fleet != "two pools":
        split = (devices,)
    elif split is None:
        weights = model.proportions(scenario, model.estimate(scenario))
        split = proportional(tuple(weights))(devices)
    scenario = fleets.resized(scenario, split)
    env = LLMRouteEnv(scenario)
    rows = []
    for seed in seeds_of(quick, SEEDS):
        router = make(policy, env)
        result = evaluate(env, router, seed)
        row: Row = {"seed": seed, "split": fleets.label(split)} | slo.with_shares(result.summary)
        if fleet == "two pools":
            row |= _routing(scenario, env, result)
        if policy.startswith("dual_pool"):
            counts = router.memory.counts
            row["spilled_share"] = counts[Count.SPILLED] / counts[Count.SENT]
        rows.append(row)
    return rows


def _routing(scenario: Scenario, env: LLMRouteEnv, result: EpisodeResult) -> Row:
    """Shares of all requests that went wrong in one way or the other.

    ``refused``: actions that a device would not take, per request (the request is held and sent
    again); ``rejected_there``: lost, as s + o was too long for the device; ``too_long_pool``: on a
    long device though a short one would have held it.
    """
    log, spec = result.log, env.spec_cluster
    order = model.order(scenario)
    assert order is not None
    short = fleets.names(scenario)[order[0]]
    is_short = np.array([name == short for name in spec.pool])
    reach = int(spec.largest[is_short].min())
    sent = log["device"] >= 0
    tokens = log["prompt"] + log["decode"]
    on_long = sent & ~is_short[log["device"]]
    count = max(len(tokens), 1)
    return {
        "refused": result.stats.invalid_actions / count,
        "rejected_there": np.count_nonzero(sent & (log["status"] == REJECTED)) / count,
        "too_long_pool": np.count_nonzero(on_long & (tokens <= reach)) / count,
    }


def _same_size(
    cell: str, size_of: str, played: Mapping[tuple[str, ...], Sequence[Row]]
) -> list[Row]:
    """Means with intervals, and the gain over the baseline, paired by seed."""
    rows = []
    for (fleet, policy), episodes in played.items():
        head = {"cell": cell, "fleet": fleet, "policy": policy, "split": episodes[0]["split"]}
        routing = [key for key in ("refused", "rejected_there", "too_long_pool", "spilled_share")
                   if key in episodes[0]]  # fmt: skip
        for metric in (*SAME_SIZE, *routing):
            values = [float(episode[metric]) for episode in episodes]
            mean = mean_interval(values)
            row: Row = {"kind": "same", "size": size_of, **head, "metric": metric}
            row |= {"mean": mean.estimate, "low": mean.low, "high": mean.high}
            base = [float(episode.get(metric, np.nan)) for episode in played[BASELINE]]
            if metric in ("ttft_p99_s", "ttft_mean_s", "eel_mean_s", "eel_p99_s", "slo_attainment"):
                gain = paired_improvement(metric, base, values)
                row |= {"gain": gain.estimate, "gain_low": gain.low, "gain_high": gain.high}
            rows.append(row)
    return rows
