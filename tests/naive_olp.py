"""OLP as the paper writes it, in plain Python: sums over slots, sorted candidates, no tricks.

It shares no code with ``policies.olp`` but the random numbers, takes the same observations, and
makes the same decisions. It is the yardstick of the fast one, for its results and for its speed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from llmroute_env.spaces import Active, Clock, Device, Queue
from policies.rng import below
from policies.spec import RouterSpec

Prices = list[list[float]]


@dataclass
class Column:
    """One action of the history."""

    start: int
    length: int
    prompt: int
    device: int
    reward: float


def column_cost(
    bat: list[float], mem: list[float], first: int, last: int, lead: float, mem_scale: float
) -> float:
    """The paper's a.p: a sum over the slots of the stay."""
    return sum(bat[h] + mem_scale * (lead + h) * mem[h] for h in range(first, last))


def window(column: Column, now: int, lookahead: int) -> tuple[int, int, int]:
    """First and last slot of a column seen from now, and its KV at slot 0."""
    start = column.start - now
    return max(start, 0), min(start + column.length, lookahead), column.prompt + 1 - start


@dataclass
class NaiveOlp:
    """OLP with ``pricing="paper"`` or ``"none"`` and a rolling horizon, without drift detection."""

    spec: RouterSpec
    rng: np.ndarray
    pointer: int
    lookahead: int = 512
    steps: int = 5
    batch: int = 64
    step_size: float = 0.1
    history: int = 1024
    priced: bool = True
    #: (G,) rows of the batch that prefill: (prompt, predicted tokens left), where devices do
    prefilling: list[list[tuple[int, float]]] | None = None
    work_conserving: bool = True
    columns: list[Column] = field(default_factory=list)
    write: int = 0
    last_id: int = -1
    hidden: int = 0
    arrivals: int = 0
    periods: int = 0

    def __post_init__(self) -> None:
        self.bat: Prices = [[0.0] * self.lookahead for _ in range(self.spec.devices)]
        self.mem: Prices = [[0.0] * self.lookahead for _ in range(self.spec.devices)]

    # -- forecast ---------------------------------------------------------------------------

    def read(self, observation: dict[str, np.ndarray]) -> None:
        """Occupancy of every device at every slot, (G, H), and the limits."""
        devices, active = observation["devices"], observation["active"]
        self.count: list[list[int]] = []
        self.kv: list[list[int]] = []
        self.slots: list[int] = []
        self.limit: list[int] = []
        self.used: list[int] = []
        self.physical: list[int] = []
        self.budget: list[float] = []
        self.largest = max(
            min(int(row[Device.KV_LIMIT]), c)
            for row, c in zip(devices, self.spec.context_limit, strict=True)
        )
        for g, row in enumerate(devices):
            up = row[Device.UP] > 0
            n, fifo = int(row[Device.ACTIVE]), int(row[Device.FIFO_LENGTH])
            rest = self.prefilling[g] if self.prefilling else []
            lead = 1 - self.prefill_slots  # beyond the prompt, at slot 0
            stays = [
                (max(math.floor(float(left) + 0.5), 1), 1, int(kv) + 1)
                for kv, left in active[g, : n - len(rest), [Active.KV, Active.REMAINING]].T
            ]
            stays += [
                (max(math.floor(left + 0.5), 1) + self.prefill_slots, 1, prompt + lead)
                for prompt, left in rest
            ]
            if fifo:
                mean = float(row[Device.FIFO_PREDICTED]) / fifo
                stay = max(math.floor(mean + 0.5), 1) + self.prefill_slots
                stays.append((stay, fifo, int(row[Device.FIFO_TOKENS]) + lead * fifo))
            self.count.append([0] * self.lookahead)
            self.kv.append([0] * self.lookahead)
            for stay, requests, tokens in stays:
                for h in range(min(stay, self.lookahead)):
                    self.count[g][h] += requests
                    self.kv[g][h] += tokens + requests * h
            self.slots.append(int(row[Device.BATCH_LIMIT]) if up else 0)
            self.limit.append(int(row[Device.KV_LIMIT]) if up else 0)
            self.used.append(n + fifo)
            running = n if row[Device.TIME_TO_END] > 0 else 0
            self.physical.append(sum(tokens for _, _, tokens in stays) + running)
            self.budget.append(math.inf)
            if self.spec.chunk_tokens:
                each = max(self.spec.chunk_tokens - n, 0)
                busy = max(int(row[Device.PREFILL]) - each * (row[Device.TIME_TO_END] > 0), 0)
                self.budget[g] = each - busy

    # -- prices -----------------------------------------------------------------------------

    def learn(self, now: int, mem_scale: float) -> None:
        """K projected subgradient steps on mini-batches of the history."""
        for prices in self.bat + self.mem:
            if self.periods > 1:
                prices.append(0.0)
                del prices[0]
        if not self.columns:
            return
        H = self.lookahead
        expected = max(self.arrivals / self.periods * H, 1.0)
        reward = sum(c.reward for c in self.columns)
        norm_bat = sum(min(c.length, H) for c in self.columns)
        norm_mem = sum(
            (c.prompt + 1 + age) ** 2 for c in self.columns for age in range(min(c.length, H))
        )
        step_bat = self.step_size * reward / norm_bat
        step_mem = self.step_size * reward / (norm_mem * mem_scale * mem_scale)
        newest_first = [self.columns[self.write - 1 - age] for age in range(len(self.columns))]
        samples = [
            newest_first
            if len(newest_first) <= self.batch
            else [newest_first[below(self.rng, len(newest_first))] for _ in range(self.batch)]
            for _ in range(self.steps)
        ]
        for sample in samples:
            g_bat = [
                [max(self.slots[g] - n, 0) / expected for n in self.count[g]]
                for g in range(self.spec.devices)
            ]
            g_mem = [
                [mem_scale * max(self.limit[g] - kv, 0) / expected for kv in self.kv[g]]
                for g in range(self.spec.devices)
            ]
            for column in sample:
                g = column.device
                first, last, lead = window(column, now, H)
                cost = column_cost(self.bat[g], self.mem[g], first, last, lead, mem_scale)
                if column.reward > cost:
                    for h in range(first, last):
                        g_bat[g][h] -= 1.0 / len(sample)
                        g_mem[g][h] -= mem_scale * (lead + h) / len(sample)
            for g in range(self.spec.devices):
                for h in range(H):
                    self.bat[g][h] = max(self.bat[g][h] - step_bat * g_bat[g][h], 0.0)
                    self.mem[g][h] = max(self.mem[g][h] - step_mem * g_mem[g][h], 0.0)

    # -- decision ---------------------------------------------------------------------------

    @property
    def prefill_slots(self) -> int:
        """Slots that a request stays before it decodes: the paper's prefill step."""
        return int(self.spec.prefill and not self.spec.emits_token)

    def plan(self, row: np.ndarray, g: int) -> int:
        """Planned length on device g, 0 if it can never fit."""
        room = min(self.limit[g], self.spec.context_limit[g]) - int(row[Queue.PROMPT])
        wanted = max(math.floor(float(row[Queue.PREDICTED]) + 0.5), 1)
        if room < 1 or (wanted > room and room + int(row[Queue.PROMPT]) < self.largest):
            return 0
        return min(wanted, room)

    def kv_at(self, row: np.ndarray, age: int) -> int:
        """KV tokens of a request, as the paper's section 3.1 or its appendix A has them."""
        return int(row[Queue.PROMPT]) + age + (0 if self.prefill_slots else 1)

    def reward(self, row: np.ndarray, length: int) -> float:
        """Normalized decision reward, lock-step, of ``length`` tokens."""
        o = self.spec.objective
        tokens, length = length, length + self.prefill_slots
        R = max(min(m, c) for m, c in zip(self.limit, self.spec.context_limit, strict=True)) - 1
        waited = float(row[Queue.WAITED])
        value = o.alpha * min(tokens, R) + o.beta * max(R - length, 0) + o.gamma * R + o.sigma
        value += o.zeta1 * (waited + length * self.spec.period_s < o.tail_eel_s)
        value += o.zeta2 * (waited < o.tail_ttft_s)
        most = max(o.alpha, o.beta) * R + o.gamma * R + o.sigma + o.zeta1 + o.zeta2
        return min(value / (most or 1.0), 1.0)

    def margin(self, row: np.ndarray, g: int, mem_scale: float) -> float:
        """Reward less price."""
        length, lead = self.plan(row, g), self.kv_at(row, 0)
        last = min(length + self.prefill_slots, self.lookahead)
        cost = column_cost(self.bat[g], self.mem[g], 0, last, lead, mem_scale)
        return self.reward(row, length) - cost

    def fits(self, row: np.ndarray, g: int) -> bool:
        """A slot now, KV at the joining boundary and at every slot of the stay."""
        length = self.plan(row, g)
        return (
            length > 0
            and self.budget[g] > 0
            and self.used[g] < self.slots[g]
            and self.physical[g] + self.kv_at(row, 0) <= self.limit[g]
            and all(
                self.kv[g][h] + self.kv_at(row, h) <= self.limit[g]
                for h in range(min(length + self.prefill_slots, self.lookahead))
            )
        )

    def occupy(self, row: np.ndarray, g: int) -> None:
        """Book an admission."""
        self.used[g] += 1
        self.physical[g] += self.kv_at(row, 0)
        self.budget[g] -= self.kv_at(row, 0)
        for h in range(min(self.plan(row, g) + self.prefill_slots, self.lookahead)):
            self.kv[g][h] += self.kv_at(row, h)

    def decide(self, observation: dict[str, np.ndarray]) -> np.ndarray:
        """Return the action (W,) of one period; call once per period, in order."""
        queue, ids, clock = (observation[key] for key in ("queue", "queue_id", "clock"))
        G = self.spec.devices
        waiting = int((ids >= 0).sum())
        now = int(clock[Clock.PERIOD])
        fresh = [j for j in range(waiting) if ids[j] > self.last_id]
        self.last_id = max(self.last_id, *(int(ids[j]) for j in fresh), -1)
        self.arrivals += len(fresh) + int(clock[Clock.HIDDEN]) - self.hidden
        self.hidden = int(clock[Clock.HIDDEN])
        self.periods += 1
        self.read(observation)
        mem_scale = 1.0 / float(observation["devices"][:, Device.KV_LIMIT].max())
        if self.priced:
            self.learn(now, mem_scale)
        margins = {
            (j, g): self.margin(queue[j], g, mem_scale)
            for j in range(waiting)
            for g in range(G)
            if self.plan(queue[j], g)
        }
        action = np.zeros(len(ids), np.int64)
        held = set(range(waiting))
        while True:
            best = None
            for (j, g), value in margins.items():
                if j not in held or not (self.work_conserving or value > 0.0):
                    continue
                if not self.fits(queue[j], g):
                    continue
                rank = (-value, j, self.used[g] / self.slots[g], (g - self.pointer) % G)
                if best is None or rank < best[0]:
                    best = (rank, j, g)
            if best is None:
                break
            _, j, g = best
            action[j] = g + 1
            held.remove(j)
            self.pointer = (g + 1) % G
            self.occupy(queue[j], g)
        if self.priced:
            for j in fresh:
                self.remember(queue[j], {g: v for (i, g), v in margins.items() if i == j}, now)
        return action

    def remember(self, row: np.ndarray, margins: dict[int, float], now: int) -> None:
        """Enter the best action of a first-seen request into the ring."""
        if not margins:
            return
        G = self.spec.devices
        g = max(margins, key=lambda g: (margins[g], -((g - self.pointer) % G)))
        self.pointer = (g + 1) % G
        length = self.plan(row, g)
        prompt = self.kv_at(row, 0) - 1
        column = Column(now, length + self.prefill_slots, prompt, g, self.reward(row, length))
        if len(self.columns) < self.history:
            self.columns.append(column)
        else:
            self.columns[self.write] = column
        self.write = (self.write + 1) % self.history
