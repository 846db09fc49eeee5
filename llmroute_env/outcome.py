"""Step information from a row of the kernel's outcome, for one lane and for all."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmroute_env.cluster.dtypes import COMPONENTS
from llmroute_env.cluster.state import Outcome


def step_info(row: NDArray[np.float64]) -> dict[str, Any]:
    """Reward components, cost and illegal actions of one environment's step."""
    values = row.tolist()
    return {
        "rewards": dict(zip(COMPONENTS, values, strict=False)),
        "cost": values[Outcome.COST],
        "invalid_actions": int(values[Outcome.INVALID]),
    }


def step_infos(rows: NDArray[np.float64], present: NDArray[np.bool_]) -> dict[str, Any]:
    """The same for N lanes in Gymnasium's layout; lanes not ``present`` have no such info."""
    if not present.any():
        return {}
    if not present.all():
        rows = np.where(present[:, None], rows, 0.0)
    rewards: dict[str, Any] = {}
    for column, name in enumerate(COMPONENTS):
        rewards[name], rewards[f"_{name}"] = rows[:, column].copy(), present.copy()
    return {
        "rewards": rewards,
        "_rewards": present.copy(),
        "cost": rows[:, Outcome.COST].copy(),
        "_cost": present.copy(),
        "invalid_actions": rows[:, Outcome.INVALID].astype(np.int64),
        "_invalid_actions": present.copy(),
    }
