"""Attribution: what each ingredient between LOR and the priced router adds, on paired seeds."""

from __future__ import annotations

import pandas as pd

from llmroute_env.experiments.science import verdicts
from llmroute_env.experiments.science.episodes import Cell, Episodes
from llmroute_env.experiments.statistics import Interval

METRICS = ("reward", "eel_mean_s", "eel_p99_s", "slo_attainment")


def climb(episodes: Episodes, cell: Cell, steps: list[tuple[str, str]]) -> pd.DataFrame:
    """One row per step and metric: its mean, and its gain over the step before.

    Columns: policy, adds, metric, n, mean, low, high, gain_pct, gain_low, gain_high, share_pct.
    ``share_pct`` is the step's part of the whole way from the first to the last step of the
    published router (the last step before fluid pricing), in percent of the difference of means.
    """
    rows = []
    names = [policy for policy, _ in steps]
    top = next((p for p in reversed(names) if "pricing=paper" in p), names[-1])
    for key in METRICS:
        values = {policy: episodes.values(cell, policy, key) for policy in names}
        whole = float(values[top].mean() - values[names[0]].mean())
        before: pd.Series[float] | None = None
        for policy, adds in steps:
            own = values[policy]
            level = verdicts.mean_of(own)
            gain, share = Interval(float("nan"), float("nan"), float("nan")), float("nan")
            if before is not None:
                gain = verdicts.gain(key, before, own)
                share = 100.0 * float(own.mean() - before.mean()) / whole if whole else share
            rows.append(
                {
                    "cell": cell.name,
                    "policy": policy,
                    "adds": adds,
                    "metric": key,
                    "n": len(own),
                    "mean": level.estimate,
                    "low": level.low,
                    "high": level.high,
                    "gain_pct": gain.estimate,
                    "gain_low": gain.low,
                    "gain_high": gain.high,
                    "share_pct": share,
                }
            )
            before = own
    return pd.DataFrame(rows)


def share_of(table: pd.DataFrame, metric: str, policies: list[str]) -> float:
    """Percent of the whole way that the named steps make together."""
    part = table[(table["metric"] == metric) & table["policy"].isin(policies)]
    return float(part["share_pct"].sum())
