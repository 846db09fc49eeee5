"""Stopwatches that other programs on the machine disturb little.

* `slice_rates`: work that Python repeats is timed in slices of about a millisecond, shorter than
  what a busy kernel lets a program run at a time, and the median slice counts.
* `decision_us`: a call during which the kernel gave the core to another program counts with the
  processor time of the thread; else the P99 would measure the load of the machine.
* `thread_s`: one compiled call that lasts long and runs in one thread is timed by the processor
  time of that thread, which on a quiet machine is the time on the wall.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

thread_s: Final = time.thread_time

_SLICE_S: Final = 1e-3
_THREAD: Final = getattr(resource, "RUSAGE_THREAD", resource.RUSAGE_SELF)


def slice_rates(step: Callable[[], object], steps: int) -> np.ndarray:
    """Steps per second of each slice of ``steps`` calls in all; (slices,), sorted."""
    start = time.perf_counter()
    step()
    per_slice = min(max(int(_SLICE_S / (time.perf_counter() - start)), 1), steps)
    elapsed = []
    for _ in range(max(steps // per_slice, 1)):
        start = time.perf_counter()
        for _ in range(per_slice):
            step()
        elapsed.append(time.perf_counter() - start)
    return np.sort(per_slice / np.array(elapsed))


def switches() -> int:
    """How often the kernel has taken the core from this thread."""
    return resource.getrusage(_THREAD).ru_nivcsw


def decision_us(decide: Callable[[Any], Any], observations: Sequence[Any]) -> np.ndarray:
    """Time of each call [µs]: on the wall if it ran undisturbed, else of the processor."""
    wall, processor = time.perf_counter_ns, time.thread_time_ns
    times = np.empty(len(observations))
    for i, observation in enumerate(observations):
        before, used, start = switches(), processor(), wall()
        result = decide(observation)  # kept until the next call returns, as a loop keeps it
        elapsed = wall() - start
        used = processor() - used
        times[i] = elapsed if switches() == before else min(elapsed, used)
    del result
    return times / 1e3
