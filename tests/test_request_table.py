"""The optional columns of a request table: sizes, categories, prefix chains, ready times."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
import pytest

from llmroute_env.workload import RequestTable

# Three requests with blocks of 4 tokens. The first has a prompt of 9 and an answer of 3, so its
# chain is of 2 to 3 blocks; the third goes on from the first one's whole conversation.
CHAINS = [[0, 1, 2], [0], [0, 1, 2, 3]]


def table(**columns: Any) -> RequestTable:
    base: dict[str, Any] = {
        "arrival_s": np.array([0.0, 1.0, 2.0]),
        "prompt": np.array([9, 5, 17]),
        "decode": np.array([3, 1, 2]),
        "predicted": np.array([3.0, 2.0, 1.0], np.float32),
        "tier": np.array([0, 1, 2]),
        "size_bytes": np.array([40, 21, 60]),
        "category": np.array([0, 1, 2]),
        "block_ids": np.concatenate(CHAINS),
        "block_start": np.array([0, 3, 4, 8]),
        "ready_s": np.array([0.5, 1.0, 2.5]),
    }
    return RequestTable(**{**base, **columns})


def chains(requests: RequestTable) -> list[list[int]]:
    assert requests.block_ids is not None
    assert requests.block_start is not None
    return [part.tolist() for part in np.split(requests.block_ids, requests.block_start[1:-1])]


def test_a_full_table_is_valid() -> None:
    assert table().validate(block=4) is not None
    assert chains(table()) == CHAINS


def test_ready_times_order_the_rows() -> None:
    late = {"arrival_s": np.array([0.4, 0.0, 2.0])}
    table(**late).validate()  # prefill of the second took longer
    with pytest.raises(ValueError, match="arrival_s is not sorted at row 1"):
        table(**late, ready_s=None).validate()


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ({"size_bytes": np.array([1, 0, 1])}, r"size_bytes\[1\] = 0, must be from 1"),
        ({"size_bytes": np.ones(3)}, "size_bytes must be int64"),
        ({"category": np.array([0, 3, 0])}, r"category\[1\] = 3, must be from 0 to 2"),
        ({"category": np.array([0, -1, 0])}, r"category\[1\] = -1"),
        ({"category": np.zeros(2, np.int64)}, r"category must be int64 of shape \(3,\)"),
        ({"ready_s": np.array([0.5, 0.9, 2.5])}, r"ready_s\[1\] = 0.9, must be at least arrival_s"),
        ({"ready_s": np.array([2.5, 1.0, 2.0])}, "ready_s is not sorted at row 1"),
        ({"ready_s": np.array([0.5, 1.0, np.nan])}, r"ready_s\[2\] = nan"),
        ({"block_start": None}, "block_ids and block_start need each other"),
        ({"block_ids": None}, "block_ids and block_start need each other"),
        ({"block_start": np.array([0, 3, 8])}, r"block_start must be int64 of shape \(4,\)"),
        ({"block_start": np.array([0, 3, 4, 7])}, "block_start must ascend from 0 to 8"),
        ({"block_start": np.array([1, 3, 4, 8])}, "block_start must ascend from 0 to 8"),
        ({"block_start": np.array([0, 4, 3, 8])}, "block_start must ascend from 0 to 8"),
        ({"block_ids": np.array([0, 1, 8, 0, 0, 1, 8, 3])}, r"block_ids\[2\] = 8, must be compact"),
        ({"block_ids": np.array([-1, 1, 2, 0, 0, 1, 2, 3])}, r"block_ids\[0\] = -1, must be comp"),
        # the same id after another prefix: 2 follows 1 in the first chain, 3 in the third
        ({"block_ids": np.array([0, 1, 2, 0, 0, 3, 2, 4])}, r"block_ids\[6\] = 2 follows 3 here"),
        # the same id at the start of a chain and inside one
        ({"block_ids": np.array([0, 1, 2, 1, 0, 1, 2, 3])}, r"block_ids\[3\] = 1 follows -1 here"),
    ],
)
def test_what_is_wrong_is_named(columns: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says) as caught:
        table(**columns).validate()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("prompt", "decode", "says"),
    [
        ([17, 5, 17], [3, 1, 2], "row 0 has 3 prefix blocks, must have 4 to 5"),  # too few
        ([9, 5, 9], [3, 1, 2], "row 2 has 4 prefix blocks, must have 2 to 2"),  # too many
    ],
)
def test_chains_cover_the_prompt_and_no_more_than_the_answer(
    prompt: list[int], decode: list[int], says: str
) -> None:
    wrong = table(prompt=np.array(prompt), decode=np.array(decode))
    wrong.validate()
    with pytest.raises(ValueError, match=says):
        wrong.validate(block=4)


@pytest.mark.parametrize("rows", [slice(2), slice(1, 3), slice(0, 0), np.array([0, 2])])
def test_taking_rows_takes_every_column(rows: Any) -> None:
    whole = table()
    part = whole.take(rows).validate(block=4)
    for field in fields(RequestTable):
        if not field.name.startswith("block_"):
            expected = getattr(whole, field.name)[rows]
            assert np.array_equal(getattr(part, field.name), expected), field.name
    kept = [CHAINS[row] for row in np.arange(3)[rows]]
    names = {old: new for new, old in enumerate(sorted({i for chain in kept for i in chain}))}
    assert chains(part) == [[names[i] for i in chain] for chain in kept] or not kept


def test_taking_rows_of_a_plain_table_leaves_it_plain() -> None:
    absent = dict.fromkeys(("size_bytes", "category", "block_ids", "block_start", "ready_s"))
    part = table(**absent).take(slice(2)).validate()
    assert len(part) == 2
    assert all(getattr(part, name) is None for name in absent)


def test_another_prediction_keeps_the_other_columns() -> None:
    whole = table()
    other = whole.with_prediction(np.ones(3, np.float32)).validate(block=4)
    for field in fields(RequestTable):
        if field.name != "predicted":
            assert getattr(other, field.name) is getattr(whole, field.name)


def test_empty_chains_and_no_rows() -> None:
    none = np.empty(0, np.int64)
    short = table(prompt=np.array([3, 2, 1]), decode=np.array([4, 1, 2]))
    short.take(slice(0, 0)).validate(block=4)
    one = np.array([0])
    RequestTable(
        **{
            **{f.name: getattr(short, f.name) for f in fields(RequestTable)},
            "block_ids": one,
            "block_start": np.array([0, 1, 1, 1]),
        }
    ).validate(block=4)
    table(block_ids=none, block_start=np.zeros(4, np.int64), prompt=np.array([1, 1, 1])).validate(
        block=4
    )
