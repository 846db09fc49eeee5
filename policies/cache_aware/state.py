"""What a cache-aware router works with: constants, memory, working space, and its counters."""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple

import numpy as np

#: values of ``CacheAwareParams.guard``
OFF: Final = 0
DETECT: Final = 1
FILTER: Final = 2


class Count(IntEnum):
    """Columns of the counters."""

    SENT = 0  #: requests sent
    DETECTED = 1  #: of these, of a class that overloads its devices
    PERSISTENT = 2  #: of these, in both halves of the window
    FILTERED = 3  #: of these, kept off those devices


class CacheAwareParams(NamedTuple):
    """Constants of a cache-aware router; a rule reads what it needs."""

    rule: int  #: a ``Rule``
    inflight: bool  #: a request just sent counts at once
    prefills: bool  #: devices prefill what they decode
    cache: bool  #: LMETRIC: count cached tokens
    queued: bool  #: LMETRIC: count tokens that others still have to prefill
    least: float  #: LMETRIC: smallest first factor [tokens]
    guard: int  #: LMETRIC: OFF, DETECT or FILTER
    guard_z: float  #: margin of the detector
    block: float  #: tokens in a block
    weights: np.ndarray  #: (3,) prefix, KV, queue; credit, scale; weight; future
    temperature: float  #: Dynamo
    cache_threshold: float  #: SGLang: match above which the cache decides
    balance_abs: float  #: SGLang: spread of loads from which the load decides [requests]
    balance_rel: float  #: SGLang: and ratio of loads
    reach: np.ndarray  #: (G,) float64 most tokens of a request on a device


class CacheAwareMemory(NamedTuple):
    """What survives to the next period."""

    rng: np.ndarray  #: (1,) uint64
    pointer: np.ndarray  #: (1,) int64, device at which the next search starts
    recent: np.ndarray  #: (n,) int64 signatures of the last requests
    entered: np.ndarray  #: (1,) int64 requests ever entered
    mean_new: np.ndarray  #: (1,) float64 mean uncached tokens of the last requests sent, 0 at first
    counts: np.ndarray  #: (len(Count),) int64


class CacheAwareScratch(NamedTuple):
    """Working space, (G,) each."""

    waiting: np.ndarray  #: float64 FIFO length, with what was just sent [requests]
    prefill: np.ndarray  #: float64 tokens to prefill, with what was just sent
    kv: np.ndarray  #: float64 KV tokens of batch, FIFO and what was just sent
    cost: np.ndarray  #: float64
    open: np.ndarray  #: int64 devices that can take the request
