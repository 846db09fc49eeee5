"""State of N independent clusters in numpy arrays with a leading environment ("lane") dimension.

Each kind of thing is one structured array, ``state.devices["active"]`` is the (N, G) array of a
field. Compiled code passes a device or a lane as one pointer and reads ``device.active``. One plain
array per field was tried first: numba hands a tuple of seventy arrays to each function as five
hundred scalars, which made a step ten times as slow and compilation three times.

`Handle` boxes the whole state, so that a call from Python unboxes one pointer.

Time is int64 nanoseconds, so that a constant iteration time equal to the period meets the period
boundaries exactly, at any period.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
from numba.core import types
from numba.experimental import structref
from numpy.typing import NDArray

from llmroute_env import spaces
from llmroute_env.jit import compiled

Array = NDArray[Any]

NANOSECONDS = 1_000_000_000


class Status(IntEnum):
    """Life of a request; each arrived request is counted in exactly one of these."""

    QUEUED = 0
    DISPATCHED = 1
    ACTIVE = 2
    COMPLETED = 3
    REJECTED = 4
    NOT_ARRIVED = 5


class RejectReason(IntEnum):
    """Why a request was rejected at arrival."""

    NONE = 0
    KV_LIMIT = 1
    CONTEXT_LIMIT = 2


class Component(IntEnum):
    """The reward components, by their weight in the objective."""

    ALPHA = 0
    BETA = 1
    GAMMA = 2
    SIGMA = 3
    ZETA1 = 4
    ZETA2 = 5


class Outcome(IntEnum):
    """Columns of a step's outcome: the reward by component, their sum, and what else happened."""

    ALPHA = 0
    BETA = 1
    GAMMA = 2
    SIGMA = 3
    ZETA1 = 4
    ZETA2 = 5
    REWARD = 6
    COST = 7
    INVALID = 8
    TERMINATED = 9
    TRUNCATED = 10


class Series(IntEnum):
    """Columns of the sampled time series; the last four are cumulative."""

    NOW = 0
    QUEUE = 1
    FIFO = 2
    ACTIVE = 3
    KV = 4
    COMPLETED = 5
    TOKENS = 6
    REWARD = 7
    REJECTED = 8


# Plain integers for compiled code, which resolves a module global faster than an enum member.
QUEUED, DISPATCHED, ACTIVE, COMPLETED, REJECTED, NOT_ARRIVED = (int(s) for s in Status)

_COMPONENTS = [component.name.lower() for component in Component]

#: What does not change in an episode, shared by all lanes; (1,).
CONSTANTS = np.dtype(
    [
        ("period_ns", np.int64),
        ("horizon_ns", np.int64),  # T * period
        ("horizon_periods", np.int64),  # T
        ("drain", np.int64),
        ("max_drain_periods", np.int64),
        ("warmup_ns", np.int64),
        ("block", np.int64),  # tokens in a KV block, 1 for exact accounting
        ("head_of_line_skip", np.int64),
        ("series_stride", np.int64),  # periods between two samples of the time series, 0 for none
        ("largest", np.int64),  # largest s + o that some device can hold
        ("largest_kv", np.int64),  # the same by KV alone
        ("tail_eel_ns", np.int64),
        ("tail_ttft_ns", np.int64),
        *((name, np.float64) for name in _COMPONENTS),  # weights
    ],
    align=True,
)

#: (N, R): the request table and what has happened to each request.
REQUEST = np.dtype(
    [
        ("arrival_ns", np.int64),
        ("dispatch_ns", np.int64),  # -1 where not reached, like the next three
        ("start_ns", np.int64),
        ("first_token_ns", np.int64),
        ("finish_ns", np.int64),
        ("prompt", np.int32),
        ("decode", np.int32),
        ("predicted", np.float32),
        ("tier", np.int32),
        ("device", np.int32),  # -1 before dispatch
        ("emitted", np.int32),  # up to date unless the request is active
        ("preemptions", np.int32),
        ("recomputed", np.int32),
        ("following", np.int32),  # next request in the same FIFO, -1 at the tail
        ("status", np.int8),
        ("reason", np.int8),
        ("missed", np.int8),  # 1 when an SLO limit is known to be missed
    ],
    align=True,
)

#: (N, G). A device counts its iterations, and a slot holds the count at which its request
#: completes. At count n the request has emitted o - (finish - n): an iteration touches no request,
#: and the next completion is known without looking at the batch.
DEVICE = np.dtype(
    [
        ("batch_limit", np.int64),  # B
        ("kv_limit", np.int64),  # M [tokens]
        ("kv_blocks", np.int64),  # M in blocks
        ("watermark", np.int64),  # blocks kept free at admission
        ("kv_s", np.float64),  # iteration time per KV token [s]
        ("prefill_s", np.float64),  # iteration time per recomputed token [s]
        ("up", np.int64),
        ("active", np.int64),  # requests in the batch
        ("count", np.int64),  # finished iterations
        ("kv_held", np.int64),  # sum of s + emitted over the batch [tokens]
        ("blocks", np.int64),  # KV blocks that the coming or running iteration needs
        ("next_finish", np.int64),  # count at which the first of the batch completes
        ("fresh", np.int64),  # newest slots that have not finished an iteration since admission
        ("prefill", np.int64),  # tokens that the coming iteration recomputes
        ("running", np.int64),
        ("start_ns", np.int64),  # of the running iteration, or of the last one
        ("end_ns", np.int64),
        ("last_ns", np.int64),  # duration of the last finished iteration
        ("fifo_head", np.int64),
        ("fifo_tail", np.int64),
        ("fifo_length", np.int64),
        ("fifo_tokens", np.int64),
        ("fifo_predicted", np.float64),
        ("busy_slot_ns", np.int64),  # request-nanoseconds after the warm-up
        ("kv_token_s", np.float64),  # token-seconds after the warm-up
        ("shown", np.int64),  # rows of the observed batch that are not zero
    ],
    align=True,
)

