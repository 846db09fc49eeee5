"""Sections of the report: published figures, attribution, constants. From the tables alone."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

import pandas as pd

from llmroute_env.experiments.science.claims import FIGURES
from llmroute_env.experiments.science.markdown import MARKS, percent, table, value
from llmroute_env.experiments.science.rows import Row, keyed, records

Frames = Mapping[str, pd.DataFrame]

_TAIL_FIGURES: Final = ("P95 EEL", "P99 EEL")

RULES: Final = [
    "## Rules behind the words",
    "",
    "- A published improvement *reproduces* when our interval is above 0 and our estimate is at "
    "least three quarters of it, or the interval holds it; *larger* when ours is more than twice "
    "as large; *partly* when ours is above 0 but smaller; *does not* when our interval holds 0 or "
    "lies below.",
    '- "A is better than B" reproduces when the paired interval of the gain is above 0, does not '
    "when it is below 0, and is undecided (–) in between.",
    "- *All arrived*: percentiles over all arrived requests, one that the end of the episode cut "
    "off counted at its age then (a lower bound). *Completed only*: over completed requests, "
    "which leaves out what a router never served.",
    "- *SLO violation*: share of arrived requests that did not finish with EEL below 400 and "
    "start delay below 49 periods. The paper does not define its SLO column; 49 is its TTFT "
    "limit, 400 is ours.",
    "- Weights (α, β, γ, σ, ζ1, ζ2): *average* (0,1,1,0,0,0), *tail* (0,0,0,0,1,1), *throughput* "
    "(1,0,0,1,0,0), *mixed* (0,1,1,1000,1000,1000). Model: lock-step periods, 4 devices, B 24, "
    "M 16,000, T 4,000, Poisson arrivals, LMSYS-like lognormal lengths.",
    "",
]


def published(frames: Frames) -> list[str]:
    """Tables 1 and 2 beside ours."""
    found = frames["published"]
    lines = [
        "## Published figures, and ours",
        "",
        "Improvement over round robin in percent. The paper gives neither the load of Table 1 nor "
        "the weights of either table nor how unfinished requests count: each choice is a row. "
        "*Unfinished*: share of arrived requests that the end of the episode cut off.",
        "",
    ]
    for name in ("Table 1", "Table 2"):
        part = found[found["table"] == name]
        lines += [f"### {name}", ""]
        lines += table(("router", "counted", *FIGURES, "unfinished"), _published_rows(part), 2)
    return lines


def _published_rows(part: pd.DataFrame) -> list[list[str]]:
    rows = []
    part = part[_shown(part)]
    for method in ("LOR", "Power-of-2", "OLP", "shortest first"):
        own = part[part["method"] == method]
        said = keyed(own.drop_duplicates("figure"), "figure")
        bold = {figure: f"**{row['published']:g}**" for figure, row in said.items()}
        if method != "shortest first":
            rows.append([f"**{method}, published**", "?", *(bold[f] for f in FIGURES), ""])
        keys = ["load", "prediction", "weights", "router", "counting"]
        for key, group in own.groupby(keys, sort=False):
            load, prediction, weighting, router, counting = map(str, key)
            words = [method, {"overload": "λ 0.5", "stable": "λ 0.4"}.get(load, ""), prediction]
            words += [f"{weighting} weights", router] if method == "OLP" else []
            by = keyed(group, "figure")
            cells = []
            for figure in FIGURES:
                row = by[figure]
                text = percent(row["ours"], row["low"], row["high"])
                mark = MARKS.get(str(row["verdict"]), "")
                cells.append(f"{text} {mark}".rstrip())
            left = f"{by[FIGURES[0]]['unfinished']:.1f}%"
            rows.append([", ".join(word for word in words if word), counting, *cells, left])
    return rows


def _shown(part: pd.DataFrame) -> pd.Series[bool]:
    """Rows that the page shows; the CSV has all of them."""
    noisy, heavy = part["prediction"] == "±20%", part["load"] != "stable"
    plain = part["method"].eq("OLP") & part["weights"].eq("mixed")
    return (noisy & heavy) | (part["method"].eq("OLP") & heavy & ~plain) | (noisy & ~plain)


def attribution(frames: Frames) -> list[str]:
    """The ladder."""
    found = frames["ladder"]
    lines = [
        "## Where the gain comes from",
        "",
        "Each step adds one ingredient; *gain* is over the step before, *share* its part of the "
        "way from LOR to the published router (mean EEL).",
        "",
        "![attribution](images/ladder.png)",
        "",
    ]
    for cell, part in found.groupby("cell", sort=False):
        lines += [f"### {cell}", ""]
        rows = []
        for policy, own in part.groupby("policy", sort=False):
            by = keyed(own, "metric")
            mean, tail, slo = by["eel_mean_s"], by["eel_p99_s"], by["slo_attainment"]
            reward, share = by["reward"], mean["share_pct"]
            rows.append(
                [
                    f"`{policy}`",
                    str(mean["adds"]),
                    value(mean["mean"], mean["low"], mean["high"]),
                    _gain(mean),
                    "" if math.isnan(share) else f"{share:.0f}%",
                    _gain(tail),
                    _gain(slo),
                    _gain(reward),
                ]
            )
        head = ("router", "adds", "mean EEL", "gain", "share", "P99 EEL gain", "SLO gain")
        lines += table((*head, "objective gain"), rows, 2)
    return lines


def constants(frames: Frames) -> list[str]:
    """The sweep over what the paper omits."""
    found = frames["constants"]
    lines = [
        "## The constants that the paper omits",
        "",
        "Table 1's OLP row at λ 0.5, ±20%: ours with one constant changed at a time. λ 0.4 stable "
        "and 0.5 overloaded leave B near 24, or M near 7,100 where memory binds.",
        "",
        "![constants](images/constants.png)",
        "",
    ]
    rows = []
    keys = ["point", "weights", "method"]
    for key, group in found.groupby(keys, sort=False):
        point, weighting, method = map(str, key)
        by = keyed(group, "figure")
        cells = []
        for figure in FIGURES:
            row = by[figure]
            mark = MARKS[str(row["verdict"])]
            cells.append(f"{percent(row['ours'], row['low'], row['high'])} {mark}")
        name = method if method == "shortest first" else f"OLP {method}, {weighting}"
        one = by[FIGURES[0]]
        left = f"{one['unfinished']:.1f}% / {one['unfinished_baseline']:.1f}%"
        rows.append([point, name, *cells, left])
    return lines + table(("constants", "router", *FIGURES, "unfinished / round robin's"), rows, 2)


def tails(frames: Frames) -> list[str]:
    """Which rule makes the tails."""
    found = frames["tails"]
    rows = []
    for key, part in found.groupby(["horizon", "label"], sort=False):
        horizon, label = key
        cells = []
        for counting in ("all arrived", "completed only"):
            by = keyed(part[part["counting"] == counting], "figure")
            cells += [percent(by[f]["ours"], by[f]["low"], by[f]["high"]) for f in _TAIL_FIGURES]
        one = records(part)[0]
        left = f"{one['unfinished']:.1f}% / {one['unfinished_baseline']:.1f}%"
        rows.append([f"{horizon:,}", str(label), *cells, left, f"{one['wait']:,.0f}"])
    heads = [f"{f}, {c}" for c in ("all", "completed") for f in _TAIL_FIGURES]
    return [
        "## Which rule makes the tails",
        "",
        "Tail weights (0,0,0,0,1,1), λ 0.5, ±20%: improvement over round robin in percent while "
        "one rule of the text's router changes at a time. A request past both limits is worth "
        "nothing under these weights; a router that waits for a positive margin never starts it, "
        "and percentiles over completed requests never see it.",
        "",
        *table(("T", "rule", *heads, "unfinished / round robin's", "longest wait"), rows, 2),
    ]


def _gain(row: Row) -> str:
    return percent(row["gain_pct"], row["gain_low"], row["gain_high"])
