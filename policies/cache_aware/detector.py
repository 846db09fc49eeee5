"""LMETRIC's failure condition: more traffic wants a few devices than their part of the fleet.

The paper (arXiv 2603.15202) states it for a class of requests with a common prefix: its share of
the traffic over that of all others exceeds the devices that cache it over those that do not,
``x / (1 - x) > |M| / (G - |M|)``, which is ``x > |M| / G``. A router sees no prefixes here, only
how many tokens each device has cached of a request, so a *class* is a set of devices M: all recent
requests whose deep hits are on exactly these devices. Prefixes that are cached on the same devices
are one class, rightly, as they compete for them; one prefix whose set of devices changes moves to
another class.

Balanced affinity keeps ``x`` near ``|M| / G``, so the bare inequality would hold about half of the
time by chance. *Detected* therefore asks for ``x > p + z * sqrt(p * (1 - p) / n)`` with
``p = |M| / G`` over a window of the last n requests; *persistent* for the same in both of its
halves. The margin, the window and what a deep hit is are ours, the paper leaves them open.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from llmroute_env.jit import compiled

#: a hit is deep when it is at least this share of the request's best hit
DEEP: Final = 0.5
#: devices that a set may be of, the bits of a signature
MOST_DEVICES: Final = 63

CALM, DETECTED, PERSISTENT = 0, 1, 2


@compiled
def signature(cached: np.ndarray) -> int:
    """The devices with deep hits as bits; 0 where nothing is cached. ``cached`` is (G,) tokens."""
    best = 0.0
    for g in range(cached.shape[0]):
        best = max(best, np.float64(cached[g]))
    bits = np.int64(0)
    if best > 0.0:
        for g in range(cached.shape[0]):
            if cached[g] >= DEEP * best:
                bits |= np.int64(1) << np.int64(g)
    return bits  # type: ignore[return-value]


@compiled
def _exceeds(count: int, n: int, share: float, z: float) -> bool:
    return count > n * share + z * np.sqrt(n * share * (1.0 - share))  # type: ignore[no-any-return]


@compiled
def judge(recent: np.ndarray, at: np.ndarray, bits: int, devices: int, z: float) -> int:
    """Enter a request's signature, and say whether its class is overloading its devices.

    Args:
        recent: (n,) int64 signatures of the last n requests, a ring; changed in place.
        at: (1,) int64 how many requests were ever entered; changed in place.
        bits: signature of this request.
        devices: G.
        z: margin in standard deviations.

    Returns:
        CALM, DETECTED or PERSISTENT; CALM until the window is full.
    """
    n = recent.shape[0]
    recent[at[0] % n] = bits
    at[0] += 1
    cached_on = 0
    for g in range(devices):
        cached_on += (bits >> g) & 1
    if at[0] < n or cached_on == 0 or cached_on == devices:
        return CALM
    share = cached_on / devices
    oldest, older, newer = at[0] % n, 0, 0
    for i in range(n):
        if recent[(oldest + i) % n] == bits:
            if i < n // 2:
                older += 1
            else:
                newer += 1
    if not _exceeds(older + newer, n, share, z):
        return CALM
    both = _exceeds(older, n // 2, share, z) and _exceeds(newer, n - n // 2, share, z)
    return PERSISTENT if both else DETECTED
