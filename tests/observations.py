"""Observations written by hand: a queue and devices as lists, in the environment's layout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from llmroute_env.spaces import Active, Clock, Device, Queue
from policies import RouterSpec
from policies.spec import NO_LIMIT

Observation = dict[str, np.ndarray]


@dataclass
class Gpu:
    """One device: its batch and FIFO as (KV tokens now, predicted remaining tokens).

    ``prefilling`` are the last rows of the batch: (KV tokens now, prompt tokens, remaining).
    """

    batch: Sequence[tuple[float, float]] = ()
    fifo: Sequence[tuple[float, float]] = ()
    prefilling: Sequence[tuple[float, float, float]] = ()
    slots: int = 8
    kv_limit: int = 1000
    running: bool = False
    up: bool = True


@dataclass
class Waiting:
    """One waiting request."""

    prompt: int = 10
    predicted: float = 10.0
    waited: float = 0.0


@dataclass
class Scene:
    """A moment of a cluster, and the static facts of its router."""

    gpus: Sequence[Gpu]
    queue: Sequence[Waiting] = field(default_factory=list)
    window: int = 16
    period: int = 0
    period_s: float = 1.0
    context: Sequence[int] | None = None
    prefill: bool = False
    emits_token: bool = False
    chunk_tokens: int = 0

    @property
    def spec(self) -> RouterSpec:
        context = self.context or [NO_LIMIT] * len(self.gpus)
        return RouterSpec(
            window=self.window,
            devices=len(self.gpus),
            slots=max(gpu.slots for gpu in self.gpus),
            period_s=self.period_s,
            context_limit=tuple(context),
            objective=None,
            horizon_periods=100,
            scenario="hand-made",
            prefill=self.prefill,
            emits_token=self.emits_token,
            chunk_tokens=self.chunk_tokens,
        )

    def observe(self) -> Observation:
        spec = self.spec
        queue = np.zeros((spec.window, len(Queue)), np.float32)
        queue_id = np.full(spec.window, -1, np.int64)
        for i, waiting in enumerate(self.queue):
            queue[i, Queue.PROMPT] = waiting.prompt
            queue[i, Queue.PREDICTED] = waiting.predicted
            queue[i, Queue.WAITED] = waiting.waited
            queue_id[i] = 100 + i
        devices = np.zeros((spec.devices, len(Device)), np.float32)
        active = np.zeros((spec.devices, spec.slots, len(Active)), np.float32)
        for g, gpu in enumerate(self.gpus):
            row = devices[g]
            rows = [*gpu.batch, *((kv, left) for kv, _, left in gpu.prefilling)]
            row[Device.ACTIVE] = len(rows)
            row[Device.BATCH_LIMIT] = gpu.slots
            row[Device.KV_USED] = sum(kv for kv, _ in rows)
            row[Device.KV_LIMIT] = gpu.kv_limit
            row[Device.FIFO_LENGTH] = len(gpu.fifo)
            row[Device.FIFO_TOKENS] = sum(kv for kv, _ in gpu.fifo)
            row[Device.FIFO_PREDICTED] = sum(left for _, left in gpu.fifo)
            row[Device.TIME_TO_END] = 0.5 if gpu.running else 0.0
            row[Device.UP] = float(gpu.up)
            if self.prefill:
                row[Device.PREFILL] = row[Device.FIFO_TOKENS]
                row[Device.PREFILL] += sum(prompt - kv for kv, prompt, _ in gpu.prefilling)
            for slot, (kv, left) in enumerate(rows):
                active[g, slot, Active.KV] = kv
                active[g, slot, Active.REMAINING] = left
        clock = np.zeros(len(Clock), np.float32)
        clock[Clock.PERIOD] = self.period
        clock[Clock.NOW] = self.period * self.period_s
        return {
            "queue": queue,
            "queue_id": queue_id,
            "devices": devices,
            "active": active,
            "clock": clock,
        }


def at(observation: Observation, period: int) -> Observation:
    """The same observation, at another period."""
    clock = observation["clock"].copy()
    clock[Clock.PERIOD] = period
    return observation | {"clock": clock}


def batch(observations: Sequence[Observation]) -> Observation:
    """Observations side by side, lanes first."""
    return {key: np.stack([o[key] for o in observations]) for key in observations[0]}


def random_scene(rng: np.random.Generator, *, gpus: int = 3, window: int = 12) -> Scene:
    """A plausible moment: some devices full, busy, with a FIFO, or down; ties are common."""
    fleet = []
    for _ in range(gpus):
        slots = int(rng.integers(1, 9))
        busy = int(rng.integers(0, slots + 1))
        queued = int(rng.integers(0, 3))
        size = int(rng.choice([5, 60, 300]))
        fleet.append(
            Gpu(
                batch=[
                    (int(rng.integers(1, size)), float(rng.integers(2, 80)) / 2)
                    for _ in range(busy)
                ],
                fifo=[(int(rng.integers(1, size)), float(rng.integers(2, 80)) / 2)] * queued,
                slots=slots,
                kv_limit=int(rng.choice([100, 400, 2000])),
                running=bool(rng.integers(2)),
                up=bool(rng.random() < 0.9),
            )
        )
    waiting = [
        Waiting(
            prompt=int(rng.integers(1, 80)),
            predicted=float(rng.integers(1, 120)) / 2,
            waited=float(rng.integers(0, 5)),
        )
        for _ in range(int(rng.integers(0, window + 1)))
    ]
    context = [int(rng.choice([50, 300, NO_LIMIT])) for _ in range(gpus)]
    return Scene(fleet, waiting, window=window, context=context)
