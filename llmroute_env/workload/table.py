"""The request table: what the workload hands to the cluster, one row per request."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from llmroute_env.scenario.fields import LONGEST_S
from llmroute_env.workload.blocks import Floats, Ints, chains_of, check_chains, compact

__all__ = ["Category", "Floats", "Ints", "RequestTable", "Streams"]


class Streams(NamedTuple):
    """Independent random streams of one episode.

    One stream per concern, so that another prediction model, or another sequence of actions,
    leaves the arrivals and the lengths of the same seed untouched (common random numbers).
    """

    arrivals: np.random.Generator
    lengths: np.random.Generator
    prediction: np.random.Generator
    episode: np.random.Generator  #: randomness inside the episode (failures, stragglers)

    @classmethod
    def spawn(cls, rng: np.random.Generator) -> Streams:
        """The next episode's streams: four children of ``rng``, in field order."""
        return cls(*rng.spawn(4))


class Category(IntEnum):
    """What a request's text is: it decides how many bytes a token has."""

    PROSE = 0
    CODE = 1
    CJK = 2


@dataclass(frozen=True, slots=True)
class RequestTable:
    """Structure of arrays, R rows sorted by arrival (stable); the row number is the request id.

    Rows are sorted by ``ready_s`` instead where that column exists. The columns with a default
    are None where the workload has no such thing.
    """

    arrival_s: Floats  #: (R,) arrival since the episode started, >= 0 [s]
    prompt: Ints  #: (R,) prompt (KV) tokens s, >= 1
    decode: Ints  #: (R,) true decode tokens o, >= 1
    predicted: NDArray[np.float32]  #: (R,) predicted decode tokens ô, > 0, not rounded
    tier: Ints  #: (R,) request tier, 0 is the default tier
    size_bytes: Ints | None = None  #: (R,) request text, >= 1 [bytes]
    category: Ints | None = None  #: (R,) of :class:`Category`
    block_ids: Ints | None = None
    """(K,) prefix blocks of all requests, one chain after the other.

    Ids are compact: 0 to U - 1. An id stands for a whole prefix and not for its last block alone
    (as a chained hash does), so an id has one predecessor and one place in a chain.
    """
    block_start: Ints | None = None
    """(R + 1,) request j's chain is ``block_ids[block_start[j]:block_start[j + 1]]``.

    With blocks of b tokens it has floor(s/b) to floor((s + o)/b) ids: those beyond the prompt name
    blocks that the answer completes, which a later turn of the conversation can hit.
    """
    ready_s: Floats | None = None  #: (R,) when the router first sees it, >= arrival; None: at once

    def __len__(self) -> int:
        return len(self.arrival_s)

    def validate(self, block: int | None = None) -> RequestTable:
        """Check shapes, dtypes and ranges of a table built by hand.

        The generator's own tables satisfy this by construction (a test shows it), so episodes do
        not pay for the check.

        Args:
            block: tokens per prefix block, to check the lengths of the chains; None leaves that
                check out.

        Raises:
            ValueError: naming the column, the row and the value.
        """
        self._check_shapes()
        # The kernel counts tokens in int32 and time in int64 nanoseconds.
        limits = {
            "arrival_s": (0.0, LONGEST_S),
            "prompt": (1, 2**31 - 1),
            "decode": (1, 2**31 - 1),
            "tier": (0, 2**31 - 1),
            "size_bytes": (1, 2**53),
            "category": (0, len(Category) - 1),
            "ready_s": (0.0, LONGEST_S),
        }
        for name, (least, most) in limits.items():
            column = getattr(self, name)
            if column is None:
                continue
            bad = np.flatnonzero(~((column >= least) & (column <= most)))
            if bad.size:
                raise ValueError(
                    f"request table: {name}[{bad[0]}] = {column[bad[0]]}, must be from {least:g} "
                    f"to {most:.10g}"
                )
        bad = np.flatnonzero(~((self.predicted > 0) & np.isfinite(self.predicted)))
        if bad.size:
            raise ValueError(
                f"request table: predicted[{bad[0]}] = {self.predicted[bad[0]]}, must be positive"
            )
        order = "arrival_s" if self.ready_s is None else "ready_s"
        late = np.flatnonzero(np.diff(getattr(self, order)) < 0)
        if late.size:
            raise ValueError(f"request table: {order} is not sorted at row {late[0] + 1}")
        if self.ready_s is not None:
            early = np.flatnonzero(self.ready_s < self.arrival_s)
            if early.size:
                raise ValueError(
                    f"request table: ready_s[{early[0]}] = {self.ready_s[early[0]]}, must be at "
                    f"least arrival_s[{early[0]}] = {self.arrival_s[early[0]]}"
                )
        if self.block_ids is not None and self.block_start is not None:
            check_chains(self.block_ids, self.block_start)
            if block is not None:
                self._check_chain_lengths(self.block_start, block)
        return self

    def _check_shapes(self) -> None:
        rows = len(self)
        if (self.block_ids is None) != (self.block_start is None):
            raise ValueError("request table: block_ids and block_start need each other")
        blocks = None if self.block_ids is None else self.block_ids.size
        kinds = {
            "arrival_s": (np.float64, rows),
            "prompt": (np.int64, rows),
            "decode": (np.int64, rows),
            "predicted": (np.float32, rows),
            "tier": (np.int64, rows),
            "size_bytes": (np.int64, rows),
            "category": (np.int64, rows),
            "block_ids": (np.int64, blocks),
            "block_start": (np.int64, rows + 1),
            "ready_s": (np.float64, rows),
        }
        for name, (kind, count) in kinds.items():
            column = getattr(self, name)
            if column is not None and (column.shape != (count,) or column.dtype != kind):
                raise ValueError(
                    f"request table: {name} must be {np.dtype(kind)} of shape ({count},), "
                    f"got {column.dtype} of shape {column.shape}"
                )

    def _check_chain_lengths(self, start: Ints, block: int) -> None:
        length = np.diff(start)
        least, most = self.prompt // block, (self.prompt + self.decode) // block
        bad = np.flatnonzero((length < least) | (length > most))
        if bad.size:
            row = bad[0]
            raise ValueError(
                f"request table: row {row} has {length[row]} prefix blocks, must have "
                f"{least[row]} to {most[row]} with blocks of {block} tokens"
            )

    def with_prediction(self, predicted: NDArray[np.float32]) -> RequestTable:
        """The same requests with other predicted lengths."""
        return replace(self, predicted=predicted)

    def take(self, rows: slice | Ints) -> RequestTable:
        """Some of the requests, every column of them.

        Args:
            rows: a slice, or row numbers; the table they make must be in order again.

        Returns:
            a table of its own; the prefix blocks that are left are numbered from 0 again.
        """
        index = np.arange(len(self))[rows]
        picked = {
            name: None if getattr(self, name) is None else getattr(self, name)[index]
            for name in ("size_bytes", "category", "ready_s")
        }
        ids, start = None, None
        if self.block_ids is not None and self.block_start is not None:
            ids, start = chains_of(self.block_ids, self.block_start, index)
            ids = compact(ids)
        return RequestTable(
            arrival_s=self.arrival_s[index],
            prompt=self.prompt[index],
            decode=self.decode[index],
            predicted=self.predicted[index],
            tier=self.tier[index],
            block_ids=ids,
            block_start=start,
            **picked,
        )
