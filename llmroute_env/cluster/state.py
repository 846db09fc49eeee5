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
from numba.extending import intrinsic, overload
from numba.np.arrayobj import make_array
from numpy.typing import NDArray

from llmroute_env import spaces
from llmroute_env.cluster.dtypes import CACHED, EXTRA, LANE, REQUEST, SLOT
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


class Observed(NamedTuple):
    """Observation buffers, float32 unless said; layout in `llmroute_env.spaces`."""

    queue: Array  #: (N, W, len(Queue))
    queue_id: Array  #: (N, W) int64
    devices: Array  #: (N, G, len(Device))
    active: Array  #: (N, G, B_max, len(Active))
    clock: Array  #: (N, len(Clock))
    mask: Array  #: (N, W, G + 1) int8
    text: Array  #: (N, W, len(Text)), zeros where the workload has no texts
    prefix: Array  #: (N, W, G) cached prompt tokens, zeros without prefix caches


class Mixed(NamedTuple):
    """What only devices that prefill, and requests with texts, need."""

    token_s: Array  #: (G, C + 1) float64, iteration time by tokens [s]
    extra: Array  #: (N, R) `EXTRA`
    chains: Array  #: (N, K) int32, prefix blocks of the requests, chain after chain
    cache: Array  #: (N, G, U) `CACHED`, by prefix block


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
    mixed: Mixed | None  #: None in scenarios that only decode: a type, and code, of their own


@structref.register
class HandleType(types.StructRef):  # type: ignore[misc,name-defined,unused-ignore]
    """numba type of `Handle`."""


class Handle(structref.StructRefProxy):  # type: ignore[misc,name-defined,unused-ignore]
    """A `State` behind one pointer; ``handle.state`` in compiled code gives it back."""


structref.define_boxing(HandleType, Handle)
structref.define_constructor(Handle, HandleType, ["state"])
structref.define_attributes(HandleType)


@intrinsic  # type: ignore[misc,untyped-decorator,unused-ignore]
def borrowed(typing_context: Any, array: Any) -> Any:  # noqa: ARG001
    """The same array, not counted as a reference: views of it cost no atomic operations."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        view = make_array(signature.args[0])(context, builder, arguments[0])
        view.meminfo = view.meminfo.type(None)
        view.parent = view.parent.type(None)
        return view._getvalue()

    return array(array), generate


def _borrowed_mixed(mixed: Mixed | None) -> Mixed | None:
    """``mixed`` with uncounted arrays; known to compiled code only."""
    raise NotImplementedError


@overload(_borrowed_mixed, strict=False)  # type: ignore[misc,untyped-decorator,unused-ignore]
def _borrowed_mixed_typed(mixed: Any) -> Any:
    if mixed == types.none:
        return lambda mixed: None  # noqa: ARG005

    def uncounted(mixed: Any) -> Any:
        return Mixed(
            borrowed(mixed.token_s),
            borrowed(mixed.extra),
            borrowed(mixed.chains),
            borrowed(mixed.cache),
        )

    return uncounted


@compiled
def _make_handle(s: State) -> Handle:
    o = s.observed
    return Handle(
        State(
            borrowed(s.constants),
            borrowed(s.base_s),
            borrowed(s.requests),
            borrowed(s.devices),
            borrowed(s.slots),
            borrowed(s.phase),
            borrowed(s.lanes),
            borrowed(s.window),
            borrowed(s.series),
            borrowed(s.outcome),
            Observed(
                borrowed(o.queue),
                borrowed(o.queue_id),
                borrowed(o.devices),
                borrowed(o.active),
                borrowed(o.clock),
                borrowed(o.mask),
                borrowed(o.text),
                borrowed(o.prefix),
            ),
            _borrowed_mixed(s.mixed),
        )
    )


def make_handle(state: State) -> Handle:
    """Box ``state``; the handle shares its arrays, and keeps them alive.

    Compiled code sees them uncounted: a step takes dozens of views, and counting references to
    arrays that outlive every call anyway took more than half of it.
    """
    handle = _make_handle(state)
    handle.arrays = state
    return handle


class Sizes(NamedTuple):
    """How much an episode needs room for."""

    requests: int  #: R, rows of each request table
    links: int = 0  #: K, entries of all chains of prefix blocks
    blocks: int = 0  #: U, different prefix blocks


def allocate(
    constants: Array,
    base_s: Array,
    token_s: Array,
    devices: Array,
    window: int,
    lanes: int,
    sizes: Sizes,
    samples: int,
) -> State:
    """Allocate ``lanes`` environments.

    Args:
        constants: (1,) `CONSTANTS`.
        base_s: (G, B_max + 1) iteration times [s].
        token_s: (G, C + 1) mixed iteration times [s].
        devices: (G,) `DEVICE` with the limits filled in.
        window: W.
        lanes: N.
        sizes: R, K and U.
        samples: S, rows of each time series.
    """
    n, g, slots = lanes, len(devices), base_s.shape[1] - 1
    rows = max(sizes.requests, 1)
    mixed = None
    if constants["prefill"][0] or constants["text"][0]:
        mixed = Mixed(
            token_s,
            np.zeros((n, rows), EXTRA),
            np.zeros((n, max(sizes.links, 1)), np.int32),
            np.zeros((n, g, max(sizes.blocks, 1)), CACHED),
        )
    return State(
        constants,
        base_s,
        np.zeros((n, rows), REQUEST),
        np.repeat(devices[None], n, axis=0),
        np.zeros((n, g, slots), SLOT),
        np.zeros((n, g, int(constants["block"][0])), np.int64),
        np.zeros(n, LANE),
        np.zeros((n, window), np.int64),
        np.zeros((n, samples, len(Series)), np.float32),
        np.zeros((n, len(Outcome)), np.float64),
        allocate_observed(n, window, g, slots),
        mixed,
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
        # Pages that nothing writes to take no memory.
        np.zeros((lanes, window, len(spaces.Text)), np.float32),
        np.zeros((lanes, window, devices), np.float32),
    )
