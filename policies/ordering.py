"""A binary heap of row numbers, for compiled code: the smallest key first, of equals the oldest.

Central policies start a handful of requests from a queue of hundreds. Building the heap is O(N)
and each request taken costs O(log N), where a sort would pay for the order of all that stay.
"""

from __future__ import annotations

import numpy as np

from llmroute_env.jit import compiled


@compiled
def _sift_down(key: np.ndarray, heap: np.ndarray, start: int, n: int) -> None:
    row = heap[start]
    at = start
    while True:
        child = 2 * at + 1
        if child >= n:
            break
        left = heap[child]
        if child + 1 < n:
            right = heap[child + 1]
            if key[right] < key[left] or (key[right] == key[left] and right < left):
                child += 1
                left = right
        if key[row] < key[left] or (key[row] == key[left] and row < left):
            break
        heap[at] = left
        at = child
    heap[at] = row


@compiled
def heapify(key: np.ndarray, heap: np.ndarray, n: int) -> None:
    """Order ``heap[:n]`` (row numbers, int64, in place) as a heap by ``key[row]``, then by row."""
    for start in range(n // 2 - 1, -1, -1):
        _sift_down(key, heap, start, n)


@compiled
def pop(key: np.ndarray, heap: np.ndarray, n: int) -> int:
    """Take the first row from a heap of ``n`` >= 1; it has ``n - 1`` rows afterwards."""
    first = heap[0]
    heap[0] = heap[n - 1]
    _sift_down(key, heap, 0, n - 1)
    return first  # type: ignore[no-any-return]
