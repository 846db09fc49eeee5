"""Tables of a capacity search: CSV files, and what the terminal shows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
from rich import box
from rich.table import Table
from rich.text import Text

from llmroute_env.experiments.capacity.fleets import label, names
from llmroute_env.experiments.capacity.sizing import Sizing
from llmroute_env.experiments.capacity.slo import Slo, with_shares
from llmroute_env.experiments.capacity.trials import Trial
from llmroute_env.experiments.table import number


@dataclass(frozen=True)
class Baseline:
    """What savings are against: a case of the search, or a fleet that is there already.

    Attributes:
        name: for heads and captions.
        gpus: of the smallest fleet that passes; None if there is none.
        gpus_on_average: of the smallest by means.
        gpu_hours: of the smallest fleet, mean over seeds; NaN for a given fleet.
    """

    name: str
    gpus: int | None
    gpus_on_average: int | None
    gpu_hours: float = math.nan

    @classmethod
    def of(cls, sizing: Sizing) -> Baseline:
        """The smallest fleet of a case."""
        best, average = sizing.best, sizing.best_on_average
        return cls(
            sizing.case.name,
            None if best is None else best.gpus,
            None if average is None else average.gpus,
            math.nan if best is None else _mean_hours(best),
        )

    @classmethod
    def given(cls, gpus: int) -> Baseline:
        """A fleet of so many GPUs."""
        return cls(f"a fleet of {gpus} GPUs", gpus, gpus)


def saving(sizing: Sizing, baseline: Baseline) -> tuple[float, float, float]:
    """Share of the baseline's GPU-hours that a case saves, and what the seeds leave open.

    Returns:
        The saving of the smallest fleet that passes over that of the baseline, in GPU-hours (in
        GPUs for a given fleet, used as long); then the same in GPUs between the smallest that
        passes and the baseline's smallest by means, and the other way round: a range. NaN where
        there is no such fleet.
    """
    best, average = sizing.best, sizing.best_on_average
    if best is None or baseline.gpus is None:
        return math.nan, math.nan, math.nan
    if math.isnan(baseline.gpu_hours):
        point = 1.0 - best.gpus / baseline.gpus
    else:
        point = 1.0 - _mean_hours(best) / baseline.gpu_hours
    low = 1.0 - best.gpus / (baseline.gpus_on_average or baseline.gpus)
    high = 1.0 - (average or best).gpus / baseline.gpus
    return point, min(low, point), max(high, point)


def episodes(sizings: Sequence[Sizing]) -> pd.DataFrame:
    """One row per scenario, policy, fleet and seed."""
    rows = []
    for trial in (trial for sizing in sizings for trial in sizing.trials):
        hours = trial.gpu_hours
        for record in trial.records:
            row = {**record.row(), "scenario": trial.case.scenario.name}
            row.pop("load", None)
            seed = row.pop("seed")
            head = {key: row.pop(key) for key in ("scenario", "policy", "information")}
            size = {"fleet": label(trial.fleet), "devices": trial.devices, "gpus": trial.gpus}
            rows.append(head | size | {"seed": seed, "gpu_hours": hours[record.seed]} | row)
    return pd.DataFrame(rows)


def sizes(sizings: Sequence[Sizing], slos: Sequence[Slo]) -> pd.DataFrame:
    """One row per scenario, policy, fleet and objective."""
    rows = []
    for trial in (trial for sizing in sizings for trial in sizing.trials):
        for slo, verdict in zip(slos, trial.verdicts, strict=True):
            rows.append(
                {
                    "scenario": trial.case.scenario.name,
                    "policy": trial.case.policy,
                    "fleet": label(trial.fleet),
                    "devices": trial.devices,
                    "gpus": trial.gpus,
                    "seeds": len(trial.records),
                    "passed": trial.passed,
                    "slo": str(slo),
                    "mean": verdict.mean,
                    "bound": verdict.bound,
                    "met": verdict.met,
                }
            )
    return pd.DataFrame(rows)


def capacity(sizings: Sequence[Sizing], slos: Sequence[Slo], baseline: Baseline) -> pd.DataFrame:
    """One row per scenario and policy."""
    rows = []
    for sizing in sizings:
        best, average = sizing.best, sizing.best_on_average
        point, low, high = saving(sizing, baseline)
        row: dict[str, Any] = {
            "scenario": sizing.case.scenario.name,
            "policy": sizing.case.policy,
            "information": sizing.trials[0].records[0].information if sizing.trials else "",
            "slo": " ".join(map(str, slos)),
            "fleet": "" if best is None else label(best.fleet),
            "devices": None if best is None else best.devices,
            "gpus": None if best is None else best.gpus,
            "gpu_hours": math.nan if best is None else _mean_hours(best),
            "fleet_on_average": "" if average is None else label(average.fleet),
            "gpus_on_average": None if average is None else average.gpus,
            "baseline": baseline.name,
            "saving": point,
            "saving_low": low,
            "saving_high": high,
            "fleets_played": len(sizing.trials),
            "contradictions": "; ".join(
                f"{label(a)} passed, {label(b)} failed" for a, b in sizing.found.contradictions
            ),
        }
        estimate = sizing.estimate
        if estimate is not None:
            row |= {f"model_{key}": value for key, value in estimate._asdict().items()}
            row |= {"model_saving": estimate.saving, "model_saving_work": estimate.saving_work}
        rows.append(row)
    return pd.DataFrame(rows)


def table(sizings: Sequence[Sizing], slos: Sequence[Slo], baseline: Baseline) -> Table:
    """The answer: a row per case, the objectives at its smallest fleet."""
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, title_justify="left", caption_justify="left")
    made.title = "smallest fleet with " + ", ".join(map(str, slos))
    for head in ("scenario", "policy"):
        made.add_column(head, no_wrap=True)
    for head in (
        "uses length",
        "devices",
        "by means",
        "GPUs",
        "GPU-hours",
        "saving",
        *map(str, slos),
    ):
        made.add_column(head, justify="right")
    for sizing in sizings:
        best, average = sizing.best, sizing.best_on_average
        information = sizing.trials[0].records[0].information
        row = [sizing.case.scenario.name, sizing.case.policy, information]
        if best is None:
            nearest = sizing.trials[-1]
            cells = [f"none up to {sizing.ceiling}", *("–",) * 4]
            verdicts = nearest.verdicts
        else:
            point, low, high = saving(sizing, baseline)
            gain = "baseline" if sizing.case.name == baseline.name else _percents(point, low, high)
            cells = [
                _devices(best),
                "–" if average is None else label(average.fleet),
                f"{best.gpus}",
                number(_mean_hours(best), 3),
                gain,
            ]
            verdicts = best.verdicts
        shown = [f"{number(v.mean, 3)} ({number(v.bound, 3)})" for v in verdicts]
        made.add_row(*(Text(text) for text in (*row, *cells, *shown)))
    return made


def notes(sizings: Sequence[Sizing], slos: Sequence[Slo], baseline: Baseline) -> list[str]:
    """How to read the table, and what to know before one believes it."""
    found = [
        "objectives: mean over seeds (one-sided confidence bound, which must keep the limit); "
        f"saving in GPU-hours against {baseline.name}, in brackets what the seeds leave open"
    ]
    limited = {slo.key for slo in slos}
    for sizing in sizings:
        name, best = sizing.case.name, sizing.best
        for small, large in sizing.found.contradictions:
            found.append(
                f"{name}: not monotone, {label(small)} devices passed and {label(large)} failed"
            )
        if best is None:
            worst = sizing.trials[-1]
            missed = [str(s) for s, v in zip(slos, worst.verdicts, strict=True) if v.met is False]
            found.append(f"{name}: {label(worst.fleet)} devices miss {', '.join(missed)}")
            continue
        shares = [with_shares(record.summary) for record in best.records]
        for key in ("rejected_share", "unfinished_share", "hidden_share"):
            mean = sum(share[key] for share in shares) / len(shares)
            if mean > 0 and key not in limited and "slo_attainment" not in limited:
                found.append(f"{name}: {key} is {mean:.2%} at {label(best.fleet)}, no objective")
        if sizing.estimate is not None:
            found.append(f"{name}: {model_words(sizing)}")
    return found


def model_words(sizing: Sizing) -> str:
    """The analytical model in a sentence."""
    estimate = sizing.estimate
    assert estimate is not None
    return (
        f"model alpha * (1 - 1/rho) with alpha {estimate.alpha:.3f} of the requests "
        f"({estimate.alpha_work:.3f} of the work) and rho {estimate.rho:.2f} "
        f"({estimate.short_rps:.2f} over {estimate.long_rps:.2f} short requests/s and device): "
        f"saves {estimate.saving:.1%} ({estimate.saving_work:.1%})"
    )


def _devices(trial: Trial) -> str:
    """``12 (9 short + 3 long)``."""
    pools = names(trial.case.scenario)
    if len(pools) == 1:
        return f"{trial.devices}"
    parts = " + ".join(f"{n} {pool}" for n, pool in zip(trial.fleet, pools, strict=True))
    return f"{trial.devices} ({parts})"


def _percents(point: float, low: float, high: float) -> str:
    if math.isnan(point):
        return "–"
    return f"{point:+.1%} [{low:+.0%}, {high:+.0%}]"


def _mean_hours(trial: Trial) -> float:
    hours = trial.gpu_hours
    return sum(hours.values()) / len(hours)
