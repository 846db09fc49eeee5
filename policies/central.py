"""Central queues: the router holds what cannot start yet, and sends what will start at once.

``central_fifo`` serves in order of arrival, ``sjf`` the shortest predicted first. When a request
can start, and on which device, is the rule of ``policies.startable``.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from pydantic import Field

from llmroute_env.cluster.clock import now_ns
from llmroute_env.cluster.kernel import is_over, step_lane
from llmroute_env.cluster.observe import observe, observe_load
from llmroute_env.cluster.state import Handle
from llmroute_env.jit import compiled
from llmroute_env.spaces import Queue
from policies.base import Build, Kernels, Policy, PolicyParameters
from policies.ordering import heapify, pop
from policies.startable import Fit, Room, TieMemory, measure, place, room, take, whole


class CentralParams(NamedTuple):
    """Constants of a central queue."""

    fit: int  #: a ``Fit``
    shortest_first: bool  #: order by predicted length, else by arrival
    aging_per_s: float  #: tokens that a request's key falls for each second waited


class CentralScratch(NamedTuple):
    """Working space."""

    room: Room
    key: np.ndarray  #: (W,) float64
    heap: np.ndarray  #: (W,) int64


@compiled
def _send(i: int, g: int, need: float, memory: TieMemory, room: Room, action: np.ndarray) -> bool:
    """Send request ``i`` to ``g``; tell whether that was the device's last slot."""
    action[i] = g + 1
    memory.pointer[0] = (g + 1) % room.slots.shape[0]
    return take(room, g, need)


@compiled
def _in_order(
    queue: np.ndarray,
    queue_id: np.ndarray,
    params: CentralParams,
    memory: TieMemory,
    room: Room,
    open_devices: int,
    action: np.ndarray,
) -> None:
    for i in range(queue_id.shape[0]):
        if queue_id[i] < 0 or open_devices == 0:
            break
        need = queue[i, Queue.PROMPT] + 1.0
        g = place(room, need, whole(room, need - 1.0, 1.0), params.fit, memory.pointer[0])
        if g < 0:
            break  # head of the line: nobody overtakes
        if _send(i, g, need, memory, room, action):
            open_devices -= 1


@compiled
def _shortest_first(
    queue: np.ndarray,
    queue_id: np.ndarray,
    params: CentralParams,
    memory: TieMemory,
    scratch: CentralScratch,
    open_devices: int,
    action: np.ndarray,
) -> None:
    room, key, heap = scratch.room, scratch.key, scratch.heap
    most = 0.0  # room only shrinks, so what exceeds this cannot start in this period
    for g in range(room.slots.shape[0]):
        if room.slots[g] > 0:
            most = max(most, room.free[g])
    n = 0
    for i in range(queue_id.shape[0]):
        if queue_id[i] < 0:
            break
        if queue[i, Queue.PROMPT] + 1.0 <= most:
            waited = np.float64(queue[i, Queue.WAITED])
            key[i] = np.float64(queue[i, Queue.PREDICTED]) - params.aging_per_s * waited
            heap[n] = i
            n += 1
    heapify(key, heap, n)
    while n > 0 and open_devices > 0:
        i = pop(key, heap, n)
        n -= 1
        need = queue[i, Queue.PROMPT] + 1.0
        final = whole(
            room, np.float64(queue[i, Queue.PROMPT]), np.float64(queue[i, Queue.PREDICTED])
        )
        g = place(room, need, final, params.fit, memory.pointer[0])
        if g >= 0 and _send(i, g, need, memory, room, action):
            open_devices -= 1


@compiled
def decide(
    queue: np.ndarray,
    queue_id: np.ndarray,
    devices: np.ndarray,
    active: np.ndarray,  # noqa: ARG001  (the signature is shared)
    clock: np.ndarray,  # noqa: ARG001
    params: CentralParams,
    memory: TieMemory,
    scratch: CentralScratch,
    action: np.ndarray,
) -> None:
    """Send what can start, in the queue's order. Shapes: ``policies.base.Kernels``."""
    action[:] = 0
    if queue_id[0] < 0:
        return
    open_devices = measure(devices, scratch.room)
    if open_devices == 0:
        return
    if params.shortest_first:
        _shortest_first(queue, queue_id, params, memory, scratch, open_devices, action)
    else:
        _in_order(queue, queue_id, params, memory, scratch.room, open_devices, action)


