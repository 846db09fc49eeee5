"""A device that prefills what it decodes: iterations of prompt chunks and decode tokens. Compiled.

Requests that prefill follow the decoding ones in the slots. Admission is in order, chunks are given
in order, so prefills end in order and the last slot is always the one admitted last.

Arguments as in `llmroute_env.cluster.device`; besides, ``x`` (R,) are the requests' `EXTRA` rows,
``chains`` and ``cache`` those of `llmroute_env.cluster.prefix`, ``token_s`` the device's times.
An iteration costs O(1) plus its chunks and the requests that join, complete or are preempted.
"""

from __future__ import annotations

import numpy as np

from llmroute_env.cluster.device import (
    NEVER,
    decode_from_now,
    finish_request,
    first_start,
    move,
    preempt_last,
    run_for,
)
from llmroute_env.cluster.fifo import Record, blocks_of, push_head, remove
from llmroute_env.cluster.prefix import (
    already_referenced,
    join_cache,
    keep_answer,
    keep_prompt,
    leave_cache,
    make_room,
    match,
)
from llmroute_env.cluster.state import ACTIVE, Array
from llmroute_env.jit import compiled

_NO_BUDGET = np.int64(2**62)


@compiled
def expect(p: Record, q: Array, x: Array, chains: Array, cache: Array, d: Record, j: int) -> None:
    """Note, at dispatch, what the cache will save; the router is shown the rest as queued."""
    tokens = np.int64(q[j].prompt) + q[j].emitted
    x[j].expected = match(p, chains, x[j], cache, q[j].prompt) * p.prefix_block
    d.prefill_left += tokens - x[j].expected


@compiled
def _preempt(
    p: Record,
    q: Array,
    x: Array,
    chains: Array,
    cache: Array,
    v: Record,
    d: Record,
    slots: Array,
    phase: Array,
) -> None:
    """Send the last admitted request back to the FIFO's head; its prefill starts again there."""
    last = d.active + d.prefilling - 1
    slot = slots[last]
    j = slot.request
    if d.prefilling > 0:
        d.prefilling -= 1
        d.blocks -= blocks_of(slot.finish, p.block)
        d.kv_progress -= slot.kv
        d.prefill_left -= slot.finish - slot.kv
        x[j].lost = slot.kv
        q[j].preemptions += 1
        v.in_batch -= 1
        push_head(q, v, d, j)
    else:
        x[j].lost = slot.kv + d.count
        d.fresh = max(d.fresh - 1, 0)
        preempt_last(p, q, v, d, slots, phase)
    if p.prefix_block:
        d.blocks += x[j].referenced * p.per_cached
        leave_cache(p, chains, x[j], d, cache)
    d.prefill_left += np.int64(q[j].prompt) + q[j].emitted - x[j].expected


@compiled
def _join(
    p: Record,
    q: Array,
    x: Array,
    chains: Array,
    cache: Array,
    v: Record,
    d: Record,
    slots: Array,
    j: int,
    matched: int,
    now: int,
) -> None:
    """Put request ``j`` into the next slot; its prefill starts after the matched blocks."""
    request = q[j]
    slot = slots[d.active + d.prefilling]
    target = np.int64(request.prompt) + request.emitted
    progress = matched * p.prefix_block
    slot.request = j
    slot.finish = target
    slot.kv = progress
    slot.predicted = np.float64(request.predicted) - request.emitted
    d.prefilling += 1
    d.blocks += blocks_of(target, p.block)
    d.kv_progress += progress
    d.prefill_left += x[j].expected - progress  # what the FIFO counted gives way to what is left
    request.status = ACTIVE
    v.in_batch += 1
    if p.prefix_block:
        join_cache(p, chains, x[j], d, cache, matched)
        make_room(p, d, cache)
    if request.start_ns < 0:
        x[j].cached = progress
        first_start(p, v, request, now)
    else:
        request.recomputed += max(np.int64(x[j].lost) - progress, np.int64(0))


@compiled
def begin_mixed(
    p: Record,
    token_s: Array,
    q: Array,
    x: Array,
    chains: Array,
    cache: Array,
    v: Record,
    d: Record,
    slots: Array,
    phase: Array,
    now: int,
) -> None:
    """Between two iterations: grow, preempt, hand out the token budget, admit, start the next."""
    d.blocks += phase[d.turn] + d.growth
    d.growth = 0
    while d.blocks > d.kv_blocks and d.active + d.prefilling > 1:
        _preempt(p, q, x, chains, cache, v, d, slots, phase)
    make_room(p, d, cache)
    budget = p.chunk_tokens - d.active if p.chunk_tokens > 0 else _NO_BUDGET
    budget = max(budget, 0)
    tokens, seconds = 0, 0.0
    for b in range(d.active, d.active + d.prefilling):
        chunk = min(slots[b].finish - slots[b].kv, budget)
        seconds += _give(x, d, slots[b], chunk)
        budget -= chunk
        tokens += chunk
    before, j, waiting = -1, d.fifo_head, d.fifo_length
    while waiting > 0 and d.active + d.prefilling < d.batch_limit and budget > 0:
        waiting -= 1
        after = q[j].following
        target = np.int64(q[j].prompt) + q[j].emitted
        matched = match(p, chains, x[j], cache, target)
        need = blocks_of(target, p.block)
        if matched > 0:
            need -= already_referenced(chains, x[j], cache, matched) * p.per_cached
        # An empty device ignores the watermark, or a request near M would wait for ever.
        reserve = d.watermark if d.active + d.prefilling > 0 else 0
        if d.blocks + need + reserve <= d.kv_blocks:
            remove(q, v, d, before, j)
            _join(p, q, x, chains, cache, v, d, slots, j, matched, now)
            slot = slots[d.active + d.prefilling - 1]
            chunk = min(slot.finish - slot.kv, budget)
            seconds += _give(x, d, slot, chunk)
            budget -= chunk
            tokens += chunk
        elif p.head_of_line_skip:
            before = j
        else:
            break
        j = after
    if d.active + d.prefilling == 0:
        return
    d.prefill = tokens
    tokens += d.active
    inside = min(tokens, d.token_limit)
    seconds += token_s[inside] + d.token_slope_s * (tokens - inside)
    run_for(d, now, seconds + d.kv_s * (d.kv_held + d.active))


