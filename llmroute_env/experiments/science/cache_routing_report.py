"""The report's section on cached prefixes, from its rows alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np

from llmroute_env.experiments.science.cache_routing_cells import (
    cells_of,
    counts_of,
    gain_of,
    mains_of,
    policies_of,
    select,
)
from llmroute_env.experiments.science.markdown import of, percent, table, value
from llmroute_env.experiments.science.rows import Row
from llmroute_env.experiments.statistics import mean_interval
from llmroute_env.experiments.table import number

_PLOT: Final = "cache_routing.png"
_BLIND, _OURS, _PRICED, _LLMD = "vllm_dp", "lmetric", "prefix_priced", "llmd"
_UNQUEUED: Final = "lmetric:queued=false"
#: published reductions of mean TTFT and TPOT [%], against vLLM's balancer and a production router
PUBLISHED: Final = {"ttft_mean_s": (92.0, 39.0), "tpot_mean_s": (24.0, 51.0)}
_ABLATION: Final = (
    (_OURS, "the rule as published"),
    ("lmetric:cache=false", "without the cached tokens"),
    ("lmetric:inflight=false", "without updates in flight"),
    (_UNQUEUED, "without the queued tokens, as llm-d's and SGLang's versions"),
    ("lmetric:guard=off", "without the failure detector's filter"),
    (_PRICED, "queued tokens added, not multiplied by the batch"),
    ("prefix_priced:future=0", "the same without requests to come"),
)
_SHOWN: Final = (
    *("lor", _BLIND, "sjf", "dynamo_kv", "sglang_cache", _LLMD, "linear_cache", _OURS),
    *(_UNQUEUED, _PRICED),
)
_OVERLOADED: Final = 0.06  #: share of unfinished requests from which a mark is set

_INTRODUCTION: Final = [
    "## Cached prefixes: LMETRIC and its rivals",
    "",
    "Devices prefill what they decode and keep the prefixes that they have computed. "
    "*Conversations* and *agents* are generated (`chat-prefix`, `agent-prefix`, 4 A100), "
    "Mooncake's conversation trace is replayed on 16 (`mooncake-conversation`). All routers but "
    "`sjf` use no length. Intervals: 95% over seeds; the trace is one sample path, so there over "
    "consecutive eighths of it. *Hit*: cached share of the prompt tokens. † more than 6% of the "
    "requests unfinished at the end: overloaded, its latency grows with the length of the episode.",
    "",
]


def render(rows: list[Row]) -> str:
    """Markdown of the section."""
    lines = [*_INTRODUCTION, *_verdict(rows), f"![TTFT, TPOT and hits over load](images/{_PLOT})"]
    lines += ["", *_main_loads(rows), *_published(rows), *_ablation(rows), *_prices(rows)]
    return "\n".join(lines)


def line(rows: list[Row]) -> str:
    """The sentence for the top of the report."""
    ttft = [gain_of(rows, w, load, _OURS, _BLIND, "ttft_mean_s") for w, load in mains_of(rows)]
    span = f"{min(g.estimate for g in ttft):.0f} to {max(g.estimate for g in ttft):.0f}%"
    better, worse, cells = counts_of(rows, _PRICED, _OURS, "ttft_mean_s")
    return (
        f"**Cached prefixes:** LMETRIC's mean TTFT is {span} below that of vLLM's balancer where "
        f"that one just holds (published: 92%); pricing new prefill tokens by the delay that they "
        f"cause beats LMETRIC in {better} of {cells} cells and loses in {worse}."
    )


def _verdict(rows: list[Row]) -> list[str]:
    """The claims, and what became of them."""
    found = []
    for key, name in (("ttft_mean_s", "TTFT"), ("tpot_mean_s", "TPOT")):
        published = PUBLISHED[key][0]
        mains = [gain_of(rows, w, load, _OURS, _BLIND, key) for w, load in mains_of(rows)]
        every = [gain_of(rows, w, load, _OURS, _BLIND, key).estimate for w, load in cells_of(rows)]
        own = ", ".join(
            f"{w} {of(g)}" for (w, _), g in zip(mains_of(rows), mains, strict=True)
        )  # fmt: skip
        word = (
            "reproduces"
            if round(min(every)) <= published <= round(max(every))
            else "does not reproduce"
        )
        found.append(
            f"- *{name} −{published:.0f}% against vLLM's balancer* {word}: over the loads below it "
            f"is anything from {min(every):.0f} to {max(every):.0f}%; at the scenarios' own loads "
            f"{own}."
        )
    seen, worst = (
        max(np.mean([r[key] for r in select(rows, w, load, _OURS)]) for w, load in cells_of(rows))
        for key in ("detected", "persistent")
    )
    better, worse, cells = counts_of(rows, _PRICED, _OURS, "ttft_mean_s")
    tail = counts_of(rows, _PRICED, _OURS, "ttft_p99_s")
    linear, bare = (counts_of(rows, p, _OURS, "ttft_mean_s") for p in ("linear_cache", _UNQUEUED))
    return [
        *found,
        f"- *TTFT −39% and TPOT −51% against a production scheduler* that is not described: "
        f"against `{_LLMD}`, as one that ships, by cell TTFT {_span(rows, 'ttft_mean_s')} and TPOT "
        f"{_span(rows, 'tpot_mean_s')} (+ is a reduction).",
        f"- *Failures are extremely rare*: {_share(float(seen))} of LMETRIC's requests were of a "
        f"class that overloaded its devices, {_share(float(worst))} persistently (the worst cell). "
        "But the rule fails in another way: its preference for a cached prefix fades as queues "
        f"grow. {_worst_fading(rows)}",
        "- *No tuning needed, where a linear combination needs it*: one weight, tuned at two loads "
        f"of the conversations, is ahead of LMETRIC in mean TTFT in {linear[0]} of {cells} cells "
        f"and behind in {linear[1]}. It lacks the queued tokens rather than a better weight: "
        f"LMETRIC without them is ahead in {bare[0]} and behind in {bare[1]}.",
        f"- *OLP's idea on this workload*: new prefill tokens at the price of the delay that they "
        f"cause (`{_PRICED}`) are ahead of LMETRIC in mean TTFT in {better} cells and behind in "
        f"{worse}, in P99 in {tail[0]} and {tail[1]}: at high load it keeps its hits, at low load "
        "LMETRIC's tail is shorter.",
        "",
    ]


def _span(rows: list[Row], key: str) -> str:
    """Reductions by LMETRIC against llm-d's scorers over all cells, the worst and the best."""
    gains = [gain_of(rows, w, load, _OURS, _LLMD, key).estimate for w, load in cells_of(rows)]
    return f"{min(gains):+,.0f}% to {max(gains):+,.0f}%"


