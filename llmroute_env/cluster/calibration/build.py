"""Profiles of a device and its models from their CSVs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from llmroute_env.cluster.calibration import csvs, fitting
from llmroute_env.cluster.calibration.facts import (
    A100,
    MODELS,
    SOURCE,
    DeviceFacts,
    ModelFacts,
)
from llmroute_env.cluster.profiles import (
    AttentionProfile,
    DeviceProfile,
    LayerProfile,
    ModelProfile,
    Table,
)

#: Largest token count of a layer table: what an engine batches in one iteration. Llama-3 was
#: profiled to 32,768; those rows judge the extrapolation.
LAYER_TOKENS = 4096
#: Largest decode batch; engines stop at 256 by default.
HEAD_TOKENS = 512
#: From here on a layer is compute-bound in every profile.
PREFILL_TOKENS = 512
#: A decode batch under which a prefill is measured, see ``_prefill_slope``.
PREFILL_BATCH = 64

_TOKEN_RANGES = (0, 64, 256, 1024, 4096, np.inf)
_KV_RANGES = (0, 10_000, 30_000, 100_000, 200_000, np.inf)
_BYTE_RANGES = (0, 2**18, 2**20, 2**22, 2**24, np.inf)
_CHUNK_RANGES = (0, 128, 512, 1024, 2048, np.inf)


@dataclass(frozen=True)
class Calibration:
    """A device, its models, and the second profile they are compared with (None if absent)."""

    device: DeviceProfile
    models: tuple[ModelProfile, ...]
    splitwise: pd.DataFrame | None


def calibrate(
    folder: Path,
    *,
    seed: int = 0,
    device: DeviceFacts = A100,
    models: Sequence[ModelFacts] = MODELS,
) -> Calibration:
    """Fit everything.

    Args:
        folder: directory with the profile CSVs.
        seed: of the held-out split.
        device: constants and file names of the device.
        models: architectures to fit.

    Raises:
        ValueError: a missing or malformed CSV; one line.
    """
    by_name = {model.name: model for model in (*MODELS, *models)}
    profiled = by_name[device.attention_model]
    return Calibration(
        _device(folder, device, profiled, seed),
        tuple(_model(folder, device, model, seed) for model in models),
        csvs.read_splitwise(folder, device),
    )


def _device(folder: Path, facts: DeviceFacts, profiled: ModelFacts, seed: int) -> DeviceProfile:
    attention = csvs.read_attention(folder, facts, profiled)
    kernels, errors = _attention(attention, facts, profiled, seed)
    per_token = _architecture(profiled).kv_bytes_per_layer(facts.attention_tp)
    decode = attention[attention["decode"]]
    largest = int((decode["batch"] * (decode["context"] + 1)).max()) * per_token / 1e9
    tables, errors["all_reduce"] = _all_reduce(csvs.read_all_reduce(folder, facts), seed)
    return DeviceProfile(
        name=facts.name,
        description=facts.description,
        memory_gib=facts.memory_gib,
        activation_reserve_gib=facts.activation_reserve_gib,
        overhead_s=facts.overhead_s,
        attention=kernels,
        all_reduce=tables,
        notes=facts.notes,
        provenance={
            "source": SOURCE,
            "attention": f"{facts.attention_csv}: {len(attention)} rows, median kernel times of "
            f"{profiled.name} at tp {facts.attention_tp}, the only model profiled; other models "
            "are scaled by the bytes (decode) and operations (prefill) of a GPU. Per layer; the "
            "kernel alone, without output reshape (2 to 4 microseconds). Profiled up to "
            f"{largest:.2f} GB of KV per layer on a GPU and extrapolated beyond",
            "all_reduce": f"{facts.all_reduce_csv}: rows with num_workers = devices_per_node; "
            "sizes in bytes, isotonic table. NCCL kernels; small messages scatter between 10 and "
            "60 microseconds in the profile itself",
            **_split_note(seed),
        },
        errors=errors,
    )


def _attention(
    rows: pd.DataFrame, facts: DeviceFacts, profiled: ModelFacts, seed: int
) -> tuple[AttentionProfile, dict[str, Any]]:
    decode, prefill = rows[rows["decode"]], rows[~rows["decode"]]
    architecture = _architecture(profiled)
    kv_bytes = architecture.kv_bytes_per_layer(facts.attention_tp)
    width = profiled.heads * profiled.head_dim / facts.attention_tp

    # The new token is in the cache when the kernel reads it: s + emitted + 1, as in the cluster.
    kv = (decode["batch"] * (decode["context"] + 1)).to_numpy(np.float64)
    us = decode["us"].to_numpy()
    x = np.column_stack([np.ones(len(kv)), kv * kv_bytes])
    groups = (decode["batch"] * 100_000 + decode["context"]).to_numpy()
    fit_rows = fitting.split(groups, seed)
    # Absolute errors: a microsecond counts the same at any length, and iterations add them up.
    trial = fitting.least_squares(x[fit_rows], us[fit_rows])
    held = ~fit_rows
    decode_error = fitting.relative_errors(us[held], x[held] @ trial, kv[held], _KV_RANGES)
    decode_error["r_squared"] = round(fitting.r_squared(us[held], x[held] @ trial), 4)
    launch, per_byte = fitting.least_squares(x, us)
    decode_error["effective_tb_per_s"] = fitting.significant(1e-6 / per_byte)

    new = prefill["new"].to_numpy(np.float64)
    pairs = new * (prefill["context"].to_numpy() + new / 2)
    us = prefill["us"].to_numpy()
    x = np.column_stack([np.ones(len(new)), width * new, 4 * width * pairs])
    fit_rows = fitting.split((prefill["new"] * 100_000 + prefill["context"]).to_numpy(), seed)
    trial = fitting.least_squares(x[fit_rows], us[fit_rows], relative=True)
    held = ~fit_rows
    prefill_error = fitting.relative_errors(us[held], x[held] @ trial, new[held], _CHUNK_RANGES)
    start, per_query, per_flop = fitting.least_squares(x, us, relative=True)

    def seconds(microseconds: float) -> float:
        return fitting.significant(microseconds * 1e-6)

    kernels = AttentionProfile(
        decode_overhead_s=seconds(launch),
        decode_s_per_byte=seconds(per_byte),
        prefill_overhead_s=seconds(start),
        prefill_s_per_query=seconds(per_query),
        prefill_s_per_flop=seconds(per_flop),
    )
    return kernels, {"attention_decode": decode_error, "attention_prefill": prefill_error}


def _all_reduce(rows: pd.DataFrame, seed: int) -> tuple[dict[int, Table], dict[int, Any]]:
    tables: dict[int, Table] = {}
    errors: dict[int, Any] = {}
    for tp, group in rows.groupby("tp"):
        size, us = group["bytes"].to_numpy(), group["us"].to_numpy()
        fit_rows = fitting.split(size, seed)
        held = ~fit_rows
        trial = fitting.monotone_table(size[fit_rows], us[fit_rows], tolerance=0.04, max_knots=24)
        fitted = 1e6 * trial.seconds(size[held])
        degree = int(str(tp))
        errors[degree] = fitting.relative_errors(us[held], fitted, size[held], _BYTE_RANGES)
        tables[degree] = fitting.monotone_table(size, us, tolerance=0.04, max_knots=24)
    return tables, errors


def _architecture(facts: ModelFacts) -> ModelProfile:
    return ModelProfile(
        name=facts.name,
        description=facts.description,
        layers=facts.layers,
        hidden=facts.hidden,
        mlp_hidden=facts.mlp_hidden,
        heads=facts.heads,
        kv_heads=facts.kv_heads,
        head_dim=facts.head_dim,
        vocab=facts.vocab,
        context_limit=facts.context_limit,
        profiles={},
        provenance={},
    )


def _model(folder: Path, device: DeviceFacts, facts: ModelFacts, seed: int) -> ModelProfile:
    rows = csvs.read_operators(folder, facts)
    layers = {int(str(tp)): _layer(group, seed) for tp, group in rows.groupby("tp")}
    operators = ", ".join(csvs.LAYER_OPERATORS)
    provenance = {
        "source": SOURCE,
        "architecture": "the model's published config.json",
        "layer": f"{facts.operators_csv}: {len(rows)} rows; sum of the median times of {operators},"
        " each once (Vidur's accounting of a layer), isotonic in the token count",
        "head": "emb, plus mlp_up_proj scaled by the output projection's weight bytes: the "
        "projection itself was not profiled",
        "prefill_us_per_token": "fitted as it is used, "
        f"layer({PREFILL_BATCH}) + slope * tokens, on {PREFILL_TOKENS} to {LAYER_TOKENS} tokens",
        **_split_note(seed),
    }
    return _architecture(facts).model_copy(
        update={"profiles": {device.name: layers}, "provenance": provenance}
    )


def _layer(rows: pd.DataFrame, seed: int) -> LayerProfile:
    tokens, us = rows["tokens"].to_numpy(), rows["layer_us"].to_numpy()
    in_table = tokens <= LAYER_TOKENS
    fit_rows = fitting.split(tokens, seed) & in_table
    held = ~fit_rows
    trial = fitting.monotone_table(tokens[fit_rows], us[fit_rows], tolerance=0.015)
    fitted = 1e6 * trial.seconds(tokens[held].astype(np.float64))
    inside = in_table[held]
    ranges = fitting.relative_errors(us[held], fitted, tokens[held], _TOKEN_RANGES)["ranges"]
    errors = fitting.relative_errors(us[held][inside], fitted[inside], tokens[held][inside], (0, 1))
    errors["ranges"] = ranges

    table = fitting.monotone_table(tokens[in_table], us[in_table], tolerance=0.015)
    decode = tokens <= HEAD_TOKENS
    head = rows["head_us"].to_numpy()[decode]
    return LayerProfile(
        layer=table,
        head=fitting.monotone_table(tokens[decode], head, tolerance=0.04, max_knots=16),
        prefill_us_per_token=_prefill_slope(tokens, us, table),
        errors={"layer": errors},
    )


def _prefill_slope(tokens: np.ndarray, us: np.ndarray, table: Table) -> float:
    """Microseconds that a prefill token adds to a decode batch, per layer.

    A batch of ``PREFILL_BATCH`` requests and p prefill tokens runs its operators on the sum; the
    slope makes base + slope * p meet the profile there, in relative least squares.
    """
    base = 1e6 * float(table.seconds(PREFILL_BATCH))
    use = (tokens >= PREFILL_TOKENS) & (tokens <= LAYER_TOKENS)
    if not use.any():
        raise ValueError(
            f"the profile has no row of {PREFILL_TOKENS} to {LAYER_TOKENS} tokens, "
            "which the cost of prefill tokens is fitted on"
        )
    weight = 1 / us[use]
    x, y = (tokens[use] - PREFILL_BATCH) * weight, (us[use] - base) * weight
    return fitting.significant(float(x @ y / (x @ x)))


def _split_note(seed: int) -> dict[str, str]:
    return {
        "errors": f"relative, on a held-out {fitting.HELD_OUT:.0%} of the sizes (seed {seed}) of a "
        "fit on the others; the numbers above are then fitted on all rows"
    }
