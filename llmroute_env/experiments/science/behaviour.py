"""Sections of the report: trade-offs, tails, detector, prices. From the tables alone."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pandas as pd

from llmroute_env.experiments.science import curves
from llmroute_env.experiments.science.markdown import MARKS, percent, table, value
from llmroute_env.experiments.science.markdown import span as _span
from llmroute_env.experiments.science.rows import Row, keyed, records
from llmroute_env.metrics import METRICS

Frames = Mapping[str, pd.DataFrame]


def tradeoff(frames: Frames) -> list[str]:
    """Figure 3."""
    rows = [
        [
            r["claim"],
            r["load"],
            r["counting"],
            percent(r["gain"], r["low"], r["high"]),
            MARKS[r["verdict"]],
        ]
        for r in records(frames["tradeoff"])
    ]
    return [
        "## Trade-off figure (two extreme weight settings)",
        "",
        "![trade-off](images/tradeoff.png)",
        "",
        *table(("claim", "load", "counted", "gain [%]", "holds"), rows, 3),
    ]


def zeta2(frames: Frames) -> list[str]:
    """Figure 13."""
    found = frames["zeta2"]
    lines = [
        "## Tail weight ζ2 and the share of requests inside the start-delay limit",
        "",
        "Weights (0,1,1,0,0,ζ2), λ 0.5, limit 49 periods. A larger ζ2 should give a larger share.",
        "",
        "![zeta2](images/zeta2.png)",
        "",
    ]
    values = list(dict.fromkeys(found["zeta2"]))
    rows = []
    for policy, own in found.groupby("policy", sort=False):
        by = keyed(own, "zeta2")
        olp = str(policy).startswith("olp")
        shown = values if olp else values[:1]
        cells = [
            value(by[z]["mean"], by[z]["low"], by[z]["high"]) if z in shown else "" for z in values
        ]
        verdict = MARKS[curves.rises(found, str(policy))] if olp else ""
        rows.append([f"`{policy}`", *cells, verdict])
    heads = [f"ζ2 {z:,.0f}" for z in values]
    return lines + table(("router", *heads, "rises"), rows)


def matrix(frames: Frames) -> list[str]:
    """The appendix' figures."""
    found = frames["matrix"]
    heads = [
        f"{weighting}: {METRICS[metric].label}"
        for weighting, metric in dict.fromkeys(zip(found["weights"], found["metric"], strict=True))
    ]
    over, sjf = [], []
    for key, part in found.groupby(["lengths", "load", "prediction"], sort=False):
        name = ", ".join(map(str, key))
        rows = records(part)
        gains = [percent(r["gain"], r["low"], r["high"]) for r in rows]
        marks = [MARKS[r["verdict"]] for r in rows]
        over.append([name, *(f"{g} {mark}" for g, mark in zip(gains, marks, strict=True))])
        sjf.append([name, *(percent(r["sjf_gain"], r["sjf_low"], r["sjf_high"]) for r in rows)])
    return [
        "## Targeted metric against every baseline (figures 4 to 24)",
        "",
        "The claim: with weights on a family of metrics, OLP is better on it than round robin, "
        "LOR, random and Power-of-2. Gain in percent over the best of the four, and whether the "
        "claim holds there:",
        "",
        *table(("workload", *heads), over),
        "Gain in percent over central shortest-first, which has the same predictions and no "
        "prices:",
        "",
        *table(("workload", *heads), sjf),
    ]


def plane(frames: Frames) -> list[str]:
    """Mean against P99."""
    found = frames["plane"]
    rows = [
        [
            r["where"],
            f"`{r['policy']}`",
            r["weights"],
            value(r["mean"], r["mean_low"], r["mean_high"]),
            value(r["p99"], r["p99_low"], r["p99_high"]),
            r["dominated_by"] or "–",
        ]
        for r in records(found)
    ]
    return [
        "## Mean against P99 end-to-end latency",
        "",
        "λ 0.5, ±20%, all arrived. *Dominated by*: rivals that are significantly better on one "
        "axis and not significantly worse on the other.",
        "",
        "![plane](images/plane.png)",
        "",
        *table(("model", "router", "weights", "mean EEL", "P99 EEL", "dominated by"), rows, 3),
    ]


def detector(frames: Frames) -> list[str]:
    """Rate-shift detector."""
    rows = [
        [
            r["arrivals"],
            f"{r['factor']:g}",
            f"{r['episodes']:,}",
            f"{r['found']:.3f} [{r['found_low']:.3f}, {r['found_high']:.3f}]",
            f"{r['early']:.3f}",
            "–" if math.isnan(r["delay_p50"]) else f"{r['delay_p50']:.0f} / {r['delay_p90']:.0f}",
        ]
        for r in records(frames["detector"])
    ]
    worth = frames["drift_worth"]
    other = []
    for label, own in worth.groupby("label", sort=False):
        by = keyed(own, "metric")
        mean, tail, slo = by["eel_mean_s"], by["eel_p99_s"], by["slo_attainment"]
        other.append(
            [
                str(label),
                value(mean["mean"], mean["low"], mean["high"]),
                _over(mean),
                value(tail["mean"], tail["low"], tail["high"]),
                _over(tail),
                _over(slo),
            ]
        )
    return [
        "## Rate-shift detector",
        "",
        "Arrival rate 0.4 times the factor from T/2 on, T 4,000. *Found*: an alarm after the shift "
        "(factor 1: any alarm, all of them false). *Early*: a false alarm before the shift.",
        "",
        *table(("arrivals", "factor", "episodes", "found", "early", "delay P50 / P90"), rows),
        f"What it is worth in Table 2's setting ({_span(worth['n'])} seeds; gains over the "
        "detector's router):",
        "",
        *table(("router", "mean EEL", "gain [%]", "P99 EEL", "gain [%]", "SLO gain [%]"), other),
    ]


def prices(frames: Frames) -> list[str]:
    """Which resource binds."""
    found = frames["prices"]
    rows = [
        [
            r["where"],
            f"`{r['policy']}`",
            f"{r['load_batch']:.2f} / {r['load_kv']:.2f}",
            _tiny(r, "batch"),
            _tiny(r, "memory"),
            f"{100 * r['memory_share']:.0f}%",
            r["larger"],
        ]
        for r in records(found)
    ]
    return [
        "## Prices: which resource binds",
        "",
        "What a request of mean size pays per iteration for its batch slot and for its KV memory, "
        "in millionths of the largest reward, over the second half of the episode. The paper says "
        "that memory prices dominate for decode-heavy traffic and batch prices at high arrival "
        "rates.",
        "",
        "![prices](images/prices.png)",
        "",
        "![prices over time](images/price_series.png)",
        "",
        *table(
            (
                "workload",
                "router",
                "load batch / KV",
                "batch",
                "memory",
                "memory's share",
                "larger",
            ),
            rows,
            2,
        ),
    ]


def _tiny(row: Row, name: str) -> str:
    parts = (1e6 * row[key] for key in (name, f"{name}_low", f"{name}_high"))
    mean, low, high = parts
    return f"{mean:.3g} [{low:.3g}, {high:.3g}]"


def _over(row: Row) -> str:
    return percent(row["gain"], row["gain_low"], row["gain_high"])
