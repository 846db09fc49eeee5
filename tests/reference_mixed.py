"""The reference device that prefills beside decoding, and its cache of prompt prefixes.

See ``reference_cluster``. Words: C token budget of an iteration, P tokens of a cached block. A
request's chain names the prefixes that end with its first, second, … block of P tokens, so an
id stands for everything up to there. KV blocks are those of the engine; a cached block is P tokens,
a whole number of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from reference_device import ACTIVE, COMPLETED, DISPATCHED, Device, Iteration, Request, to_ns


@dataclass
class MixedTimes:
    """Iteration time by all tokens of the iteration, decode attention, and each prefill chunk."""

    token_s: list[float]
    token_slope_s: float = 0.0
    kv_s: float = 0.0
    chunk_s: float = 0.0
    query_s: float = 0.0
    pair_s: float = 0.0

    def duration_ns(self, decoding: int, kv: int, chunks: list[tuple[int, int]]) -> int:
        """Chunks as (new tokens, tokens in KV before them)."""
        tokens = decoding + sum(new for new, _ in chunks)
        inside = min(tokens, len(self.token_s) - 1)
        seconds = self.token_s[inside] + self.token_slope_s * (tokens - inside) + self.kv_s * kv
        for new, context in chunks:
            seconds += self.chunk_s + self.query_s * new
            seconds += self.pair_s * new * (context + new / 2)
        return max(1, to_ns(seconds))


@dataclass
class PrefixCache:
    """Cached blocks of one device: who references each, and which go first when room is short."""

    block: int  # P [tokens]
    references: dict[int, int] = field(default_factory=dict)  # of every resident block
    unused: list[int] = field(default_factory=list)  # without references, the oldest first

    @property
    def used(self) -> int:
        """Resident blocks that somebody references."""
        return len(self.references) - len(self.unused)

    def match(self, chain: tuple[int, ...], most: int) -> list[int]:
        """The longest resident prefix of the chain, of at most so many blocks."""
        found = []
        for name in chain[:most]:
            if name not in self.references:
                break
            found.append(name)
        return found

    def take(self, name: int) -> None:
        """One more reference; the block becomes resident if it is not."""
        if name in self.unused:
            self.unused.remove(name)
        self.references[name] = self.references.get(name, 0) + 1

    def give_back(self, name: int) -> None:
        self.references[name] -= 1
        if self.references[name] == 0:
            self.unused.append(name)

    def evict(self) -> None:
        del self.references[self.unused.pop(0)]


@dataclass
class MixedDevice(Device):
    """One replica whose iterations hold decoding requests and chunks of prompts.

    ``batch`` is in order of admission, the decoding ones before the prefilling ones.
    """

    timing: MixedTimes
    chunk_tokens: int | None = None  # C; None: whole prompts
    emits_token: bool = False  # the end of a prefill emits a token
    cache: PrefixCache | None = None

    # --- KV blocks ---------------------------------------------------------------------------

    @property
    def per_cached(self) -> int:
        """KV blocks of a cached block."""
        return 0 if self.cache is None else self.cache.block // self.block

    def wanted(self, request: Request) -> int:
        """KV blocks that the request occupies in the coming iteration, shared ones included."""
        tokens = request.target if request.prefilling else request.held + 1
        return self.blocks(tokens)

    def private(self, request: Request) -> int:
        return request.allocated - self.per_cached * len(request.blocks)

    def used(self) -> int:
        """KV blocks that somebody needs: each shared one counts once."""
        shared = 0 if self.cache is None else self.per_cached * self.cache.used
        return shared + sum(self.private(r) for r in self.batch)

    def unused(self) -> int:
        """KV blocks that hold cached prefixes which nobody references."""
        return 0 if self.cache is None else self.per_cached * len(self.cache.unused)

    def make_room(self) -> None:
        while self.used() + self.unused() > self.total_blocks:
            assert self.cache is not None
            self.cache.evict()

    def kv_used(self) -> int:
        """As many tokens as the blocks in use hold, where there is a cache."""
        return super().kv_used() if self.cache is None else self.used() * self.block

    # --- what a router sees ------------------------------------------------------------------

    def match(self, request: Request, tokens: int) -> list[int]:
        """Cached blocks that a prefill of so many tokens starts from: one is always computed."""
        if self.cache is None:
            return []
        return self.cache.match(request.chain, (tokens - 1) // self.cache.block)

    def hit(self, request: Request) -> int:
        """Prompt tokens that the device would not have to compute now."""
        found = self.match(request, request.prompt)
        return 0 if self.cache is None else self.cache.block * len(found)

    def receive(self, request: Request, now: int) -> None:
        request.expected_hit = self.hit(request)
        super().receive(request, now)

    def prefill_left(self) -> int:
        batch = sum(r.target - r.progress for r in self.batch if r.prefilling)
        return batch + sum(r.held - r.expected_hit for r in self.fifo)

    # --- an iteration ------------------------------------------------------------------------

    def drop_references(self, request: Request) -> None:
        """From the last block to the first, so that a prefix never goes before what follows it."""
        while request.blocks:
            assert self.cache is not None
            self.cache.give_back(request.blocks.pop())

    def preempt(self) -> None:
        """(1) The batch grows; while that breaks M, the last admitted goes back to the FIFO."""
        for request in self.batch:
            request.allocated = self.wanted(request)
        while self.used() > self.total_blocks and len(self.batch) > 1:
            victim = self.batch.pop()
            victim.lost = victim.kv_now
            self.drop_references(victim)
            victim.prefilling = False
            victim.progress = victim.target = victim.allocated = 0
            victim.status = DISPATCHED
            victim.preemptions += 1
            self.fifo.insert(0, victim)
        self.make_room()

    def fits(self, request: Request) -> bool:
        """(4) Blocks that others reference already are there; unreferenced ones are not free."""
        found = self.match(request, request.held)
        shared = 0 if self.cache is None else sum(self.cache.references[n] > 0 for n in found)
        new = self.blocks(request.held) - self.per_cached * shared
        reserved = self.reserved_blocks if self.batch else 0
        return self.used() + new <= self.total_blocks - reserved

    def join(self, request: Request) -> None:
        request.status = ACTIVE
        request.prefilling = True
        request.target = request.held
        request.allocated = self.blocks(request.target)
        request.blocks = self.match(request, request.target)
        for name in request.blocks:
            assert self.cache is not None
            self.cache.take(name)
        request.progress = 0 if self.cache is None else self.cache.block * len(request.blocks)
        if request.started_at is None:
            request.cached = request.progress
        else:
            request.recomputed += max(0, request.lost - request.progress)
        self.batch.append(request)
        self.make_room()

    def start(self, now: int) -> list[Request]:
        """Preempt, hand out the token budget, admit; the requests that start for the first time."""
        assert self.ends_at is None
        self.preempt()
        decoding = [r for r in self.batch if not r.prefilling]
        # (2) and (3): who prefills goes on before anybody joins.
        budget = float("inf")
        if self.chunk_tokens is not None:
            budget = max(0, self.chunk_tokens - len(decoding))

        def give(request: Request) -> None:
            nonlocal budget
            request.chunk = int(min(request.target - request.progress, budget))
            budget -= request.chunk

        for request in self.batch:
            if request.prefilling:
                give(request)
        for request in list(self.fifo):
            if len(self.batch) >= self.batch_limit or budget == 0:
                break
            if self.fits(request):
                self.fifo.remove(request)
                self.join(request)
                give(request)
            elif not self.skip:
                break
        if not self.batch:
            return []
        # (5) everything that happens in the iteration is known by now
        prefilling = [r for r in self.batch if r.prefilling]
        chunks = [(r.chunk, r.progress) for r in prefilling if r.chunk > 0]
        kv = sum(r.held + 1 for r in decoding)
        self.ends_at = now + self.timing.duration_ns(len(decoding), kv, chunks)
        completed = sum(r.progress + r.chunk == r.target for r in prefilling)
        tokens = len(decoding) + (completed if self.emits_token else 0)
        kv += sum(r.progress + r.chunk for r in prefilling)
        prefill = sum(new for new, _ in chunks)
        self.iterations.append(Iteration(now, self.ends_at, len(self.batch), kv, prefill, tokens))
        first = [r for r in self.batch if r.started_at is None]
        for request in first:
            request.started_at = now
        return first

    def retire(self) -> tuple[int, list[Request]]:
        """(6) End the running iteration, request by request in order of admission."""
        assert self.ends_at is not None
        now = self.ends_at
        self.ends_at = None
        self.last_duration = self.iterations[-1].end - self.iterations[-1].start
        tokens = 0
        done = []
        for request in list(self.batch):
            if request.prefilling:
                self.advance(request)
                emits = not request.prefilling and self.emits_token
            else:
                emits = True
            if not emits:
                continue
            tokens += 1
            request.emitted += 1
            if request.first_token_at is None:
                request.first_token_at = now
            if request.emitted == request.decode:
                request.finished_at = now
                request.status = COMPLETED
                self.leave(request)
                done.append(request)
        return tokens, done

    def advance(self, request: Request) -> None:
        """A chunk is in KV: whole prompt blocks become resident, or one's own copy is dropped."""
        request.progress += request.chunk
        request.chunk = 0
        if self.cache is not None:
            whole = min(request.progress, request.prompt) // self.cache.block
            for name in request.chain[len(request.blocks) : whole]:
                self.cache.take(name)
                request.blocks.append(name)
        request.prefilling = request.progress < request.target

    def leave(self, request: Request) -> None:
        """The answer's whole blocks stay as well, in the room that the request leaves."""
        self.batch.remove(request)
        if self.cache is not None:
            whole = (request.prompt + request.decode) // self.cache.block
            for name in request.chain[len(request.blocks) : whole]:
                there = name in self.cache.references
                # The request's private blocks are given up as its cached ones appear.
                taken = self.used() + self.unused() + (0 if there else self.per_cached)
                if taken > self.total_blocks:
                    break
                self.cache.take(name)
                request.blocks.append(name)
        self.drop_references(request)
        request.allocated = 0
