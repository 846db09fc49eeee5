"""What the router sees: writes the observation buffers of a lane. Compiled."""

from __future__ import annotations

from llmroute_env import spaces
from llmroute_env.cluster.fifo import Record
from llmroute_env.cluster.mixed import observe_mixed, observe_prefilling, prefills
from llmroute_env.cluster.queueing import may_hold
from llmroute_env.cluster.state import Array, State
from llmroute_env.jit import inlined

_Q_PROMPT, _Q_PREDICTED, _Q_WAITED, _Q_TIER = (int(f) for f in spaces.Queue)
(
    _D_ACTIVE,
    _D_BATCH,
    _D_KV,
    _D_LIMIT,
    _D_FIFO,
    _D_TOKENS,
    _D_LAST,
    _D_END,
    _D_UP,
    _D_PREDICTED,
    _,
) = (int(f) for f in spaces.Device)
_A_KV, _A_REMAINING = (int(f) for f in spaces.Active)
_C_NOW, _C_PERIOD, _C_LEFT, _C_HIDDEN = (int(f) for f in spaces.Clock)


@inlined
def observe(state: State, lane: int) -> None:
    """Write the observation of ``lane``; rows and slots that stay empty are not touched."""
    observe_load(state, lane)
    devices, slots, active = state.devices[lane], state.slots[lane], state.observed.active[lane]
    if prefills(state):
        observe_prefilling(state, lane)
    else:
        for g in range(len(devices)):
            _observe_batch(devices[g], slots[g], active[g])


@inlined
def observe_load(state: State, lane: int) -> None:
    """Write all of the observation but ``active``, for decisions that do not read it."""
    p, v, q, o = state.constants[0], state.lanes[lane], state.requests[lane], state.observed
    _observe_queue(q, v, state.window[lane], o.queue[lane], o.queue_id[lane])
    mask, devices = o.mask[lane], state.devices[lane]
    # Where all devices are alike the rows are, too, and those already shown stay as they are.
    for i in range(0 if p.uneven else v.shown, v.visible):
        for g in range(len(devices)):
            d = devices[g]
            mask[i, g + 1] = d.up and may_hold(p, d, q[state.window[lane, i]])
    for i in range(v.visible, v.shown):
        mask[i, 1:] = 0
    for g in range(len(devices)):
        _observe_device(devices[g], o.devices[lane, g], v.now_ns)
    observe_mixed(state, lane)
    v.shown = v.visible
    clock = o.clock[lane]
    clock[_C_NOW] = v.now_ns * 1e-9
    clock[_C_PERIOD] = v.period
    clock[_C_LEFT] = max(p.horizon_periods - v.period, 0)
    clock[_C_HIDDEN] = v.hidden


@inlined
def _observe_queue(q: Array, v: Record, window: Array, queue: Array, queue_id: Array) -> None:
    for i in range(v.visible):
        j = window[i]
        request = q[j]
        queue[i, _Q_PROMPT] = request.prompt
        queue[i, _Q_PREDICTED] = request.predicted
        queue[i, _Q_WAITED] = (v.now_ns - request.arrival_ns) * 1e-9
        queue[i, _Q_TIER] = request.tier
        queue_id[i] = j
    for i in range(v.visible, v.shown):
        queue[i, :] = 0.0
        queue_id[i] = -1


@inlined
def _observe_device(d: Record, row: Array, now: int) -> None:
    row[_D_ACTIVE] = d.active
    row[_D_BATCH] = d.batch_limit
    row[_D_KV] = d.kv_held
    row[_D_LIMIT] = d.kv_limit
    row[_D_FIFO] = d.fifo_length
    row[_D_TOKENS] = d.fifo_tokens
    row[_D_LAST] = d.last_ns * 1e-9
    row[_D_END] = (d.end_ns - now) * 1e-9 if d.running == 1 else 0.0
    row[_D_UP] = d.up
    row[_D_PREDICTED] = d.fifo_predicted


@inlined
def _observe_batch(d: Record, slots: Array, batch: Array) -> None:
    for b in range(d.active):
        batch[b, _A_KV] = slots[b].kv + d.count
        batch[b, _A_REMAINING] = max(slots[b].predicted - d.count, 1.0)
    for b in range(d.active, d.shown):
        batch[b, _A_KV] = 0.0
        batch[b, _A_REMAINING] = 0.0
    d.shown = d.active
