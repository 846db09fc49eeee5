"""One decision of a learned router as numbers: candidates, devices, pairs, and what is legal.

In a period the router is asked again and again: *which waiting request starts next, and where, or
does the rest wait?* An action is 0 to hold, or ``1 + c * G + g`` to start candidate c on device g.
Only pairs that will start are legal: the device can start the request at its next iteration
boundary (``policies.startable``), and no predicted completion overflows its memory
(``policies.completions``, the rule of MC-SF).

Candidates are at most K of the waiting requests: the oldest few and otherwise the shortest
predicted. K is no property of a network, which scores each pair by itself.

All features are of order 1 and free of units: times in mean service times of the arriving requests,
tokens as a share of M, counts as a share of the batch slots, and what a placement costs in
iterations. So a network is not tied to a fleet, a clock or a mean length.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import numpy as np

from policies.completions import Profile, profile
from policies.startable import Room, room


class Context(IntEnum):
    """Features of the whole system. *Service* is the mean service time of arriving requests."""

    LEFT = 0  #: log of the time left / service
    WAITING = 1  #: log of the requests waiting / batch slots
    FREE = 2  #: log of the free batch slots
    FREE_SHARE = 3  #: free batch slots / all
    FILL_TIME = 4  #: log of the time in which arrivals would take the free slots / service
    LOAD = 5  #: arriving work / batch slots
    ENDING_SOON = 6  #: share of the slots that end within SOON services
    ENDING_LATER = 7  #: the same within LATER services
    ENDING_LATE = 8  #: the same within LATE services
    REMAINING = 9  #: log of the mean predicted time left in the batch / service
    KV = 10  #: KV used / M
    WAITING_WORK = 11  #: log of the waiting work / batch slots / service


class Request(IntEnum):
    """Features of a candidate."""

    LENGTH = 0  #: log of its predicted service time / service
    LENGTH_SHARE = 1  #: its predicted service time / time left, at most 2
    PROMPT = 2  #: log of s * batch slots / M, 1 slot's share being 1
    WAITED = 3  #: log of the time waited / service
    RELATIVE = 4  #: log of its length / mean length of arriving requests
    START_SLACK = 5  #: share of the start-delay limit that is left, in -1 to 1
    END_SLACK = 6  #: share of the end-to-end limit left if it starts now, in -1 to 1
    TIER = 7  #: tier


class Machine(IntEnum):
    """Features of a device."""

    FREE_SHARE = 0  #: free batch slots / B
    KV = 1  #: KV tokens / M in the coming iteration
    PEAK = 2  #: largest predicted KV load / M
    ENDING_SOON = 3  #: share of B that ends within SOON services
    ENDING_LATER = 4  #: within LATER services
    REMAINING = 5  #: log of the mean predicted time left / service
    FIFO = 6  #: requests in the FIFO / B
    PACE = 7  #: 10 times (its last iteration / the fleet's mean - 1), in -2 to 2


class Pair(IntEnum):
    """Features of a candidate on a device, each less its mean over the devices that can start it.

    OWN to BURDEN are what attention costs, in iterations on a full memory: an iteration lasts
    longer with the KV tokens that it reads, the newcomer's and everybody's. Devices differ by
    little; `PAIR_SCALE` makes the differences of order 1.
    """

    ROOM = 0  #: KV left in the coming iteration / M
    HEADROOM = 1  #: KV left at the worst predicted completion / M
    BOUNDARY = 2  #: iterations until it can start (part of the one that runs)
    OWN = 3  #: KV of those in the batch while it is with them: what they cost it
    OTHERS = 4  #: its KV times those who are with it: what it costs them
    BURDEN = 5  #: KV of the batch in its coming iteration, for the whole length of the newcomer
    GROWTH = 6  #: its mean KV times the requests in the batch as it is now, / M
    CROWD = 7  #: requests in the batch / B


#: what each pair feature is multiplied with
PAIR_SCALE = (20.0, 20.0, 4.0, 0.2, 0.2, 0.2, 20.0, 10.0)

SOON, LATER, LATE = 1.0 / 16.0, 1.0 / 4.0, 1.0


def relative_length(times: float) -> float:
    """`Request.RELATIVE` of a long request of ``times`` the mean."""
    return 0.25 * float(np.log(times))


class FeatureParams(NamedTuple):
    """Constants of the features."""

    period_s: float
    tail_eel_s: float
    tail_ttft_s: float
    oldest: int  #: candidates that are chosen by age
    context: np.ndarray  #: (G,) int64, context limit [tokens]


class FeatureScratch(NamedTuple):
    """Working space."""

    room: Room
    profile: Profile
    key: np.ndarray  #: (K,) float64, predicted lengths of the candidates chosen by length


class Question(NamedTuple):
    """One decision; float32 but for ``rows`` and ``legal``."""

    context: np.ndarray  #: (len(Context),)
    requests: np.ndarray  #: (K, len(Request)), 0 past the candidates
    devices: np.ndarray  #: (G, len(Machine))
    pairs: np.ndarray  #: (K, G, len(Pair)), 0 where not legal
    rows: np.ndarray  #: (K,) int64, row in the queue, -1 past the candidates
    legal: np.ndarray  #: (K, G) bool


def question(candidates: int, devices: int) -> Question:
    """Allocate one decision."""
    k, g = candidates, devices
    return Question(
        np.zeros(len(Context), np.float32),
        np.zeros((k, len(Request)), np.float32),
        np.zeros((g, len(Machine)), np.float32),
        np.zeros((k, g, len(Pair)), np.float32),
        np.full(k, -1, np.int64),
        np.zeros((k, g), np.bool_),
    )


def feature_scratch(
    candidates: int,
    devices: int,
    slots: int,
    largest: np.ndarray | None = None,
    chunk_tokens: int = 0,
) -> FeatureScratch:
    """Allocate the working space; ``largest`` and ``chunk_tokens`` as `policies.startable.room`."""
    rooms = room(devices, largest, chunk_tokens)
    return FeatureScratch(rooms, profile(devices, slots), np.zeros(candidates))
