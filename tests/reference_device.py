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
class Handoff:
    """The KV cache of a prompt travels to its device after the dispatch."""

    kv_bytes_per_token: float
    link_bytes_per_s: float

    def transfer_ns(self, prompt: int) -> int:
        return to_ns(prompt * self.kv_bytes_per_token / self.link_bytes_per_s)


@dataclass
class Request:
    number: int
    arrival_s: float
    prompt: int
    decode: int
    predicted: float
    tier: int = 0
    ready_s: float | None = None  # when the router first sees it; None: at arrival
    chain: tuple[int, ...] = ()  # ids of the prefixes that end with block 1, 2, …
    size_bytes: int = 0
    category: int = 0

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
    lands_at: int = 0  # its KV is on the device from then on (handoff)

    # On a device that prefills, see ``reference_mixed``.
    prefilling: bool = False
    progress: int = 0  # tokens in KV while it prefills
    target: int = 0  # tokens that its prefill has to reach
    chunk: int = 0  # tokens that it prefills in the running iteration
    blocks: list[int] = field(default_factory=list)  # cached blocks that it references, in order
    allocated: int = 0  # KV blocks, the referenced ones included
    lost: int = 0  # tokens that it had in KV when it was preempted
    cached: int = 0  # tokens matched at the first admission
    expected_hit: int = 0  # tokens matched at dispatch

    @property
    def ready_ns(self) -> int:
        return self.arrival_ns if self.ready_s is None else to_ns(self.ready_s)

    @property
    def arrival_ns(self) -> int:
        return to_ns(self.arrival_s)

    @property
    def held(self) -> int:
        """KV tokens of the request when it decodes, s + emitted."""
        return self.prompt + self.emitted

    @property
    def kv_now(self) -> int:
        """KV tokens that the request has by now."""
        return self.progress if self.prefilling else self.held

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
    tokens: int  # emitted at its end


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
    handoff: Handoff | None = None

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

    def legal(self, request: Request) -> bool:
        """A router may send it: the prompt and one token fit. What o adds, no router knows."""
        least = request.prompt + 1
        return self.blocks(least) <= self.total_blocks and (
            self.context_limit is None or least <= self.context_limit
        )

    def receive(self, request: Request, now: int) -> None:
        """To the FIFO's tail, once dispatched."""
        moving = 0 if self.handoff is None else self.handoff.transfer_ns(request.prompt)
        request.lands_at = now + moving
        self.fifo.append(request)

    def wakes_at(self) -> int | None:
        """An idle device starts by itself when the KV of its FIFO's head has landed."""
        if self.ends_at is not None or not self.fifo:
            return None
        return min(r.lands_at for r in self.fifo) if self.skip else self.fifo[0].lands_at

    def kv_used(self) -> int:
        return sum(r.kv_now for r in self.batch)

    def prefill_left(self) -> int:
        return 0

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

    def admit(self, now: int) -> list[Request]:
        """Take requests from the FIFO, head first; with ``skip``, past those that do not fit."""
        joined = []
        for request in list(self.fifo):
            if request.lands_at <= now and self.fits(request):
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
        joined = self.admit(now)
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
        tokens = len(self.batch)
        self.iterations.append(Iteration(now, self.ends_at, tokens, kv, prefill, tokens))
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
