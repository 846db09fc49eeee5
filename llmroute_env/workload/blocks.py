"""Chains of prefix blocks: what prompts have in common, block by block.

A request's chain names its blocks of b tokens from the first on. A block's id stands for the whole
prefix that ends with it, so two requests share KV cache exactly as far as their ids agree.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Chains:
    """Chains of R requests, K blocks in all, one chain after the other."""

    block: int  #: tokens per block
    ids: Ints  #: (K,) compact: 0 to U - 1; an id has one predecessor
    start: Ints  #: (R + 1,) where each request's chain starts

    def take(self, rows: Ints) -> Chains:
        """The chains of some rows, in their order; ids are not numbered anew."""
        return Chains(self.block, *chains_of(self.ids, self.start, rows))


def chains_of(ids: Ints, start: Ints, rows: Ints) -> tuple[Ints, Ints]:
    """The chains of some rows, one after the other.

    Args:
        ids: (K,) blocks of all chains.
        start: (R + 1,) where each chain starts.
        rows: (Q,) row numbers, in any order.

    Returns:
        the blocks of those chains, and (Q + 1,) where each starts.
    """
    length = np.diff(start)[rows]
    first = np.concatenate(([0], np.cumsum(length)))
    places = np.arange(first[-1]) + np.repeat(start[:-1][rows] - first[:-1], length)
    return ids[places], first


def compact(ids: Ints) -> Ints:
    """Ids, at least 0, numbered anew from 0 in their order, without gaps."""
    if not ids.size:
        return ids
    used = np.zeros(int(ids.max()) + 1, np.int64)
    used[ids] = 1
    np.cumsum(used, out=used)
    return used[ids] - 1


def check_chains(ids: Ints, start: Ints) -> None:
    """Whether chains are well formed: compact ids, each with one predecessor.

    Raises:
        ValueError: naming the column, the place and the value.
    """
    if start[0] != 0 or start[-1] != len(ids) or (np.diff(start) < 0).any():
        raise ValueError(
            f"request table: block_start must ascend from 0 to {len(ids)}, the number of block_ids"
        )
    bad = np.flatnonzero((ids < 0) | (ids >= len(ids)))
    if bad.size:
        raise ValueError(
            f"request table: block_ids[{bad[0]}] = {ids[bad[0]]}, must be compact: from 0 to "
            f"{len(ids) - 1} at most"
        )
    before, known = _predecessors(ids, start)
    bad = np.flatnonzero(known != before)
    if bad.size:
        place = bad[0]
        raise ValueError(
            f"request table: block_ids[{place}] = {ids[place]} follows {before[place]} here and "
            f"{known[place]} elsewhere; an id stands for one whole prefix"
        )


def _predecessors(ids: Ints, start: Ints) -> tuple[Ints, Ints]:
    """What comes before each block, and what comes before that id where it occurs first.

    Args:
        ids: (K,) from 0 to K - 1.
        start: (R + 1,)

    Returns:
        (K,) and (K,): ids, -1 at the beginning of a chain.
    """
    before = np.concatenate(([-1], ids[:-1]))[: len(ids)]
    before[start[:-1][np.diff(start) > 0]] = -1
    known = np.full(len(ids), -1, np.int64)
    known[ids[::-1]] = before[::-1]  # the first occurrence of an id is written last
    return before, known[ids]


def prefix_ids(ids: Ints, start: Ints) -> Ints:
    """Ids that stand for whole prefixes, from ids that may stand for single blocks.

    Some files hash each block together with what is before it, some hash the block alone; then
    equal blocks after different prefixes carry the same id and must be told apart.

    Args:
        ids: (K,) any integers, at least 0.
        start: (R + 1,) where each chain starts.

    Returns:
        (K,) compact; two ids are equal exactly where all ids up to them are.
    """
    named = np.unique(ids, return_inverse=True)[1].astype(np.int64)
    before, known = _predecessors(named, start)
    if (before == known).all():
        return named
    length = np.diff(start)
    found = np.full(len(named), -1, np.int64)
    distinct = int(named.max()) + 1
    prefix = np.full(len(length), -1, np.int64)
    rows, depth, count = np.flatnonzero(length > 0), 0, 0
    while rows.size:
        places = start[rows] + depth
        keys = (prefix[rows] + 1) * distinct + named[places]
        _, name, shared = np.unique(keys, return_inverse=True, return_counts=True)
        found[places] = prefix[rows] = name + count
        count += len(shared)
        depth += 1
        rows = rows[(shared[name] > 1) & (length[rows] > depth)]
    alone = np.flatnonzero(found < 0)  # after the last block that a row shares with another
    found[alone] = count + np.arange(len(alone))
    return found


def regroup(chains: Chains, block: int, prompt: Ints) -> Chains:
    """The chains in blocks of another size, for exactly the whole blocks of the prompts.

    A block of B tokens is k smaller ones of B / k, all of which it names; k blocks are a larger
    one, which the last of them names, since an id stands for everything before it. The last,
    partial block of a prompt is cut into its whole smaller ones. What a chain does not cover is
    shared with nobody.

    Args:
        chains: of R requests.
        block: tokens per block wanted; it divides ``chains.block`` or is a multiple of it.
        prompt: (R,) prompt tokens.

    Raises:
        ValueError: the sizes do not fit together.
    """
    length = prompt // block
    start = np.concatenate(([0], np.cumsum(length)))
    row = np.repeat(np.arange(len(length)), length)
    place = np.arange(start[-1]) - start[row]
    source = chains.start[row]
    distinct = int(chains.ids.max()) + 1 if chains.ids.size else 0
    covered = np.diff(chains.start)[row]
    if chains.block % block == 0:
        ratio = chains.block // block
        known = place < covered * ratio
        names = chains.ids[(source + place // ratio)[known]] * ratio + (place % ratio)[known]
        distinct *= ratio
    elif block % chains.block == 0:
        ratio = block // chains.block
        last = (place + 1) * ratio - 1
        known = last < covered
        names = chains.ids[(source + last)[known]]
    else:
        raise ValueError(
            f"blocks of {chains.block} tokens cannot be regrouped to {block}: one size must be a "
            "multiple of the other"
        )
    ids = np.empty(len(place), np.int64)
    ids[known] = names
    ids[~known] = distinct + np.arange(len(place) - len(names))
    return Chains(block, compact(ids), start)
