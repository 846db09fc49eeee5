"""Measurements as tables: every row has its n and interval, and a verdict where one is due.

Each function returns a frame that is written as a CSV beside the episodes; the report and the
plots are made from these frames and from nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import pandas as pd

from llmroute_env.experiments.science import sweeps, verdicts
from llmroute_env.experiments.science.claims import (
    BASELINE,
    BASELINES,
    FIGURES,
    KEYS,
    OLP,
    PUBLISHED,
    SJF,
    TARGETS,
    paper_cell,
)
from llmroute_env.experiments.science.episodes import Cell, Episodes, shared
from llmroute_env.experiments.statistics import Interval
from llmroute_env.metrics import METRICS

_METHODS: Final = {"LOR": "lor", "Power-of-2": "power_of_d"}


def published(episodes: Episodes) -> pd.DataFrame:
    """Tables 1 and 2 under every load, weight setting, prediction and way of counting.

    Columns: table, method, router, load, weights, prediction, counting, figure, published, ours,
    low, high, n, verdict, unfinished and unfinished_baseline (percent of arrived requests that the
    end of the episode cut off, of the method and of round robin). Shortest-first is there as a
    method without a published figure.
    """
    rows = []
    for load, weighting, prediction in sweeps.table_cells():
        table = "Table 2" if load == "shift" else "Table 1"
        cell = paper_cell(load, weighting, prediction)
        entries = [("OLP", policy, name) for policy, name in sweeps.ROUTERS.items()]
        if weighting == "average":  # rules that do not read the weights
            entries += [(method, policy, "") for method, policy in _METHODS.items()]
            entries.append(("shortest first", SJF, ""))
        for counting in KEYS:
            head = {"table": table, "load": load, "weights": weighting, "prediction": prediction}
            for method, policy, router in entries:
                own = head | {"method": method, "router": router, "counting": counting}
                wanted = PUBLISHED[table].get(method)
                rows += [own | row for row in _against(episodes, cell, policy, counting, wanted)]
    return pd.DataFrame(rows)


def constants(episodes: Episodes) -> pd.DataFrame:
    """Table 1's OLP row while B, M, T, counting and the spread of lengths change.

    Columns: point, weights, method, counting, figure, published, ours, low, high, n, verdict,
    unfinished, unfinished_baseline.
    """
    rows = []
    for point in sweeps.constants():
        for weighting in ("average", "tail"):
            cell = paper_cell("overload", weighting, **point.overrides)
            for policy, method in {**sweeps.ROUTERS, SJF: "shortest first"}.items():
                if policy == SJF and weighting == "tail":
                    continue
                head = {"point": point.label, "weights": weighting, "method": method}
                against = _against(
                    episodes, cell, policy, point.counting, PUBLISHED["Table 1"]["OLP"]
                )
                rows += [head | {"counting": point.counting} | row for row in against]
    return pd.DataFrame(rows)


def tails(episodes: Episodes) -> pd.DataFrame:
    """Which rule makes the tails of the text's router, tail weights at lambda 0.5.

    Columns: horizon, policy, label, counting, figure, n, ours, low, high (improvement over round
    robin), unfinished, unfinished_baseline (percent of arrived), wait (longest wait [s]).
    """
    rows = []
    for horizon in sweeps.TAIL_HORIZONS:
        cell = sweeps.tail_cell(horizon)
        for policy, label in sweeps.TAIL_POLICIES.items():
            wait = float(episodes.values(cell, policy, "wait_max_s").mean())
            for counting in KEYS:
                head = {"horizon": horizon, "policy": policy, "label": label, "counting": counting}
                found = _against(episodes, cell, policy, counting, None)
                rows += [head | row | {"wait": wait} for row in found if "EEL" in row["figure"]]
    return pd.DataFrame(rows)


def matrix(episodes: Episodes) -> pd.DataFrame:
    """Figures 4 to 12 and 14 to 24: is the targeted metric better than every baseline's?

    Columns: lengths, load, prediction, weights, metric, best_baseline, gain, low, high, n,
    verdict, sjf_gain, sjf_low, sjf_high (gain over central shortest-first).
    """
    rows = []
    for lengths, load, prediction in sweeps.matrix_cells():
        for weighting in sweeps.MATRIX_WEIGHTS:
            cell = paper_cell(load, weighting, prediction, lengths)
            for key in TARGETS[weighting]:
                best, gained = over_best(episodes, cell, OLP, key, BASELINES)
                over = verdicts.gain(
                    key, episodes.values(cell, SJF, key), episodes.values(cell, OLP, key)
                )
                rows.append(
                    {
                        "lengths": lengths,
                        "load": load,
                        "prediction": prediction,
                        "weights": weighting,
                        "metric": key,
                        "best_baseline": best,
                        "gain": gained.estimate,
                        "low": gained.low,
                        "high": gained.high,
                        "n": len(episodes.values(cell, OLP, key)),
                        "verdict": verdicts.of_gain(gained, verdicts.LEAST),
                        "sjf_gain": over.estimate,
                        "sjf_low": over.low,
                        "sjf_high": over.high,
                    }
                )
    return pd.DataFrame(rows)


def tradeoff(episodes: Episodes) -> pd.DataFrame:
    """Claims of figure 3. Columns: claim, load, counting, gain, low, high, n, verdict."""
    rows = []
    for load in ("overload", "stable"):
        average, tail = paper_cell(load, "average"), paper_cell(load, "tail")
        for counting, end in (("all arrived", ""), ("completed only", "_completed")):
            for claim, gained, verdict in _tradeoff(episodes, average, tail, end):
                rows.append(
                    {"claim": claim, "load": load, "counting": counting}
                    | {"gain": gained.estimate, "low": gained.low, "high": gained.high}
                    | {"n": len(episodes.values(tail, OLP, "eel_mean_s")), "verdict": verdict}
                )
    return pd.DataFrame(rows)


def _tradeoff(
    episodes: Episodes, average: Cell, tail: Cell, end: str
) -> Iterator[tuple[str, Interval, str]]:
    def values(cell: Cell, key: str) -> pd.Series[float]:
        return episodes.values(cell, OLP, key + end)

    for key in ("eel_mean_s", "ttft_mean_s"):
        best, gained = over_best(episodes, average, OLP, key + end, BASELINES)
        claim = f"average weights: {METRICS[key].label} better than every baseline (best: {best})"
        yield claim, gained, verdicts.of_gain(gained, verdicts.LEAST)
    worse = verdicts.gain(
        "eel_p99_s" + end,
        episodes.values(average, BASELINE, "eel_p99_s" + end),
        values(average, "eel_p99_s"),
    )
    word = verdicts.of_gain(Interval(-worse.estimate, -worse.high, -worse.low), verdicts.LEAST)
    yield "average weights: EEL, P99 may be worse than round robin's", worse, word
    for key in ("eel_p99_s", "ttft_p99_s"):
        best, gained = over_best(episodes, tail, OLP, key + end, BASELINES)
        claim = f"tail weights: {METRICS[key].label} better than every baseline (best: {best})"
        yield claim, gained, verdicts.of_gain(gained, verdicts.LEAST)
    for key, first, second, words in (
        ("eel_p99_s", average, tail, "tail weights have a better P99 EEL than average weights"),
        ("eel_mean_s", tail, average, "average weights have a better mean EEL than tail weights"),
    ):
        gained = verdicts.gain(key + end, values(first, key), values(second, key))
        yield words, gained, verdicts.of_gain(gained, verdicts.LEAST)


def over_best(
    episodes: Episodes, cell: Cell, policy: str, key: str, rivals: Sequence[str] | dict[str, str]
) -> tuple[str, Interval]:
    """The rival with the best mean, and the paired gain over it."""
    own = episodes.values(cell, policy, key)
    found = {rival: episodes.values(cell, rival, key) for rival in rivals}
    best = max(found, key=lambda rival: verdicts.better(key) * shared(found[rival], own)[0].mean())
    return best, verdicts.gain(key, found[best], own)


def level(episodes: Episodes, cell: Cell, policy: str, key: str) -> dict[str, Any]:
    """Mean over seeds with its interval and n, as columns of a row."""
    values = episodes.values(cell, policy, key)
    mean = verdicts.mean_of(values)
    return {"n": len(values), "mean": mean.estimate, "low": mean.low, "high": mean.high}


def unfinished(episodes: Episodes, cell: Cell, policy: str) -> float:
    """Percent of arrived requests that had not finished when the episode ended."""
    left, arrived = (episodes.values(cell, policy, key) for key in ("unfinished", "arrived"))
    return 100.0 * float((left / arrived).mean())


def _against(
    episodes: Episodes,
    cell: Cell,
    policy: str,
    counting: str,
    wanted: tuple[float, ...] | None,
) -> Iterator[dict[str, Any]]:
    """Improvement over round robin per figure, and the verdict where a figure is published."""
    for number, (figure, key) in enumerate(zip(FIGURES, KEYS[counting], strict=True)):
        own = episodes.values(cell, policy, key)
        ours = verdicts.gain(key, episodes.values(cell, BASELINE, key), own)
        said = wanted[number] if wanted else np.nan
        yield {
            "figure": figure,
            "published": said,
            "ours": ours.estimate,
            "low": ours.low,
            "high": ours.high,
            "n": len(own),
            "verdict": verdicts.of_figure(said, ours) if wanted else "",
            "unfinished": unfinished(episodes, cell, policy),
            "unfinished_baseline": unfinished(episodes, cell, BASELINE),
        }
