"""KV load of a device at every predicted completion: can a newcomer join without overflow later?

Between two completions the KV load of a batch only grows, so it fits M for ever if it fits in the
last iteration of every request. Each device keeps those peaks sorted by predicted remaining
length, with suffix sums of KV and a running maximum, so a candidate costs O(log B) on a device
and an admission O(B).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from llmroute_env.jit import compiled
from llmroute_env.spaces import Active, Device
from policies.ordering import heapify, pop
from policies.startable import running


class Profile(NamedTuple):
    """Per device, its requests sorted by remaining iterations, ascending; n of them.

    A FIFO, known by its totals only, is one entry of several equal requests.
    """

    n: np.ndarray  #: (G,) int64; -1 until the profile is built in a period
    left: np.ndarray  #: (G, B_max + 1) int64, remaining iterations r
    kv: np.ndarray  #: (G, B_max + 1) float64, KV before the next iteration, of this and all after
    requests: np.ndarray  #: (G, B_max + 1) float64, their number, of this and all after
    peak: np.ndarray  #: (G, B_max + 1) float64, max so far of (load in the r-th iteration) + r
    top: np.ndarray  #: (G,) float64, largest load
    slot_key: np.ndarray  #: (B_max + 1,) float64, to sort with
    slot_heap: np.ndarray  #: (B_max + 1,) int64


def profile(devices: int, slots: int) -> Profile:
    """Allocate the working space for G devices of at most ``slots`` requests."""
    b = slots + 1
    return Profile(
        np.zeros(devices, np.int64),
        np.zeros((devices, b), np.int64),
        np.zeros((devices, b)),
        np.zeros((devices, b)),
        np.zeros((devices, b)),
        np.zeros(devices),
        np.zeros(b),
        np.zeros(b, np.int64),
    )


@compiled
def plan(predicted: float, most: float) -> int:
    """Round a predicted length to iterations, from 1 to ``most`` (>= 1).

    Halves go up, not to even: a request's remaining length then falls by 1 with every token.
    """
    return int(max(1.0, min(np.floor(predicted + 0.5), most)))


@compiled
def _loads(profile: Profile, g: int) -> None:
    """Refresh peaks and the largest load after an entry came or the sums changed."""
    peak = -np.inf
    top = 0.0
    for i in range(profile.n[g]):
        left = profile.left[g, i]
        load = profile.kv[g, i] + left * profile.requests[g, i]
        top = max(top, load)
        peak = max(peak, load + left)
        profile.peak[g, i] = peak
    profile.top[g] = top


@compiled
def build_profile(
    devices: np.ndarray, active: np.ndarray, g: int, limit: float, profile: Profile
) -> None:
    """Build the profile of a device for the iteration that a newcomer would join."""
    key, heap = profile.slot_key, profile.slot_heap
    ran = running(devices, g)  # the iteration that ends at the boundary: one token each
    batch = int(devices[g, Device.ACTIVE])
    n = batch
    for slot in range(batch):
        most = limit - np.float64(active[g, slot, Active.KV])
        key[slot] = max(plan(np.float64(active[g, slot, Active.REMAINING]), most) - ran, 1)
    fifo = np.float64(devices[g, Device.FIFO_LENGTH])
    if fifo > 0.0:
        most = limit - devices[g, Device.FIFO_TOKENS] / fifo
        key[n] = plan(devices[g, Device.FIFO_PREDICTED] / fifo, most)
        n += 1
    for i in range(n):
        heap[i] = i
    heapify(key, heap, n)
    for i in range(n):
        row = pop(key, heap, n - i)
        profile.left[g, i] = int(key[row])
        if row < batch:
            profile.kv[g, i] = active[g, row, Active.KV] + np.float64(ran)
            profile.requests[g, i] = 1.0
        else:
            profile.kv[g, i] = devices[g, Device.FIFO_TOKENS]
            profile.requests[g, i] = fifo
    for i in range(n - 2, -1, -1):
        profile.kv[g, i] += profile.kv[g, i + 1]
        profile.requests[g, i] += profile.requests[g, i + 1]
    profile.n[g] = n
    _loads(profile, g)


@compiled
def _position(profile: Profile, g: int, left: int) -> int:
    """Number of entries with fewer than ``left`` iterations to go."""
    low, high = 0, profile.n[g]
    while low < high:
        middle = (low + high) // 2
        if profile.left[g, middle] < left:
            low = middle + 1
        else:
            high = middle
    return low


@compiled
def holds(profile: Profile, g: int, prompt: float, length: int, limit: float) -> bool:
    """Tell whether M holds at every completion once the newcomer has joined."""
    if profile.top[g] > limit:
        return False
    at = _position(profile, g, length)
    load = prompt + length
    if at < profile.n[g]:
        load += profile.kv[g, at] + length * profile.requests[g, at]
    # Completions before the newcomer's: it is there with prompt + r tokens. Entries of equal
    # length complete with it, which `load` covers.
    earlier = profile.peak[g, at - 1] + prompt if at > 0 else 0.0
    return load <= limit and earlier <= limit


@compiled
def insert(profile: Profile, g: int, prompt: float, length: int) -> None:
    """Add a newcomer of ``prompt`` tokens and ``length`` iterations to a device's profile."""
    at = _position(profile, g, length)
    n = profile.n[g]
    for i in range(n, at, -1):
        profile.left[g, i] = profile.left[g, i - 1]
        profile.kv[g, i] = profile.kv[g, i - 1]
        profile.requests[g, i] = profile.requests[g, i - 1]
    profile.left[g, at] = length
    profile.kv[g, at] = profile.kv[g, at + 1] if at < n else 0.0
    profile.requests[g, at] = profile.requests[g, at + 1] if at < n else 0.0
    for i in range(at + 1):
        profile.kv[g, i] += prompt
        profile.requests[g, i] += 1.0
    profile.n[g] = n + 1
    _loads(profile, g)


@compiled
def attention(profile: Profile, g: int, prompt: float, length: int) -> tuple[float, float]:
    """KV tokens that a newcomer's stay adds to what iterations read [tokens].

    The first number is what the newcomer waits for, the KV of the others while it is there, the
    second what the others wait for, its KV while they are there. Iterations take about that much
    longer, in units of what one token of KV costs.
    """
    own, others = 0.0, 0.0
    n = profile.n[g]
    for i in range(n):
        count, kv = profile.requests[g, i], profile.kv[g, i]
        if i + 1 < n:
            count -= profile.requests[g, i + 1]
            kv -= profile.kv[g, i + 1]
        together = np.float64(min(length, profile.left[g, i]))
        grown = count * 0.5 * together * (together + 1.0)  # a token more in each iteration
        own += kv * together + grown
        others += count * prompt * together + grown
    return own, others
