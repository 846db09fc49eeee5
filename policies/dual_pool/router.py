"""Dual-pool token-budget routing: each request to the smallest pool that can hold its budget."""

from __future__ import annotations

from typing import Any, ClassVar, Final

import numpy as np
from pydantic import Field

from llmroute_env.workload.table import Category
from policies.base import Build, Kernels, Policy, PolicyParameters
from policies.dual_pool.decision import (
    Count,
    DualPoolMemory,
    DualPoolParams,
    DualPoolScratch,
    decide,
    decide_lanes,
    run,
)
from policies.dual_pool.estimator import CATEGORIES, COLD_START

#: reports that may be under way; those beyond are lost (and counted), which thins out a sample
_REPORTS: Final = 1024


class DualPool(Policy):
    """Token-budget routing over pools of devices, arXiv 2604.08075. Information: predicted.

    *Budget* of a request of category k: ``L = ceil(bytes / c) + ceil(output_factor * ô)`` tokens,
    with ``c = c_k - gamma * sigma_k`` on the safe side: a request that is too long for its device
    is rejected there, one in too large a pool only wastes room. The published rule adds the
    client's ``max_output_tokens``; requests have none here, so the predicted decode length times a
    factor stands for it, and the information class is that of the prediction. The factor's default
    makes the budget an upper bound for predictions that are off by up to 20%.

    *Estimator*: when an engine reports the prompt tokens, ``c_obs = bytes / tokens``,
    ``c_k <- beta * c_k + (1 - beta) * c_obs``, and sigma_k likewise averages ``|c_obs - c_k|``; at
    first c_k is 4 and sigma_k 0. The prompt tokens that the observation shows are used for these
    reports alone, ``feedback_s`` after a request was sent (observations show no completions), and
    not to route; only where a workload has no bytes do they stand in for the estimate.

    *Pool*: the smallest one with ``L <= `` its largest ``s + o``, for the smallest pool at most
    ``threshold``. When every device there has ``overload`` waiting requests per batch slot, or is
    down, the request spills to another pool that can hold L and is not overloaded. What no pool can
    hold by its budget goes to the largest: the cluster, which knows the true length, rejects what
    does not fit. A pool that refuses a request for its prompt says how long it is, and the request
    goes to a pool that can hold that in the next period.

    *Device*: the one with the fewest outstanding requests of the pool; ties rotate. Any fleet will
    do: with one pool this is LOR, with more than two the same rules hold.

    beta, gamma and the overload trigger are not published; the defaults here are ours. Each
    decision looks at every device once per request (published: O(1), with the pools' loads kept
    elsewhere).
    """

    name = "dual_pool"
    information = "predicted"
    kernels: ClassVar[Kernels] = Kernels(decide, decide_lanes, run)
    extra = ("text",)

    class Parameters(PolicyParameters):
        """Parameters.

        ``beta``: weight of the past in the estimator's averages; ``gamma``: safety margin in
        deviations; ``threshold``: largest budget of the smallest pool [tokens], none: what it can
        hold; ``output_factor``: output budget over ô; ``overload``: waiting requests per batch slot
        from which a device is overloaded; ``feedback_s``: from sending to the report [s].
        """

        beta: float = Field(0.95, ge=0, lt=1)
        gamma: float = Field(2.0, ge=0)
        threshold: int | None = Field(None, ge=2)
        output_factor: float = Field(1.25, ge=0)
        overload: float = Field(0.25, gt=0)
        feedback_s: float = Field(5.0, ge=0)

    parameters: Parameters

    def build(self) -> Build:
        """Return params, the memory of one fresh lane, and scratch.

        Raises:
            ValueError: a threshold above what the smallest pool can hold.
        """
        own, spec = self.parameters, self.spec
        self.pools, number, reach = self._pools()
        threshold = reach.copy()
        if own.threshold is not None and len(reach) > 1:
            if own.threshold > reach[0]:
                raise ValueError(
                    f"policy dual_pool: threshold = {own.threshold}: must be at most "
                    f"{reach[0]:.0f}, the largest s + o in pool {self.pools[0]}"
                )
            threshold[0] = own.threshold
        window, pools = spec.window, len(reach)
        memory = DualPoolMemory(
            np.full(CATEGORIES, COLD_START),
            np.zeros(CATEGORIES),
            np.zeros(pools, np.int64),
            np.zeros(_REPORTS),
            np.zeros((_REPORTS, 3)),
            np.zeros(2, np.int64),
            np.full(window + 1, -1, np.int64),
            np.zeros(len(Count), np.int64),
        )
        params = DualPoolParams(
            own.beta,
            own.gamma,
            own.output_factor,
            own.overload,
            own.feedback_s,
            number,
            reach,
            threshold,
        )
        scratch = DualPoolScratch(
            np.zeros(spec.devices), np.zeros(pools, np.int64), np.zeros(window + 1, np.int64)
        )
        return Build(params, memory, scratch)

    def _pools(self) -> tuple[tuple[str, ...], np.ndarray, np.ndarray]:
        """Names of the pools by reach, (G,) pool of each device, (P,) largest s + o by pool."""
        spec = self.spec
        pool = spec.pool or ("default",) * spec.devices
        limits = zip(spec.kv_limit or spec.context_limit, spec.context_limit, strict=True)
        reach: dict[str, float] = {}
        for name, limit in zip(pool, limits, strict=True):
            reach[name] = min(*limit, reach.get(name, np.inf))
        names = tuple(sorted(reach, key=lambda name: reach[name]))
        number = np.array([names.index(name) for name in pool], np.int64)
        return names, number, np.array([reach[name] for name in names], np.float64)

    def start_lane(self, memory: DualPoolMemory, seed: int) -> None:
        """Begin the rotation of every pool at a seeded device."""
        memory.turn[:] = seed % self.spec.devices

    def diagnostics(self) -> dict[str, Any]:
        """Return the estimator's ratios and deviations by category, and the counters."""
        memory = self.memory
        names = [category.name.lower() for category in Category]
        return {
            "bytes_per_token": dict(zip(names, memory.ratio.tolist(), strict=True)),
            "deviation": dict(zip(names, memory.deviation.tolist(), strict=True)),
            "counts": {count.name.lower(): int(memory.counts[count]) for count in Count},
        }
