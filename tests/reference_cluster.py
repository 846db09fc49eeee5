"""A plain-Python reference of the decode cluster and of the router's environment.

Slow and obvious on purpose: one object per request, one per device, lists, no numpy in the rules.
It was written from the rules alone, so that the compiled kernel can be compared with something
that does not share its mistakes. The clock counts integer nanoseconds.

Words: T horizon [periods], W visible rows of the queue; numbers in brackets are the order of events
at a boundary. ``reference_device`` has what a device does that only decodes, ``reference_mixed``
one that prefills too, ``reference_view`` what a router sees. Devices may differ from one another.
"""

from __future__ import annotations

from dataclasses import dataclass

from reference_device import (
    ACTIVE,
    COMPLETED,
    DISPATCHED,
    NOT_ARRIVED,
    QUEUED,
    REJECTED,
    Device,
    Request,
    to_ns,
)

COMPONENTS = ("alpha", "beta", "gamma", "sigma", "zeta1", "zeta2")


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
        texts: bool = False,
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
        self.texts = texts  # the workload has them, so the router sees them
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
            while True:
                end, wake = device.ends_at, device.wakes_at()
                if end is not None and end <= boundary:
                    tokens, done = device.retire()
                    self.on_iteration_end(tokens, done, end)
                    if end == boundary:
                        break  # the router acts first
                    self.start(device, end)
                elif wake is not None and wake < boundary:
                    self.start(device, wake)
                else:
                    break

    def arrive(self, boundary: int) -> None:
        """(2) Arrivals up to the boundary join the queue, or are rejected; none after T."""
        boundary = min(boundary, self.horizon * self.period)
        while self.waiting_for_arrival and self.waiting_for_arrival[0].ready_ns <= boundary:
            request = self.waiting_for_arrival.pop(0)
            reasons = [device.why_never(request) for device in self.devices]
            if all(reasons):
                request.status = REJECTED
                request.reason = max(reasons)  # KV only where nobody has the memory
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
            if not self.devices[choice - 1].legal(self.visible[row]):
                invalid += 1
                continue
            sent.append((self.visible[row], choice - 1))
        for request, g in sent:
            self.queue.remove(request)
            request.device = g
            request.dispatched_at = self.now
            reason = self.devices[g].why_never(request)
            if reason:  # mis-routed: another device could have held it
                request.status = REJECTED
                request.reason = reason
                self.miss(request)
            else:
                request.status = DISPATCHED
                self.devices[g].receive(request, self.now)
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

    def imbalance(self) -> float:
        """(max − mean) / mean of the KV that the devices hold; 0 when all are empty."""
        loads = [sum(r.kv_now for r in d.batch) for d in self.devices]
        mean = sum(loads) / len(loads)
        return (max(loads) - mean) / mean if mean else 0.0
