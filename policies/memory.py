"""Memory of a policy: what must survive from one period to the next, for many lanes at once.

A family describes one lane by a NamedTuple of arrays, the template. ``LaneMemory`` holds that
tuple with a leading lane axis, all fields in one block of bytes, so that a snapshot is one copy.
"""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np

_ALIGN = 64  # bytes: a cache line, so that no field shares one with another


class LaneMemory:
    """Arrays of a policy for ``lanes`` lanes.

    Attributes:
        template: NamedTuple of arrays, one lane as an episode starts.
        arrays: the same NamedTuple type, every field with a leading lane axis.
        first: lane 0 of ``arrays``, as views.
        last_period: (lanes,) float64, index of the last period decided; -1 in a fresh lane.
        episode: (lanes,) int64, episodes that a lane has finished.
    """

    __slots__ = (
        "__weakref__",
        "_block",
        "_handle",
        "arrays",
        "episode",
        "first",
        "lanes",
        "last_period",
        "template",
    )

    def __init__(self, template: Any, lanes: int) -> None:
        self.template = template
        self.lanes = lanes
        book = [np.full(1, -1.0), np.zeros(1, np.int64)]
        fields = [*book, *template]
        starts, size = [], 0
        for field in fields:
            starts.append(size)
            size += -(-field.nbytes * lanes // _ALIGN) * _ALIGN
        raw = np.empty(size + _ALIGN, np.uint8)
        shift = -raw.ctypes.data % _ALIGN
        self._block = raw[shift : shift + size]
        views = [
            self._block[start : start + field.nbytes * lanes]
            .view(field.dtype)
            .reshape(lanes, *field.shape)
            for start, field in zip(starts, fields, strict=True)
        ]
        self.last_period = views[0][:, 0]
        self.episode = views[1][:, 0]
        self.arrays = type(template)(*views[2:])
        self.first = self.lane(0)
        self._handle: weakref.ref[PolicyState] | None = None
        self.last_period[:] = -1.0
        self.episode[:] = 0
        for lane in range(lanes):
            self.refill(lane)

    def lane(self, lane: int) -> Any:
        """Return the template's NamedTuple with views of one lane."""
        return type(self.template)(*(field[lane] for field in self.arrays))

    def refill(self, lane: int) -> None:
        """Put the template into a lane."""
        for field, fresh in zip(self.arrays, self.template, strict=True):
            field[lane] = fresh

    def matches(self, other: LaneMemory) -> bool:
        """Tell whether both have the same fields and shapes per lane."""
        return type(self.template) is type(other.template) and all(
            mine.shape == its.shape and mine.dtype == its.dtype
            for mine, its in zip(self.template, other.template, strict=True)
        )

    def copy_from(self, other: LaneMemory) -> None:
        """Take over the content of a memory with the same number of lanes."""
        self._block[:] = other._block

    def copy(self, lanes: int | None = None) -> LaneMemory:
        """Return a copy, with more lanes (fresh ones at the end) if asked."""
        fresh = LaneMemory(self.template, self.lanes if lanes is None else lanes)
        if fresh.lanes == self.lanes:
            fresh.copy_from(self)
            return fresh
        fresh.last_period[: self.lanes] = self.last_period
        fresh.episode[: self.lanes] = self.episode
        for target, source in zip(fresh.arrays, self.arrays, strict=True):
            target[: self.lanes] = source
        return fresh

    def snapshot(self, lanes: int) -> PolicyState:
        """Return a handle on this memory; while it lives, nobody writes here."""
        state = PolicyState(self, lanes)
        self._handle = weakref.ref(state)
        return state

    @property
    def shared(self) -> bool:
        """Whether a snapshot of this memory is still held by someone."""
        return self._handle is not None and self._handle() is not None

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self.template, self.lanes, self._block.copy())


def _rebuild(template: Any, lanes: int, block: np.ndarray) -> LaneMemory:
    memory = LaneMemory(template, lanes)
    memory._block[:] = block
    return memory


class PolicyState:
    """What ``predict`` returns beside the action: a snapshot that later calls never change.

    Give it back as ``state`` to go on from there, as often as you like. Pickles and deep-copies.
    """

    __slots__ = ("__weakref__", "_memory", "lanes")

    def __init__(self, memory: LaneMemory, lanes: int) -> None:
        self._memory = memory
        self.lanes = lanes

    @property
    def memory(self) -> LaneMemory:
        """The memory behind it, read only."""
        return self._memory

    def __reduce__(self) -> tuple[Any, ...]:
        return _thaw, (self._memory, self.lanes)


def _thaw(memory: LaneMemory, lanes: int) -> PolicyState:
    return memory.snapshot(lanes)
