"""The report's section on two pools, from its rows alone."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from llmroute_env.experiments.science.markdown import percent, table, value
from llmroute_env.experiments.science.rows import Row
from llmroute_env.experiments.table import number

PUBLISHED: Final = (31.0, 42.0)  #: GPU-hours saved [%]
_POOLS, _EQUAL, _PAGED = "two pools", "equal, 16 sequences", "equal, 128 sequences"
_SIZE: Final = "the baseline's"  #: the fleet of the same size that the verdict is about
_PLOT: Final = "pools.png"


def render(rows: list[Row]) -> str:
    """Markdown of the section."""
    lines = [*_INTRODUCTION, *_verdict(rows), f"![smallest fleets](images/{_PLOT})", ""]
    lines += [*_model(rows), *_fleets(rows), *_same_size(rows), *_routing(rows)]
    return "\n".join(lines)


def line(rows: list[Row]) -> str:
    """The sentence for the top of the report."""
    spans = [_span([100.0 * float(row[f"saving{end}"]) for row in _answers(rows)])
             for end in ("", "_paged", "_best")]  # fmt: skip
    return (
        f"**Two pools** save {spans[0]} of the GPU-hours of equal devices with 16 sequences each "
        f"under `lor`, by workload and objective (published: 31 to 42%), {spans[1]} of those with "
        f"128 sequences, and {spans[2]} of those of the best equal fleet and router tried."
    )


def plot(rows: list[Row], directory: Path) -> None:
    """Smallest fleets as bars, a panel for each cell and objective."""
    from llmroute_env.experiments import style

    kinds = [row for row in rows if row["kind"] == "capacity"]
    cells, objectives = _distinct(kinds, "cell"), _distinct(kinds, "objective")
    strokes = style.strokes([_EQUAL, _PAGED, _POOLS])
    directory.mkdir(parents=True, exist_ok=True)
    with style.look():
        figure = style.new_figure(5.6 * len(objectives), 0.5 + 1.55 * len(cells))
        panels = style.subplots(figure, len(cells), len(objectives))
        for axes, (cell, objective) in zip(
            panels, [(c, o) for c in cells for o in objectives], strict=True
        ):
            own = [row for row in kinds if (row["cell"], row["objective"]) == (cell, objective)]
            for place, row in enumerate(own):
                if math.isnan(row["gpus"]):
                    axes.text(0, place, " none found", va="center", fontsize=8)
                    continue
                color = strokes[row["fleet"]].color
                axes.barh(place, row["gpus"], height=0.7, color=color)
                words = f" {row['gpus']:.0f}" + (
                    f" ({row['split']})" if "+" in row["split"] else ""
                )
                axes.text(row["gpus"], place, words, va="center", fontsize=8)
            names = [f"{row['fleet']}: {row['policy']}" for row in own]
            axes.set_yticks(range(len(own)), names, fontsize=8)
            axes.invert_yaxis()
            known = [row["gpus"] for row in own if not math.isnan(row["gpus"])]
            axes.set_xlim(0, 1.3 * max(known, default=1.0))
            axes.grid(axis="y", visible=False)
            axes.set_title(f"{cell}: {objective}", fontsize=8)
        for axes in panels[-len(objectives) :]:
            axes.set_xlabel("GPUs of the smallest fleet")
        style.save(figure, directory / _PLOT)


_INTRODUCTION: Final = [
    "## Two pools against equal devices",
    "",
    "[arXiv 2604.08075](https://arxiv.org/abs/2604.08075) splits a fleet in a short pool (contexts "
    "up to 8,192, 128 sequences) and a long one (65,536, 16 sequences), routes by an estimated "
    "token budget, and reports 31 to 42% fewer GPU-hours, 5.4 times fewer preemptions and a P99 "
    "TTFT lower by 6% (on one of its two traces). Here: Llama-3-70B at TP 4 on A100 (the least at "
    "which the planner has room for a context of 65,536), prompts prefilled on the device in "
    "chunks of 512 tokens, Azure 2023 lengths, Poisson arrivals of 40 requests/s. The traces have "
    "next to no prompt over 8,192 tokens; *+ long* mixes in 5% of 8,192 to 60,000. *Decode only*: "
    "prefill is done elsewhere and takes no time here. *Little memory*: 77,000 KV tokens a device "
    "in place of 451,456. *In time*: started within 2 s and finished "
    "within 120 s; a fleet passes when the 95% confidence bound over seeds does.",
    "",
    "The paper's baseline gives every device the long pool's set-up and with it 16 sequences. With "
    "paged KV memory nothing asks for that: an engine set up for 65,536 tokens also runs 128 "
    "sequences, and preempts if they outgrow the memory. *Equal, 128 sequences* is that fleet. "
    "Information: `lor` counts requests, `lmetric` prompt tokens too; `sjf` uses the predicted "
    "decode length, `dual_pool` as well, and bytes in place of prompt tokens.",
    "",
]


def _verdict(rows: list[Row]) -> list[str]:
    """Published against ours, in words that follow from the numbers."""
    body = []
    for row in _answers(rows):
        saved, low, high = (100.0 * float(row[key]) for key in ("saving", "low", "high"))
        body.append(
            [row["cell"], row["objective"], percent(saved, low, high), _word(saved, low, high),
             _saved(row, "_paged"), f"{_saved(row, '_best')} `{row['best_equal']}`"]
        )  # fmt: skip
    head = ("workload", "objective", "saved over 16 sequences [%]", "published 31 to 42",
            "over 128 sequences [%]", "over the best equal fleet [%]")  # fmt: skip
    same = [
        row
        for row in rows
        if row["kind"] == "same" and row["policy"] == "dual_pool" and row["size"] == _SIZE
    ]
    tails = "; ".join(
        f"{row['cell']} {percent(row['gain'], row['gain_low'], row['gain_high'])}%"
        for row in same
        if row["metric"] == "ttft_p99_s"
    )
    return [
        "### Verdict",
        "",
        "GPU-hours of the smallest fleet that `dual_pool` needs, against `lor` on equal devices "
        "and against the equal fleet and router with the fewest; in brackets what the number of "
        "seeds leaves open.",
        "",
        *table(head, body, 2),
        "* **P99 TTFT** (published: 6% lower), improvement over `lor` on equal devices with 16 "
        f"sequences, the same number of devices: {tails}.",
        f"* **Preemptions** (published: 5.4 times fewer), per 1,000 requests: {_preempted(rows)}",
        f"* **Why**: {_reasons(rows)}",
        "",
    ]


def _word(saved: float, low: float, high: float) -> str:
    if math.isnan(saved):
        return "no fleet found"
    if saved > PUBLISHED[1]:
        return "larger" if low > PUBLISHED[1] else "reproduces, or larger"
    if saved >= PUBLISHED[0]:
        return "reproduces"
    return "does not" if high < PUBLISHED[0] else "smaller, not decided"


def _saved(row: Row, end: str) -> str:
    return percent(*(100.0 * float(row[f"{key}{end}"]) for key in ("saving", "low", "high")))


def _preempted(rows: list[Row]) -> str:
    """Where any fleet of a cell preempts, at the same numbers of devices."""
    found: dict[tuple[str, str], dict[str, float]] = {}
    for row in rows:
        if row["kind"] != "same" or row["metric"] != "preemptions_per_request":
            continue
        if row["policy"] == ("dual_pool" if row["fleet"] == _POOLS else "lor"):
            means = found.setdefault((row["cell"], row["size"]), {})
            means[row["fleet"]] = 1000.0 * row["mean"]
    parts = [
        f"*{cell}*, {size} size: " + ", ".join(f"{f} {number(n, 3)}" for f, n in means.items())
        for (cell, size), means in found.items()
        if any(means.values())
    ]
    return "; ".join([*parts, "none in the other workloads, where memory is never short"]) + "."


def _reasons(rows: list[Row]) -> str:
    models = {row["cell"]: row for row in rows if row["kind"] == "model"}
    parts = []
    for cell, row in models.items():
        full = [row[f"full load, {fleet}"] for fleet in (_EQUAL, _PAGED, _POOLS)]
        parts.append(
            f"*{cell}* {_whole(1 - full[1] / full[0])} and {_whole(1 - full[2] / full[0])}%"
        )
    return (
        "in throughput, most of what two pools gain over 16 sequences is had by allowing 128 on "
        "equal devices, without pools; fewer devices at full load by the one and by the other: "
        + "; ".join(parts)
        + ". Under a latency objective pools also keep short requests from waiting behind a long "
        "prefill, where `lor`, which counts requests, sends them. A router that weighs prompt "
        "tokens does so on equal devices as well, and so does a central queue that starts what "
        "fits now: *best equal fleet* is what is left of the gain "
        "then. Where prefill takes nearly all of a device's time, as with code, more sequences "
        "bring nothing (ρ near 1)."
    )


def _model(rows: list[Row]) -> list[str]:
    lines = [
        "### What the analytical model foresees",
        "",
        "ΔG/G = α(1 − 1/ρ): α the share of the traffic that fits the short pool, ρ its throughput "
        "there over that on a long device, measured by saturating one of each. The formula counts "
        "devices, so α has to be a share of the *work*; by requests it is larger, as long requests "
        "are more work each. *Devices at full load*: the rate over the measured throughput.",
        "",
    ]
    body = []
    for row in (row for row in rows if row["kind"] == "model"):
        full = [row[f"full load, {fleet}"] for fleet in (_EQUAL, _PAGED, _POOLS)]
        body.append(
            [row["cell"], f"{row['alpha']:.3f}", f"{row['alpha_work']:.3f}", f"{row['rho']:.2f}",
             f"{_whole(row['saving'])}%", f"{_whole(row['saving_work'])}%",
             *(number(devices, 3) for devices in full),
             f"{_whole(1 - full[2] / full[1])}%"]
        )  # fmt: skip
    head = ("workload", "α, requests", "α, work", "ρ", "saves, α by requests", "by work",
            "full load: 16 sequences", "128", "two pools", "saved over 128")  # fmt: skip
    return lines + table(head, body)


def _fleets(rows: list[Row]) -> list[str]:
    lines = ["### Smallest fleets", ""]
    kinds = [row for row in rows if row["kind"] == "capacity"]
    for objective in _distinct(kinds, "objective"):
        body = []
        for row in (row for row in kinds if row["objective"] == objective):
            names = [row["cell"], row["fleet"], f"`{row['policy']}`"]
            if math.isnan(row["devices"]):
                body.append([*names, "none found", *("–",) * 6])
                continue
            split = f" ({row['split']})" if "+" in row["split"] else ""
            body.append(
                [*names, f"{row['devices']:.0f}{split}", f"{row['on_average']:.0f}",
                 number(row["gpu_hours"], 3),
                 _saved(row, ""), _saved(row, "_best"),
                 number(row["ttft_p99_s"], 3), number(row["eel_mean_s"], 3)]
            )  # fmt: skip
        head = ("workload", "fleet", "router", "devices of 4 GPUs", "by means", "GPU-hours",
                "saved over 16 sequences, `lor` [%]", "over the best equal [%]", "P99 TTFT [s]",
                "mean EEL [s]")  # fmt: skip
        limits = "a P99 TTFT of at most 20 s, and at most 0.2% rejected"
        lines += [f"With {objective}, {limits}:", "", *table(head, body, 3)]
    return lines


def _same_size(rows: list[Row]) -> list[str]:
    lines = [
        "### The same number of devices",
        "",
        "Brackets: gain over `lor` on equal devices with 16 sequences in percent, paired by seed.",
        "",
    ]
    words = {
        _SIZE: "As many as that baseline needs for 90% in time; the pools in the model's "
        "proportions:",
        "the pools'": "As many as `dual_pool` needs for 90% in time, split as it needs them:",
    }
    same = [row for row in rows if row["kind"] == "same" and ":" not in row["policy"]]
    for size, sentence in words.items():
        body = []
        found: dict[tuple[str, ...], dict[str, Row]] = {}
        for row in (row for row in same if row["size"] == size):
            names = (row["cell"], f"{row['fleet']} ({row['split']})", f"`{row['policy']}`")
            found.setdefault(names, {})[row["metric"]] = row
        for case, by in found.items():
            latencies = ("ttft_p99_s", "ttft_mean_s", "eel_mean_s")
            body.append(
                [*case, *(_with_gain(by[metric]) for metric in latencies),
                 f"{100 * by['slo_attainment']['mean']:.1f}%",
                 number(1000 * by["preemptions_per_request"]["mean"], 3),
                 f"{100 * by['rejected_share']['mean']:.2f}%"]
            )  # fmt: skip
        head = ("workload", "fleet", "router", "P99 TTFT [s]", "mean TTFT [s]", "mean EEL [s]",
                "in time", "preemptions per 1,000", "rejected")  # fmt: skip
        lines += [sentence, "", *table(head, body, 3)]
    return lines


def _routing(rows: list[Row]) -> list[str]:
    lines = [
        "### Mis-routing",
        "",
        "Percent of all requests, on fleets of the baseline's size. *Refused*: the prompt alone "
        "was too long for the device, which says so, and the request is sent again a period later. "
        "`lor` and `sjf` know prompt tokens and what a device holds. *Rejected*: "
        "prompt and answer together were too long, and the request is lost. *Needlessly long*: on "
        "a long device though a short one would have held it, spilled ones included. `gamma` is "
        "the estimator's safety margin in deviations.",
        "",
    ]
    body = []
    same = [
        row
        for row in rows
        if row["kind"] == "same"
        and (row["fleet"], row["size"]) == (_POOLS, _SIZE)
        and "decode only" not in row["cell"]  # the same requests, and nearly the same numbers
    ]
    for cell, policy in dict.fromkeys((row["cell"], row["policy"]) for row in same):
        by = {r["metric"]: r for r in same if (r["cell"], r["policy"]) == (cell, policy)}
        metrics = ("refused", "rejected_there", "too_long_pool", "spilled_share")
        cells = [
            value(*(100 * by[metric][key] for key in ("mean", "low", "high")))
            if metric in by
            else "–"
            for metric in metrics
        ]
        body.append([cell, f"`{policy}`", *cells])
    head = ("workload", "router", "refused", "rejected", "needlessly long", "spilled")
    return lines + table(head, body, 2)


def _with_gain(row: Row) -> str:
    shown = number(row["mean"], 3)
    if row["gain"] == 0.0:
        return shown
    return f"{shown} ({percent(row['gain'], row['gain_low'], row['gain_high'])})"


def _answers(rows: list[Row]) -> list[Row]:
    """Rows of the smallest fleets of the dual-pool router."""
    return [row for row in rows if row["kind"] == "capacity" and row["policy"] == "dual_pool"]


def _whole(share: float) -> int:
    """A share in whole percent."""
    return round(100.0 * share)


def _span(values: Sequence[float]) -> str:
    """``-3 to 35%``."""
    known = [value for value in values if not math.isnan(value)]
    return f"{min(known):.0f} to {max(known):.0f}%" if known else "an unknown share"


def _distinct(rows: Iterable[Row], key: str) -> list[str]:
    return list(dict.fromkeys(str(row[key]) for row in rows))
