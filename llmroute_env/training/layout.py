"""The flat observation of a decision: which numbers stand where."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from policies.learned.question import Context, Machine, Pair, Request


class Privileged(IntEnum):
    """What only the critic sees: the lane against its twin, which the reference policy plays."""

    WAITING = 0  #: (waiting here - there) / batch slots
    RUNNING = 1  #: (requests in the batches here - there) / batch slots
    WORK = 2  #: predicted work left in the batches, here - there, in 100 periods of all slots
    WAITING_WORK = 3  #: the same of the waiting requests, none longer than the periods left
    LEFT = 4  #: thousands of periods left
    WAITING_LEFT = 5  #: WAITING * LEFT
    RUNNING_LEFT = 6  #: RUNNING * LEFT
    TWIN_WAITING = 7  #: log of the requests waiting there
    TWIN_RUNNING = 8  #: requests in the batches there / batch slots
    CONTENTION = 9  #: work left times the KV beside it, here - there, in 10 full-memory periods


@dataclass(frozen=True)
class Layout:
    """Blocks of the flat vector, in this order, of K candidates and G devices.

    ``context`` (12,), ``requests`` (K, 8), ``devices`` (G, 8), ``pairs`` (K, G, 8), ``legal``
    (K, G) 1 where a candidate may start on a device, ``present`` (K,) 1 where there is a candidate,
    ``up`` (G,) 1 where there is a device (a smaller fleet leaves rows empty), ``critic`` (10,). See
    `policies.learned.question` and `Privileged`.
    """

    candidates: int
    devices: int

    @cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of each block."""
        k, g = self.candidates, self.devices
        return {
            "context": (len(Context),),
            "requests": (k, len(Request)),
            "devices": (g, len(Machine)),
            "pairs": (k, g, len(Pair)),
            "legal": (k, g),
            "present": (k,),
            "up": (g,),
            "critic": (len(Privileged),),
        }

    @cached_property
    def spans(self) -> dict[str, tuple[int, int]]:
        """First position of each block and one past its last."""
        spans, start = {}, 0
        for name, shape in self.shapes.items():
            spans[name] = (start, start + math.prod(shape))
            start = spans[name][1]
        return spans

    @property
    def size(self) -> int:
        """Length of the flat vector."""
        return self.spans["critic"][1]

    @property
    def actions(self) -> int:
        """Number of choices: hold, or one of the pairs."""
        return 1 + self.candidates * self.devices

    def blocks(self, flat: Any) -> dict[str, Any]:
        """Views of the blocks in ``flat`` (N, size), an array or a tensor."""
        return {
            name: flat[:, first:stop].reshape(len(flat), *self.shapes[name])
            for name, (first, stop) in self.spans.items()
        }

    def buffer(self, lanes: int) -> NDArray[np.float32]:
        """An empty batch."""
        return np.zeros((lanes, self.size), np.float32)
