"""Tables, verdicts and the plot of the section on unlike devices and mixed mode."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from llmroute_env.experiments import style
from llmroute_env.experiments.science.markdown import percent, table, value
from llmroute_env.experiments.science.rows import Row, only, records
from llmroute_env.experiments.science.verdicts import holm, paired_test
from llmroute_env.experiments.statistics import Interval, mean_interval, paired_improvement

BASELINE: Final = "round_robin"
OLP: Final = ("olp:pricing=paper", "olp:pricing=fluid")
LEVEL: Final = 0.05
#: What is tested, and whether more is better.
TESTED: Final = {"reward": 1.0, "eel_mean_s": -1.0, "eel_p99_s": -1.0, "slo_attainment": 1.0}
WORDS: Final = {
    "reward": "objective",
    "eel_mean_s": "mean EEL",
    "eel_p99_s": "P99 EEL",
    "slo_attainment": "SLO attainment",
}
_SHOWN: Final = ("eel_mean_s", "reward", "eel_p99_s", "ttft_p99_s", "slo_attainment")


def tests(rows: list[Row]) -> pd.DataFrame:
    """Each pricing against every other router in every cell, Holm over all of them.

    Columns: cell, metric, own, rival, gain (percent, paired) with low and high, verdict (ahead,
    behind, level).
    """
    frame, found = pd.DataFrame(rows), []
    rivals = [policy for policy in frame["policy"].unique() if policy not in OLP]
    for cell in frame["cell"].unique():
        part = only(frame, cell=cell)
        for own in OLP:
            for rival in [*rivals, *(other for other in OLP if other != own)]:
                for metric, sign in TESTED.items():
                    mine, its = _values(part, own, metric), _values(part, rival, metric)
                    test = paired_test(cell, metric, (own, rival), sign * mine, sign * its)
                    gain = paired_improvement(metric, _floats(its), _floats(mine))
                    row: Row = {"cell": cell, "metric": metric, "own": own, "rival": rival}
                    row |= {"ahead": test.p_ahead, "behind": test.p_behind}
                    found.append(row | dict(zip(("gain", "low", "high"), gain, strict=True)))
    made = pd.DataFrame(found)
    ahead, behind = holm(made["ahead"].tolist()), holm(made["behind"].tolist())
    made["verdict"] = "level"
    made.loc[ahead < LEVEL, "verdict"] = "ahead"
    made.loc[behind < LEVEL, "verdict"] = "behind"
    return made


def render(rows: list[Row]) -> str:
    """The section."""
    frame, tested = pd.DataFrame(rows), tests(rows)
    seeds = frame["seed"].nunique()
    lines = [
        "## OLP on unlike devices and in mixed mode",
        "",
        "*Two pools*: three A100 with Llama-2-7B (48 sequences, context 4,096) and one with "
        "Llama-3-8B (96, 8,192), conversation lengths of the Azure trace. *Appendix A*: the lock-"
        "step model with prefill on the device, one step of prefill and then o of decoding. *A100, "
        "chunks of 512*: prompts prefilled in chunks beside decoding, the last chunk emits a "
        f"token. Prediction ±20%, {seeds} seeds, gains over round robin in percent, paired; "
        f"{len(tested)} paired tests, Holm-corrected at 5%.",
        "",
        "![modes](images/modes.png)",
        "",
    ]
    for cell in frame["cell"].unique():
        part = only(frame, cell=cell)
        first = records(part.head(1))[0]
        lines += [f"### {cell}", ""]
        lines += [f"Offered load {first['load']:.2f} ({first['binding']}).", ""]
        lines += table(_HEAD, [_row(part, policy) for policy in part["policy"].unique()])
        lines += [*_verdict(only(tested, cell=cell)), ""]
    return "\n".join([*lines, *_reasons(frame, tested)])


_HEAD: Final = (
    "router", "mean EEL [s]", "gain: mean EEL", "objective", "P99 EEL", "P99 TTFT", "SLO",
    "unfinished", "preemptions per 100", "misrouted",
)  # fmt: skip


def _row(part: pd.DataFrame, policy: str) -> list[str]:
    own = only(part, policy=policy)
    mean = mean_interval(own["eel_mean_s"].to_numpy())
    cells = [f"`{policy}`", value(*mean)]
    for metric in _SHOWN:
        gain = _gain(part, policy, metric)
        cells.append("" if policy == BASELINE else percent(*gain))
    arrived = own["arrived"].sum()
    cells.append(f"{100.0 * own['unfinished'].sum() / arrived:.1f}%")
    cells.append(f"{100.0 * own['preemptions'].sum() / arrived:.1f}")
    return [*cells, f"{100.0 * own['misrouted'].mean():.2f}%"]


def _gain(part: pd.DataFrame, policy: str, metric: str) -> Interval:
    base, own = _values(part, BASELINE, metric), _values(part, policy, metric)
    return paired_improvement(metric, _floats(base), _floats(own))


def _values(part: pd.DataFrame, policy: str, metric: str) -> pd.Series[float]:
    values: pd.Series[float] = only(part, policy=policy).set_index("seed")[metric].sort_index()
    return values


def _floats(values: pd.Series[float]) -> NDArray[np.float64]:
    return np.asarray(values, dtype=np.float64)


def _verdict(tested: pd.DataFrame) -> list[str]:
    """Per pricing a line that says whom it is ahead of, level with and behind."""
    lines = []
    for own in OLP:
        words = []
        for metric, name in WORDS.items():
            part = only(tested, own=own, metric=metric)
            said = []
            for verdict in ("ahead", "behind", "level"):
                rivals = [f"`{rival}`" for rival in only(part, verdict=verdict)["rival"]]
                link = {"ahead": "ahead of", "behind": "behind", "level": "level with"}[verdict]
                said += [f"{link} {', '.join(rivals)}"] if rivals else []
            words.append(f"*{name}* {'; '.join(said)}")
        lines.append(f"- `{own}`: {'. '.join(words)}.")
    return lines


def _reasons(frame: pd.DataFrame, tested: pd.DataFrame) -> list[str]:
    """What the numbers say of the causes, in words that depend on them."""
    lines = ["### Verdict", ""]
    for cell in frame["cell"].unique():
        part = only(frame, cell=cell)
        gains = {p: _gain(part, p, "eel_mean_s").estimate for p in part["policy"].unique()}
        best = max((p for p in gains if p != BASELINE), key=lambda p: gains[p])
        fifo, short, full, fluid = (
            gains[p] for p in ("central_fifo", "sjf", "mc_sf", "olp:pricing=fluid")
        )
        against = only(tested, cell=cell, own="olp:pricing=fluid", metric="eel_mean_s")
        mc_sf, sjf = (records(only(against, rival=r))[0] for r in ("mc_sf", "sjf"))
        lost = part.groupby("policy")["misrouted"].mean()
        lines.append(
            f"- {cell}: best on mean EEL `{best}` ({gains[best]:+.1f}% over round robin). Holding "
            f"requests centrally gives {fifo:+.1f}%, shortest first {short:+.1f}%, with a look at "
            f"memory {full:+.1f}%, fluid prices {fluid:+.1f}%: prices against shortest first "
            f"{percent(sjf['gain'], sjf['low'], sjf['high'])}% ({sjf['verdict']}), against MC-SF "
            f"{percent(mc_sf['gain'], mc_sf['low'], mc_sf['high'])}% ({mc_sf['verdict']})."
            + _memory(part)
            + _lost(lost)
        )
    return [*lines, ""]


def _memory(part: pd.DataFrame) -> str:
    """Whether memory has anything to say: with room for all, MC-SF is shortest first."""
    alike = _values(part, "sjf", "eel_mean_s").equals(_values(part, "mc_sf", "eel_mean_s"))
    if not alike or part["preemptions"].sum() > 0:
        return ""
    return (
        " Memory does not bind here (no preemption, MC-SF decides as shortest first does), so what "
        "prices can add is the order in which batch slots are given out, which is that of lengths."
    )


def _lost(shares: pd.Series[float]) -> str:
    """What routers lose by sending requests where they do not fit."""
    if shares.max() == 0.0:
        return ""
    worst = shares.sort_values(ascending=False)
    named = [f"`{policy}` {100.0 * share:.1f}%" for policy, share in worst.items() if share > 1e-3]
    kept = [f"`{policy}`" for policy, share in worst.items() if share <= 1e-3]
    return (
        f" Requests that their device could not hold, which are rejected and so have no latency: "
        f"{', '.join(named)}; at most 0.1% with {', '.join(kept) or 'none'}. Latencies of routers "
        "that lose requests are flattered; the objective counts what is lost."
    )


def line(rows: list[Row]) -> str:
    """The sentence on top."""
    tested = tests(rows)
    part = tested[(tested["own"] == OLP[1]) & tested["rival"].isin(["sjf", "mc_sf"])]
    counts = {v: int((part["verdict"] == v).sum()) for v in ("ahead", "level", "behind")}
    return (
        f"**Unlike devices and mixed mode**: against shortest-first and MC-SF, fluid OLP is ahead "
        f"in {counts['ahead']} of {len(part)} comparisons (objective, mean and P99 EEL, SLO; "
        f"{part['cell'].nunique()} cells), level in {counts['level']}, behind in "
        f"{counts['behind']} (Holm-corrected)."
    )


def plot(rows: list[Row], directory: Path) -> None:
    """Gains over round robin, a column per cell."""
    frame = pd.DataFrame(rows)
    cells = list(frame["cell"].unique())
    policies = [policy for policy in frame["policy"].unique() if policy != BASELINE]
    strokes = style.strokes(policies)
    shown = ("reward", "eel_mean_s", "eel_p99_s")
    with style.look():
        figure = style.new_figure(2.7 * len(cells) + 1.2, 7.0)
        panels = style.subplots(figure, len(shown), len(cells), sharey=True)
        for column, cell in enumerate(cells):
            part = only(frame, cell=cell)
            for at, metric in enumerate(shown):
                axes = panels[at * len(cells) + column]
                for height, policy in enumerate(reversed(policies)):
                    gain = _gain(part, policy, metric)
                    color = strokes[policy].color
                    axes.hlines(height, gain.low, gain.high, color=color, linewidth=2.5)
                    axes.plot(gain.estimate, height, "o", color=color, ms=5)
                axes.axvline(0.0, color="#7F7F7F", linewidth=1.0)
                axes.set_yticks(range(len(policies)), list(reversed(policies)))
                axes.set_ylim(-0.6, len(policies) - 0.4)
                axes.set_xlabel(f"{WORDS[metric]}: gain [%]")
            panels[column].set_title(cell.replace(", load", ",\nload"), fontsize=9)
        style.save(figure, directory / "modes.png")
