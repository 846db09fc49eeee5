"""One device's cache of prompt prefixes: referenced blocks, and unused ones by age. Compiled.

``chains`` (K,) holds the requests' chains of blocks, ``x`` one request's `EXTRA` row, ``cache``
(U,) what the device knows of each block. Every operation is O(1) per block, a match O(log of the
chain): a block stands for everything up to it, a request that references one references all before
it, and gives them back from the last to the first, so that the cache always holds a beginning of a
chain.

Shared blocks count once in ``d.blocks``. A block that nobody references is not counted there, and
makes room when it is needed.
"""

from __future__ import annotations

from llmroute_env.cluster.fifo import Record
from llmroute_env.cluster.state import Array
from llmroute_env.jit import compiled

_ABSENT = -1


@compiled
def _count(chains: Array, first: int, most: int, cache: Array, least: int) -> int:
    """How many of ``most`` blocks have at least ``least`` references; they are the first ones."""
    low, high = 0, most
    while low < high:
        middle = (low + high) // 2
        if cache[chains[first + middle]].references >= least:
            low = middle + 1
        else:
            high = middle
    return low


@compiled
def match(p: Record, chains: Array, x: Record, cache: Array, tokens: int) -> int:
    """Cached blocks that a prefill of ``tokens`` starts from; one token is always computed."""
    if p.prefix_block == 0:
        return 0
    most = min(x.links, (tokens - 1) // p.prefix_block)
    return _count(chains, x.chain, most, cache, 0)


@compiled
def already_referenced(chains: Array, x: Record, cache: Array, matched: int) -> int:
    """How many of the matched blocks somebody uses: those cost no room."""
    return _count(chains, x.chain, matched, cache, 1)


@compiled
def _unlink(d: Record, cache: Array, b: int) -> None:
    before, after = cache[b].previous, cache[b].following
    if before < 0:
        d.oldest = after
    else:
        cache[before].following = after
    if after < 0:
        d.newest = before
    else:
        cache[after].previous = before
    d.unused -= 1


@compiled
def take(d: Record, cache: Array, b: int) -> bool:
    """Reference a block, which enters the cache if it is not there; tell if others use it too."""
    references = cache[b].references
    if references > 0:
        cache[b].references = references + 1
        return True
    if references == 0:
        _unlink(d, cache, b)
    cache[b].references = 1
    return False


@compiled
def _give_back(d: Record, cache: Array, b: int) -> bool:
    """Drop a reference; tell whether it was the last one."""
    cache[b].references -= 1
    if cache[b].references > 0:
        return False
    cache[b].previous = d.newest if d.unused > 0 else _ABSENT
    cache[b].following = _ABSENT
    if d.unused > 0:
        cache[d.newest].following = b
    else:
        d.oldest = b
    d.newest = b
    d.unused += 1
    return True


@compiled
def make_room(p: Record, d: Record, cache: Array) -> None:
    """Evict the least recently used blocks until what is in use and what is cached fit."""
    while d.unused > 0 and d.blocks + d.unused * p.per_cached > d.kv_blocks:
        b = d.oldest
        _unlink(d, cache, b)
        cache[b].references = _ABSENT


@compiled
def join_cache(p: Record, chains: Array, x: Record, d: Record, cache: Array, matched: int) -> None:
    """Use the matched blocks in place of blocks of one's own."""
    for i in range(matched):
        if take(d, cache, chains[x.chain + i]):
            d.blocks -= p.per_cached
    x.referenced = matched


@compiled
def keep_prompt(p: Record, chains: Array, x: Record, d: Record, cache: Array, tokens: int) -> None:
    """Cache the whole prompt blocks within ``tokens``; of those that are there, drop one's own."""
    whole = min(tokens // p.prefix_block, x.links)
    for i in range(x.referenced, whole):
        if take(d, cache, chains[x.chain + i]):
            d.blocks -= p.per_cached
    x.referenced = max(x.referenced, whole)


@compiled
def leave_cache(p: Record, chains: Array, x: Record, d: Record, cache: Array) -> None:
    """Drop all references, the last block first.

    ``d.blocks`` counts the request's referenced blocks but no private one any more.
    """
    for i in range(x.referenced - 1, -1, -1):
        if _give_back(d, cache, chains[x.chain + i]):
            d.blocks -= p.per_cached
    x.referenced = 0


@compiled
def keep_answer(p: Record, chains: Array, x: Record, d: Record, cache: Array, tokens: int) -> None:
    """Cache the blocks that an answer has filled, in the room that the request has just left.

    As in `leave_cache`, ``d.blocks`` counts no private block of the request any more.
    """
    whole = min(tokens // p.prefix_block, x.links)
    for i in range(x.referenced, whole):
        b = chains[x.chain + i]
        new = p.per_cached if cache[b].references == _ABSENT else 0
        if d.blocks + d.unused * p.per_cached + new > d.kv_blocks:
            break
        if not take(d, cache, b):
            d.blocks += p.per_cached
        x.referenced += 1


@compiled
def clear_cache(cache: Array) -> None:
    """Forget every block."""
    for b in range(len(cache)):
        cache[b].references = _ABSENT
