"""Where the kernel meets devices that prefill, and requests with texts.

A scenario that only decodes has ``state.mixed`` None. numba then compiles the hooks below to
nothing, so that such a scenario pays for none of this, in time or in compilation: with branches in
their place the decode-only kernel was a tenth slower. The other scenarios have a `State` of another
type, for which the same callers are compiled once more when they are first used.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba.core import types
from numba.extending import overload

from llmroute_env import spaces
from llmroute_env.cluster.clear import clear_extra
from llmroute_env.cluster.fifo import Record
from llmroute_env.cluster.prefill import begin_mixed, expect, retire_mixed
from llmroute_env.cluster.prefix import clear_cache, match
from llmroute_env.cluster.state import Array, State
from llmroute_env.jit import compiled

_T_SIZE, _T_CATEGORY = (int(f) for f in spaces.Text)
_D_ACTIVE, _D_KV, _D_PREFILL = (
    int(f) for f in (spaces.Device.ACTIVE, spaces.Device.KV_USED, spaces.Device.PREFILL)
)
_A_KV, _A_REMAINING = (int(f) for f in spaces.Active)


def _hook(otherwise: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Make a function of a state into one that is ``otherwise`` where ``state.mixed`` is None."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        def named(*_: Any) -> Any:
            raise NotImplementedError(f"{function.__name__} is known to compiled code only")

        def typed(state: Any, *_: Any) -> Any:
            mixed = dict(zip(state.fields, state.types, strict=True))["mixed"]
            return otherwise if mixed == types.none else function

        named.__name__ = function.__name__
        overload(named, strict=False)(typed)
        return named

    return decorate


@_hook(lambda state: False)  # noqa: ARG005
def prefills(state: State) -> bool:
    """Whether devices prefill what they decode."""
    return state.constants[0].prefill != 0  # type: ignore[no-any-return]


@_hook(lambda state, lane, requests: None)  # noqa: ARG005
def clear_mixed(state: State, lane: int, requests: int) -> None:
    """Start from empty caches and requests that nothing has happened to."""
    assert state.mixed is not None
    clear_extra(state.mixed.extra[lane, :requests])
    if state.constants[0].prefix_block:
        for g in range(state.devices.shape[1]):
            clear_cache(state.mixed.cache[lane, g])


@_hook(lambda state, lane, g, j: None)  # noqa: ARG005
def expect_hit(state: State, lane: int, g: int, j: int) -> None:
    """Note what request ``j`` would find cached on device ``g``, to which it has been sent."""
    assert state.mixed is not None
    if state.constants[0].prefill:
        mixed = state.mixed
        expect(
            state.constants[0],
            state.requests[lane],
            mixed.extra[lane],
            mixed.chains[lane],
            mixed.cache[lane, g],
            state.devices[lane, g],
            j,
        )


@_hook(lambda state, lane, now: None)  # noqa: ARG005
def start_mixed(state: State, lane: int, now: int) -> None:
    """Start the devices that are between two iterations; they prefill what they decode."""
    assert state.mixed is not None
    p, v, q, mixed = state.constants[0], state.lanes[lane], state.requests[lane], state.mixed
    x, chains = mixed.extra[lane], mixed.chains[lane]
    for g in range(state.devices.shape[1]):
        d, slots, phase = state.devices[lane, g], state.slots[lane, g], state.phase[lane, g]
        cache = mixed.cache[lane, g]
        if not d.running:
            begin_mixed(p, mixed.token_s[g], q, x, chains, cache, v, d, slots, phase, now)


@_hook(lambda state, lane, target: None)  # noqa: ARG005
def run_mixed(state: State, lane: int, target: int) -> None:
    """Let the devices go on up to the next boundary; they prefill what they decode."""
    assert state.mixed is not None
    p, v, q, mixed = state.constants[0], state.lanes[lane], state.requests[lane], state.mixed
    x, chains = mixed.extra[lane], mixed.chains[lane]
    for g in range(state.devices.shape[1]):
        d, slots, phase = state.devices[lane, g], state.slots[lane, g], state.phase[lane, g]
        cache = mixed.cache[lane, g]
        while d.running and d.end_ns <= target:
            retire_mixed(p, q, x, chains, cache, v, d, slots, phase)
            end = d.end_ns
            if end < target:
                begin_mixed(p, mixed.token_s[g], q, x, chains, cache, v, d, slots, phase, end)


@_hook(lambda state, lane: None)  # noqa: ARG005
def observe_mixed(state: State, lane: int) -> None:
    """Write ``text`` and ``prefix``, and the rows of devices that prefill."""
    assert state.mixed is not None
    p, mixed, o = state.constants[0], state.mixed, state.observed
    if p.text or p.prefix_block:
        _observe_requests(
            p,
            state.lanes[lane],
            state.requests[lane],
            mixed.extra[lane],
            state.window[lane],
            mixed.chains[lane],
            mixed.cache[lane],
            o.text[lane],
            o.prefix[lane],
        )
    if p.prefill:
        for g in range(state.devices.shape[1]):
            d, row = state.devices[lane, g], o.devices[lane, g]
            row[_D_ACTIVE] = d.active + d.prefilling
            row[_D_KV] = d.blocks * p.block if p.prefix_block else d.kv_held + d.kv_progress
            row[_D_PREFILL] = d.prefill_left


@compiled
def _observe_requests(
    p: Record,
    v: Record,
    q: Array,
    x: Array,
    window: Array,
    chains: Array,
    cache: Array,
    text: Array,
    prefix: Array,
) -> None:
    for i in range(v.visible):
        j = window[i]
        if p.text:
            text[i, _T_SIZE] = x[j].size_bytes
            text[i, _T_CATEGORY] = x[j].category
        if p.prefix_block:
            for g in range(len(cache)):
                found = match(p, chains, x[j], cache[g], q[j].prompt)
                prefix[i, g] = found * p.prefix_block
    for i in range(v.visible, v.shown):
        text[i, :] = 0.0
        prefix[i, :] = 0.0


@_hook(lambda state, lane: None)  # noqa: ARG005
def observe_prefilling(state: State, lane: int) -> None:
    """Write the batches of devices that prefill: those who prefill follow those who decode."""
    for g in range(state.devices.shape[1]):
        d, slots, batch = (
            state.devices[lane, g],
            state.slots[lane, g],
            state.observed.active[lane, g],
        )
        held = d.active + d.prefilling
        for b in range(held):
            done = d.count if b < d.active else 0
            batch[b, _A_KV] = slots[b].kv + done
            batch[b, _A_REMAINING] = max(slots[b].predicted - done, 1.0)
        for b in range(held, d.shown):
            batch[b, _A_KV] = 0.0
            batch[b, _A_REMAINING] = 0.0
        d.shown = held
