"""Tables behind the curves: zeta2, the latency plane, drift's worth, prices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pandas as pd

from llmroute_env.env import LLMRouteEnv
from llmroute_env.evaluation import evaluate
from llmroute_env.experiments.science import sweeps, verdicts
from llmroute_env.experiments.science.claims import BASELINES, OLP, SJF, paper_cell
from llmroute_env.experiments.science.episodes import Cell, Episodes
from llmroute_env.experiments.science.tables import level
from llmroute_env.experiments.statistics import Interval
from llmroute_env.scenario.saturation import limits

#: Settings of the rivals on the plane of mean and P99 EEL.
_AGINGS: Final = ("0.05", "0.2", "1", "5")
RIVALS: Final = ("central_fifo", SJF, *(f"sjf:aging={a}" for a in _AGINGS), "mc_sf")
PLANE_CELLS: Final[dict[str, dict[str, Any]]] = {
    "batch binds": {},
    "memory binds": sweeps.PRICE_CELLS["overload, memory binds (B 96, M 7,100)"],
}
SERIES_CELLS: Final[dict[str, dict[str, Any]]] = {
    "rate shift (λ 0.4, then 0.6)": {"load": "shift"},
    "overload, memory binds": sweeps.PRICE_CELLS["overload, memory binds (B 96, M 7,100)"],
}
PLANE_WEIGHTS: Final = ("average", "mixed", "tail")


def zeta2(episodes: Episodes, fluid: bool) -> pd.DataFrame:
    """Share of arrived requests that start inside the limit, by zeta2.

    Columns: policy, zeta2, n, mean, low, high, step_low, step_high (difference to the zeta2
    before), whole_low, whole_high (largest zeta2 against the smallest).
    """
    rows = []
    for policy in [*sweeps.price_policies(fluid), SJF, *BASELINES]:
        cells = sweeps.zeta2_cells()
        first = before = episodes.values(cells[0][1], policy, "inside_start")
        for value, cell in cells:
            own = episodes.values(cell, policy, "inside_start")
            step, whole = verdicts.difference(before, own), verdicts.difference(first, own)
            rows.append(
                {"policy": policy, "zeta2": value}
                | level(episodes, cell, policy, "inside_start")
                | {"step": step.estimate, "step_low": step.low, "step_high": step.high}
                | {"whole": whole.estimate, "whole_low": whole.low, "whole_high": whole.high}
            )
            before = own
    return pd.DataFrame(rows)


def rises(table: pd.DataFrame, policy: str) -> str:
    """Verdict on "q rises with zeta2": significant overall, and no significant fall on the way."""
    own = table[table["policy"] == policy]
    falls = int((own["step_high"] < 0).sum())
    whole = own.iloc[-1]
    verdict = verdicts.of_gain(Interval(whole["whole"], whole["whole_low"], whole["whole_high"]))
    if verdict != verdicts.REPRODUCES:
        return verdict
    return verdicts.PARTLY if falls else verdicts.REPRODUCES


def plane_wanted(fluid: bool) -> list[tuple[Cell, str]]:
    """Episodes of the latency plane."""
    found = []
    for settings in PLANE_CELLS.values():
        for weighting in PLANE_WEIGHTS:
            cell = paper_cell(**({"load": "overload"} | settings), weighting=weighting)
            found += [(cell, policy) for policy in (*RIVALS, *sweeps.price_policies(fluid))]
    return found


def plane(episodes: Episodes, fluid: bool) -> pd.DataFrame:
    """Mean and P99 EEL of rivals and of OLP under several weights.

    Columns: where, policy, weights, family, n, mean, mean_low, mean_high, p99, p99_low, p99_high,
    dominated_by (rivals that are significantly better on one axis and not significantly worse on
    the other, in OLP's rows).
    """
    rows = []
    for where, settings in PLANE_CELLS.items():
        for weighting in PLANE_WEIGHTS:
            cell = paper_cell(**({"load": "overload"} | settings), weighting=weighting)
            for policy in (*RIVALS, *sweeps.price_policies(fluid)):
                family = policy.startswith("olp")
                if not family and weighting != PLANE_WEIGHTS[0]:
                    continue
                mean = level(episodes, cell, policy, "eel_mean_s")
                tail = level(episodes, cell, policy, "eel_p99_s")
                better = [r for r in RIVALS if family and _dominates(episodes, cell, r, policy)]
                rows.append(
                    {"where": where, "policy": policy, "weights": weighting if family else ""}
                    | {"family": family, "n": mean["n"]}
                    | {"mean": mean["mean"], "mean_low": mean["low"], "mean_high": mean["high"]}
                    | {"p99": tail["mean"], "p99_low": tail["low"], "p99_high": tail["high"]}
                    | {"dominated_by": ", ".join(better)}
                )
    return pd.DataFrame(rows)


def _dominates(episodes: Episodes, cell: Cell, rival: str, policy: str) -> bool:
    words = [
        verdicts.of_gain(
            verdicts.gain(
                key, episodes.values(cell, policy, key), episodes.values(cell, rival, key)
            )
        )
        for key in ("eel_mean_s", "eel_p99_s")
    ]
    return verdicts.REPRODUCES in words and verdicts.FAILS not in words


def drift_worth(episodes: Episodes) -> pd.DataFrame:
    """Table 2's setting with and without the detector.

    Columns: policy, label, metric, n, mean, low, high, gain, gain_low, gain_high (over the
    detector's router, percent).
    """
    cell = paper_cell("shift", "average")
    rows = []
    for policy, label in sweeps.DRIFT_POLICIES.items():
        for key in ("eel_mean_s", "eel_p99_s", "slo_attainment", "reward"):
            own = episodes.values(cell, policy, key)
            gained = verdicts.gain(key, episodes.values(cell, OLP, key), own)
            rows.append(
                {"policy": policy, "label": label, "metric": key}
                | level(episodes, cell, policy, key)
                | {"gain": gained.estimate, "gain_low": gained.low, "gain_high": gained.high}
            )
    return pd.DataFrame(rows)


def prices(episodes: Episodes, fluid: bool) -> pd.DataFrame:
    """What a mean request pays per iteration for its slot and for its memory.

    In shares of the largest reward, over the second half of the episode: the batch price, and the
    memory price times the mean KV of a request (s + o / 2) over M, which is the unit of the memory
    price. Columns: where, policy, n, batch, batch_low, batch_high, memory, memory_low,
    memory_high, memory_share, verdict (which of the two is larger on paired seeds), load_batch,
    load_kv (offered).
    """
    rows = []
    for where, settings in sweeps.PRICE_CELLS.items():
        cell = paper_cell(**settings)
        load = cell.scenario.offered_load()
        tokens = _mean_kv(cell) / limits(cell.scenario)[0].kv_limit
        for policy in sweeps.price_policies(fluid):
            batch = episodes.values(cell, policy, "price_batch")
            memory = episodes.values(cell, policy, "price_memory") * tokens
            gap = verdicts.difference(batch, memory)
            paid = {"batch": batch, "memory": memory}
            row: dict[str, Any] = {"where": where, "policy": policy, "n": len(batch)}
            for name, values in paid.items():
                mean = verdicts.mean_of(values)
                row |= {name: mean.estimate, f"{name}_low": mean.low, f"{name}_high": mean.high}
            total = row["batch"] + row["memory"]
            row["memory_share"] = row["memory"] / total if total else np.nan
            larger = {verdicts.REPRODUCES: "memory", verdicts.FAILS: "batch"}
            row["larger"] = larger.get(verdicts.of_gain(gap), verdicts.UNDECIDED)
            row |= {"load_batch": load.batch, "load_kv": load.kv}
            rows.append(row)
    return pd.DataFrame(rows)


def price_series(seeds: Sequence[int], fluid: bool) -> pd.DataFrame:
    """Prices over time, played anew: they are too many numbers for the episodes' file.

    Columns: where, policy, period, n, batch, memory: per iteration of a mean request as in
    `prices`, means over the seeds.
    """
    parts = []
    for where, settings in SERIES_CELLS.items():
        cell = paper_cell(**settings)
        tokens = _mean_kv(cell) / limits(cell.scenario)[0].kv_limit
        env = LLMRouteEnv(cell.of_readers)
        for policy in sweeps.price_policies(fluid):
            played = [evaluate(env, policy, seed).diagnostics for seed in seeds]
            frames = [pd.DataFrame(one) for one in played if one]
            if frames:
                mean = pd.concat(frames).groupby("period", as_index=False).mean()
                mean["batch"], mean["memory"] = mean["price_batch"], mean["price_memory"] * tokens
                mean = mean.assign(where=where, policy=policy, n=len(frames))
                parts.append(mean[["where", "policy", "period", "n", "batch", "memory"]])
    return pd.concat(parts, ignore_index=True)


def _mean_kv(cell: Cell) -> float:
    lengths: Any = cell.scenario.workload.lengths
    return float(lengths.prompt.mean + 0.5 * lengths.decode.mean)
