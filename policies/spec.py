"""What a policy may know of the system before it has seen an observation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

#: context limit of a device that has none [tokens]; small enough to add to without overflow
NO_LIMIT = 2**31 - 1


@dataclass(frozen=True)
class RouterSpec:
    """Static facts of one router: sizes of its observations, its clock and its objective.

    Attributes:
        window: W, rows of the visible queue [requests].
        devices: G, number of devices.
        slots: largest batch limit, B_max [requests]; the second axis of ``active``.
        period_s: decision interval [s].
        context_limit: (G,) most tokens s + o that a device's model takes; ``NO_LIMIT`` if none.
        kv_limit: (G,) M [tokens].
        pool: (G,) name of the group of devices that each belongs to.
        prefill: whether devices prefill what they decode (mixed mode).
        emits_token: with ``prefill``, whether the iteration that ends a prefill emits a token.
        prefix_block: tokens in a block of the prefix caches, 0 where there are none.
        chunk_tokens: tokens of an iteration that prefills, 0 where there is no budget.
        objective: weights and limits of the reward (``alpha`` ... ``tail_ttft_s``).
        horizon_periods: T, length of an episode [periods].
        scenario: name of the scenario.
    """

    window: int
    devices: int
    slots: int
    period_s: float
    context_limit: tuple[int, ...]
    objective: Any
    horizon_periods: int
    scenario: str
    kv_limit: tuple[int, ...] = ()
    pool: tuple[str, ...] = ()
    prefill: bool = False
    emits_token: bool = False
    prefix_block: int = 0
    chunk_tokens: int = 0

    @property
    def largest(self) -> np.ndarray:
        """(G,) float64, largest s + o that a device can ever hold [tokens]."""
        limits = self.kv_limit or (NO_LIMIT,) * self.devices
        return np.minimum(limits, self.context_limit).astype(np.float64)

    @classmethod
    def from_env(cls, env: Any) -> RouterSpec:
        """Read the facts from an environment: single or vector, wrapped or not.

        Raises:
            ValueError: if ``env`` is no LLMRoute environment.
        """
        if isinstance(env, cls):
            return env
        scenario = _attribute(env, "scenario")
        cluster = _attribute(env, "spec_cluster")
        limits = tuple(
            NO_LIMIT if limit is None or not 0 < limit < NO_LIMIT else int(limit)
            for limit in cluster.context_limit
        )
        return cls(
            window=int(scenario.router.window),
            devices=len(cluster.batch_limit),
            slots=int(max(cluster.batch_limit)),
            period_s=float(scenario.period_s),
            context_limit=limits,
            objective=scenario.objective,
            horizon_periods=int(scenario.horizon_periods),
            scenario=str(scenario.name),
            kv_limit=tuple(int(limit) for limit in cluster.kv_limit),
            pool=tuple(cluster.pool),
            prefill=bool(cluster.prefill),
            emits_token=bool(cluster.emits_token),
            prefix_block=int(cluster.prefix_block),
            chunk_tokens=int(cluster.chunk_tokens),
        )


def _attribute(env: Any, name: str) -> Any:
    """Find ``name`` on the innermost environment; of many environments, the first one's."""
    for holder in (getattr(env, "unwrapped", env), env):
        if hasattr(holder, name):
            return getattr(holder, name)
        for method in ("get_attr", "call"):  # vector environments of SB3 and of gymnasium
            if hasattr(holder, method):
                try:
                    return getattr(holder, method)(name)[0]
                except (AttributeError, IndexError, TypeError):
                    continue
    kind = type(getattr(env, "unwrapped", env)).__name__
    raise ValueError(
        f"{kind} is not an LLMRoute environment: it has no `{name}`; "
        'make one with gymnasium.make("llmroute_env:LLMRoute-v0", scenario=...)'
    )