@compiled
def decide_lanes(
    queue: np.ndarray,
    queue_id: np.ndarray,
    devices: np.ndarray,
    active: np.ndarray,
    clock: np.ndarray,
    params: CentralParams,
    memory: TieMemory,
    scratch: CentralScratch,
    action: np.ndarray,
) -> None:
    """Decide a batch: everything but params and scratch has a leading lane axis."""
    for lane in range(queue.shape[0]):
        decide(
            queue[lane],
            queue_id[lane],
            devices[lane],
            active[lane],
            clock[lane],
            params,
            TieMemory(memory.pointer[lane]),
            scratch,
            action[lane],
        )


@compiled
def run(
    handle: Handle,
    params: CentralParams,
    memory: TieMemory,
    scratch: CentralScratch,
    action: np.ndarray,
    times: np.ndarray,
) -> int:
    """Play lane 0 to the end of its episode; see ``policies.family.Kernels``."""
    state = handle.state
    seen = state.observed
    period = 0
    while not is_over(state, 0):
        start = now_ns() if period < times.shape[0] else 0
        decide(
            seen.queue[0],
            seen.queue_id[0],
            seen.devices[0],
            seen.active[0],
            seen.clock[0],
            params,
            memory,
            scratch,
            action,
        )
        if period < times.shape[0]:
            times[period] = now_ns() - start
        step_lane(state, 0, action[: state.lanes[0].visible])
        observe_load(state, 0)
        period += 1
    observe(state, 0)
    return period


class CentralParameters(PolicyParameters):
    """``fit``: which device starts a request, the fullest that can (best) or the emptiest."""

    fit: Literal["best", "balance"] = "balance"

    @property
    def fit_code(self) -> Fit:
        """``fit`` as compiled code reads it."""
        return Fit[self.fit.upper()]


class CentralFifo(Policy):
    """Central first-come-first-served queue with best fit. Information: none.

    The oldest request goes, as soon as it can start, to the device that keeps the least KV free
    (``fit=best``) or the smallest share of its KV limit in use (``fit=balance``). While the head
    cannot start nobody overtakes it. No predicted length is read, in the fit rule neither.

    Source: the FCFS order of continuous batching (Yu et al., "Orca", OSDI 2022), held centrally.
    """

    name = "central_fifo"
    kernels: ClassVar[Kernels] = Kernels(decide, decide_lanes, run)

    class Parameters(CentralParameters):
        """``fit`` only."""

    parameters: CentralParameters

    def build(self) -> Build:
        """Return params, the memory of one fresh lane, and scratch."""
        return self._build(shortest_first=False, aging=0.0)

    def _build(self, *, shortest_first: bool, aging: float) -> Build:
        w = self.spec.window
        return Build(
            CentralParams(
                int(self.parameters.fit_code), shortest_first, aging / self.spec.period_s
            ),
            TieMemory(np.zeros(1, np.int64)),
            CentralScratch(
                room(self.spec.devices, self.spec.largest, self.spec.chunk_tokens),
                np.zeros(w),
                np.zeros(w, np.int64),
            ),
        )

    def diagnostics(self) -> dict[str, Any]:
        """Return the device that wins the next tie."""
        return {"pointer": int(self.memory.pointer[0])}


class ShortestFirst(CentralFifo):
    """Central shortest-predicted-first queue, with aging. Information: predicted.

    Ascending key = ô - aging * periods waited, ties by age; a request that cannot start is passed
    over. ``aging=0`` is pure shortest first, which starves long requests under overload; a large
    ``aging`` tends to first come, first served.

    Source: shortest-job-first on predicted lengths, as in Qiu et al., "Efficient interactive LLM
    serving with proxy model-based sequence length prediction", arXiv 2404.08509.
    """

    name = "sjf"
    information = "predicted"

    class Parameters(CentralParameters):
        """``aging``: tokens by which a request's key falls for each period waited."""

        aging: float = Field(0.0, ge=0.0)

    parameters: Parameters

    def build(self) -> Build:
        """Return params, the memory of one fresh lane, and scratch."""
        return self._build(shortest_first=True, aging=self.parameters.aging)
