"""The lanes of one policy: which memory a call decides on, and when an episode starts.

Rules (they are `predict`'s contract): a returned state is a snapshot that no later call changes; a
state given back wins over the policy's own memory; without a state and without ``episode_start`` a
lane starts anew when its period index does not increase.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from policies.memory import LaneMemory, PolicyState
from policies.rng import lane_seed


class LaneStore:
    """Owner of a policy's memories.

    Args:
        name: of the policy, for messages.
        template: NamedTuple of arrays, one lane as an episode starts.
        start: called with views of a fresh lane and its 64-bit seed.
        seed: of the policy; a lane's seed depends on (seed, lane, episode) alone.
    """

    def __init__(
        self, name: str, template: Any, start: Callable[[Any, int], None], seed: int
    ) -> None:
        self._name = name
        self._template = template
        self._start = start
        self._seed = seed
        self._spare: LaneMemory | None = None
        self.current = LaneMemory(template, 1)
        self._seed_lanes(self.current, 0)

    def acquire(self, state: object, lanes: int) -> LaneMemory:
        """Return the memory to decide on, as the current one; no snapshot shares it.

        Raises:
            ValueError: ``state`` was not returned by this kind of policy, or for other lanes.
        """
        source = self.current
        if state is not None:
            source = self._given(state, lanes)
        elif source.lanes < lanes:
            first = source.lanes
            source = source.copy(lanes)
            self._seed_lanes(source, first)
        target = source
        if source.shared or state is not None:
            target = self._copied(source)
        if target is not self.current:
            self._spare, self.current = self.current, target
        return target

    def begin(
        self, memory: LaneMemory, period: float, state: object, episode_start: object
    ) -> None:
        """Start lane 0 anew if it is time, and note the period that is decided now."""
        if (
            (state is None and not period > memory.last_period[0])
            if episode_start is None
            else np.any(episode_start)  # type: ignore[call-overload]
        ):
            self._restart(memory, 0)
        memory.last_period[0] = period

    def begin_many(
        self, memory: LaneMemory, periods: np.ndarray, state: object, episode_start: object
    ) -> None:
        """Do the same for the first N lanes, ``periods`` (N,)."""
        lanes = len(periods)
        last = memory.last_period[:lanes]
        if episode_start is not None:
            starting = np.broadcast_to(np.asarray(episode_start, bool), lanes)
        elif state is None:
            starting = ~(periods > last)
        else:
            starting = np.zeros(lanes, bool)
        if starting.any():
            for lane in np.flatnonzero(starting):
                self._restart(memory, int(lane))
        last[:] = periods

    def _seed_lanes(self, memory: LaneMemory, first: int) -> None:
        for lane in range(first, memory.lanes):
            self._start(memory.lane(lane), lane_seed(self._seed, lane, 0))

    def _restart(self, memory: LaneMemory, lane: int) -> None:
        """Start a new episode in a lane; a lane that has decided nothing is already there."""
        if memory.last_period[lane] < 0:
            return
        memory.episode[lane] += 1
        memory.last_period[lane] = -1.0
        memory.refill(lane)
        seed = lane_seed(self._seed, lane, int(memory.episode[lane]))
        self._start(memory.lane(lane), seed)

    def _copied(self, source: LaneMemory) -> LaneMemory:
        """Copy to a memory that nobody looks at; two take turns, so nothing is allocated."""
        for memory in (self._spare, self.current):
            if (
                memory is not None
                and memory is not source
                and memory.lanes == source.lanes
                and not memory.shared
            ):
                memory.copy_from(source)
                return memory
        return source.copy()

    def _given(self, state: object, lanes: int) -> LaneMemory:
        if not isinstance(state, PolicyState) or not state.memory.matches(self.current):
            raise ValueError(f"{self._name}: state is not one that this policy's predict returned")
        if state.lanes != lanes:
            raise ValueError(
                f"{self._name}: state has {state.lanes} lanes, the observation {lanes}"
            )
        return state.memory
