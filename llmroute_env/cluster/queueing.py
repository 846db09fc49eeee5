"""The router's queue of one lane: arrivals come in, actions send requests out. Compiled."""

from __future__ import annotations

import numpy as np

from llmroute_env.cluster.fifo import Record, push_tail
from llmroute_env.cluster.mixed import expect_hit
from llmroute_env.cluster.state import QUEUED, REJECTED, Array, RejectReason, State
from llmroute_env.jit import compiled, inlined

_KV_LIMIT, _CONTEXT_LIMIT = int(RejectReason.KV_LIMIT), int(RejectReason.CONTEXT_LIMIT)


@inlined
def arrive(p: Record, q: Array, v: Record, window: Array) -> None:
    """Make the arrivals up to now visible; reject what no device can ever hold."""
    last, j = min(v.now_ns, p.horizon_ns), v.arrived
    while j < v.requests and q[j].ready_ns <= last:
        request = q[j]
        final = np.int64(request.prompt) + request.decode
        if final > p.largest:
            request.status = REJECTED
            request.reason = _KV_LIMIT if final > p.largest_kv else _CONTEXT_LIMIT
            request.missed = 1
            v.rejected += 1
            v.cost += 1
        else:
            request.status = QUEUED
            if v.hidden == 0 and v.visible < len(window):
                window[v.visible] = j
                v.visible += 1
                v.hidden_head = j + 1
            else:
                v.hidden += 1
        j += 1
    v.arrived = j


@compiled
def may_hold(p: Record, d: Record, request: Record) -> bool:
    """Whether a device that is up may be chosen: it holds the prompt and a token, as all can see.

    Whether it holds the whole request is not asked, since that depends on its true length.
    """
    return p.uneven == 0 or request.prompt < d.largest  # type: ignore[no-any-return]


@compiled
def _refuse(v: Record, d: Record, request: Record) -> None:
    """Reject, at dispatch, what this device can never hold; another one could have."""
    final = np.int64(request.prompt) + request.decode
    request.status = REJECTED
    request.reason = _KV_LIMIT if final > d.kv_limit else _CONTEXT_LIMIT
    v.rejected += 1
    if not request.missed:
        request.missed = 1
        v.cost += 1


@inlined
def dispatch(state: State, lane: int, action: Array) -> None:
    """Send the chosen visible requests to FIFO tails, in queue order, and refill the window."""
    p, v, q = state.constants[0], state.lanes[lane], state.requests[lane]
    devices, window = state.devices[lane], state.window[lane]
    kept, visible = 0, v.visible
    for i in range(len(action)):
        choice = action[i]
        if i >= visible:
            v.invalid += choice != 0
            continue
        j = window[i]
        if (
            1 <= choice <= len(devices)
            and devices[choice - 1].up
            and may_hold(p, devices[choice - 1], q[j])
        ):
            d = devices[choice - 1]
            q[j].device = choice - 1
            q[j].dispatch_ns = v.now_ns
            if p.uneven and np.int64(q[j].prompt) + q[j].decode > d.largest:
                _refuse(v, d, q[j])
            else:
                push_tail(q, v, d, j)
                expect_hit(state, lane, choice - 1, j)
        else:
            v.invalid += choice != 0
            window[kept] = j
            kept += 1
    v.invalid_total += v.invalid
    while v.hidden > 0 and kept < len(window):
        if q[v.hidden_head].status == QUEUED:
            window[kept] = v.hidden_head
            kept += 1
            v.hidden -= 1
        v.hidden_head += 1
    v.visible = kept