#: (N, G, B_max): batch slots, occupied ones first, in admission order.
SLOT = np.dtype(
    [
        ("finish", np.int64),  # count at which the request completes
        ("kv", np.int64),  # plus the count it is s + emitted
        ("predicted", np.float64),  # minus the count it is ô - emitted
        ("request", np.int64),
    ],
    align=True,
)

#: (N,): counters of each environment.
LANE = np.dtype(
    [
        ("now_ns", np.int64),
        ("period", np.int64),  # k
        ("requests", np.int64),  # rows of the request table in use
        ("arrived", np.int64),  # rows that have arrived, rejected ones included
        ("hidden_head", np.int64),  # first row that may wait beyond the window
        ("hidden", np.int64),  # waiting requests beyond the window
        ("visible", np.int64),  # waiting requests in the window
        ("shown", np.int64),  # rows of the observed queue that are not zero
        ("dispatched", np.int64),  # requests in some FIFO
        ("in_batch", np.int64),
        ("completed", np.int64),
        ("rejected", np.int64),
        ("tokens", np.int64),  # decode tokens emitted
        ("warm_tokens", np.int64),  # of them after the warm-up
        ("terminated", np.int64),
        ("truncated", np.int64),
        ("cost", np.int64),  # SLO misses settled in the last step
        ("invalid", np.int64),  # illegal actions in the last step
        ("invalid_total", np.int64),
        ("hidden_periods", np.int64),
        ("imbalance_sum", np.float64),
        ("imbalance_count", np.int64),
        ("samples", np.int64),  # rows of the time series in use
        *((name, np.float64) for name in _COMPONENTS),  # reward of the last step
        *((f"{name}_total", np.float64) for name in _COMPONENTS),
        ("reward_total", np.float64),
    ],
    align=True,
)


class Observed(NamedTuple):
    """Observation buffers, float32 unless said; layout in `llmroute_env.spaces`."""

    queue: Array  #: (N, W, len(Queue))
    queue_id: Array  #: (N, W) int64
    devices: Array  #: (N, G, len(Device))
    active: Array  #: (N, G, B_max, len(Active))
    clock: Array  #: (N, len(Clock))
    mask: Array  #: (N, W, G + 1) int8


class State(NamedTuple):
    """Everything the kernel reads and writes."""

    constants: Array  #: (1,) `CONSTANTS`
    base_s: Array  #: (G, B_max + 1) float64, iteration time by batch size [s]
    requests: Array  #: (N, R) `REQUEST`
    devices: Array  #: (N, G) `DEVICE`
    slots: Array  #: (N, G, B_max) `SLOT`
    phase: Array  #: (N, G, block) int64, batch requests by the count at which they need a block
    lanes: Array  #: (N,) `LANE`
    window: Array  #: (N, W) int64, ids of the visible requests, oldest first
    series: Array  #: (N, S, len(Series)) float32
    outcome: Array  #: (N, len(Outcome)) float64, of the last step
    observed: Observed


@structref.register
class HandleType(types.StructRef):  # type: ignore[misc,name-defined,unused-ignore]
    """numba type of `Handle`."""


class Handle(structref.StructRefProxy):  # type: ignore[misc,name-defined,unused-ignore]
    """A `State` behind one pointer; ``handle.state`` in compiled code gives it back."""


structref.define_boxing(HandleType, Handle)
structref.define_constructor(Handle, HandleType, ["state"])
structref.define_attributes(HandleType)


@compiled
def make_handle(state: State) -> Handle:
    """Box ``state``; the handle shares its arrays."""
    return Handle(state)


def allocate(
    constants: Array,
    base_s: Array,
    devices: Array,
    window: int,
    lanes: int,
    requests: int,
    samples: int,
) -> State:
    """Allocate ``lanes`` environments.

    Args:
        constants: (1,) `CONSTANTS`.
        base_s: (G, B_max + 1) iteration times [s].
        devices: (G,) `DEVICE` with the limits filled in.
        window: W.
        lanes: N.
        requests: R, rows of each request table.
        samples: S, rows of each time series.
    """
    n, g, slots = lanes, len(devices), base_s.shape[1] - 1
    return State(
        constants,
        base_s,
        np.zeros((n, max(requests, 1)), REQUEST),
        np.repeat(devices[None], n, axis=0),
        np.zeros((n, g, slots), SLOT),
        np.zeros((n, g, int(constants["block"][0])), np.int64),
        np.zeros(n, LANE),
        np.zeros((n, window), np.int64),
        np.zeros((n, samples, len(Series)), np.float32),
        np.zeros((n, len(Outcome)), np.float64),
        allocate_observed(n, window, g, slots),
    )


def allocate_observed(lanes: int, window: int, devices: int, slots: int) -> Observed:
    """Observation buffers of ``lanes`` environments with empty queues."""
    mask = np.zeros((lanes, window, devices + 1), np.int8)
    mask[:, :, 0] = 1
    return Observed(
        np.zeros((lanes, window, len(spaces.Queue)), np.float32),
        np.full((lanes, window), -1, np.int64),
        np.zeros((lanes, devices, len(spaces.Device)), np.float32),
        np.zeros((lanes, devices, slots, len(spaces.Active)), np.float32),
        np.zeros((lanes, len(spaces.Clock)), np.float32),
        mask,
    )
