"""The device half of the reference cluster: requests, the FIFO, the batch, its iterations.

See ``reference_cluster``. Words: s prompt tokens, o true decode tokens, ô predicted ones; B batch
limit [requests], M KV limit [tokens]. Times are whole nanoseconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil, floor

QUEUED, DISPATCHED, ACTIVE, COMPLETED, REJECTED, NOT_ARRIVED = range(6)
REASON_NONE, REASON_KV, REASON_CONTEXT = range(3)


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
