"""How many KV tokens and requests a device can hold.

``M = (memory * utilization - weights / TP - reserve) / (KV bytes per token on a GPU)``, floored to
whole KV blocks; ``B = min(max_num_seqs, M / block)``, as each request needs a block.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from llmroute_env.cluster.profiles import (
    GIB,
    DeviceProfile,
    ModelProfile,
    load_device,
    load_model,
)


@dataclass(frozen=True)
class MemoryPlan:
    """What a replica of ``tp`` GPUs holds.

    Attributes:
        kv_limit: M [tokens], a multiple of the block.
        batch_limit: B [requests].
        context_limit: tokens of one request that the model allows.
        kv_bytes_per_token: on one GPU [bytes].
        weight_bytes: on one GPU [bytes].
        kv_bytes: left for KV on one GPU [bytes].
        provenance: the calculation, one line.
    """

    kv_limit: int
    batch_limit: int
    context_limit: int
    kv_bytes_per_token: int
    weight_bytes: float
    kv_bytes: float
    provenance: str


def plan(
    device: str | Path | DeviceProfile,
    model: str | Path | ModelProfile,
    tp: int = 1,
    *,
    utilization: float = 0.9,
    max_num_seqs: int = 64,
    activation_reserve_gib: float | None = None,
    kv_block: int = 16,
) -> MemoryPlan:
    """Derive M and B of a replica.

    Args:
        device: name under ``configs/devices``, path, or profile.
        model: name under ``configs/models``, path, or profile.
        tp: tensor-parallel degree; weights and KV heads are split over it.
        utilization: share of the GPU's memory that the engine may use, in (0, 1].
        max_num_seqs: the engine's own limit on the batch [requests].
        activation_reserve_gib: replaces the device's reserve [GiB per GPU].
        kv_block: tokens per KV block.

    Raises:
        ValueError: a bad argument, or a model that does not fit; one line.
    """
    if not 0 < utilization <= 1:
        raise ValueError(f"memory.utilization = {utilization} must be above 0 and at most 1")
    for key, value in (("timing.tp", tp), ("memory.max_num_seqs", max_num_seqs),
                       ("kv_block", kv_block)):  # fmt: skip
        if int(value) != value or value < 1:
            raise ValueError(f"{key} = {value} must be a whole number of at least 1")
    gpu, llm = load_device(device), load_model(model)
    reserve = gpu.activation_reserve_gib
    if activation_reserve_gib is not None:
        reserve = activation_reserve_gib
    if not (math.isfinite(reserve) and reserve >= 0):
        raise ValueError(f"memory.activation_reserve_gib = {reserve} must be 0 or more")

    weights = llm.weight_bytes / tp
    left = (gpu.memory_gib * utilization - reserve) * GIB - weights
    per_token = llm.kv_bytes_per_token(tp)
    kv_limit = math.floor(left / (per_token * kv_block)) * kv_block
    arithmetic = (
        f"{gpu.memory_gib:g} GiB x {utilization:g} - weights {weights / GIB:.2f} GiB "
        f"- reserve {reserve:g} GiB"
    )
    if kv_limit < kv_block:
        raise ValueError(
            f"{llm.name} does not fit on {gpu.name} at tp {tp}: {arithmetic} leaves "
            f"{left / GIB:.2f} GiB per GPU for KV; raise tp or memory.utilization"
        )
    return MemoryPlan(
        kv_limit=kv_limit,
        batch_limit=min(max_num_seqs, kv_limit // kv_block),
        context_limit=llm.context_limit,
        kv_bytes_per_token=per_token,
        weight_bytes=weights,
        kv_bytes=left,
        provenance=f"{arithmetic} = {left / GIB:.2f} GiB at {per_token} B per token",
    )
