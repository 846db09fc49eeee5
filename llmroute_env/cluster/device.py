"""One device: iterations, admission from its FIFO, preemption. All functions are compiled.

Arguments, where a function needs them: ``p`` the constants, ``q`` (R,) the lane's requests, ``v``
the lane, ``d`` the device, ``slots`` (B_max,) and ``phase`` (block,) its batch, ``now`` in ns.
An iteration costs O(1) plus the requests that join, complete or are preempted; an iteration in
which one completes scans the batch once.
"""

from __future__ import annotations

import numpy as np

from llmroute_env.cluster.fifo import Record, blocks_of, push_head, remove
from llmroute_env.cluster.state import ACTIVE, COMPLETED, Array
from llmroute_env.jit import compiled

NEVER = np.int64(2**62)
#: ``running`` of an empty device that waits for KV to arrive
SLEEPING = 2


@compiled
def preempt_last(p: Record, q: Array, v: Record, d: Record, slots: Array, phase: Array) -> None:
    """Send the last admitted request back to the head of the FIFO; it keeps what it emitted."""
    last = d.active - 1
    slot = slots[last]
    j, kv, finish = slot.request, slot.kv + d.count, slot.finish
    d.active = last
    d.kv_held -= kv
    d.blocks -= blocks_of(kv + 1, p.block)
    phase[-slot.kv % p.block] -= 1
    if finish == d.next_finish:
        finish = NEVER
        for b in range(last):
            finish = min(finish, slots[b].finish)
        d.next_finish = finish
    q[j].emitted = kv - q[j].prompt
    q[j].preemptions += 1
    v.in_batch -= 1
    push_head(q, v, d, j)


@compiled
def decode_from_now(p: Record, q: Array, d: Record, slots: Array, phase: Array, j: int) -> int:
    """Let request ``j`` decode, in the slot after those that do; its KV tokens, s + emitted."""
    request, slot = q[j], slots[d.active]
    emitted = np.int64(request.emitted)
    kv = request.prompt + emitted
    finish = d.count + request.decode - emitted
    slot.request = j
    slot.finish = finish
    slot.kv = kv - d.count
    slot.predicted = np.float64(request.predicted) - emitted + d.count
    phase[-slot.kv % p.block] += 1
    d.next_finish = min(d.next_finish, finish) if d.active > 0 else finish
    d.active += 1
    d.kv_held += kv
    d.fresh += 1
    return kv  # type: ignore[no-any-return]


@compiled
def _join(p: Record, q: Array, v: Record, d: Record, slots: Array, phase: Array, j: int) -> None:
    """Put request ``j`` into the next slot of the batch."""
    request = q[j]
    kv = decode_from_now(p, q, d, slots, phase, j)
    d.blocks += blocks_of(kv + 1, p.block)
    if request.preemptions > 0:
        request.recomputed += kv
        d.prefill += kv
    request.status = ACTIVE
    v.in_batch += 1


@compiled
def lands_ns(p: Record, request: Record) -> int:
    """When the KV of a dispatched request is on its device."""
    journey_s = np.float64(request.prompt) * p.kv_bytes / p.link_bytes_per_s
    return request.dispatch_ns + np.int64(np.rint(journey_s * 1e9))  # type: ignore[no-any-return]


@compiled
def _sleep(p: Record, q: Array, d: Record) -> None:
    """Let an empty device wait for the KV of its FIFO's head, or of any request with skipping."""
    j = d.fifo_head
    wake = lands_ns(p, q[j])
    if p.head_of_line_skip:
        for _ in range(d.fifo_length - 1):
            j = q[j].following
            wake = min(wake, lands_ns(p, q[j]))
    d.running = SLEEPING
    d.end_ns = wake


@compiled
def _admit(p: Record, q: Array, v: Record, d: Record, slots: Array, phase: Array, now: int) -> None:
    """Admit from the head of the FIFO, in order, while slot and KV limits hold."""
    before, j, waiting = -1, d.fifo_head, d.fifo_length
    while waiting > 0 and d.active < d.batch_limit:
        waiting -= 1
        after = q[j].following
        if p.handoff and lands_ns(p, q[j]) > now:
            if not p.head_of_line_skip:
                return
            before, j = j, after
            continue
        need = blocks_of(np.int64(q[j].prompt) + q[j].emitted + 1, p.block)
        # An empty device ignores the watermark, or a request near M would wait for ever.
        reserve = d.watermark if d.active > 0 else 0
        if d.blocks + need + reserve <= d.kv_blocks:
            remove(q, v, d, before, j)
            _join(p, q, v, d, slots, phase, j)
        elif p.head_of_line_skip:
            before = j
        else:
            return
        j = after


