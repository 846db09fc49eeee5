"""Targets as a user gives and reads them: parameters, rows for the compiled rule, what was met."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np
from pydantic import Field, model_validator

from policies.family import PolicyParameters
from policies.olp.targets import COLUMNS, Goal, Kind, Target, multiplier

Share = Annotated[float, Field(gt=0, lt=1)]
Seconds = Annotated[float, Field(gt=0)]

#: u_max where ``multiplier_max`` is not given: the multiplier is at most 54 times its scale.
TOP = 4.0
#: Patience of an EEL target as a share of its limit. (A TTFT target's is the limit itself.)
EEL_PATIENCE = 0.1
_QUANTILES = {
    "target_ttft_s": ("target_ttft_quantile", 0.95),
    "target_eel_s": ("target_eel_quantile", 0.99),
}
_NAMES = {Kind.TTFT: "target_ttft_s", Kind.EEL: "target_eel_s", Kind.BOTH: "target_attainment"}


class TargetParameters(PolicyParameters):
    """Parameters of tail targets; with one, zeta1 and zeta2 are learned (``targets.py``)."""

    target_ttft_s: Seconds | None = None  #: limit of TTFT [s], for a share of the requests
    target_ttft_quantile: Share | None = None  #: that share, default 0.95
    target_eel_s: Seconds | None = None  #: limit of EEL [s], for a share of the requests
    target_eel_quantile: Share | None = None  #: that share, default 0.99
    target_attainment: Share | None = None  #: share inside tail_ttft_s (start delay) and tail_eel_s
    multiplier_start: Annotated[float, Field(ge=0)] | None = None  #: default 0, at most the largest
    multiplier_max: Annotated[float, Field(gt=0)] | None = None  #: default: 54 waits of D
    multiplier_step: Annotated[float, Field(gt=0, le=2)] | None = None  #: e-folds per miss, 0.15

    @model_validator(mode="after")
    def _consistent(self) -> TargetParameters:
        targets = [name for name in _NAMES.values() if getattr(self, name) is not None]
        for name, (quantile, _) in _QUANTILES.items():
            if getattr(self, quantile) is not None and name not in targets:
                raise ValueError(f"{quantile} is of a target: give {name}, too")
        if "target_attainment" in targets and len(targets) > 1:
            raise ValueError(
                f"target_attainment is over both limits: give it or {targets[0]}, not both"
            )
        if not targets:
            for name in ("multiplier_start", "multiplier_max", "multiplier_step"):
                if getattr(self, name) is not None:
                    raise ValueError(
                        f"{name} is of a target: give one of {', '.join(_NAMES.values())}"
                    )
            return self
        for name in ("zeta1", "zeta2"):
            if getattr(self, name, None) is not None:
                raise ValueError(f"{name} is learned with {targets[0]}: give one or the other")
        for name in ("tail_ttft_s", "tail_eel_s"):
            if getattr(self, name, None) is not None and "target_attainment" not in targets:
                raise ValueError(f"{name}: with {targets[0]} the limits are those of the targets")
        return self


def deadline_s(given: TargetParameters, tail_ttft_s: float) -> float:
    """The time that ``patience`` is a multiple of [s]."""
    if given.target_ttft_s is not None:
        return given.target_ttft_s
    return tail_ttft_s if given.target_eel_s is None else EEL_PATIENCE * given.target_eel_s


def target_rows(
    given: TargetParameters, weights: dict[str, float], patience_periods: float
) -> np.ndarray:
    """Rows (n, len(Target)) of ``params.targets``.

    Args:
        weights: of the objective. Changed where there is a target: zeta1 and zeta2 to the largest
            values that the multipliers can take, since rewards are normalized by them.
        patience_periods: D.
    """
    wanted: list[tuple[Kind, float, float, float]] = []
    if given.target_ttft_s is not None:
        share = given.target_ttft_quantile or _QUANTILES["target_ttft_s"][1]
        wanted.append((Kind.TTFT, share, given.target_ttft_s, 0.0))
    if given.target_eel_s is not None:
        share = given.target_eel_quantile or _QUANTILES["target_eel_s"][1]
        wanted.append((Kind.EEL, share, 0.0, given.target_eel_s))
    if given.target_attainment is not None:
        limits = (weights["tail_ttft_s"], weights["tail_eel_s"])
        wanted.append((Kind.BOTH, given.target_attainment, *limits))
    if not wanted:
        return np.zeros((0, len(Target)))
    scale = (weights["beta"] + weights["gamma"]) * patience_periods
    # Without a cost of waiting, the index counts a thousandth of the reward (``columns.py``).
    scale = scale or 1e-3 * (weights["alpha"] * patience_periods + weights["sigma"]) or 1.0
    top = TOP if given.multiplier_max is None else float(np.log1p(given.multiplier_max / scale))
    step = given.multiplier_step or 0.15
    largest = scale * float(np.expm1(top))
    weights |= {"zeta1": 0.0, "zeta2": 0.0}
    for kind, *_ in wanted:
        weights["zeta2" if kind == Kind.TTFT else "zeta1"] = largest
    return np.array([(*one, scale, step, top) for one in wanted])


def fresh_goals(given: TargetParameters, rows: np.ndarray) -> np.ndarray:
    """Rows (n, COLUMNS) of ``memory.goals`` as an episode starts."""
    goals = np.zeros((len(rows), COLUMNS))
    goals[:, Goal.MARK] = -np.inf
    goals[:, Goal.FIRST_ARM :] = -1.0
    start = given.multiplier_start or 0.0
    goals[:, Goal.LEVEL] = np.minimum(np.log1p(start / rows[:, Target.SCALE]), rows[:, Target.TOP])
    return goals


def report(rows: np.ndarray, goals: np.ndarray) -> dict[str, Any]:
    """Return ``infeasible`` and ``targets`` of ``diagnostics``."""
    found = {
        _NAMES[Kind(int(row[Target.KIND]))]: _one(row, goal)
        for row, goal in zip(rows, goals, strict=True)
    }
    return {"infeasible": any(one["infeasible"] for one in found.values()), "targets": found}


def _one(row: np.ndarray, goal: np.ndarray) -> Mapping[str, Any]:
    settled = int(goal[Goal.SETTLED])
    share = float(row[Target.SHARE])
    infeasible = bool(goal[Goal.SEEKING])
    best = float(goal[Goal.BEST]) if infeasible else np.nan
    return {
        "share": share,
        "attained": 1.0 - float(goal[Goal.MISSED]) / settled if settled else np.nan,
        "recent": float(goal[Goal.RECENT]) if settled else np.nan,
        "settled": settled,
        "multiplier": float(multiplier(goal, row)),
        "infeasible": infeasible,
        "attainable": best,
        "shortfall": share - best,
    }
