"""Schedules of single requests: in which slots each runs, and what it earns."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from policies.hindsight.instance import Floats, Instance, Ints

#: what tells a schedule from others: its request, and a hash of its slots
Key = tuple[int, int]


class Schedules(NamedTuple):
    """C schedules: the slots in which each runs, in ascending order.

    Between its first slot and its last one, or the end if it does not finish, a request is held.
    """

    request: Ints  #: (C,) row of the instance
    length: Ints  #: (C,) iterations run, 1 to o
    slot: Ints  #: (sum of length,) their slots

    @property
    def begin(self) -> Ints:
        """(C,) slot of the first iteration."""
        first: Ints = self.slot[np.cumsum(self.length) - self.length]
        return first

    def end(self, one: Instance) -> Ints:
        """(C,) slot after the last one that each holds."""
        last = self.slot[np.cumsum(self.length) - 1]
        whole = self.length == one.work.decode[self.request]
        return np.where(whole, last + 1, one.slots)

    def pauses(self, one: Instance) -> NDArray[np.bool_]:
        """(C,) whether a schedule holds a slot in which it does not run."""
        waits: NDArray[np.bool_] = self.end(one) - self.begin > self.length
        return waits

    def keys(self) -> list[Key]:
        """Request and hash of its slots, to tell schedules apart."""
        parts = np.split(self.slot, np.cumsum(self.length))[:-1]
        return [(int(j), hash(part.tobytes())) for j, part in zip(self.request, parts, strict=True)]

    def take(self, rows: Ints) -> Schedules:
        """The schedules at ``rows``."""
        starts = np.cumsum(self.length) - self.length
        length = self.length[rows]
        index = np.repeat(starts[rows] - (np.cumsum(length) - length), length)
        return Schedules(self.request[rows], length, self.slot[index + np.arange(length.sum())])


def from_runs(one: Instance, begin: Ints, resume: Ints, request: Ints | None = None) -> Schedules:
    """Schedules of one iteration and a run of the others, as `pricing.respond` gives them.

    Args:
        one: the instance.
        begin: (C,) slot of the first iteration, -1 for none: such schedules are left out.
        resume: (C,) slot of the second, N for never; of no meaning for requests of one token.
        request: (C,) request of each schedule; all requests in order when not given.
    """
    taken = np.flatnonzero(begin >= 0)
    request = taken if request is None else request[taken]
    begin, resume = begin[taken], resume[taken]
    decode = one.work.decode[request]
    length = 1 + np.where(decode == 1, 0, np.minimum(decode - 1, one.slots - resume))
    starts = np.cumsum(length) - length
    place = np.arange(length.sum()) - np.repeat(starts, length)
    slot = np.where(place == 0, np.repeat(begin, length), np.repeat(resume - 1, length) + place)
    return Schedules(request, length, slot)


def rewards(one: Instance, made: Schedules) -> Floats:
    """(C,) reward of each schedule."""
    work, j, begin = one.work, made.request, made.begin
    last = made.slot[np.cumsum(made.length) - 1]
    value = np.where(begin == work.first[j], work.first_value[j], work.start_value[begin])
    value = value + work.zeta2 * (begin <= work.start_by[j])
    finish = work.finish_value[last] + work.zeta1 * (last <= work.finish_by[j])
    whole = made.length == work.decode[j]
    earned: Floats = value + whole * finish + one.alpha * made.length
    return earned