def _worst_fading(rows: list[Row]) -> str:
    """The cell where LMETRIC's queued tokens cost most, in a sentence."""

    def mean(cell: tuple[str, float], policy: str, key: str) -> float:
        return float(np.mean([row[key] for row in select(rows, *cell, policy)]))

    cell = max(
        cells_of(rows),
        key=lambda c: mean(c, _OURS, "ttft_mean_s") / mean(c, _UNQUEUED, "ttft_mean_s"),
    )
    own, other = (
        f"{number(mean(cell, policy, 'ttft_mean_s'), 3)} s with "
        f"{100 * mean(cell, policy, 'hit'):.0f}% of the prompt tokens cached"
        for policy in (_OURS, _UNQUEUED)
    )
    return f"Worst, {cell[0]} at {cell[1]:g}: mean TTFT {own}, without the queued tokens {other}."


def _main_loads(rows: list[Row]) -> list[str]:
    lines = ["### At the scenarios' own loads", ""]
    for workload, load in mains_of(rows):
        unit = select(rows, workload, load, _OURS)[0]["unit_of_load"]
        lines += [f"**{workload}**, {load:g} {unit}", ""]
        body = []
        for policy in policies_of(rows):
            if policy in dict(_ABLATION) and policy not in (_OURS, _PRICED):
                continue
            own = select(rows, workload, load, policy)
            cells = [_mean(own, key) for key in ("ttft_mean_s", "ttft_p95_s", "ttft_p99_s")]
            tpot = mean_interval([1e3 * row["tpot_mean_s"] for row in own])
            gain = gain_of(rows, workload, load, policy, _BLIND, "ttft_mean_s")
            body.append(
                [
                    f"`{policy}`" + _mark(own),
                    *cells,
                    value(*tpot),
                    f"{100 * np.mean([row['hit'] for row in own]):.1f}%",
                    "–" if policy == _BLIND else percent(*gain),
                ]
            )
        head = ["router", "TTFT mean [s]", "P95", "P99", "TPOT [ms]", "hit"]
        lines += table([*head, f"TTFT gain over `{_BLIND}` [%]"], body)
    return lines


