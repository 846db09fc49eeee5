"""Observation layout and spaces: the one place that fixes the order of fields.

Nothing in the project indexes an observation by a bare number; use these enums.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

import numpy as np
from gymnasium import spaces

FLOAT32_MAX = float(np.finfo(np.float32).max)
ID_MAX = 2**31 - 1

#: keys of every observation
OBSERVATION_KEYS = ("queue", "queue_id", "devices", "active", "clock")
#: keys of the observations of scenarios with texts or prefix caches
OPTIONAL_KEYS = ("text", "prefix")


class Queue(IntEnum):
    """Columns of ``obs["queue"]``: one row per waiting request, oldest first."""

    PROMPT = 0  #: prompt (KV) tokens s [tokens]
    PREDICTED = 1  #: predicted decode length ô [tokens]
    WAITED = 2  #: time since arrival [s]
    TIER = 3  #: request tier (0 is the default tier)


class Device(IntEnum):
    """Columns of ``obs["devices"]``: one row per device."""

    ACTIVE = 0  #: requests in the batch [requests]
    BATCH_LIMIT = 1  #: batch limit B [requests]
    KV_USED = 2  #: KV tokens held by the batch, sum of s + emitted [tokens]
    KV_LIMIT = 3  #: KV limit M [tokens]
    FIFO_LENGTH = 4  #: requests dispatched and not yet in the batch [requests]
    FIFO_TOKENS = 5  #: KV tokens that the FIFO will bring, sum of s + emitted [tokens]
    LAST_ITERATION = 6  #: duration of the last finished iteration, 0 before the first [s]
    TIME_TO_END = 7  #: time until the running iteration ends, 0 when none runs [s]
    UP = 8  #: 1 when the device takes requests
    FIFO_PREDICTED = 9  #: predicted remaining decode tokens in the FIFO [tokens]
    PREFILL = 10  #: prompt tokens still to compute, batch and FIFO; 0 unless devices prefill


class Text(IntEnum):
    """Columns of ``obs["text"]``, where the workload has texts: one row per waiting request."""

    SIZE_BYTES = 0  #: size of the prompt [bytes]
    CATEGORY = 1  #: category of the text, a number of `llmroute_env.workload.table.Category`


class Active(IntEnum):
    """Last axis of ``obs["active"]``: one row per batch slot, in admission order."""

    KV = 0  #: KV tokens now, s + emitted [tokens]; 0 where the slot is empty
    REMAINING = 1  #: predicted remaining decode tokens, max(ô - emitted, 1) [tokens]


class Clock(IntEnum):
    """Entries of ``obs["clock"]``."""

    NOW = 0  #: time since the episode started [s]
    PERIOD = 1  #: index k of this period, 0 at reset
    LEFT = 2  #: periods until the horizon T, 0 while draining
    HIDDEN = 3  #: waiting requests beyond the window W [requests]


def observation_space(
    window: int,
    batch_limits: np.ndarray,
    kv_limits: np.ndarray,
    horizon_periods: int,
    optional: Sequence[str] = (),
) -> spaces.Dict:
    """Build the observation space of one environment.

    Args:
        window: W, rows of the visible queue.
        batch_limits: (G,) B per device [requests].
        kv_limits: (G,) M per device [tokens].
        horizon_periods: T, periods until the horizon.
        optional: which of ``OPTIONAL_KEYS`` the scenario has.

    Returns:
        A ``Dict`` of ``Box``es: ``queue`` (W, 4), ``queue_id`` (W,), ``devices`` (G, 11),
        ``active`` (G, B_max, 2), ``clock`` (4,), and where the scenario has them ``text`` (W, 2)
        and ``prefix`` (W, G). Real limits where they exist, float32's largest value where a
        quantity has none, so that every bound is finite.
    """
    devices = len(batch_limits)
    slots = int(max(batch_limits))
    top_kv = float(max(kv_limits))

    queue_high = np.full((window, len(Queue)), FLOAT32_MAX, np.float32)
    device_high = np.full((devices, len(Device)), FLOAT32_MAX, np.float32)
    device_high[:, Device.ACTIVE] = batch_limits
    device_high[:, Device.BATCH_LIMIT] = batch_limits
    device_high[:, Device.KV_USED] = kv_limits
    device_high[:, Device.KV_LIMIT] = kv_limits
    device_high[:, Device.UP] = 1.0
    active_high = np.full((devices, slots, len(Active)), FLOAT32_MAX, np.float32)
    active_high[:, :, Active.KV] = top_kv
    clock_high = np.full(len(Clock), FLOAT32_MAX, np.float32)
    clock_high[Clock.LEFT] = horizon_periods

    def box(high: np.ndarray) -> spaces.Box:
        return spaces.Box(np.zeros_like(high), high, dtype=np.float32)

    unbounded = {
        "text": np.full((window, len(Text)), FLOAT32_MAX, np.float32),
        "prefix": np.full((window, devices), FLOAT32_MAX, np.float32),
    }
    return spaces.Dict(
        {
            "queue": box(queue_high),
            "queue_id": spaces.Box(-1, ID_MAX, (window,), np.int64),
            "devices": box(device_high),
            "active": box(active_high),
            "clock": box(clock_high),
            **{key: box(unbounded[key]) for key in optional},
        }
    )


def action_space(window: int, devices: int) -> spaces.MultiDiscrete:
    """One choice per visible request: 0 holds it, g + 1 sends it to device g."""
    return spaces.MultiDiscrete(np.full(window, devices + 1, np.int64))
