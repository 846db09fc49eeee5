"""The ten lines on top of the report: sentences whose words follow from the numbers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from llmroute_env.experiments.science import curves, sweeps, verdicts
from llmroute_env.experiments.science.claims import (
    FIGURES,
    OLP,
    PUBLISHED,
)
from llmroute_env.experiments.science.markdown import percent
from llmroute_env.experiments.science.rows import Row, first, keyed, only, records

Frames = Mapping[str, pd.DataFrame]

_MAIN = {"load": "overload", "prediction": "±20%", "counting": "all arrived"}
_GOOD = (verdicts.REPRODUCES, verdicts.LARGER)


def lines(frames: Frames, arena: Path | None) -> list[str]:
    """Ten lines, fewer where a part was not played."""
    found = [
        _mean(frames),
        _tails(frames),
        _why(frames),
        _others(frames),
        _shift(frames),
        _attribution(frames),
        _weights(frames),
        _matrix(frames),
        _diagnostics(frames),
        _arena(arena),
    ]
    return [line for line in found if line]


def _p(row: Row, *keys: str) -> str:
    estimate, low, high = (row[key] for key in keys or ("ours", "low", "high"))
    return percent(estimate, low, high).replace(" [", "% [").replace("–%", "–")


def _mean(frames: Frames) -> str:
    found = frames["published"]
    own = first(
        found, **_MAIN, method="OLP", weights="average", figure="avg EEL", router="rolling horizon"
    )
    sjf = first(found, **_MAIN, method="shortest first", figure="avg EEL")
    return (
        f"**Mean latency, Table 1: {own['verdict']}.** At λ 0.5 and ±20% OLP's mean end-to-end "
        f"latency is {_p(own)} better than round robin's (published: {own['published']:g}%); "
        f"central shortest-first, with the same predictions and no prices, is {_p(sjf)} better."
    )


def _tails(frames: Frames) -> str:
    found = only(frames["published"], table="Table 1", method="OLP", load="overload")
    found = only(found, prediction="±20%")
    words = []
    for counting in ("all arrived", "completed only"):
        own = []
        for figure in ("P95 EEL", "P99 EEL"):
            part = only(found, figure=figure, counting=counting)
            best = max(records(part), key=lambda row: float(row["ours"]))
            own.append(f"{figure} {_p(best)} ({best['verdict']})")
        words.append(f"counting {counting}, {' and '.join(own)}")
    return (
        f"**Tail latency, Table 1** (published: P95 {PUBLISHED['Table 1']['OLP'][1]:g}%, P99 "
        f"{PUBLISHED['Table 1']['OLP'][2]:g}%). At our constants and the best of six settings of "
        f"weights and router: {'; '.join(words)}. {_constants(frames)}"
    )


def _why(frames: Frames) -> str:
    found = only(frames["tails"], horizon=max(frames["tails"]["horizon"]), figure="P99 EEL")
    words = []
    for label, part in found.groupby("label", sort=False):
        own, every = first(part, counting="completed only"), first(part, counting="all arrived")
        words.append(
            f"{label}: {_p(own)} over completed, {_p(every)} over all arrived, "
            f"{own['unfinished']:.1f}% unfinished"
        )
    return (
        f"**Which rule makes those tails** (P99 gain over round robin, T "
        f"{int(found['horizon'].iloc[0]):,}, tail weights): {'; '.join(words)}."
    )


def _constants(frames: Frames) -> str:
    """Where the sweep of the constants finds all three latencies, or both tails."""
    found = frames["constants"]
    found = found[found["method"] != "shortest first"]
    keys = ["point", "weights", "method"]
    settings, tails, all_three = 0, [], 0
    for key, part in found.groupby(keys, sort=False):
        good = {row["figure"]: row["verdict"] in _GOOD for row in records(part)}
        settings += 1
        if good["P95 EEL"] and good["P99 EEL"]:
            point, weighting, method = map(str, key)
            tails.append(f"{point} ({weighting} weights, {method})")
            all_three += good["avg EEL"]
    if not tails:
        return f"In none of {settings} settings of the omitted constants do both reproduce."
    return (
        f"Both reproduce in {len(tails)} of {settings} settings of the omitted constants "
        f"(with the mean in {all_three}): {'; '.join(tails)}."
    )


def _others(frames: Frames) -> str:
    found = frames["published"]
    words = []
    for figure in ("throughput", "SLO violation"):
        row = first(
            found, **_MAIN, method="OLP", weights="average", figure=figure, router="rolling horizon"
        )
        words.append(f"{figure} {_p(row)} (published {row['published']:g}%: {row['verdict']})")
    base = found[
        (found["method"].isin(["LOR", "Power-of-2"]))
        & (found["table"] == "Table 1")
        & (found["load"] == "overload")
        & (found["prediction"] == "±20%")
        & (found["counting"] == "all arrived")
    ]
    good = int(base["verdict"].isin(_GOOD).sum())
    return (
        f"**Throughput and SLO, Table 1:** {'; '.join(words)}. Of the {len(base)} figures of LOR "
        f"and Power-of-2 at the same setting {good} reproduce."
    )


def _shift(frames: Frames) -> str:
    found = frames["published"]
    part = found[
        (found["table"] == "Table 2")
        & (found["method"] == "OLP")
        & (found["weights"] == "average")
        & (found["router"] == "rolling horizon")
        & (found["counting"] == "all arrived")
    ]
    by = keyed(part, "figure")
    words = [
        f"{figure} {_p(by[figure])} (published {by[figure]['published']:g}%: "
        f"{by[figure]['verdict']})"
        for figure in FIGURES[:3]
    ]
    worth = first(frames["drift_worth"], label="no detector", metric="eel_mean_s")
    alarm = first(frames["detector"], arrivals="Poisson")
    power = first(frames["detector"], arrivals="Poisson", factor=1.5)
    return (
        f"**Rate shift, Table 2:** {'; '.join(words)}. The detector finds the shift in "
        f"{100 * power['found']:.1f}% of episodes, {power['delay_p50']:.0f} periods late (median), "
        f"with false alarms in {100 * alarm['found']:.1f}% of episodes without one; without it "
        f"mean EEL changes by {_p(worth, 'gain', 'gain_low', 'gain_high')}."
    )


def _attribution(frames: Frames) -> str:
    found = frames["ladder"]
    cell = found["cell"].iloc[0]
    by = keyed(only(found, cell=cell, metric="eel_mean_s"), "policy")
    names = {
        "central_fifo": "holding requests centrally",
        "sjf": "shortest predicted first",
        "mc_sf": "KV feasibility over the stay",
        "olp:pricing=none": "the objective's reward as the order",
        OLP: "the published prices",
    }
    words = [f"{text} {round(by[p]['share_pct']) + 0}%" for p, text in names.items()]
    steps = {
        sweeps.PRICES: "paper pricing over none",
        sweeps.FUTURE: "fluid prices over paper's, same ranking",
        sweeps.RANKING: "then ranking by loss per price instead of margin",
    }
    worth = []
    for adds, text in steps.items():
        own = []
        for name, part in only(found, adds=adds, metric="reward").groupby("cell", sort=False):
            if not str(name).startswith("LMSYS"):
                continue
            short = str(name).replace("LMSYS ", "").replace(" ±20%", "")
            own.append(f"{short} {_p(records(part)[0], 'gain_pct', 'gain_low', 'gain_high')}")
        if own:
            worth.append(f"{text}: {', '.join(own)}")
    # Every gain is over the step before, so each step is named by what it changes.
    return (
        f"**Where the mean gain over LOR comes from** ({cell}): {', '.join(words)}. What prices "
        f"add to the realized objective, {'; '.join(worth)}."
    )


def time(frames: Frames) -> list[str]:
    """What prices of time add where iterations are not of one length."""
    found = only(frames["ladder"], adds=sweeps.TIME)
    words = [
        f"{row['cell'].rpartition('[')[2].rstrip(']')} weights "
        f"{_p(row, 'gain_pct', 'gain_low', 'gain_high')}"
        for row in records(only(found, metric="reward"))
    ]
    if not words:
        return []
    mean = first(found, metric="eel_mean_s")
    return [
        "**Time** (A100 conversation, 20% overload): an iteration reads the KV of its whole batch, "
        "so a request delays all others on its device. Learned from telemetry and priced, that "
        f"adds to the objective of fluid OLP: {', '.join(words)}; mean EEL, average weights, "
        f"{_p(mean, 'gain_pct', 'gain_low', 'gain_high')}. In the lock-step model it is nothing."
    ]


def _weights(frames: Frames) -> str:
    found = frames["zeta2"]
    own = records(only(found, policy=OLP))
    sjf = first(found, policy="sjf")
    low, high = own[0], own[-1]
    word = curves.rises(found, OLP)
    trade = frames["tradeoff"]
    trade = trade[(trade["load"] == "overload") & (trade["counting"] == "all arrived")]
    held = int(trade["verdict"].isin(_GOOD).sum())
    return (
        f"**Weights steer:** the share of requests inside the start-delay limit goes from "
        f"{low['mean']:.3f} [{low['low']:.3f}, {low['high']:.3f}] at ζ2 0 to "
        f"{high['mean']:.3f} [{high['low']:.3f}, {high['high']:.3f}] at ζ2 {high['zeta2']:,.0f} "
        f"(rising: {word}); shortest-first has {sjf['mean']:.3f}. Of the {len(trade)} claims of "
        f"the trade-off figure at λ 0.5, {held} hold."
    )


def _matrix(frames: Frames) -> str:
    found = frames["matrix"]
    words = []
    for weighting, part in found.groupby("weights", sort=False):
        good = int((part["verdict"] == verdicts.REPRODUCES).sum())
        ahead, behind = int((part["sjf_low"] > 0).sum()), int((part["sjf_high"] < 0).sum())
        words.append(
            f"{weighting} weights: better than all four baselines in {good} of {len(part)}, than "
            f"shortest-first in {ahead}, worse than it in {behind}"
        )
    return (
        "**Over real-like, 1:4 and 4:1 lengths, stable and overloaded, perfect and ±20%** (the "
        f"metrics that the weights target): {'; '.join(words)}."
    )


def _diagnostics(frames: Frames) -> str:
    found = only(frames["prices"], policy=OLP)
    rows = keyed(found, "where")
    light, heavy = rows["light load (λ 0.2)"], rows["overload (λ 0.5)"]
    ratio = (light["batch"] + light["memory"]) / max(heavy["batch"] + heavy["memory"], 1e-300)
    larger = ", ".join(f"{where}: {row['larger']}" for where, row in rows.items())
    decode = rows["decode-heavy 1:4, overload"]["larger"]
    claims = (
        f'"memory prices dominate for decode-heavy traffic" {_word(decode == "memory")}, '
        f'"batch prices at high arrival rates" {_word(heavy["larger"] == "batch")}'
    )
    return (
        f"**Prices as a diagnostic:** at light load they are {100 * ratio:.2g}% of those at λ 0.5. "
        f"Which resource costs a mean request more: {larger}. The paper's claims at these "
        f"constants: {claims}."
    )


def _word(holds: bool) -> str:
    return verdicts.REPRODUCES if holds else "does not reproduce"


def _arena(arena: Path | None) -> str:
    if arena is None or not (arena / "scores.csv").is_file():
        return ""
    scores, tests = pd.read_csv(arena / "scores.csv"), pd.read_csv(arena / "tests.csv")
    won = pd.read_csv(arena / "won_by.csv")
    counts = tests["verdict"].value_counts()
    top = ", ".join(f"`{r.policy}` {r.score:.2f}" for r in scores.head(3).itertuples())
    family = int(won["winner"].str.contains("olp").sum())
    return (
        f"**Arena** ({len(won)} cells, {int(won['n'].min())} seeds): best mean scores {top}. "
        f"`{tests['policy'].iloc[0]}` against {tests['rival'].nunique()} rivals in every cell, "
        f"Holm-corrected: ahead {counts.get('ahead', 0)}, level {counts.get('level', 0)}, behind "
        f"{counts.get('behind', 0)} times; an OLP is the best or shares it in {family} cells."
    )
