"""Whole episodes of the reference cluster, for tests of the reference itself."""

from __future__ import annotations

from collections.abc import Callable

from reference_cluster import Outcome, ReferenceCluster
from reference_device import Device, Request, Timing

Router = Callable[[ReferenceCluster], list[int]]


def constant(seconds: float, batch_limit: int) -> Timing:
    return Timing([seconds] * (batch_limit + 1))


def device(B: int, M: int, seconds: float = 1.0, **more: object) -> Device:
    return Device(B, M, constant(seconds, B), **more)  # type: ignore[arg-type]


def requests(*rows: tuple[float, int, int]) -> list[Request]:
    return [Request(i, at, s, o, float(o)) for i, (at, s, o) in enumerate(rows)]


def send_all(cluster: ReferenceCluster) -> list[int]:
    """Everything visible to device 0 at once: FIFO."""
    rows = len(cluster.visible)
    return [1] * rows + [0] * (cluster.window - rows)


def run(cluster: ReferenceCluster, router: Router) -> tuple[list[Outcome], float]:
    cost = cluster.reset()
    outcomes = []
    while not (outcomes and (outcomes[-1].terminated or outcomes[-1].truncated)):
        outcomes.append(cluster.step(router(cluster)))
    return outcomes, cost


def finished(cluster: ReferenceCluster) -> list[float | None]:
    return [None if r.finished_at is None else r.finished_at / 1e9 for r in cluster.requests]
