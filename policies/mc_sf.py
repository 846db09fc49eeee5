"""MC-SF: memory-constrained shortest first, with a look at every predicted completion.

The look ahead is ``policies.completions``; which device can start a request at all, and which of
several gets it, is ``policies.startable``.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np

from llmroute_env.cluster.clock import now_ns
from llmroute_env.cluster.kernel import is_over, step_lane
from llmroute_env.cluster.observe import observe
from llmroute_env.cluster.state import Handle
from llmroute_env.jit import compiled
from llmroute_env.spaces import Queue
from policies.base import Build, Kernels, Policy
from policies.central import CentralParameters
from policies.completions import Profile, attention, build_profile, holds, insert, plan, profile
from policies.ordering import heapify, pop
from policies.startable import Fit, Room, TieMemory, fits, measure, preference, room, take, whole


class McSfParams(NamedTuple):
    """Constants."""

    fit: int  #: a ``policies.startable.Fit``
    skip: bool  #: go on behind a request that fits nowhere
    context: np.ndarray  #: (G,) int64, context limit [tokens]


class McSfScratch(NamedTuple):
    """Working space."""

    room: Room
    profile: Profile
    key: np.ndarray  #: (W,) float64
    heap: np.ndarray  #: (W,) int64


@compiled
def _place(
    devices: np.ndarray,
    active: np.ndarray,
    prompt: float,
    predicted: float,
    params: McSfParams,
    pointer: int,
    scratch: McSfScratch,
) -> int:
    """Return the device for a request, -1 if it fits nowhere; equals go round."""
    peaks, rooms = scratch.profile, scratch.room
    chosen = -1
    best = np.inf
    final = whole(rooms, prompt, predicted)
    for turn in range(devices.shape[0]):
        g = (pointer + turn) % devices.shape[0]
        limit = min(rooms.limit[g], np.float64(params.context[g]))
        if not fits(rooms, g, prompt + 1.0) or limit - prompt < 1.0:
            continue
        if final > rooms.largest[g]:
            continue
        value = np.inf
        if params.fit != Fit.ATTENTION:
            value = preference(rooms, g, prompt + 1.0, params.fit)
            if value >= best:  # before the profile, which takes a sort
                continue
        if peaks.n[g] < 0:
            build_profile(devices, active, g, limit, peaks)
        length = plan(predicted, limit - prompt)
        if params.fit == Fit.ATTENTION:
            own, others = attention(peaks, g, prompt, length)
            value = own + others
        if value < best and holds(peaks, g, prompt, length, rooms.limit[g]):
            chosen, best = g, value
    return chosen


@compiled
def decide(
    queue: np.ndarray,
    queue_id: np.ndarray,
    devices: np.ndarray,
    active: np.ndarray,
    clock: np.ndarray,  # noqa: ARG001  (the signature is shared)
    params: McSfParams,
    memory: TieMemory,
    scratch: McSfScratch,
    action: np.ndarray,
) -> None:
    """Admit in ascending predicted length. Shapes: ``policies.base.Kernels``."""
    action[:] = 0
    if queue_id[0] < 0:
        return
    rooms, peaks, key, heap = scratch.room, scratch.profile, scratch.key, scratch.heap
    open_devices = measure(devices, rooms)
    if open_devices == 0:
        return
    peaks.n[:] = -1
    n = 0
    while n < queue_id.shape[0] and queue_id[n] >= 0:
        key[n] = queue[n, Queue.PREDICTED]
        heap[n] = n
        n += 1
    heapify(key, heap, n)
    while n > 0 and open_devices > 0:
        i = pop(key, heap, n)
        n -= 1
        prompt = np.float64(queue[i, Queue.PROMPT])
        g = _place(devices, active, prompt, key[i], params, memory.pointer[0], scratch)
        if g < 0:
            if params.skip:
                continue
            break
        action[i] = g + 1
        memory.pointer[0] = (g + 1) % devices.shape[0]
        limit = min(rooms.limit[g], np.float64(params.context[g]))
        insert(peaks, g, prompt, plan(key[i], limit - prompt))
        if take(rooms, g, prompt + 1.0):
            open_devices -= 1


@compiled
def decide_lanes(
    queue: np.ndarray,
    queue_id: np.ndarray,
    devices: np.ndarray,
    active: np.ndarray,
    clock: np.ndarray,
    params: McSfParams,
    memory: TieMemory,
    scratch: McSfScratch,
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
    params: McSfParams,
    memory: TieMemory,
    scratch: McSfScratch,
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
        observe(state, 0)
        period += 1
    return period


class McSf(Policy):
    """MC-SF, memory-constrained shortest first. Information: predicted.

    In ascending ô (ties by age), admit a request on a device if at every predicted completion
    time t of the device's requests, the newcomer included, sum of (kv + iterations until t) over
    the requests still there at t stays within M, and a batch slot is free. Stop at the first that
    fits nowhere, as published, or go on behind it with ``skip=true``.

    Plan lengths are clip(round(ô), 1, min(M, context) - s) for a newcomer and, for an active
    request, round(max(ô - emitted, 1)) under the same limit; an iteration that is running counts
    as done, and a request that should end with it stays for one more (``policies.startable``).
    The paper has one device; of several that fit, ``fit`` chooses. Its check covers completions
    after the newcomer's own, too: a batch that is already predicted to overflow admits nobody.

    Source: Jaillet, Jiang, Mellou, Molinaro, Podimata, Zhou, "Online scheduling for LLM inference
    with KV cache constraints", arXiv 2502.07115, algorithm MC-SF.
    """

    name = "mc_sf"
    information = "predicted"
    kernels: ClassVar[Kernels] = Kernels(decide, decide_lanes, run)

    class Parameters(CentralParameters):
        """``skip``: pass over a request that fits nowhere instead of stopping at it.

        ``fit=attention``: the device on which the newcomer adds least to the KV that iterations
        read, its own and the others' (our own; it matters where attention takes time).
        """

        fit: Literal["best", "balance", "attention"] = "balance"  # type: ignore[assignment]
        skip: bool = False

    parameters: Parameters

    def build(self) -> Build:
        """Return params, the memory of one fresh lane, and scratch."""
        g, w = self.spec.devices, self.spec.window
        return Build(
            McSfParams(
                int(self.parameters.fit_code),
                self.parameters.skip,
                np.array(self.spec.context_limit, np.int64),
            ),
            TieMemory(np.zeros(1, np.int64)),
            McSfScratch(
                room(g, self.spec.largest, self.spec.chunk_tokens),
                profile(g, self.spec.slots),
                np.zeros(w),
                np.zeros(w, np.int64),
            ),
        )

    def diagnostics(self) -> dict[str, Any]:
        """Return the device that wins the next tie."""
        return {"pointer": int(self.memory.pointer[0])}
