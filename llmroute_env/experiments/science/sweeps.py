"""The experiments: which cells and policies each part of the reproduction plays.

The constants that the paper omits are swept within what it does say: 0.4 requests per period are
stable and 0.5 are overloaded on 4 devices. With LMSYS-like lengths (mean decode 214.5) that leaves
B between 22 and 26 when the batch binds, or, when memory binds, M near 7,100 tokens with a B above
what memory holds.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from llmroute_env.experiments.load import at_load
from llmroute_env.experiments.science import claims
from llmroute_env.experiments.science.claims import (
    BASELINES,
    OLP,
    OLP_FLUID,
    OLP_FLUID_MARGIN,
    OLP_TEXT,
    SJF,
    WEIGHT_SETTINGS,
    ZETA2,
    paper_cell,
)
from llmroute_env.experiments.science.episodes import Cell
from llmroute_env.scenario import Scenario

Wanted = tuple[Cell, str]

#: Router variants that stand for the published one.
ROUTERS: Final = {OLP: "rolling horizon", OLP_TEXT: "as in the text"}

TABLE_WEIGHTS: Final = ("average", "tail", "mixed")
MATRIX_WEIGHTS: Final = ("average", "tail", "throughput")

_MEMORY_BINDS: Final = 7_100


class Point(NamedTuple):
    """One setting of the constants."""

    label: str
    overrides: dict[str, Any]
    counting: str = "all arrived"


def constants() -> list[Point]:
    """B, M, T, counting and the spread of lengths, one changed at a time from the default."""
    points = [Point("default: B 24, M 16,000, T 4,000, all arrived", {})]
    points.append(Point("completed only", {}, "completed only"))
    drained = {"drain": True, "max_drain_periods": 8_000}
    points.append(Point("drained (up to 8,000 periods)", drained))
    points += [Point(f"B {b}", {"cluster__batch_limit": b}) for b in (22, 26)]
    points.append(
        Point(
            f"memory binds: B 96, M {_MEMORY_BINDS:,}",
            {"cluster__batch_limit": 96, "cluster__kv_limit": _MEMORY_BINDS},
        )
    )
    points.append(Point(f"both bind: M {_MEMORY_BINDS:,}", {"cluster__kv_limit": _MEMORY_BINDS}))
    points.append(Point("memory is no limit: M 64,000", {"cluster__kv_limit": 64_000}))
    for horizon in (1_000, 2_000, 6_000, 8_000):
        # A longer overload has a longer queue: the router must see all of it.
        window = {"router__window": 1_024} if horizon > 4_000 else {}
        points.append(Point(f"T {horizon:,}", {"horizon_periods": horizon} | window))
        points.append(
            Point(
                f"T {horizon:,}, completed only",
                {"horizon_periods": horizon} | window,
                "completed only",
            )
        )
    points += [
        Point(f"decode lengths: σ {sigma:g}", {"workload__lengths__decode__sigma": sigma})
        for sigma in (0.6, 1.2)
    ]
    return points


def table_cells() -> list[tuple[str, str, str]]:
    """(load, weights, prediction) of the tables."""
    return [
        (load, weighting, prediction)
        for load in ("overload", "stable", "shift")
        for weighting in TABLE_WEIGHTS
        for prediction in ("±20%", "perfect")
        if load != "shift" or prediction == "±20%"
    ]


def matrix_cells() -> list[tuple[str, str, str]]:
    """(lengths, load, prediction) of figures 4 to 12 and 14 to 24."""
    return [
        (lengths, load, prediction)
        for lengths in ("LMSYS", "1:4", "4:1")
        for load in ("stable", "overload")
        for prediction in ("perfect", "±20%")
    ]


#: Ingredients of the ladder that have to do with prices.
PRICES: Final = "prices, as published"
FUTURE: Final = "prices of future arrivals instead"
RANKING: Final = "ranking by loss per price"
TIME: Final = "the time that a request adds to iterations, priced"


def _steps(fluid: bool, attention: bool) -> list[tuple[str, str]]:
    """(policy, the ingredient that it adds); ``attention``: iterations take as long as KV says."""
    steps = [
        ("lor", "dispatch at arrival to the least loaded device"),
        ("central_fifo", "a central queue that holds what cannot start"),
        (SJF, "the predicted length: shortest first"),
        ("mc_sf", "KV feasibility over the predicted stay"),
        ("olp:pricing=none", "the objective's reward as the order, prices 0"),
        (OLP, PRICES),
    ]
    if fluid:
        without = ":slowdown=false" if attention else ""  # no effect where iterations are alike
        steps.append((OLP_FLUID_MARGIN + without, FUTURE))
        steps.append((OLP_FLUID + without, RANKING))
    if fluid and attention:
        steps.append((OLP_FLUID, TIME))
    return steps


def ladders(fluid: bool) -> list[tuple[Cell, list[tuple[str, str]]]]:
    """Cells of the attribution ladder, each with its (policy, the ingredient that it adds)."""
    cells = [paper_cell(load, weighting) for load, weighting in _LADDER_CELLS]
    found = [(cell, _steps(fluid, attention=False)) for cell in cells]
    scenario = at_load(Scenario.load("azure-conv-a100", _OVERLOADED_A100), 1.2)
    for weighting in ("average", "tail", "throughput"):
        name = f"A100 conversation, 20% overload [{weighting}]"
        cell = Cell(name, scenario, WEIGHT_SETTINGS[weighting])
        found.append((cell, _steps(fluid, attention=True)))
    return found


_LADDER_CELLS: Final = (
    ("overload", "average"),
    ("overload", "tail"),
    ("overload", "mixed"),
    ("shift", "average"),
)
_OVERLOADED_A100: Final = {"horizon_periods": 2_400, "router.window": 1_024}

#: Forgetting in Table 2's setting: the detector, none, and a short memory instead.
DRIFT_POLICIES: Final = {
    OLP: "rate test, then forget",
    f"{OLP}:drift=false": "no detector",
    f"{OLP}:drift=false:history=128": "no detector, last 128 requests only",
}

#: Why the tails of the text's router look as they do: each variant changes one rule of it.
TAIL_POLICIES: Final = {
    OLP_TEXT: "as in the text: margin <= 0 waits",
    "olp:pricing=none:horizon=fixed:work_conserving=false": "the same with prices 0",
    "olp:pricing=paper:horizon=fixed": "margin <= 0 starts when capacity is idle",
    SJF: "shortest first",
}
TAIL_HORIZONS: Final = (4_000, 8_000)


def tail_cell(horizon: int) -> Cell:
    """A cell of that comparison, tail weights at lambda 0.5."""
    longer = {"horizon_periods": horizon, "router__window": 1_024} if horizon > 4_000 else {}
    return paper_cell("overload", "tail", **longer)


PRICE_CELLS: Final[dict[str, dict[str, Any]]] = {
    "light load (λ 0.2)": {"load": "light"},
    "stable (λ 0.4)": {"load": "stable"},
    "overload (λ 0.5)": {"load": "overload"},
    "decode-heavy 1:4, overload": {"load": "overload", "lengths": "1:4"},
    "prefill-heavy 4:1, overload": {"load": "overload", "lengths": "4:1"},
    "overload, memory binds (B 96, M 7,100)": {
        "load": "overload",
        "cluster__batch_limit": 96,
        "cluster__kv_limit": _MEMORY_BINDS,
    },
}


def price_policies(fluid: bool) -> list[str]:
    """Routers whose prices are shown."""
    return [OLP, OLP_FLUID] if fluid else [OLP]


def everything(fluid: bool) -> list[Wanted]:
    """Every (cell, policy) of the reproduction."""
    return [
        *_tables(),
        *_matrix(),
        *_zeta2(fluid),
        *_constants(),
        *_ladder(fluid),
        *((paper_cell("shift", "average"), policy) for policy in DRIFT_POLICIES),
        *(
            (tail_cell(horizon), policy)
            for horizon in TAIL_HORIZONS
            for policy in (*TAIL_POLICIES, claims.BASELINE)
        ),
        *(
            (paper_cell(**settings), policy)
            for settings in PRICE_CELLS.values()
            for policy in price_policies(fluid)
        ),
    ]


def _tables() -> Iterator[Wanted]:
    for load, weighting, prediction in table_cells():
        cell = paper_cell(load, weighting, prediction)
        for policy in (*BASELINES, SJF, *ROUTERS):
            yield cell, policy


def _matrix() -> Iterator[Wanted]:
    for lengths, load, prediction in matrix_cells():
        for weighting in MATRIX_WEIGHTS:
            cell = paper_cell(load, weighting, prediction, lengths)
            for policy in (*BASELINES, SJF, OLP):
                yield cell, policy


def zeta2_cells() -> list[tuple[float, Cell]]:
    """Cells of the zeta2 sweep."""
    return [(zeta2, paper_cell("overload", f"zeta2={zeta2:g}")) for zeta2 in ZETA2]


def _zeta2(fluid: bool) -> Iterator[Wanted]:
    for _, cell in zeta2_cells():
        for policy in (BASELINES.keys() | {SJF}) | set(price_policies(fluid)):
            yield cell, policy


def _constants() -> Iterator[Wanted]:
    for point in constants():
        for weighting in ("average", "tail"):
            cell = paper_cell("overload", weighting, **point.overrides)
            for policy in (claims.BASELINE, SJF, *ROUTERS):
                yield cell, policy


def _ladder(fluid: bool) -> Iterator[Wanted]:
    for cell, steps in ladders(fluid):
        for policy, _ in steps:
            yield cell, policy


__all__ = [
    "DRIFT_POLICIES",
    "FUTURE",
    "MATRIX_WEIGHTS",
    "PRICES",
    "PRICE_CELLS",
    "RANKING",
    "ROUTERS",
    "TABLE_WEIGHTS",
    "TAIL_HORIZONS",
    "TAIL_POLICIES",
    "TIME",
    "WEIGHT_SETTINGS",
    "Point",
    "constants",
    "everything",
    "ladders",
    "matrix_cells",
    "price_policies",
    "table_cells",
    "tail_cell",
    "zeta2_cells",
]
