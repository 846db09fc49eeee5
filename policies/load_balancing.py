"""Load balancers: every visible request goes to some device's FIFO in the period it is seen.

They are what serving stacks ship: no queue at the router, one score per device, the smallest wins.
All share one rule of book-keeping: a request just sent counts at once in the score of its device,
so that a burst within one period does not pile up on the device that looked best before it.
Ties go round: of equal scores wins the first device at or after the one that follows the last
choice, from a seeded place in a fresh episode. Devices that are down (UP = 0) are never used; with
none up all is held.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from policies.base import Build, Kernels, Policy, PolicyParameters
from policies.dispatch import (
    DispatchMemory,
    DispatchParams,
    DispatchScratch,
    Rule,
    decide,
    decide_lanes,
    run,
)


class LoadBalancer(Policy):
    """Common part of the load balancers: a score per device, the smallest wins, ties go round."""

    kernels: ClassVar[Kernels] = Kernels(decide, decide_lanes, run)

    def rule(self) -> tuple[Rule, int]:
        """Return the rule, and how many devices it compares for each request (0: all)."""
        raise NotImplementedError

    def build(self) -> Build:
        """Return params, the memory of one fresh lane, and scratch."""
        devices = self.spec.devices
        rule, sample = self.rule()
        largest = self.spec.largest
        reads_length = self.information != "none"
        return Build(
            DispatchParams(int(rule), sample, largest, bool(np.ptp(largest) > 0), reads_length),
            DispatchMemory(np.zeros(1, np.uint64), np.zeros(1, np.int64)),
            DispatchScratch(
                np.zeros(devices),
                np.zeros(devices),
                np.zeros(devices, np.int64),
                np.zeros(devices, np.int64),
            ),
        )

    def diagnostics(self) -> dict[str, Any]:
        """Return the device at which the next search starts."""
        return {"pointer": int(self.memory.pointer[0])}


class Random(LoadBalancer):
    """Each request to a device drawn uniformly. Information: none."""

    name = "random"

    def rule(self) -> tuple[Rule, int]:
        """Draw."""
        return Rule.RANDOM, 0


class RoundRobin(LoadBalancer):
    """Requests to the devices in turn, the next one that is up. Information: none."""

    name = "round_robin"

    def rule(self) -> tuple[Rule, int]:
        """All scores equal, so the turn alone decides."""
        return Rule.ROUND_ROBIN, 0


class LeastOutstandingRequests(LoadBalancer):
    """LOR, least outstanding requests, also known as join-shortest-queue. Information: none.

    score = active + FIFO + just sent. Unlike Vidur's scheduler of this name, and the one released
    with arXiv 2607.03948, it counts the running requests as well as the queued ones.
    """

    name = "lor"

    def rule(self) -> tuple[Rule, int]:
        """Outstanding requests of every device."""
        return Rule.OUTSTANDING, 0


class PowerOfD(LoadBalancer):
    """Least outstanding requests among ``d`` distinct devices drawn at random. Information: none.

    Source: Mitzenmacher, "The power of two choices in randomized load balancing", IEEE TPDS 2001.
    """

    name = "power_of_d"

    class Parameters(PolicyParameters):
        """``d``: devices drawn for each request; with d >= G it is LOR."""

        d: int = Field(2, ge=1)

    parameters: Parameters

    def rule(self) -> tuple[Rule, int]:
        """Outstanding requests of d devices."""
        return Rule.OUTSTANDING, self.parameters.d


class VllmDataParallel(LoadBalancer):
    """The score of vLLM's internal data-parallel load balancer. Information: none.

    ``variant=queue``: score = 4 * waiting + running.
    ``variant=kv``: score = waiting + running + 6 * waiting * max(0, kv - 0.5), where kv is the
    share of the KV limit in use: a queue costs more on a device that is short of KV.
    Waiting counts the FIFO and what was just sent.

    Source: vllm-project/vllm, ``vllm/v1/engine/core_client.py`` (``get_core_engine_for_request``);
    ``kv`` since pull request 49204, rotating ties since 47420. Its statistics are up to 100 ms old,
    ours are those of the period's start.
    """

    name = "vllm_dp"

    class Parameters(PolicyParameters):
        """``variant``: the earlier score (queue) or the one that weighs KV usage (kv)."""

        variant: Literal["queue", "kv"] = "queue"

    parameters: Parameters

    def rule(self) -> tuple[Rule, int]:
        """One of the two scores, over every device."""
        return (Rule.VLLM_KV if self.parameters.variant == "kv" else Rule.VLLM), 0


class LeastPredictedWork(LoadBalancer):
    """Least predicted remaining work (join-shortest-predicted-work). Information: predicted.

    ``measure=tokens``: score = predicted remaining decode tokens of batch, FIFO and just sent.
    ``measure=kv_token_steps``: score = their KV tokens summed over their remaining iterations; a
    request with kv tokens and r to go adds r * kv + r * (r + 1) / 2. The telemetry of a FIFO is a
    total, so its requests count as equal ones (of the mean size and length).

    Source: the size-based dispatching rule of queueing theory (Harchol-Balter, "Performance
    Modeling and Design of Computer Systems", 2013, ch. 24) on predicted sizes.
    """

    name = "least_predicted_work"
    information = "predicted"

    class Parameters(PolicyParameters):
        """``measure``: unit of work, decode tokens or KV tokens times iterations."""

        measure: Literal["tokens", "kv_token_steps"] = "tokens"

    parameters: Parameters

    def rule(self) -> tuple[Rule, int]:
        """Predicted work of every device."""
        return (Rule.TOKENS if self.parameters.measure == "tokens" else Rule.KV_TOKEN_STEPS), 0
