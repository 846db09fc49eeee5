"""What a frame shows, taken from one observation and the episode's totals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

from llmroute_env.spaces import Active, Clock, Queue

RECENT = 120  #: latencies that a frame has room for

Floats = NDArray[np.float32]


def _none() -> Floats:
    return np.empty(0, np.float32)


@dataclass(frozen=True)
class FrameView:
    """One moment of an episode, as a renderer needs it.

    A frame shows what a router sees, not what the simulator knows: lengths are predictions.

    Attributes:
        title: name of the scenario.
        now_s: time since the episode started [s].
        period: index of this period.
        periods_left: periods until the horizon.
        hidden: waiting requests beyond the window.
        queue: (n, len(Queue)) the visible waiting requests, oldest first.
        devices: (G, len(Device)) the observation's device rows.
        remaining: (G, B_max) predicted remaining tokens per batch slot, 0 where empty.
        reward: reward of the episode so far.
        completed: requests completed so far.
        rejected: requests rejected so far.
        eel_s: (n,) arrival to last token of the latest completions, oldest first [s].
        ttft_s: (n,) arrival to first token of the same completions [s].
        eel_limit_s: the objective's limit of end-to-end latency [s], None without one.
        ttft_limit_s: the objective's limit of the start delay [s], None without one.
    """

    title: str
    now_s: float
    period: int
    periods_left: int
    hidden: int
    queue: Floats
    devices: Floats
    remaining: Floats
    reward: float = 0.0
    completed: int = 0
    rejected: int = 0
    eel_s: Floats = field(default_factory=_none)
    ttft_s: Floats = field(default_factory=_none)
    eel_limit_s: float | None = None
    ttft_limit_s: float | None = None

    @classmethod
    def from_observation(
        cls,
        observation: Mapping[str, NDArray[np.generic]],
        *,
        title: str = "",
        reward: float = 0.0,
        completed: int = 0,
        rejected: int = 0,
        eel_s: ArrayLike = (),
        ttft_s: ArrayLike = (),
        eel_limit_s: float | None = None,
        ttft_limit_s: float | None = None,
    ) -> FrameView:
        """Build a view from one environment's observation; the latest `RECENT` latencies are kept.

        The arrays are copied, so a view outlives observations that share their buffers
        (``copy=False``).
        """
        clock = np.asarray(observation["clock"], np.float64)
        visible = np.asarray(observation["queue_id"]) >= 0
        active = np.asarray(observation["active"], np.float32)
        return cls(
            title=title,
            now_s=float(clock[Clock.NOW]),
            period=int(clock[Clock.PERIOD]),
            periods_left=int(clock[Clock.LEFT]),
            hidden=int(clock[Clock.HIDDEN]),
            queue=np.asarray(observation["queue"], np.float32)[visible],
            devices=np.array(observation["devices"], np.float32),
            # KV tells an empty slot; a request has at least one predicted token left
            remaining=np.where(active[..., Active.KV] > 0, active[..., Active.REMAINING], 0.0),
            reward=float(reward),
            completed=int(completed),
            rejected=int(rejected),
            eel_s=np.array(eel_s, np.float32)[-RECENT:],
            ttft_s=np.array(ttft_s, np.float32)[-RECENT:],
            eel_limit_s=eel_limit_s,
            ttft_limit_s=ttft_limit_s,
        )

    @property
    def waiting(self) -> int:
        """Waiting requests, visible and hidden."""
        return len(self.queue) + self.hidden

    @property
    def ages_s(self) -> Floats:
        """(n,) time since arrival of the visible waiting requests [s]."""
        return self.queue[:, Queue.WAITED]

    @property
    def age_scale_s(self) -> float:
        """Age drawn as late: the start-delay limit, or the oldest age seen [s]."""
        if self.ttft_limit_s is not None and np.isfinite(self.ttft_limit_s):
            return max(float(self.ttft_limit_s), 1e-9)
        oldest = float(self.ages_s.max()) if len(self.ages_s) else 0.0
        return max(oldest, 1e-9)


def count(value: float) -> str:
    """A count in at most five characters: 950, 12.3k, 4.1M."""
    for factor, suffix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= factor * 0.99995:
            scaled = value / factor
            return f"{scaled:.0f}{suffix}" if abs(scaled) >= 99.95 else f"{scaled:.1f}{suffix}"
    return f"{value:.0f}"


def seconds(value: float) -> str:
    """A duration in at most six characters: 3.2 ms, 1.25 s, 320 s."""
    if value < 0.9995:
        return f"{value * 1e3:.1f} ms" if value < 0.00995 else f"{value * 1e3:.0f} ms"
    if value < 9.995:
        return f"{value:.2f} s"
    return f"{value:.1f} s" if value < 99.95 else f"{value:.0f} s"
