"""From a validated scenario to the numbers that the kernel runs on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmroute_env.cluster.dtypes import COMPONENTS, CONSTANTS, DEVICE
from llmroute_env.cluster.state import NANOSECONDS
from llmroute_env.cluster.timing import IterationTiming
from llmroute_env.scenario import Scenario
from llmroute_env.scenario.saturation import limits

Ints = NDArray[np.int64]

#: context limit of a device that has none [tokens]
NO_LIMIT = 2**31 - 1
#: a limit in ns that no latency reaches
_NEVER_NS = 2**62


def to_ns(seconds: float) -> int:
    """Seconds to whole nanoseconds, the unit of the kernel's clock."""
    return min(round(seconds * NANOSECONDS), _NEVER_NS)


@dataclass(frozen=True)
class ClusterSpec:
    """Limits and iteration times of the fleet.

    Attributes:
        batch_limit: (G,) B, requests in a device's batch.
        kv_limit: (G,) M, KV tokens, a multiple of the block size.
        context_limit: (G,) most tokens s + o of a request, ``NO_LIMIT`` where there is none.
        timing: (G,) iteration-time model of each device.
    """

    batch_limit: Ints
    kv_limit: Ints
    context_limit: Ints
    timing: tuple[IterationTiming, ...]

    @classmethod
    def from_scenario(cls, scenario: Scenario) -> ClusterSpec:
        """Resolve what a scenario leaves to the memory planner and the model.

        Raises:
            ScenarioError: the model does not fit the device, or a profile is missing.
        """
        found, devices = limits(scenario), scenario.cluster.devices
        context = NO_LIMIT if found.context_limit is None else found.context_limit
        return cls(
            np.full(devices, found.batch_limit, np.int64),
            np.full(devices, found.kv_limit, np.int64),
            np.full(devices, context, np.int64),
            (found.timing,) * devices,
        )

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
            "largest": int(np.minimum(self.kv_limit, self.context_limit).max()),
            "largest_kv": int(self.kv_limit.max()),
            "tail_eel_ns": to_ns(objective.tail_eel_s),
            "tail_ttft_ns": to_ns(objective.tail_ttft_s),
        }
        values |= {name: getattr(objective, name) for name in COMPONENTS}
        row = np.zeros(1, CONSTANTS)
        for name in CONSTANTS.names or ():
            row[name] = values[name]
        return row

    def devices(self, scenario: Scenario) -> NDArray[Any]:
        """(G,) `DEVICE` with the limits filled in."""
        rows = np.zeros(len(self.batch_limit), DEVICE)
        blocks = self.kv_limit // scenario.cluster.kv_block
        rows["batch_limit"] = self.batch_limit
        rows["kv_limit"] = self.kv_limit
        rows["kv_blocks"] = blocks
        rows["watermark"] = np.floor(blocks * scenario.cluster.kv_watermark)
        rows["kv_s"] = [timing.kv_s for timing in self.timing]
        rows["prefill_s"] = [timing.prefill_s for timing in self.timing]
        return rows

    def base_s(self) -> NDArray[np.float64]:
        """(G, B_max + 1) iteration time by batch size [s]."""
        table = np.empty((len(self.timing), int(self.batch_limit.max()) + 1), np.float64)
        for row, timing in zip(table, self.timing, strict=True):
            row[:] = timing.base_s[-1]
            row[: len(timing.base_s)] = timing.base_s
        return table