@compiled
def first_start(p: Record, v: Record, request: Record, now: int) -> None:
    """Record and reward a request whose first iteration starts now."""
    request.start_ns = now
    on_time = now - request.arrival_ns < p.tail_ttft_ns
    if not on_time and not request.missed:
        request.missed = 1
        v.cost += 1
    if now < p.horizon_ns:
        v.gamma += p.gamma * ((p.horizon_ns - now) / p.period_ns)
        v.sigma += p.sigma
        if on_time:
            v.zeta2 += p.zeta2


@compiled
def run_for(d: Record, now: int, duration_s: float) -> None:
    """Start an iteration."""
    d.running = 1
    d.start_ns = now
    d.end_ns = now + max(np.int64(np.rint(duration_s * 1e9)), np.int64(1))


@compiled
def begin(
    p: Record,
    base_s: Array,
    q: Array,
    v: Record,
    d: Record,
    slots: Array,
    phase: Array,
    now: int,
) -> None:
    """Between two iterations: preempt if growth broke M, admit, start the next iteration."""
    while d.blocks > d.kv_blocks and d.active > 1:
        preempt_last(p, q, v, d, slots, phase)
    if d.fifo_length > 0:
        _admit(p, q, v, d, slots, phase, now)
    if d.active == 0:
        if p.handoff and d.fifo_length > 0:
            _sleep(p, q, d)
        return
    for b in range(d.active - d.fresh, d.active):
        request = q[slots[b].request]
        if request.start_ns < 0:
            first_start(p, v, request, now)
    duration = base_s[d.active] + d.kv_s * (d.kv_held + d.active) + d.prefill_s * d.prefill
    d.prefill = 0
    run_for(d, now, duration)


@compiled
def retire(p: Record, q: Array, v: Record, d: Record, slots: Array, phase: Array) -> None:
    """End the running iteration: every active request gains a token, finished ones leave."""
    start, end, active = d.start_ns, d.end_ns, d.active
    d.kv_held += active  # now what the iteration held, since it counted the coming token
    d.count += 1
    d.turn += 1
    if d.turn == len(phase):
        d.turn = 0
    d.running = 0
    d.last_ns = end - start
    d.blocks += phase[d.turn]
    v.tokens += active
    if start >= p.warmup_ns:
        v.warm_tokens += active
        d.busy_slot_ns += active * (end - start)
        d.kv_token_s += d.kv_held * ((end - start) * 1e-9)
    if end <= p.horizon_ns:
        v.alpha += p.alpha * active
    if d.fresh > 0:
        for b in range(active - d.fresh, active):
            request = q[slots[b].request]
            if request.first_token_ns < 0:
                request.first_token_ns = end
        d.fresh = 0
    if d.count == d.next_finish:
        _complete(p, q, v, d, slots, phase, end)


@compiled
def move(slots: Array, source: int, target: int) -> None:
    """Copy a slot."""
    slots[target].request = slots[source].request
    slots[target].finish = slots[source].finish
    slots[target].kv = slots[source].kv
    slots[target].predicted = slots[source].predicted


@compiled
def finish_request(p: Record, v: Record, request: Record, end: int) -> None:
    """Record and reward a request that has emitted its last token."""
    request.emitted = request.decode
    request.finish_ns = end
    request.status = COMPLETED
    on_time = end - request.arrival_ns < p.tail_eel_ns
    if not on_time and not request.missed:
        request.missed = 1
        v.cost += 1
    if end <= p.horizon_ns:
        v.beta += p.beta * ((p.horizon_ns - end) / p.period_ns)
        if on_time:
            v.zeta1 += p.zeta1


@compiled
def _complete(
    p: Record, q: Array, v: Record, d: Record, slots: Array, phase: Array, end: int
) -> None:
    """Remove the requests that have emitted their last token, keeping admission order."""
    kept, finish, active = 0, NEVER, d.active
    for b in range(active):
        slot = slots[b]
        if slot.finish > d.count:
            finish = min(finish, slot.finish)
            if kept < b:
                move(slots, b, kept)
            kept += 1
            continue
        request, kv = q[slot.request], slot.kv + d.count
        d.kv_held -= kv
        d.blocks -= blocks_of(kv + 1, p.block)
        phase[-slot.kv % p.block] -= 1
        finish_request(p, v, request, end)
    d.active = kept
    d.next_finish = finish
    v.completed += active - kept
    v.in_batch -= active - kept