@compiled
def _give(x: Array, d: Record, slot: Record, chunk: int) -> float:
    """Let a request prefill ``chunk`` tokens in the coming iteration; what that takes [s]."""
    x[slot.request].chunk = chunk
    if chunk == 0:
        return 0.0
    context = np.float64(slot.kv)
    return (  # type: ignore[no-any-return]
        d.chunk_s + d.query_s * chunk + d.pair_s * chunk * (context + 0.5 * chunk)
    )


@compiled
def retire_mixed(
    p: Record,
    q: Array,
    x: Array,
    chains: Array,
    cache: Array,
    v: Record,
    d: Record,
    slots: Array,
    phase: Array,
) -> None:
    """End the running iteration: tokens, completions, then the chunks in order of admission."""
    start, end, decoding = d.start_ns, d.end_ns, d.active
    held = d.active + d.prefilling
    d.kv_held += decoding
    if start >= p.warmup_ns:
        d.busy_slot_ns += held * (end - start)
        d.kv_token_s += (d.kv_held + d.kv_progress + d.prefill) * ((end - start) * 1e-9)
    d.prefill_left -= d.prefill
    d.prefill = 0
    d.count += 1
    d.turn += 1
    if d.turn == len(phase):
        d.turn = 0
    d.running = 0
    d.last_ns = end - start
    for b in range(decoding - d.fresh, decoding):
        request = q[slots[b].request]
        if request.first_token_ns < 0:
            request.first_token_ns = end
    d.fresh = 0
    if decoding > 0 and d.count == d.next_finish:
        _complete_mixed(p, q, x, chains, cache, v, d, slots, phase, end)
    emitted = decoding + _advance(p, q, x, chains, cache, v, d, slots, phase, decoding, end)
    v.tokens += emitted
    if start >= p.warmup_ns:
        v.warm_tokens += emitted
    if end <= p.horizon_ns:
        v.alpha += p.alpha * emitted


@compiled
def _leave(
    p: Record,
    q: Array,
    x: Array,
    chains: Array,
    cache: Array,
    v: Record,
    d: Record,
    j: int,
    end: int,
) -> None:
    """Let a completed request go; the caller has taken its blocks off ``d.blocks``."""
    if p.prefix_block:
        d.blocks += x[j].referenced * p.per_cached
        keep_answer(p, chains, x[j], d, cache, np.int64(q[j].prompt) + q[j].decode)
        leave_cache(p, chains, x[j], d, cache)
    finish_request(p, v, q[j], end)
    v.completed += 1
    v.in_batch -= 1


@compiled
def _complete_mixed(
    p: Record,
    q: Array,
    x: Array,
    chains: Array,
    cache: Array,
    v: Record,
    d: Record,
    slots: Array,
    phase: Array,
    end: int,
) -> None:
    """Remove the decoding requests that have emitted their last token."""
    kept, finish, active = 0, NEVER, d.active
    for b in range(active):
        slot = slots[b]
        if slot.finish > d.count:
            finish = min(finish, slot.finish)
            if kept < b:
                move(slots, b, kept)
            kept += 1
            continue
        kv = slot.kv + d.count
        d.kv_held -= kv
        d.blocks -= blocks_of(kv, p.block)  # as allocated: growth comes with the next start
        phase[-slot.kv % p.block] -= 1
        _leave(p, q, x, chains, cache, v, d, slot.request, end)
    d.active = kept
    d.next_finish = finish


@compiled
def _advance(
    p: Record,
    q: Array,
    x: Array,
    chains: Array,
    cache: Array,
    v: Record,
    d: Record,
    slots: Array,
    phase: Array,
    first: int,
    end: int,
) -> int:
    """Book the chunks; those that end a prefill decode from now on. Tokens that they emit."""
    emitted, prefilling = 0, d.prefilling
    d.prefilling = 0
    for b in range(first, first + prefilling):
        slot = slots[b]
        j = slot.request
        slot.kv += x[j].chunk
        d.kv_progress += x[j].chunk
        x[j].chunk = 0
        if p.prefix_block:
            keep_prompt(p, chains, x[j], d, cache, min(slot.kv, np.int64(q[j].prompt)))
        if slot.kv < slot.finish:
            move(slots, b, d.active + d.prefilling)
            d.prefilling += 1
            continue
        d.kv_progress -= slot.kv
        request = q[j]
        if p.emits_token:
            emitted += 1
            request.emitted += 1
            if request.first_token_ns < 0:
                request.first_token_ns = end
            if request.emitted == request.decode:
                d.blocks -= blocks_of(slot.finish, p.block)
                _leave(p, q, x, chains, cache, v, d, j, end)
                continue
        target = slot.finish  # before the slot, which may be its own, is written
        kv = decode_from_now(p, q, d, slots, phase, j)
        d.growth += blocks_of(kv, p.block) - blocks_of(target, p.block)
    return emitted
