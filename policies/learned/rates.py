"""What has been arriving: an exponential average that a learned policy keeps between periods.

The observation has no arrival rate; without one a network cannot know whether a free slot will be
asked for in a moment or not for a long time. Requests seen for the first time are counted, by the
largest id seen so far, as OLP does for its history.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from llmroute_env.jit import compiled
from llmroute_env.spaces import Device, Queue

#: periods over which arrivals are averaged
MEMORY_PERIODS = 200.0
#: weight of the guess that an episode starts with [periods]: a load of 1, in requests of 200 tokens
PRIOR_PERIODS = 50.0
PRIOR_TOKENS = 200.0

_KEEP = np.exp(-1.0 / MEMORY_PERIODS)


class RateMemory(NamedTuple):
    """Memory of a learned policy: what survives to the next period."""

    seen: np.ndarray  #: (1,) int64, largest request id seen; -1 at the start
    weight: np.ndarray  #: (1,) float64, periods averaged over, 0 at the start
    arrivals: np.ndarray  #: (1,) float64, decayed number of arrivals [requests]
    tokens: np.ndarray  #: (1,) float64, their predicted decode tokens
    pointer: np.ndarray  #: (1,) int64, device that wins the next tie


def rate_memory() -> RateMemory:
    """Memory of one lane as an episode starts."""
    return RateMemory(
        np.full(1, -1, np.int64), np.zeros(1), np.zeros(1), np.zeros(1), np.zeros(1, np.int64)
    )


@compiled
def watch(queue: np.ndarray, queue_id: np.ndarray, devices: np.ndarray, memory: RateMemory) -> None:
    """Take the arrivals of this period into the average; call once per period."""
    if memory.weight[0] == 0.0:
        slots = 0.0
        for g in range(devices.shape[0]):
            slots += devices[g, Device.BATCH_LIMIT]
        memory.weight[0] = PRIOR_PERIODS
        memory.tokens[0] = PRIOR_PERIODS * slots
        memory.arrivals[0] = PRIOR_PERIODS * slots / PRIOR_TOKENS
    memory.weight[0] = memory.weight[0] * _KEEP + 1.0
    memory.arrivals[0] *= _KEEP
    memory.tokens[0] *= _KEEP
    newest = memory.seen[0]
    last = -1
    for i in range(queue_id.shape[0]):
        if queue_id[i] < 0:
            break
        last = i
    for i in range(last, -1, -1):
        if queue_id[i] <= memory.seen[0]:
            break
        newest = max(newest, queue_id[i])
        memory.arrivals[0] += 1.0
        memory.tokens[0] += queue[i, Queue.PREDICTED]
    memory.seen[0] = newest
