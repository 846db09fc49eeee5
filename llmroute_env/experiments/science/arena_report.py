"""The arena's tables as CSV, a section of Markdown, and a plot."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from llmroute_env.experiments import style
from llmroute_env.experiments.records import write_csv, write_text
from llmroute_env.experiments.science import arena as arenas
from llmroute_env.experiments.science import arena_front, arena_gaps, standings
from llmroute_env.experiments.science.arena import Arena
from llmroute_env.experiments.science.bounds import Bounds
from llmroute_env.experiments.science.episodes import Episodes
from llmroute_env.experiments.science.markdown import span, table, value
from llmroute_env.experiments.science.rows import Row, keyed, only, records
from llmroute_env.experiments.table import number


def write(arena: Arena, episodes: Episodes, bounds: Bounds, out: Path) -> str:
    """Write summary.csv, won_by.csv, scores.csv, tests.csv, the plot and arena.md; its text."""
    cells = standings.objectives(arena, episodes)
    frames = {
        "summary": arenas.summary(arena, episodes),
        "won_by": standings.won_by(arena, cells),
        "scores": standings.scores(arena, cells),
        "tests": standings.family_tests(arena, cells),
        "shares": arena_gaps.shares(arena, episodes, bounds),
        "front": arena_front.front(arena, episodes),
    }
    if not len(frames["won_by"]):
        raise ValueError(f"{out}: a comparison needs two seeds that every policy played")
    for name, frame in frames.items():
        write_csv(frame, out / f"{name}.csv")
    try:
        import matplotlib as mpl  # noqa: F401  (is it there?)
    except ImportError:
        pass
    else:
        with style.look():
            _heatmap(arena, cells, out / "images" / "arena.png")
            arena_front.plot(arena, frames["front"], out / "images" / "arena_front.png")
            if frames["shares"]["share"].notna().any():
                arena_gaps.plot(arena, frames["shares"], out / "images" / "arena_gaps.png")
    text = "\n".join(_section(arena, episodes, bounds, frames))
    write_text(out / "arena.md", text)
    return text


def _share(shares: pd.DataFrame, row: Row, policy: str) -> str:
    """Share of the bound in the cell of a row; empty where there is no bound."""
    own = only(shares, scenario=row["scenario"], weights=row["weights"], policy=policy)
    value_ = float(own["share"].iloc[0])
    return "" if np.isnan(value_) else f"{100.0 * value_:.2f}%"


def _section(
    arena: Arena, episodes: Episodes, bounds: Bounds, frames: dict[str, pd.DataFrame]
) -> list[str]:
    won, scores, tests = frames["won_by"], frames["scores"], frames["tests"]
    shares = frames["shares"]
    skipped = [f"`{policy}` did not play: {why}." for policy, why in arena.skipped.items()]
    hidden = frames["summary"].query("metric == 'hidden_share'")["mean"].max()
    return [
        "## Arena",
        "",
        f"{len(arena.scenarios)} scenarios × {len(arena.settings)} weight settings × "
        f"{len(arena.policies)} policies, {span(won['n'])} paired seeds from {arena.first_seed} "
        f"(tuning used none of them), code {', '.join(sorted(episodes.versions()))}. The judge is "
        "the realized objective. " + " ".join(skipped),
        "",
        "Score: 0 is round robin, 1 the best of the cell, mean over all cells; brackets hold 95% "
        "of resampled seed sets. Periods with a hidden queue: at most "
        f"{100 * (0.0 if np.isnan(hidden) else hidden):.1f}% in any cell.",
        "",
        "![arena](images/arena.png)",
        "",
        *table(
            ("policy", "score", "mean rank", "best or tied", "cells"),
            [
                [
                    f"`{r['policy']}`",
                    f"{r['score']:.3f} [{r['low']:.3f}, {r['high']:.3f}]",
                    f"{r['mean_rank']:.1f}",
                    str(r["best_or_tied"]),
                    str(r["cells"]),
                ]
                for r in records(scores)
            ],
        ),
        "### Won by",
        "",
        "*Sure*: share of resampled seed sets in which the winner stays the best. *Family over "
        "rivals*: the best OLP's mean objective over the best rival's, with the hindsight of "
        "choosing both. *Of the bound*: share of the hindsight bound, which no router can pass "
        "whatever it knows, on the seeds that have one (*bounds*).",
        "",
        *table(
            (
                *("scenario", "weights", "n", "won by", "sure", "family over rivals [%]"),
                *("of the bound: winner", f"{arena.designated}", "bounds"),
            ),
            [
                [
                    r["scenario"],
                    r["weights"],
                    str(r["n"]),
                    f"`{r['winner']}`",
                    f"{100 * r['confidence']:.0f}%",
                    f"{r['family_gain_pct']:+.3f}",
                    _share(shares, r, r["winner"].split(" = ")[0]),
                    _share(shares, r, arena.designated),
                    str(only(shares, scenario=r["scenario"], weights=r["weights"])["n"].max()),
                ]
                for r in records(won)
            ],
            2,
        ),
        *_tests(arena, tests),
        *arena_gaps.section(arena, bounds, shares),
        *arena_front.section(arena, frames["front"]),
        *_metrics(arena, frames["summary"]),
    ]


def _tests(arena: Arena, tests: pd.DataFrame) -> list[str]:
    counts = pd.crosstab(tests["rival"], tests["verdict"])
    rows = [
        [f"`{row['rival']}`", *(str(row.get(word, 0)) for word in ("ahead", "level", "behind"))]
        for row in records(counts.reset_index())
    ]
    behind = tests[tests["verdict"] == "behind"].sort_values("p_behind_holm")
    lines = [
        "### OLP against each rival",
        "",
        f"`{arena.designated}` stands for the family, named before the run. One-sided paired t "
        f"tests of the realized objective, {len(tests)} of them, Holm-corrected at 5%.",
        "",
        *table(("rival", "ahead", "level", "behind"), rows),
    ]
    if len(behind):
        lines += ["Where it is behind:", ""]
        lines += table(
            ("scenario", "weights", "rival", "difference", "p (Holm)"),
            [
                [
                    r["cell"],
                    r["weights"],
                    f"`{r['rival']}`",
                    number(r["difference"]),
                    f"{r['p_behind_holm']:.1g}",
                ]
                for r in records(behind)
            ],
            3,
        )
    return lines


def _metrics(arena: Arena, summary: pd.DataFrame) -> list[str]:
    """Mean, tail, SLO and fairness under the first weights, for a few policies."""
    weighting = arena.settings[0]
    shown = ("eel_mean_s", "eel_p99_s", "ttft_p99_s", "slo_attainment", "wait_max_s", "jain_length")
    part = summary[summary["weights"] == weighting]
    policies = [p for p in arena.policies if p in ("lor", "sjf", "mc_sf", arena.designated)]
    rows = []
    for name in arena.scenarios:
        for policy in policies:
            own = keyed(only(part, scenario=name, policy=policy), "metric")
            cells = [value(own[key]["mean"], own[key]["low"], own[key]["high"]) for key in shown]
            rows.append([name, f"`{policy}`", *cells])
    head = ("scenario", "policy", "mean EEL", "P99 EEL", "P99 TTFT", "SLO", "longest wait", "Jain")
    return [
        f"### Latency, service level and fairness, {weighting} weights",
        "",
        "Jain's index of the mean slowdown of four length classes (1: all alike). All policies, "
        "weights and metrics are in the run's summary.csv.",
        "",
        *table(head, rows, 2),
    ]


def _heatmap(arena: Arena, cells: dict[tuple[str, str], standings.Objectives], path: Path) -> Path:
    keys = [key for key, cell in cells.items() if len(cell.seeds) >= 2]
    grid = np.array([standings.cell_scores(arena, cells[key]) for key in keys])
    figure = style.new_figure(3.4 + 0.45 * len(arena.policies), 1.6 + 0.17 * len(keys))
    (axes,) = style.subplots(figure, 1, 1)
    axes.grid(visible=False)
    image = axes.imshow(grid, aspect="auto", cmap="RdYlBu", vmin=-1.0, vmax=1.0)
    axes.set_xticks(
        range(len(arena.policies)), list(arena.policies), rotation=40, ha="right", fontsize=8
    )
    axes.set_yticks(range(len(keys)), [f"{a}, {b}" for a, b in keys], fontsize=6.5)
    axes.tick_params(length=0)
    axes.set_title("score: 0 round robin, 1 the cell's best")
    figure.colorbar(image, ax=axes, shrink=0.4)
    return style.save(figure, path)
