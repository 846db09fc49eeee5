"""From a validated scenario to the numbers that the kernel runs on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmroute_env.cluster.dtypes import COMPONENTS, CONSTANTS, DEVICE
from llmroute_env.cluster.state import NANOSECONDS
from llmroute_env.cluster.timing import IterationTiming, MixedTiming
from llmroute_env.scenario import Scenario
from llmroute_env.scenario.saturation import limits
from llmroute_env.spaces import OPTIONAL_KEYS

Ints = NDArray[np.int64]

#: context limit of a device that has none [tokens]
NO_LIMIT = 2**31 - 1
#: a limit in ns that no latency reaches
_NEVER_NS = 2**62


def to_ns(seconds: float) -> int:
    """Seconds to whole nanoseconds, the unit of the kernel's clock."""
    return min(round(seconds * NANOSECONDS), _NEVER_NS)


def optional_keys(scenario: Scenario) -> tuple[str, ...]:
    """Which of ``OPTIONAL_KEYS`` the scenario's observations have."""
    has = {
        "text": scenario.workload.text is not None,
        "prefix": scenario.cluster.prefix_cache is not None,
    }
    return tuple(key for key in OPTIONAL_KEYS if has[key])


@dataclass(frozen=True)
class ClusterSpec:
    """Limits and iteration times of the fleet.

    Attributes:
        batch_limit: (G,) B, requests in a device's batch.
        kv_limit: (G,) M, KV tokens, a multiple of the block size.
        context_limit: (G,) most tokens s + o of a request, ``NO_LIMIT`` where there is none.
        timing: (G,) iteration-time model of each device.
        mixed: (G,) iteration-time model of a device that prefills too; empty where none does.
        pool: (G,) name of the group that each device belongs to.
        emits_token: whether the iteration that ends a prefill emits a token.
        prefix_block: tokens in a block of the prefix caches, 0 where there are none.
        chunk_tokens: tokens of an iteration that prefills, 0 where there is no budget.
    """

    batch_limit: Ints
    kv_limit: Ints
    context_limit: Ints
    timing: tuple[IterationTiming, ...]
    pool: tuple[str, ...]
    mixed: tuple[MixedTiming, ...] = ()
    emits_token: bool = False
    prefix_block: int = 0
    chunk_tokens: int = 0

    @classmethod
    def from_scenario(cls, scenario: Scenario) -> ClusterSpec:
        """Resolve what a scenario leaves to the memory planner and the model.

        Raises:
            ScenarioError: the model does not fit the device, or a profile is missing.
        """
        cluster = scenario.cluster
        devices = [
            (found, group.name)
            for found, group in zip(limits(scenario), cluster.fleet, strict=True)
            for _ in range(group.devices)
        ]
        contexts = [found.context_limit for found, _ in devices]
        return cls(
            np.array([found.batch_limit for found, _ in devices], np.int64),
            np.array([found.kv_limit for found, _ in devices], np.int64),
            np.array([NO_LIMIT if limit is None else limit for limit in contexts], np.int64),
            tuple(found.timing for found, _ in devices),
            tuple(name for _, name in devices),
            tuple(found.mixed for found, _ in devices if found.mixed is not None),
            emits_token=cluster.prefill is not None and cluster.prefill.emits_token,
            prefix_block=0 if cluster.prefix_cache is None else cluster.prefix_cache.block,
            chunk_tokens=0 if cluster.prefill is None else cluster.prefill.chunk_tokens or 0,
        )

    @property
    def prefill(self) -> bool:
        """Whether devices prefill what they decode."""
        return bool(self.mixed)

    @property
    def largest(self) -> Ints:
        """(G,) largest s + o that each device can ever hold [tokens]."""
        return np.minimum(self.kv_limit, self.context_limit)

    def constants(self, scenario: Scenario, series_stride: int = 0) -> NDArray[Any]:
        """(1,) `CONSTANTS` of the kernel.

        Args:
            scenario: the scenario that this spec was made from.
            series_stride: periods between two samples of the time series, 0 for none.
        """
        objective, period_ns = scenario.objective, to_ns(scenario.period_s)
        horizon = int(scenario.horizon_periods)
        values: dict[str, float] = {
            "period_ns": period_ns,
            "horizon_ns": horizon * period_ns,
            "horizon_periods": horizon,
            "drain": scenario.drain,
            "max_drain_periods": scenario.max_drain_periods,
            "warmup_ns": to_ns(scenario.warmup_s),
            "block": scenario.cluster.kv_block,
            "head_of_line_skip": scenario.cluster.head_of_line_skip,
            "series_stride": series_stride,
            "largest": int(self.largest.max()),
            "largest_kv": int(self.kv_limit.max()),
            "uneven": int(np.ptp(self.largest) > 0),
            **self._modes(scenario),
            "tail_eel_ns": to_ns(objective.tail_eel_s),
            "tail_ttft_ns": to_ns(objective.tail_ttft_s),
        }
        values |= {name: getattr(objective, name) for name in COMPONENTS}
        row = np.zeros(1, CONSTANTS)
        for name in CONSTANTS.names or ():
            row[name] = values[name]
        return row

    def _modes(self, scenario: Scenario) -> dict[str, float]:
        """Constants of the cluster's optional parts, 0 where they are off."""
        cluster = scenario.cluster
        handoff = cluster.handoff
        return {
            "prefill": self.prefill,
            "emits_token": self.emits_token,
            "chunk_tokens": self.chunk_tokens,
            "prefix_block": self.prefix_block,
            "per_cached": self.prefix_block // cluster.kv_block,
            "text": "text" in optional_keys(scenario),
            "handoff": handoff is not None,
            "kv_bytes": 0.0 if handoff is None else handoff.kv_bytes_per_token,
            "link_bytes_per_s": 1.0 if handoff is None else handoff.link_bytes_per_s,
        }

    def devices(self, scenario: Scenario) -> NDArray[Any]:
        """(G,) `DEVICE` with the limits filled in."""
        rows = np.zeros(len(self.batch_limit), DEVICE)
        blocks = self.kv_limit // scenario.cluster.kv_block
        rows["batch_limit"] = self.batch_limit
        rows["kv_limit"] = self.kv_limit
        rows["kv_blocks"] = blocks
        rows["largest"] = self.largest
        rows["watermark"] = np.floor(blocks * scenario.cluster.kv_watermark)
        rows["kv_s"] = [timing.kv_s for timing in self.timing]
        rows["prefill_s"] = [timing.prefill_s for timing in self.timing]
        for row, mixed in zip(rows, self.mixed, strict=False):
            row["kv_s"] = mixed.kv_s
            row["token_limit"] = mixed.table_tokens
            for name in ("token_slope_s", "chunk_s", "query_s", "pair_s"):
                row[name] = getattr(mixed, name)
        return rows

    def token_s(self) -> NDArray[np.float64]:
        """(G, C + 1) iteration time by tokens [s] of devices that prefill; one 0 each otherwise."""
        longest = max((mixed.table_tokens for mixed in self.mixed), default=0)
        table = np.zeros((len(self.batch_limit), longest + 1), np.float64)
        for row, mixed in zip(table, self.mixed, strict=False):
            row[: len(mixed.token_s)] = mixed.token_s
        return table

    def base_s(self) -> NDArray[np.float64]:
        """(G, B_max + 1) iteration time by batch size [s]."""
        table = np.empty((len(self.timing), int(self.batch_limit.max()) + 1), np.float64)
        for row, timing in zip(table, self.timing, strict=True):
            row[:] = timing.base_s[-1]
            row[: len(timing.base_s)] = timing.base_s
        return table
