"""A plain-Python reference of the decode cluster and of the router's environment.

Slow and obvious on purpose: one object per request, one per device, lists, no numpy in the rules.
It was written from the rules alone, so that the compiled kernel can be compared with something
that does not share its mistakes. The clock counts integer nanoseconds.

Words: s prompt tokens, o true decode tokens, ô predicted ones; B batch limit [requests], M KV
limit [tokens], T horizon [periods], W visible rows of the queue.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil, floor
from typing import Any

import numpy as np

NS = 1_000_000_000

QUEUED, DISPATCHED, ACTIVE, COMPLETED, REJECTED, NOT_ARRIVED = range(6)
REASON_NONE, REASON_KV, REASON_CONTEXT = range(3)
COMPONENTS = ("alpha", "beta", "gamma", "sigma", "zeta1", "zeta2")


def to_ns(seconds: float) -> int:
    return round(seconds * 1e9)


@dataclass
class Timing:
    """t(b, kv, prefill) = base_s[b] + kv_s · kv + prefill_s · prefill [s]."""

    base_s: list[float]
    kv_s: float = 0.0
    prefill_s: float = 0.0

    def duration_ns(self, batch: int, kv: int, prefill: int) -> int:
        seconds = self.base_s[batch] + self.kv_s * kv + self.prefill_s * prefill
        return max(1, to_ns(seconds))


@dataclass
class Request:
    number: int
    arrival_s: float
    prompt: int
    decode: int
    predicted: float
    tier: int = 0

    status: int = NOT_ARRIVED
    reason: int = REASON_NONE
    device: int = -1
    dispatched_at: int | None = None
    started_at: int | None = None  # start of the first iteration ever
    first_token_at: int | None = None  # end of the first iteration ever
    finished_at: int | None = None
    emitted: int = 0
    preemptions: int = 0
    recomputed: int = 0
    miss_counted: bool = False

    @property
    def arrival_ns(self) -> int:
        return to_ns(self.arrival_s)

    @property
    def held(self) -> int:
        """KV tokens that the request has by now, s + emitted."""
        return self.prompt + self.emitted

    @property
    def remaining(self) -> float:
        """Decode tokens that a router must expect, from the prediction."""
        return max(self.predicted - self.emitted, 1.0)


@dataclass
class Iteration:
    """One finished or running iteration, for statistics and for the invariants."""

    start: int
    end: int
    batch: int
    kv: int
    prefill: int


@dataclass
class Device:
    """One model replica: a FIFO, a batch in order of admission, and its own iteration clock."""

    batch_limit: int
    kv_limit: int
    timing: Timing
    context_limit: int | None = None
    block: int = 1
    watermark: float = 0.0
    skip: bool = False

    fifo: list[Request] = field(default_factory=list)
    batch: list[Request] = field(default_factory=list)
    ends_at: int | None = None  # end of the running iteration
    last_duration: int = 0  # of the last finished iteration
    iterations: list[Iteration] = field(default_factory=list)

    @property
    def total_blocks(self) -> int:
        return self.kv_limit // self.block

    @property
    def reserved_blocks(self) -> int:
        """Blocks that an admission must leave free."""
        return floor(self.watermark * self.total_blocks)

    def blocks(self, tokens: int) -> int:
        return ceil(tokens / self.block)

    def need(self) -> int:
        """Blocks that the batch occupies in the coming iteration."""
        return sum(self.blocks(r.held + 1) for r in self.batch)

    def why_never(self, request: Request) -> int:
        """Why this device can never hold the request, or REASON_NONE."""
        whole = request.prompt + request.decode
        if self.blocks(whole) > self.total_blocks:
            return REASON_KV
        if self.context_limit is not None and whole > self.context_limit:
            return REASON_CONTEXT
        return REASON_NONE

    def fits(self, request: Request) -> bool:
        if len(self.batch) >= self.batch_limit:
            return False
        reserved = self.reserved_blocks if self.batch else 0
        return self.need() + self.blocks(request.held + 1) <= self.total_blocks - reserved

    def preempt(self) -> None:
        """While growth breaks M, the last admitted goes back to the head of the FIFO."""
        while self.need() > self.total_blocks:
            victim = self.batch.pop()
            victim.status = DISPATCHED
            victim.preemptions += 1
            self.fifo.insert(0, victim)

    def admit(self) -> list[Request]:
        """Take requests from the FIFO, head first; with ``skip``, past those that do not fit."""
        joined = []
        for request in list(self.fifo):
            if self.fits(request):
                self.fifo.remove(request)
                self.batch.append(request)
                request.status = ACTIVE
                joined.append(request)
            elif not self.skip:
                break
        return joined

    def start(self, now: int) -> list[Request]:
        """Preempt, admit and start an iteration; the requests that start for the first time."""
        assert self.ends_at is None
        self.preempt()
        joined = self.admit()
        if not self.batch:
            return []
        back = [r for r in joined if r.preemptions > 0]
        prefill = 0
        for request in back:
            request.recomputed += request.held
            prefill += request.held
        kv = sum(r.held + 1 for r in self.batch)
        duration = self.timing.duration_ns(len(self.batch), kv, prefill)
        self.ends_at = now + duration
        self.iterations.append(Iteration(now, self.ends_at, len(self.batch), kv, prefill))
        first = [r for r in self.batch if r.started_at is None]
        for request in first:
            request.started_at = now
        return first

    def retire(self) -> tuple[int, list[Request]]:
        """End the running iteration: tokens emitted, requests completed."""
        assert self.ends_at is not None
        now = self.ends_at
        self.ends_at = None
        self.last_duration = self.iterations[-1].end - self.iterations[-1].start
        tokens = len(self.batch)
        done = []
        for request in self.batch:
            request.emitted += 1
            if request.first_token_at is None:
                request.first_token_at = now
            if request.emitted == request.decode:
                request.finished_at = now
                request.status = COMPLETED
                done.append(request)
        self.batch = [r for r in self.batch if r.status == ACTIVE]
        return tokens, done


@dataclass
class Objective:
    alpha: float = 0.0
    beta: float = 1.0
    gamma: float = 1.0
    sigma: float = 0.0
    zeta1: float = 0.0
    zeta2: float = 0.0
    tail_eel_s: float = 400.0
    tail_ttft_s: float = 49.0


@dataclass
class Outcome:
    """What one step returned."""

    rewards: dict[str, float]
    cost: float
    invalid: int
    terminated: bool
    truncated: bool

    @property
    def reward(self) -> float:
        return sum(self.rewards.values())


class ReferenceCluster:
    """The environment of one episode: queue, devices, clock, reward."""

    def __init__(
        self,
        requests: list[Request],
        devices: list[Device],
        *,
        period_s: float = 1.0,
        horizon: int = 100,
        drain: bool = False,
        max_drain: int = 100_000,
        window: int = 128,
        warmup_s: float = 0.0,
        objective: Objective | None = None,
    ) -> None:
        self.requests = requests
        self.devices = devices
        self.period = to_ns(period_s)
        self.horizon = horizon
        self.drain = drain
        self.max_drain = max_drain
        self.window = window
        self.warmup = to_ns(warmup_s)
        self.objective = objective or Objective()
        self.queue: list[Request] = []
        self.k = 0  # index of the period; the boundary is at k · period
        self.waiting_for_arrival = list(requests)
        self.imbalances: list[float] = []  # by measured period
        self.hidden_periods = 0
        self.clear_step()

    # --- events ------------------------------------------------------------------------------

    def clear_step(self) -> None:
        self.rewards = dict.fromkeys(COMPONENTS, 0.0)
        self.cost = 0.0

    @property
    def now(self) -> int:
        return self.k * self.period

    def periods_left(self, now: int) -> float:
        """T − now/period, the difference taken in whole nanoseconds: it may be tiny."""
        return (self.horizon * self.period - now) / self.period

    def miss(self, request: Request) -> None:
        """The request misses a limit for certain: it costs 1, once."""
        if not request.miss_counted:
            request.miss_counted = True
            self.cost += 1.0

    def on_first_start(self, request: Request, now: int) -> None:
        objective = self.objective
        in_time = now - request.arrival_ns < to_ns(objective.tail_ttft_s)
        if now < self.horizon * self.period:
            self.rewards["gamma"] += objective.gamma * self.periods_left(now)
            self.rewards["sigma"] += objective.sigma
            self.rewards["zeta2"] += objective.zeta2 * in_time
        if not in_time:
            self.miss(request)

    def on_iteration_end(self, tokens: int, done: list[Request], now: int) -> None:
        objective = self.objective
        counts = now <= self.horizon * self.period
        if counts:
            self.rewards["alpha"] += objective.alpha * tokens
        for request in done:
            in_time = now - request.arrival_ns < to_ns(objective.tail_eel_s)
            if counts:
                self.rewards["beta"] += objective.beta * self.periods_left(now)
                self.rewards["zeta1"] += objective.zeta1 * in_time
            if not in_time:
                self.miss(request)

    def start(self, device: Device, now: int) -> None:
        for request in device.start(now):
            self.on_first_start(request, now)

    def run_until(self, boundary: int) -> None:
        """(1) Iterations that end by the boundary retire; those before it go on by themselves."""
        for device in self.devices:
            while device.ends_at is not None and device.ends_at <= boundary:
                end = device.ends_at
                tokens, done = device.retire()
                self.on_iteration_end(tokens, done, end)
                if end < boundary:
                    self.start(device, end)

    def arrive(self, boundary: int) -> None:
        """(2) Arrivals up to the boundary join the queue, or are rejected; none after T."""
        boundary = min(boundary, self.horizon * self.period)
        while self.waiting_for_arrival and self.waiting_for_arrival[0].arrival_ns <= boundary:
            request = self.waiting_for_arrival.pop(0)
            reasons = [device.why_never(request) for device in self.devices]
            if all(reasons):
                request.status = REJECTED
                request.reason = min(reasons)
                self.miss(request)
            else:
                request.status = QUEUED
                self.queue.append(request)

    # --- the environment ---------------------------------------------------------------------

    @property
    def visible(self) -> list[Request]:
        return self.queue[: self.window]

    def reset(self) -> float:
        """Arrivals at 0; the cost of those rejected at once."""
        self.clear_step()
        self.arrive(0)
        return self.cost

    def dispatch(self, action: list[int]) -> int:
        """(5) Visible requests to the FIFO tails, in queue order; how many choices were illegal."""
        invalid = 0
        sent = []
        for row in range(self.window):
            choice = int(action[row])
            if choice == 0:
                continue
            if row >= len(self.visible) or not 1 <= choice <= len(self.devices):
                invalid += 1
                continue
            sent.append((self.visible[row], choice - 1))
        for request, g in sent:
            self.queue.remove(request)
            request.status = DISPATCHED
            request.device = g
            request.dispatched_at = self.now
            self.devices[g].fifo.append(request)
        return invalid

    def step(self, action: list[int]) -> Outcome:
        """Take the action at this boundary, run to the next one."""
        self.clear_step()
        invalid = self.dispatch(action)
        for device in self.devices:
            if device.ends_at is None:
                self.start(device, self.now)
        if self.now >= self.warmup:
            self.imbalances.append(self.imbalance())
        self.k += 1
        self.run_until(self.now)
        self.arrive(self.now)
        self.hidden_periods += len(self.queue) > self.window
        terminated, truncated = self.over()
        if terminated or truncated:
            for request in self.requests:
                if request.status in (QUEUED, DISPATCHED, ACTIVE):
                    self.miss(request)
        return Outcome(self.rewards, self.cost, invalid, terminated, truncated)

    def over(self) -> tuple[bool, bool]:
        """(terminated, truncated)."""
        if self.k < self.horizon:
            return False, False
        if not self.drain:
            return False, True
        empty = all(r.status in (COMPLETED, REJECTED, NOT_ARRIVED) for r in self.requests)
        if empty:
            return True, False
        return False, self.k >= self.horizon + self.max_drain

    # --- statistics --------------------------------------------------------------------------

    def imbalance(self) -> float:
        """(max − mean) / mean of the KV that the devices hold; 0 when all are empty."""
        loads = [sum(r.held for r in d.batch) for d in self.devices]
        mean = sum(loads) / len(loads)
        return (max(loads) - mean) / mean if mean else 0.0

    def measured(self, device: Device) -> list[tuple[Iteration, float]]:
        """Iterations that started after the warm-up, with their seconds so far."""
        return [
            (i, (min(i.end, self.now) - i.start) / 1e9)
            for i in device.iterations
            if i.start >= self.warmup
        ]

    def stats(self) -> dict[str, Any]:
        """What the environment's counters must say."""
        return {
            "end_s": self.now / 1e9,
            "decoded_tokens": sum(
                i.batch for d in self.devices for i, _ in self.measured(d) if i.end <= self.now
            ),
            "busy_slot_s": [sum(i.batch * t for i, t in self.measured(d)) for d in self.devices],
            "kv_token_s": [sum(i.kv * t for i, t in self.measured(d)) for d in self.devices],
            "imbalance": sum(self.imbalances) / max(len(self.imbalances), 1),
            "hidden_periods": self.hidden_periods,
            "periods": self.k,
        }

    # --- what the router sees ----------------------------------------------------------------

    def mask(self) -> np.ndarray:
        mask = np.zeros((self.window, len(self.devices) + 1), np.int8)
        mask[:, 0] = 1
        mask[: len(self.visible), :] = 1
        return mask

    def observe(self) -> dict[str, np.ndarray]:
        """(3) What the router sees; field order as in ``llmroute_env/spaces.py``."""
        slots = max(d.batch_limit for d in self.devices)
        queue = np.zeros((self.window, 4), np.float32)
        queue_id = np.full(self.window, -1, np.int64)
        for row, r in enumerate(self.visible):
            queue[row] = (r.prompt, r.predicted, (self.now - r.arrival_ns) / 1e9, r.tier)
            queue_id[row] = r.number
        devices = np.zeros((len(self.devices), 10), np.float32)
        active = np.zeros((len(self.devices), slots, 2), np.float32)
        for g, d in enumerate(self.devices):
            devices[g] = (
                len(d.batch),
                d.batch_limit,
                sum(r.held for r in d.batch),
                d.kv_limit,
                len(d.fifo),
                sum(r.held for r in d.fifo),
                d.last_duration / 1e9,
                0.0 if d.ends_at is None else (d.ends_at - self.now) / 1e9,
                1.0,
                sum(r.remaining for r in d.fifo),
            )
            for slot, r in enumerate(d.batch):
                active[g, slot] = (r.held, r.remaining)
        clock = np.array(
            [
                self.now / 1e9,
                self.k,
                max(self.horizon - self.k, 0),
                len(self.queue) - len(self.visible),
            ],
            np.float32,
        )
        return {
            "queue": queue,
            "queue_id": queue_id,
            "devices": devices,
            "active": active,
            "clock": clock,
        }

    def log(self) -> dict[str, np.ndarray]:
        """The request log: one row per request, times in seconds, NaN where not reached."""

        def times(values: list[int | None]) -> np.ndarray:
            return np.array([np.nan if v is None else v / 1e9 for v in values], np.float64)

        rs = self.requests
        return {
            "arrival_s": np.array([r.arrival_s for r in rs], np.float64),
            "prompt": np.array([r.prompt for r in rs], np.int64),
            "decode": np.array([r.decode for r in rs], np.int64),
            "predicted": np.array([r.predicted for r in rs], np.float32),
            "tier": np.array([r.tier for r in rs], np.int64),
            "status": np.array([r.status for r in rs], np.int64),
            "device": np.array([r.device for r in rs], np.int64),
            "dispatch_s": times([r.dispatched_at for r in rs]),
            "start_s": times([r.started_at for r in rs]),
            "first_token_s": times([r.first_token_at for r in rs]),
            "finish_s": times([r.finished_at for r in rs]),
            "emitted": np.array([r.emitted for r in rs], np.int64),
            "preemptions": np.array([r.preemptions for r in rs], np.int64),
            "recomputed": np.array([r.recomputed for r in rs], np.int64),
            "reject_reason": np.array([r.reason for r in rs], np.int64),
        }
