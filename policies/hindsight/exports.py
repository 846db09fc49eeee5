"""An episode as files: its requests, its program for any solver, and what they are."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from llmroute_env.scenario import Scenario
from policies.hindsight.instance import HindsightError, Instance
from policies.hindsight.mps import write_mps
from policies.hindsight.time_indexed import Program, program

if TYPE_CHECKING:
    from llmroute_env.workload import RequestTable

FORMATS = ("parquet", "csv")
MODELS = ("milp", "lp")


@dataclass(frozen=True)
class Exported:
    """Files of an exported episode.

    Attributes:
        requests: parquet or CSV, one row per request.
        model: the MPS file, None where none was wanted.
        description: JSON: scenario, limits, slot length, seed, sizes.
    """

    requests: Path
    model: Path | None
    description: Path


def draw(scenario: Scenario, seed: int) -> RequestTable:
    """The requests that ``env.reset(seed=seed)`` draws."""
    from llmroute_env.env import LLMRouteEnv

    env = LLMRouteEnv(scenario)
    env.reset(seed=seed)
    return env.requests


def cut(
    scenario: Scenario, requests: RequestTable, *, horizon: int | None, first: int | None
) -> tuple[Scenario, RequestTable]:
    """The episode's beginning: its first periods and requests.

    Args:
        scenario: the whole episode's.
        requests: the whole episode's.
        horizon: T of the shorter episode, None for all [periods].
        first: how many requests to keep, None for all.

    Raises:
        HindsightError: nothing would be left.
    """
    for name, value in (("horizon", horizon), ("requests", first)):
        if value is not None and value < 1:
            raise HindsightError(f"{name} = {value}: must be at least 1")
    if horizon is not None and horizon < scenario.horizon_periods:
        scenario = Scenario.load(scenario, {"horizon_periods": horizon})
    seen_s = requests.arrival_s if requests.ready_s is None else requests.ready_s
    arrived = int(np.searchsorted(seen_s, scenario.horizon_periods * scenario.period_s))
    count = min(arrived, len(requests) if first is None else first)
    return scenario, requests.take(slice(count))


def export(
    scenario: Scenario,
    requests: RequestTable,
    directory: Path,
    *,
    seed: int | None = None,
    table: str = "parquet",
    model: str | None = "milp",
    compress: bool = False,
    **options: Any,
) -> Exported:
    """Write an episode into a directory.

    Args:
        scenario: the scenario.
        requests: the episode's requests.
        directory: made if it does not exist; files in it are replaced.
        seed: noted in the description.
        table: ``parquet`` (needs pyarrow) or ``csv``.
        model: ``milp``, ``lp`` or None for no MPS file; needs a lock-step scenario.
        compress: write ``.mps.gz``.
        options: of `time_indexed.program`: per_device, stride, most_columns.

    Raises:
        HindsightError: unknown format or model, pyarrow is missing, the program is too large.
    """
    if table not in FORMATS:
        raise HindsightError(f"format {table!r}: must be one of {', '.join(FORMATS)}")
    if model is not None and model not in MODELS:
        raise HindsightError(f"model {model!r}: must be one of {', '.join(MODELS)}, or none")
    if table == "parquet" and find_spec("pyarrow") is None:
        raise HindsightError("format 'parquet' needs pyarrow (pip install pyarrow); or take 'csv'")
    one = Instance.build(scenario, requests)
    made = None if model is None else program(one, integral=model == "milp", **options)
    directory.mkdir(parents=True, exist_ok=True)

    rows = directory / f"requests.{table}"
    frame = _frame(one, requests)
    if table == "parquet":
        frame.to_parquet(rows)
    else:
        frame.to_csv(rows)
    mps = None
    if made is not None:
        mps = directory / f"{model}.mps{'.gz' if compress else ''}"
        write_mps(made, mps, name=scenario.name, remarks=_remarks(scenario, one, seed))
    description = directory / "instance.json"
    facts = _facts(scenario, requests, one, seed) | _program_facts(made, model, options)
    description.write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    return Exported(rows, mps, description)


def _frame(one: Instance, requests: RequestTable) -> pd.DataFrame:
    first = np.full(len(requests), -1)
    first[one.rows] = one.work.first
    frame = pd.DataFrame(
        {
            "arrival_s": requests.arrival_s,
            "prompt": requests.prompt,
            "decode": requests.decode,
            "predicted": requests.predicted,
            "tier": requests.tier,
            "first_slot": first,  # -1: rejected, or seen at the horizon only
        }
    )
    frame.index.name = "request"
    return frame


def _facts(
    scenario: Scenario, requests: RequestTable, one: Instance, seed: int | None
) -> dict[str, Any]:
    return {
        "scenario": scenario.model_dump(mode="json", by_alias=True),
        "digest": scenario.digest(),
        "seed": seed,
        "requests": len(requests),
        "requests_that_can_start": one.requests,
        "slots": one.slots,
        "slot_s": one.slot_ns * 1e-9,
        "lock_step": one.exact,
        "batch_limit": one.batch_limit.tolist(),
        "kv_limit": one.kv_limit.tolist(),
    }


def _program_facts(made: Program | None, model: str | None, options: Any) -> dict[str, Any]:
    if made is None:
        return {}
    rows, columns = made.rows.shape
    return {
        "model": model,
        "options": options,
        "rows": int(rows),
        "columns": int(columns),
        "entries": int(made.rows.nnz),
    }


def _remarks(scenario: Scenario, one: Instance, seed: int | None) -> tuple[str, ...]:
    return (
        f"scenario {scenario.name}, digest {scenario.digest()}, seed {seed}",
        f"slots of {one.slot_ns * 1e-9:g} s; x_j_k_g: request j starts in slot k on device g",
        "n_g_k: requests on g in slot k; m_g_k: KV tokens on g in slot k",
    )
