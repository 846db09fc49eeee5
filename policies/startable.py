"""What a device can start at its next iteration boundary: shared by all central policies.

A central policy holds requests at the router and sends one only when it will join the batch at
the next boundary. Seen from the telemetry of a period's start, a request of s prompt tokens does
so on device g when

    active + FIFO + just sent < B                                          (batch slots)
    sum over active of (kv + 1 + m) + sum over FIFO and just sent of (kv + 1) + (s + 1) <= M

where kv = s + emitted now, and m = 1 if an iteration is running (it adds a token to every active
request before the boundary), else 0. With a constant iteration time equal to the period no
iteration runs when the router decides, and the rule is exactly the device's own admission rule.
Otherwise it errs on the safe side: a request that ends at the boundary still counts.

Where devices prefill, what their batch still has to prefill counts as held (the device has set it
aside), and with a token budget per iteration a device must have some of it left.

On a fleet of unlike devices a request goes only where all of it fits for ever, as far as the policy
knows its length: s + ô if it reads ô, else s + 1; what is predicted to fit nowhere goes to the
devices that hold most.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import numpy as np

from llmroute_env.jit import compiled
from llmroute_env.spaces import Device


class Fit(IntEnum):
    """Which of the devices that can start a request gets it."""

    BEST = 0  #: the least KV left after placement (best fit)
    BALANCE = 1  #: the smallest share of M in use after placement
    ATTENTION = 2  #: the least KV added to what iterations read; needs predictions (``mc_sf``)


class Room(NamedTuple):
    """Working space: what is left of every device."""

    slots: np.ndarray  #: (G,) int64, free batch slots; 0 or less where none, or down
    free: np.ndarray  #: (G,) float64, KV tokens free in the iteration at the boundary
    limit: np.ndarray  #: (G,) float64, KV limit M [tokens]
    budget: np.ndarray  #: (G,) float64, prefill tokens left for the iteration at the boundary
    largest: np.ndarray  #: (G,) float64, constant: largest s + o that a device holds [tokens]
    chunk: np.ndarray  #: (1,) float64, constant: tokens of an iteration, 0 without a budget
    most: np.ndarray  #: (1,) float64, constant: the largest of `largest` [tokens]


class TieMemory(NamedTuple):
    """Memory of a central policy: what survives to the next period."""

    pointer: np.ndarray  #: (1,) int64, device that wins the next tie


def room(devices: int, largest: np.ndarray | None = None, chunk_tokens: int = 0) -> Room:
    """Allocate the working space for G devices.

    Args:
        devices: G.
        largest: (G,) largest s + o of each device [tokens]; None where no request exceeds it.
        chunk_tokens: tokens of an iteration that prefills, 0 without a budget.
    """
    top = np.full(devices, np.inf) if largest is None else largest
    chunk, most = np.array([chunk_tokens], np.float64), np.array([top.max()], np.float64)
    g = devices
    return Room(np.zeros(g, np.int64), np.zeros(g), np.zeros(g), np.zeros(g), top, chunk, most)


@compiled
def whole(room: Room, prompt: float, predicted: float) -> float:
    """Tokens s + ô of a request, but no more than the largest device of the fleet holds."""
    return min(prompt + max(np.rint(predicted), 1.0), room.most[0])  # type: ignore[no-any-return]


@compiled
def running(devices: np.ndarray, g: int) -> int:
    """Tell (1 or 0) whether an iteration runs on a device: m of the formula above."""
    return 1 if devices[g, Device.TIME_TO_END] > 0.0 else 0


@compiled
def measure(devices: np.ndarray, room: Room) -> int:
    """Fill ``room`` from the telemetry; return the number of devices with a free slot."""
    open_devices = 0
    for g in range(devices.shape[0]):
        active = np.float64(devices[g, Device.ACTIVE])
        fifo = np.float64(devices[g, Device.FIFO_LENGTH])
        limit = np.float64(devices[g, Device.KV_LIMIT])
        batch_kv = devices[g, Device.KV_USED] + active * (1 + running(devices, g))
        room.limit[g] = limit
        room.free[g] = limit - batch_kv - devices[g, Device.FIFO_TOKENS] - fifo
        room.slots[g] = 0
        room.budget[g] = np.inf
        left = np.float64(devices[g, Device.PREFILL])
        if left > 0.0:
            room.free[g] -= max(left - devices[g, Device.FIFO_TOKENS], 0.0)
        if room.chunk[0] > 0.0:
            each = max(room.chunk[0] - active, 0.0)  # prefill tokens of an iteration
            room.budget[g] = each - max(left - running(devices, g) * each, 0.0)
        if devices[g, Device.UP] > 0.0 and room.budget[g] > 0.0:
            room.slots[g] = int(devices[g, Device.BATCH_LIMIT] - active - fifo)
        if room.slots[g] > 0:
            open_devices += 1
    return open_devices


@compiled
def fits(room: Room, g: int, need: float) -> bool:
    """Tell whether ``need`` = s + 1 tokens can start on a device."""
    return (  # type: ignore[no-any-return]
        room.slots[g] > 0 and room.free[g] >= need and room.budget[g] > 0.0
    )


@compiled
def preference(room: Room, g: int, need: float, fit: int) -> float:
    """Smaller is better: KV left after placement, or with ``BALANCE`` minus its share of M."""
    left = room.free[g] - need
    return left if fit == Fit.BEST else -left / room.limit[g]  # type: ignore[no-any-return]


@compiled
def place(room: Room, need: float, final: float, fit: int, pointer: int) -> int:
    """Return the device for ``need`` tokens now and ``final`` in the end, -1 if none can start it.

    Equals go round: the first at or after ``pointer``.
    """
    devices = room.slots.shape[0]
    chosen = -1
    best = np.inf
    for turn in range(devices):
        g = pointer + turn
        if g >= devices:
            g -= devices
        if fits(room, g, need) and final <= room.largest[g]:
            value = preference(room, g, need, fit)
            if value < best:
                chosen, best = g, value
    return chosen


@compiled
def take(room: Room, g: int, need: float) -> bool:
    """Book ``need`` tokens and a slot on a device; tell whether it can start nothing more."""
    room.free[g] -= need
    room.budget[g] -= need
    room.slots[g] = room.slots[g] - 1 if room.budget[g] > 0.0 else 0
    return room.slots[g] == 0  # type: ignore[no-any-return]
