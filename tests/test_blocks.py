"""Chains of prefix blocks against plain dictionaries of token prefixes."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from numpy.typing import NDArray

from llmroute_env.workload.blocks import Chains, check_chains, compact, prefix_ids, regroup

Ints = NDArray[np.int64]


def flat(lists: list[list[int]]) -> tuple[Ints, Ints]:
    start = np.cumsum([0, *map(len, lists)])
    return np.array([i for part in lists for i in part], np.int64), start


def split(ids: Ints, start: Ints) -> list[list[int]]:
    return [ids[a:b].tolist() for a, b in pairwise(start)]


def same_partition(first: list[list[int]], second: list[list[int]]) -> bool:
    """Whether two namings agree on which places of which chains are equal."""
    there: dict[int, int] = {}
    back: dict[int, int] = {}
    for a, b in zip(first, second, strict=True):
        if len(a) != len(b):
            return False
        for x, y in zip(a, b, strict=True):
            if there.setdefault(x, y) != y or back.setdefault(y, x) != x:
                return False
    return True


def by_prefix(lists: list[list[int]]) -> list[list[int]]:
    """The oracle: a name for each tuple of all ids so far."""
    names: dict[tuple[int, ...], int] = {}
    return [
        [names.setdefault(tuple(part[: i + 1]), len(names)) for i in range(len(part))]
        for part in lists
    ]


@pytest.mark.parametrize("seed", range(30))
def test_ids_of_single_blocks_become_ids_of_prefixes(seed: int) -> None:
    rng = np.random.default_rng(seed)
    # Few distinct blocks, so that they come again after other prefixes and within a chain.
    lists = [rng.integers(0, 3, rng.integers(0, 7)).tolist() for _ in range(20)]
    ids, start = flat(lists)
    found = prefix_ids(ids * 1_000_003, start)
    check_chains(found, start)
    assert sorted(set(found.tolist())) == list(range(int(found.max()) + 1))
    assert same_partition(split(found, start), by_prefix(lists))


def test_ids_that_stand_for_prefixes_are_left_in_their_order() -> None:
    ids, start = flat([[10, 20], [10, 30, 40], [], [50]])
    assert prefix_ids(ids, start).tolist() == [0, 1, 0, 2, 3, 4]


def tokens(rng: np.random.Generator, requests: int) -> list[list[int]]:
    """Prompts that go on from prefixes of earlier ones."""
    prompts: list[list[int]] = []
    for _ in range(requests):
        known = prompts[rng.integers(len(prompts))] if prompts and rng.random() < 0.7 else []
        keep = int(rng.integers(len(known) + 1))
        prompts.append(known[:keep] + rng.integers(0, 9, rng.integers(1, 60)).tolist())
    return prompts


def hashed(prompts: list[list[int]], block: int, *, partial: bool) -> Chains:
    """Chains as a trace has them: whole blocks, and the rest of the prompt where ``partial``."""
    names: dict[tuple[int, ...], int] = {}
    lists = [
        [
            names.setdefault(tuple(prompt[: end * block]), len(names))
            for end in range(1, len(prompt) // block + 1 + (partial and len(prompt) % block > 0))
        ]
        for prompt in prompts
    ]
    return Chains(block, *flat(lists))


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("block", [3, 6, 12, 24, 36])
def test_regrouped_blocks_share_no_more_than_the_prompts(seed: int, block: int) -> None:
    prompts = tokens(np.random.default_rng(seed), 40)
    lengths = np.array([len(prompt) for prompt in prompts])
    found = regroup(hashed(prompts, 12, partial=True), block, lengths)
    check_chains(found.ids, found.start)
    assert np.array_equal(np.diff(found.start), lengths // block)
    lists = split(found.ids, found.start)
    for (i, first), (j, second) in [
        (a, b) for a in enumerate(lists) for b in enumerate(lists) if a[0] < b[0]
    ]:
        shared = sum(x == y for x, y in zip(first, second, strict=False))
        common = 0
        for x, y in zip(prompts[i], prompts[j], strict=False):
            if x != y:
                break
            common += 1
        # A trace's blocks of 12 tell only whether all 12 agree; larger ones tell no more.
        if prompts[i] == prompts[j]:
            known = common
        else:
            known = common // 12 * 12
        assert shared == known // block, (prompts[i], prompts[j])


def test_what_a_chain_does_not_cover_is_shared_with_nobody() -> None:
    short = Chains(4, *flat([[0, 1], [0, 1], [0]]))
    found = regroup(short, 4, np.array([16, 16, 8]))
    first, second, third = split(found.ids, found.start)
    assert first[:2] == second[:2]
    assert third[0] == first[0]
    assert len({*first[2:], *second[2:], third[1]}) == 5
    check_chains(found.ids, found.start)


def test_sizes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="blocks of 12 tokens cannot be regrouped to 8"):
        regroup(Chains(12, *flat([[0]])), 8, np.array([12]))


def test_compact_keeps_the_order() -> None:
    assert compact(np.array([7, 3, 7, 100])).tolist() == [1, 0, 1, 2]
    assert compact(np.empty(0, np.int64)).tolist() == []


def test_rows_of_chains_in_any_order() -> None:
    chains = Chains(4, *flat([[0, 1], [], [2], [0, 3, 4]]))
    taken = chains.take(np.array([3, 1, 0, 3]))
    assert split(taken.ids, taken.start) == [[0, 3, 4], [], [0, 1], [0, 3, 4]]
