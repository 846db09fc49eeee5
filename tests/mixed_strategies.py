"""Random episodes with prefill on the device, prefix caches, handoff and unequal groups.

Sizes are those of ``strategies``: so small that every rule fires within a few periods.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from hypothesis import strategies as st
from reference_cluster import ReferenceCluster
from reference_device import Device, Handoff
from reference_mixed import MixedDevice, MixedTimes, PrefixCache
from strategies import STYLES, Actor, Episode, Row, objectives, reference_timing, tables, workload

from llmroute_env.cluster import timing as timings
from llmroute_env.workload.table import RequestTable

MODES = ("decode", "handoff", "mixed", "cache")

#: Keys of a cluster that belong to a group where there are groups.
GROUP_KEYS = ("devices", "batch_limit", "kv_limit", "context_limit", "timing")

Chain = tuple[int, ...]


@dataclass(frozen=True)
class MixedEpisode(Episode):
    """An episode whose requests may have prefixes, a ready time, a size and a category."""

    chains: tuple[Chain, ...] | None = None
    ready: tuple[float, ...] | None = None
    texts: tuple[tuple[int, int], ...] | None = None  # bytes and category

    def table(self) -> RequestTable:
        columns: dict[str, Any] = {}
        if self.chains is not None:
            ids = [name for chain in self.chains for name in chain]
            lengths = [len(chain) for chain in self.chains]
            columns["block_ids"] = np.array(ids, np.int64)
            columns["block_start"] = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        if self.ready is not None:
            columns["ready_s"] = np.array(self.ready, np.float64)
        if self.texts is not None:
            columns["size_bytes"] = np.array([size for size, _ in self.texts], np.int64)
            columns["category"] = np.array([kind for _, kind in self.texts], np.int64)
        cache = self.scenario["cluster"].get("prefix_cache")
        table = replace(self.columns(), **columns)
        return table.validate(None if cache is None else cache["block"])

    def reference(self) -> ReferenceCluster:
        built = super().reference()
        for j, request in enumerate(built.requests):
            if self.chains is not None:
                request.chain = self.chains[j]
            if self.ready is not None:
                request.ready_s = self.ready[j]
            if self.texts is not None:
                request.size_bytes, request.category = self.texts[j]
        return built

    def devices(self) -> list[Device]:
        cluster = self.scenario["cluster"]
        return [
            reference_device(cluster, group)
            for group in cluster.get("groups") or [cluster]
            for _ in range(group["devices"])
        ]

    def actor(self) -> Actor:
        return Actor(self.style, len(self.devices()), self.seed)


def reference_device(cluster: dict[str, Any], group: dict[str, Any]) -> Device:
    block = cluster["kv_block"]
    whole_blocks = group["kv_limit"] - group["kv_limit"] % block
    common: dict[str, Any] = {
        "context_limit": group["context_limit"],
        "block": block,
        "watermark": cluster["kv_watermark"],
        "skip": cluster["head_of_line_skip"],
    }
    prefill, cache = cluster.get("prefill"), cluster.get("prefix_cache")
    if prefill is None:
        link = cluster.get("handoff")
        if link is not None:
            common["handoff"] = Handoff(link["kv_bytes_per_token"], link["link_bytes_per_s"])
        return Device(group["batch_limit"], whole_blocks, reference_timing(group), **common)
    return MixedDevice(
        group["batch_limit"],
        whole_blocks,
        mixed_timing(group, prefill["chunk_tokens"]),
        chunk_tokens=prefill["chunk_tokens"],
        emits_token=prefill["emits_token"],
        cache=None if cache is None else PrefixCache(cache["block"]),
        **common,
    )


def mixed_timing(group: dict[str, Any], chunk: int | None) -> MixedTimes:
    timing = group["timing"]
    if timing["kind"] == "constant":
        found = timings.constant_mixed(
            timing["iteration_s"], timing.get("prefill_s_per_token", 0.0)
        )
    else:
        found = timings.from_profile_mixed(
            timing["device"], timing["model"], timing["tp"], group["batch_limit"], chunk
        )
    return MixedTimes(
        [float(x) for x in found.token_s],
        found.token_slope_s,
        found.kv_s,
        found.chunk_s,
        found.query_s,
        found.pair_s,
    )


@st.composite
def groups(draw: st.DrawFn, block: int, period_s: float, *, mixed: bool) -> dict[str, Any]:
    kv_limit = draw(st.integers(2 * block + 6, 4 * block + 60))
    if draw(st.integers(0, 4)) == 0:
        timing: dict[str, Any] = {
            "kind": "profile",
            "device": "a100-80gb",
            "model": draw(st.sampled_from(["llama-2-7b", "llama-3-8b"])),
            "tp": 1,
        }
        context = draw(st.sampled_from([kv_limit, 20, 100]))
    else:
        ratio = draw(st.sampled_from([1.0, 1.0, 0.5, 0.25, 2.0, 1.5, 0.7, 1 / 3]))
        timing = {"kind": "constant", "iteration_s": period_s * ratio}
        if mixed and draw(st.booleans()):
            timing["prefill_s_per_token"] = period_s * draw(st.sampled_from([0.1, 0.037, 1.0]))
        context = draw(st.sampled_from([None, None, kv_limit, 20, 100]))
    return {
        "devices": 1,
        "batch_limit": draw(st.integers(1, 6)),
        "kv_limit": kv_limit,
        "context_limit": context,
        "timing": timing,
    }


@st.composite
def scenarios(draw: st.DrawFn, modes: tuple[str, ...] = MODES) -> dict[str, Any]:
    mode = draw(st.sampled_from(modes))
    mixed = mode in ("mixed", "cache")
    period_s = draw(st.sampled_from([1.0, 0.025, 0.5, 0.3, 1 / 3]))
    block = draw(st.sampled_from([1, 1, 1, 2, 4]))
    cluster: dict[str, Any] = {
        "kv_block": block,
        "kv_watermark": draw(st.sampled_from([0.0, 0.0, 0.1, 0.25])),
        "head_of_line_skip": draw(st.booleans()),
    }
    count = draw(st.integers(1, 3))
    if draw(st.booleans()):
        fleet = [draw(groups(block, period_s, mixed=mixed)) for _ in range(count)]
        cluster["groups"] = [{"name": f"pool{i}"} | group for i, group in enumerate(fleet)]
        cluster["groups"][0]["devices"] = draw(st.integers(1, 2))
    else:
        cluster |= draw(groups(block, period_s, mixed=mixed)) | {"devices": count}
    if mixed:
        cluster["prefill"] = {
            "chunk_tokens": draw(st.sampled_from([None, 1, 2, 3, 5, 8, 16])),
            "emits_token": draw(st.booleans()),
        }
    if mode == "cache":
        cluster["prefix_cache"] = {"block": block * draw(st.sampled_from([1, 2, 2, 3, 4]))}
    if mode == "handoff":
        cluster["handoff"] = {
            "prefill_base_s": period_s * draw(st.sampled_from([0.0, 0.3, 1.0])),
            "prefill_s_per_token": period_s * draw(st.sampled_from([0.0, 0.01, 0.1])),
            "kv_bytes_per_token": draw(st.sampled_from([1.0, 1000.0, 3.7])),
            # A prompt of ten tokens takes from a tenth of a period to ten.
            "link_bytes_per_s": 1.0 / period_s,
        }
        cluster["handoff"]["link_bytes_per_s"] *= cluster["handoff"]["kv_bytes_per_token"]
        cluster["handoff"]["link_bytes_per_s"] *= draw(st.sampled_from([1.0, 2.0, 10.0, 33.3, 1e6]))
    horizon = draw(st.integers(1, 40))
    return {
        "name": "random",
        "period_s": period_s,
        "horizon_periods": horizon,
        "warmup_s": draw(st.sampled_from([0.0, 0.0, 0.5, 0.3])) * horizon * period_s,
        "drain": draw(st.booleans()),
        "max_drain_periods": draw(st.sampled_from([1, 10, 10_000])),
        "cluster": cluster,
        "router": {"window": draw(st.sampled_from([1, 3, 8, 40]))},
        "workload": workload(),
        "prediction": {"kind": "perfect"},
        "objective": draw(objectives(period_s)),
    }


@st.composite
def chains(draw: st.DrawFn, rows: tuple[Row, ...], block: int) -> tuple[Chain, ...]:
    """Branches of a tree that is mostly one path, so that requests share much and then part."""
    ids: dict[tuple[int, ...], int] = {}
    made = []
    for _, prompt, decode, _, _ in rows:
        length = draw(st.integers(prompt // block, (prompt + decode) // block))
        turns = draw(st.lists(st.integers(0, 40), max_size=2))
        path = tuple(sum(k >= turn for turn in turns) for k in range(length))
        made.append(tuple(ids.setdefault(path[: k + 1], len(ids)) for k in range(length)))
    return tuple(made)


@st.composite
def episodes(draw: st.DrawFn, modes: tuple[str, ...] = MODES) -> MixedEpisode:
    scenario = draw(scenarios(modes))
    cluster = scenario["cluster"]
    limit = max(group["kv_limit"] for group in cluster.get("groups") or [cluster])
    rows = draw(tables(scenario | {"cluster": {"kv_limit": limit}}))
    ready, texts, names = None, None, None
    if "handoff" in cluster or draw(st.integers(0, 5)) == 0:
        spare = scenario["period_s"] * draw(st.sampled_from([0.0, 0.5, 1.0, 1.7]))
        late = [(row[0] + spare + 0.01 * row[1] * scenario["period_s"], row) for row in rows]
        late.sort(key=lambda pair: pair[0])
        ready, rows = tuple(at for at, _ in late), tuple(row for _, row in late)
    if draw(st.booleans()):
        text = st.tuples(st.integers(1, 500), st.integers(0, 2))
        texts = tuple(draw(st.lists(text, min_size=len(rows), max_size=len(rows))))
        scenario["workload"]["text"] = {"mix": {"prose": 1.0}}  # so that the router sees them
    if "prefix_cache" in cluster:
        names = draw(chains(rows, cluster["prefix_cache"]["block"]))
    return MixedEpisode(
        scenario,
        rows,
        draw(st.sampled_from(STYLES)),
        draw(st.integers(0, 2**16)),
        names,
        ready,
        texts,
    )
