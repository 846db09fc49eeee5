"""What the reference cluster shows: observation, mask, request log, counters.

Field order as in ``llmroute_env/spaces.py``, seconds instead of nanoseconds.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from reference_cluster import ReferenceCluster
from reference_device import Device, Iteration
from reference_mixed import MixedDevice


def measured(cluster: ReferenceCluster, device: Device) -> list[tuple[Iteration, float]]:
    """Iterations that started after the warm-up, with their seconds so far."""
    return [
        (i, (min(i.end, cluster.now) - i.start) / 1e9)
        for i in device.iterations
        if i.start >= cluster.warmup
    ]


def stats(cluster: ReferenceCluster) -> dict[str, Any]:
    """What the environment's counters must say."""
    return {
        "end_s": cluster.now / 1e9,
        "decoded_tokens": sum(
            i.tokens
            for d in cluster.devices
            for i, _ in measured(cluster, d)
            if i.end <= cluster.now
        ),
        "busy_slot_s": [sum(i.batch * t for i, t in measured(cluster, d)) for d in cluster.devices],
        "kv_token_s": [sum(i.kv * t for i, t in measured(cluster, d)) for d in cluster.devices],
        "imbalance": sum(cluster.imbalances) / max(len(cluster.imbalances), 1),
        "hidden_periods": cluster.hidden_periods,
        "periods": cluster.k,
    }


def mask(cluster: ReferenceCluster) -> np.ndarray:
    mask = np.zeros((cluster.window, len(cluster.devices) + 1), np.int8)
    mask[:, 0] = 1
    for row, request in enumerate(cluster.visible):
        mask[row, 1:] = [device.legal(request) for device in cluster.devices]
    return mask


def observe(cluster: ReferenceCluster) -> dict[str, np.ndarray]:
    """(3) What the router sees; field order as in ``llmroute_env/spaces.py``."""
    slots = max(d.batch_limit for d in cluster.devices)
    queue = np.zeros((cluster.window, 4), np.float32)
    queue_id = np.full(cluster.window, -1, np.int64)
    for row, r in enumerate(cluster.visible):
        queue[row] = (r.prompt, r.predicted, (cluster.now - r.arrival_ns) / 1e9, r.tier)
        queue_id[row] = r.number
    devices = np.zeros((len(cluster.devices), 11), np.float32)
    active = np.zeros((len(cluster.devices), slots, 2), np.float32)
    for g, d in enumerate(cluster.devices):
        devices[g] = (
            len(d.batch),
            d.batch_limit,
            d.kv_used(),
            d.kv_limit,
            len(d.fifo),
            sum(r.held for r in d.fifo),
            d.last_duration / 1e9,
            0.0 if d.ends_at is None else (d.ends_at - cluster.now) / 1e9,
            1.0,
            sum(r.remaining for r in d.fifo),
            d.prefill_left(),
        )
        for slot, r in enumerate(d.batch):
            active[g, slot] = (r.kv_now, r.remaining)
    clock = np.array(
        [
            cluster.now / 1e9,
            cluster.k,
            max(cluster.horizon - cluster.k, 0),
            len(cluster.queue) - len(cluster.visible),
        ],
        np.float32,
    )
    shown = {
        "queue": queue,
        "queue_id": queue_id,
        "devices": devices,
        "active": active,
        "clock": clock,
    }
    if cluster.texts:
        text = np.zeros((cluster.window, 2), np.float32)
        for row, r in enumerate(cluster.visible):
            text[row] = (r.size_bytes, r.category)
        shown["text"] = text
    if caches(cluster):
        prefix = np.zeros((cluster.window, len(cluster.devices)), np.float32)
        for row, r in enumerate(cluster.visible):
            prefix[row] = [d.hit(r) if isinstance(d, MixedDevice) else 0 for d in cluster.devices]
        shown["prefix"] = prefix
    return shown


def caches(cluster: ReferenceCluster) -> bool:
    """The scenario has prefix caches."""
    return any(isinstance(d, MixedDevice) and d.cache is not None for d in cluster.devices)


def log(cluster: ReferenceCluster) -> dict[str, np.ndarray]:
    """The request log: one row per request, times in seconds, NaN where not reached."""

    def times(values: list[int | None]) -> np.ndarray:
        return np.array([np.nan if v is None else v / 1e9 for v in values], np.float64)

    rs = cluster.requests
    shown = {
        "arrival_s": np.array([r.arrival_s for r in rs], np.float64),
        "prompt": np.array([r.prompt for r in rs], np.int64),
        "decode": np.array([r.decode for r in rs], np.int64),
        "predicted": np.array([r.predicted for r in rs], np.float32),
        "tier": np.array([r.tier for r in rs], np.int64),
        "status": np.array([r.status for r in rs], np.int64),
        "device": np.array([r.device for r in rs], np.int64),
        "dispatch_s": times([r.dispatched_at for r in rs]),
        "start_s": times([r.started_at for r in rs]),
        "first_token_s": times([r.first_token_at for r in rs]),
        "finish_s": times([r.finished_at for r in rs]),
        "emitted": np.array([r.emitted for r in rs], np.int64),
        "preemptions": np.array([r.preemptions for r in rs], np.int64),
        "recomputed": np.array([r.recomputed for r in rs], np.int64),
        "reject_reason": np.array([r.reason for r in rs], np.int64),
    }
    if caches(cluster):
        shown["cached"] = np.array([r.cached for r in rs], np.int64)
    return shown
