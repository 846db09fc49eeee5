"""What an episode leaves behind: the request log and the cluster's counters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmroute_env.cluster.dtypes import COMPONENTS
from llmroute_env.cluster.kernel import update_emitted
from llmroute_env.cluster.state import NANOSECONDS, Handle, State
from llmroute_env.workload import RequestTable

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class EpisodeStats:
    """Counters of one episode, so far or at its end.

    Attributes:
        end_s: time at which the counters were read [s].
        warmup_s: start of the measured time [s].
        decoded_tokens: tokens of the iterations that started after the warm-up.
        busy_slot_s: (G,) occupied batch slots over the measured time [request-seconds].
        kv_token_s: (G,) KV held over the measured time [token-seconds].
        batch_limit: (G,) B.
        kv_limit: (G,) M [tokens].
        imbalance: mean over the measured periods of (max - mean) / mean of the devices' KV.
        rewards: reward by component.
        reward: their sum.
        invalid_actions: actions that were illegal and held.
        hidden_periods: periods that ended with more waiting requests than the window shows.
        periods: periods played.
        series: (n, len(Series)) float32 sampled time series, None where none is recorded.
    """

    end_s: float
    warmup_s: float
    decoded_tokens: int
    busy_slot_s: Floats
    kv_token_s: Floats
    batch_limit: NDArray[np.int64]
    kv_limit: NDArray[np.int64]
    imbalance: float
    rewards: dict[str, float]
    reward: float
    invalid_actions: int
    hidden_periods: int
    periods: int
    series: NDArray[np.float32] | None


def request_log(
    state: State, handle: Handle, lane: int, table: RequestTable
) -> dict[str, NDArray[Any]]:
    """Columns of shape (R,), one row per request of the table; the row is the request id.

    Times are seconds since the episode started, NaN where an event has not happened. ``status``
    and ``reject_reason`` are the numbers of `Status` and `RejectReason`. With prefix caches there
    is ``cached``: prompt tokens that were cached when the request first joined a batch.
    """
    update_emitted(handle, lane)
    rows = state.requests[lane, : len(table)]

    def seconds(column: str) -> Floats:
        ns = rows[column]
        result: Floats = ns / NANOSECONDS
        result[ns < 0] = np.nan
        return result

    log: dict[str, NDArray[Any]] = {
        "arrival_s": table.arrival_s.copy(),
        "prompt": table.prompt.copy(),
        "decode": table.decode.copy(),
        "predicted": table.predicted.copy(),
        "tier": table.tier.copy(),
        "status": rows["status"].copy(),
        "device": rows["device"].copy(),
        "dispatch_s": seconds("dispatch_ns"),
        "start_s": seconds("start_ns"),
        "first_token_s": seconds("first_token_ns"),
        "finish_s": seconds("finish_ns"),
        "emitted": rows["emitted"].copy(),
        "preemptions": rows["preemptions"].copy(),
        "recomputed": rows["recomputed"].copy(),
        "reject_reason": rows["reason"].copy(),
    }
    if state.mixed is not None and state.constants[0]["prefix_block"]:
        log["cached"] = state.mixed.extra[lane, : len(table)]["cached"].copy()
    return log


def episode_stats(state: State, lane: int) -> EpisodeStats:
    """Read the counters of ``lane``, running iterations included up to now."""
    constants, devices, counters = state.constants[0], state.devices[lane], state.lanes[lane]
    now = int(counters["now_ns"])
    start, active = devices["start_ns"], devices["active"]
    measured = (devices["running"] == 1) & (start >= constants["warmup_ns"])
    part_ns = np.where(measured, now - start, 0)
    held = active + devices["prefilling"]
    kv = devices["kv_held"] + active + devices["kv_progress"] + devices["prefill"]
    periods = int(counters["imbalance_count"])
    rewards = {name: float(counters[f"{name}_total"]) for name in COMPONENTS}
    sampled = constants["series_stride"] > 0
    return EpisodeStats(
        end_s=now / NANOSECONDS,
        warmup_s=float(constants["warmup_ns"]) / NANOSECONDS,
        decoded_tokens=int(counters["warm_tokens"]),
        busy_slot_s=(devices["busy_slot_ns"] + held * part_ns) / NANOSECONDS,
        kv_token_s=devices["kv_token_s"] + kv * (part_ns / NANOSECONDS),
        batch_limit=devices["batch_limit"].copy(),
        kv_limit=devices["kv_limit"].copy(),
        imbalance=float(counters["imbalance_sum"]) / periods if periods else 0.0,
        rewards=rewards,
        reward=float(counters["reward_total"]),
        invalid_actions=int(counters["invalid_total"]),
        hidden_periods=int(counters["hidden_periods"]),
        periods=int(counters["period"]),
        series=state.series[lane, : counters["samples"]].copy() if sampled else None,
    )