def _published(rows: list[Row]) -> list[str]:
    """Reductions over load, against the router that sees no caches and one that does."""
    body = [
        [
            "**published**",
            "?",
            *(f"**{PUBLISHED[key][i]:.0f}**" for i in (0, 1) for key in PUBLISHED),
        ]
    ]
    for workload, load in cells_of(rows):
        gains = [
            percent(*gain_of(rows, workload, load, _OURS, base, key))
            for base in (_BLIND, _LLMD)
            for key in PUBLISHED
        ]
        mark = _mark(select(rows, workload, load, _BLIND))
        body.append([workload, f"{load:g}{mark}", *gains])
    return [
        "### The published improvements over load",
        "",
        "Reductions by LMETRIC in percent. The second published pair is against a production "
        f"scheduler that is not described; `{_LLMD}` stands for one. (The abstract of the paper's "
        "first version, 2603.15202v1, has TTFT 92 and 52, TPOT 21 and 20.) † `vllm_dp` is "
        "overloaded.",
        "",
        *table(
            ["workload", "load", "TTFT, `vllm_dp`", "TPOT, `vllm_dp`",
             f"TTFT, `{_LLMD}`", f"TPOT, `{_LLMD}`"],
            body,
            left=2,
        ),
    ]  # fmt: skip


def _ablation(rows: list[Row]) -> list[str]:
    cells = cells_of(rows)
    lines = [
        "### What does the work",
        "",
        "Mean TTFT [s] and, in parentheses, the hit rate [%]. Where q tokens are queued on each "
        "device, a hit of h tokens changes LMETRIC's first factor by h / (q + s) for a prompt of s "
        "tokens: less and less as queues grow. Each request that is sent away from its prefix then "
        "adds to the queues, so there are two regimes at high load, and a cold start can end in "
        "the bad one.",
        "",
    ]
    for workload in dict.fromkeys(w for w, _ in cells):
        loads = [load for w, load in cells if w == workload]
        body = []
        for policy, words in _ABLATION:
            row = [f"`{policy}`", words]
            for load in loads:
                own = select(rows, workload, load, policy)
                ttft = np.mean([r["ttft_mean_s"] for r in own])
                hit = 100 * np.mean([r["hit"] for r in own])
                row.append(f"{number(float(ttft), 3)}{_mark(own)} ({hit:.0f})")
            body.append(row)
        unit = select(rows, workload, loads[0], _OURS)[0]["unit_of_load"]
        head = [
            workload,
            "",
            *(f"{load:g} {unit if i == 0 else ''}" for i, load in enumerate(loads)),
        ]
        lines += table(head, body, left=2)
    return lines


def _prices(rows: list[Row]) -> list[str]:
    body = []
    for workload, load in cells_of(rows):
        gains = [
            percent(*gain_of(rows, workload, load, _PRICED, _OURS, key))
            for key in ("ttft_mean_s", "ttft_p99_s", "tpot_mean_s", "eel_mean_s")
        ]
        body.append([workload, f"{load:g}", *gains])
    return [
        "### Prices of prefill tokens against LMETRIC",
        "",
        f"Improvement of `{_PRICED}` over `{_OURS}` in percent, paired. Both use the same "
        "information and no length.",
        "",
        *table(["workload", "load", "TTFT mean", "TTFT P99", "TPOT", "EEL mean"], body, left=2),
    ]


def plot(rows: list[Row], directory: Path) -> None:
    """TTFT, TPOT and hit rate over load, a row of panels per workload."""
    from llmroute_env.experiments import style

    workloads = list(dict.fromkeys(w for w, _ in cells_of(rows)))
    strokes = style.strokes(_SHOWN)
    panels_of = (("ttft_mean_s", 1.0, "TTFT, mean [s]"), ("tpot_mean_s", 1e3, "TPOT [ms]"),
                 ("hit", 100.0, "cached prompt tokens [%]"))  # fmt: skip
    with style.look():
        figure = style.new_figure(11.0, 0.9 + 2.7 * len(workloads))
        panels = iter(style.subplots(figure, len(workloads), 3))
        first = None
        for workload in workloads:
            loads = [load for w, load in cells_of(rows) if w == workload]
            for key, scale, label in panels_of:
                axes = next(panels)
                first = first or axes
                for policy in _SHOWN:
                    means = [
                        scale * np.mean([r[key] for r in select(rows, workload, load, policy)])
                        for load in loads
                    ]
                    stroke = strokes[policy]
                    axes.plot(loads, means, color=stroke.color, linestyle=stroke.dashes,
                              marker="o", markersize=3, label=policy)  # fmt: skip
                if key == "ttft_mean_s":
                    axes.set_yscale("log")
                    axes.set_title(workload)
                axes.set_ylabel(label)
                axes.set_xlabel(select(rows, workload, loads[0], _OURS)[0]["unit_of_load"])
        if first is not None:
            style.legend_below(figure, first, columns=5)
        style.save(figure, directory / _PLOT)


def _share(share: float) -> str:
    return f"{100 * share:.2g}%" if share > 0 else "none"


def _mean(own: Sequence[Row], key: str) -> str:
    return value(*mean_interval([row[key] for row in own]))


def _mark(own: Sequence[Row]) -> str:
    return " †" if np.mean([row["unfinished"] for row in own]) > _OVERLOADED else ""
