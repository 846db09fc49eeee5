"""What a learner's lanes keep from one question to the next."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from llmroute_env.jit import compiled
from llmroute_env.training.layout import Layout
from policies.completions import Profile
from policies.learned.question import FeatureScratch, Question
from policies.learned.rates import RateMemory, rate_memory
from policies.spec import RouterSpec
from policies.startable import Room, TieMemory, room

Array = NDArray[Any]


class Asked(NamedTuple):
    """Per lane (leading axis N): the question that is open and what belongs to it."""

    action: Array  #: (N, W) int64, what was sent in this period
    rate: RateMemory
    room: Room
    profile: Profile
    key: Array  #: (N, K) float64
    question: Question  #: views of the flat observation, and ``rows``, ``legal``
    present: Array  #: (N, K) float32
    startable: Array  #: (N, K, G) float32, ``question.legal`` as the network sees it
    critic: Array  #: (N, len(Privileged)) float32
    reward: Array  #: (N,) float64, gained since the last question
    periods: Array  #: (N,) int64, periods since the last question
    twin: TieMemory
    twin_action: Array  #: (N, W) int64


def asked(layout: Layout, lanes: int, spec: RouterSpec, flat: Array) -> Asked:
    """Allocate N lanes over ``flat`` (N, layout.size)."""
    n, k, g, b = lanes, layout.candidates, spec.devices, spec.slots + 1
    rooms = room(g, spec.largest, spec.chunk_tokens)
    blocks = layout.blocks(flat)
    blocks["up"][:, :g] = 1.0
    return Asked(
        np.zeros((n, spec.window), np.int64),
        RateMemory(*(np.repeat(field[None], n, axis=0) for field in rate_memory())),
        Room(*(np.repeat(field[None], n, axis=0) for field in rooms)),
        Profile(
            np.zeros((n, g), np.int64),
            np.zeros((n, g, b), np.int64),
            np.zeros((n, g, b)),
            np.zeros((n, g, b)),
            np.zeros((n, g, b)),
            np.zeros((n, g)),
            np.zeros((n, b)),
            np.zeros((n, b), np.int64),
        ),
        np.zeros((n, k)),
        Question(
            blocks["context"],
            blocks["requests"],
            blocks["devices"],
            blocks["pairs"],
            np.full((n, k), -1, np.int64),
            np.zeros((n, k, layout.devices), np.bool_),
        ),
        blocks["present"],
        blocks["legal"],
        blocks["critic"],
        np.zeros(n),
        np.zeros(n, np.int64),
        TieMemory(np.zeros((n, 1), np.int64)),
        np.zeros((n, spec.window), np.int64),
    )


@compiled
def scratch_of(lanes: Asked, i: int) -> FeatureScratch:
    """Lane ``i``'s profile of its devices, as views."""
    p, r = lanes.profile, lanes.room
    return FeatureScratch(
        Room(r.slots[i], r.free[i], r.limit[i], r.budget[i], r.largest[i], r.chunk[i], r.most[i]),
        Profile(
            p.n[i],
            p.left[i],
            p.kv[i],
            p.requests[i],
            p.peak[i],
            p.top[i],
            p.slot_key[i],
            p.slot_heap[i],
        ),
        lanes.key[i],
    )


@compiled
def rate_of(lanes: Asked, i: int) -> RateMemory:
    """Lane ``i``'s average of arrivals, as views."""
    r = lanes.rate
    return RateMemory(r.seen[i], r.weight[i], r.arrivals[i], r.tokens[i], r.pointer[i])
