"""A device's FIFO, a linked list through the request table. All functions are compiled.

``q`` (R,) are the lane's requests, ``v`` the lane, ``d`` the device.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from llmroute_env.cluster.state import DISPATCHED, Array
from llmroute_env.jit import compiled

Record = Any


@compiled
def blocks_of(tokens: int, block: int) -> int:
    """KV blocks that ``tokens`` take."""
    if block == 1:  # a division costs more than the rest of an admission
        return tokens
    return (tokens + block - 1) // block


@compiled
def _count_in_fifo(v: Record, d: Record, request: Record, sign: int) -> None:
    d.fifo_length += sign
    d.fifo_tokens += sign * (np.int64(request.prompt) + request.emitted)
    if d.fifo_length == 0:
        d.fifo_predicted = 0.0
    else:
        d.fifo_predicted += sign * max(np.float64(request.predicted) - request.emitted, 1.0)
    v.dispatched += sign


@compiled
def push_tail(q: Array, v: Record, d: Record, j: int) -> None:
    """Append request ``j`` to the FIFO."""
    q[j].following = -1
    if d.fifo_length == 0:
        d.fifo_head = j
    else:
        q[d.fifo_tail].following = j
    d.fifo_tail = j
    q[j].status = DISPATCHED
    _count_in_fifo(v, d, q[j], 1)


@compiled
def push_head(q: Array, v: Record, d: Record, j: int) -> None:
    """Put request ``j`` back before all others."""
    if d.fifo_length == 0:
        q[j].following = -1
        d.fifo_tail = j
    else:
        q[j].following = d.fifo_head
    d.fifo_head = j
    q[j].status = DISPATCHED
    _count_in_fifo(v, d, q[j], 1)


@compiled
def remove(q: Array, v: Record, d: Record, before: int, j: int) -> None:
    """Take ``j`` out of the FIFO; ``before`` is its predecessor, -1 when ``j`` is the head."""
    after = q[j].following
    if before < 0:
        d.fifo_head = after
    else:
        q[before].following = after
    if after < 0:
        d.fifo_tail = before
    _count_in_fifo(v, d, q[j], -1)
