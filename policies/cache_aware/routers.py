"""Routers that weigh a device's cached prefix of a request against its load.

They share the book-keeping of ``policies.load_balancing``: every visible request is sent in the
period it is seen, a request just sent counts at once (``inflight``), ties go round. They see what
is cached exactly (``obs["prefix"]``), where most of the shipped routers keep an estimate of their
own, and telemetry of the period's start; both are in their favour, equally. Without prefix caches
or prefill on the device the same rules run on what there is. A device that is down, or that could
never hold the prompt, is no candidate; with no candidate the request is held.
"""

from __future__ import annotations

from typing import Any, ClassVar, Final

import numpy as np
from pydantic import Field

from policies.base import Build, Kernels, Policy, PolicyParameters
from policies.cache_aware.decision import decide, decide_lanes, run
from policies.cache_aware.scores import Rule
from policies.cache_aware.state import (
    OFF,
    CacheAwareMemory,
    CacheAwareParams,
    CacheAwareScratch,
    Count,
)

#: tokens in a block where the scenario has no prefix cache
_BLOCK: Final = 16


class Inflight(PolicyParameters):
    """``inflight``: whether a request just sent counts at once in the load of its device."""

    inflight: bool = True


class CacheAware(Policy):
    """Common part: a cost per device, the smallest wins, ties go round."""

    information = "none"
    kernels: ClassVar[Kernels] = Kernels(decide, decide_lanes, run)
    extra = ("prefix",)
    rule: ClassVar[Rule]
    Parameters: ClassVar[type[PolicyParameters]] = Inflight

    def constants(self) -> dict[str, Any]:
        """Return the fields of ``CacheAwareParams`` that this rule sets."""
        return {}

    def window(self) -> int:
        """Return the length of the failure detector's window, at least 1."""
        return 1

    def build(self) -> Build:
        """Return params, the memory of one fresh lane, and scratch."""
        spec = self.spec
        limits = zip(spec.kv_limit or spec.context_limit, spec.context_limit, strict=True)
        values: dict[str, Any] = {
            "rule": int(self.rule),
            "inflight": bool(self.parameters.inflight),  # type: ignore[attr-defined]
            "prefills": bool(spec.prefill),
            "cache": True,
            "queued": True,
            "least": 1.0,
            "guard": OFF,
            "guard_z": 0.0,
            "block": float(spec.prefix_block or _BLOCK),
            "weights": np.zeros(3),
            "temperature": 0.0,
            "cache_threshold": 0.0,
            "balance_abs": 0.0,
            "balance_rel": 0.0,
            "reach": np.array([min(pair) for pair in limits], np.float64),
        }
        params = CacheAwareParams(**(values | self.constants()))
        memory = CacheAwareMemory(
            np.zeros(1, np.uint64),
            np.zeros(1, np.int64),
            np.zeros(self.window(), np.int64),
            np.zeros(1, np.int64),
            np.zeros(1),
            np.zeros(len(Count), np.int64),
        )
        w, x, y, z = (np.zeros(spec.devices) for _ in range(4))
        scratch = CacheAwareScratch(w, x, y, z, np.zeros(spec.devices, np.int64))
        return Build(params, memory, scratch)

    def diagnostics(self) -> dict[str, Any]:
        """Return the counters."""
        return {count.name.lower(): int(self.memory.counts[count]) for count in Count}


class LlmdScorers(CacheAware):
    """The weighted scorers of llm-d's endpoint picker. Information: none.

    ``score = prefix * hit + kv * (1 - KV in use) + queue * (most - waiting) / (most - least)``, the
    largest wins: hit is the share of the prompt's whole blocks that are cached, KV in use the share
    of the KV limit, waiting the FIFO's length; where all queues are equal the last score is 1.

    Source: llm-d/llm-d-router, ``pkg/epp/framework/plugins/scheduling/scorer/`` (``prefix``,
    ``kvcacheutilization``, ``queuedepth``). Weights differ by guide: 2 : 1 : 1 here, 3 : 2 : 2 in
    ``pkg/epp/config/loader/defaults.go``. There ties are drawn at random, metrics are polled, and
    what was just sent is not counted (``inflight=false``).
    """

    name = "llmd"
    rule = Rule.LLMD

    class Parameters(Inflight):
        """``prefix``, ``kv``, ``queue``: weights; ``inflight``: count what was just sent."""

        prefix: float = Field(2.0, ge=0)
        kv: float = Field(1.0, ge=0)
        queue: float = Field(1.0, ge=0)

    parameters: Parameters

    def constants(self) -> dict[str, Any]:
        """Return the weights."""
        own = self.parameters
        return {"weights": np.array([own.prefix, own.kv, own.queue])}


class DynamoKv(CacheAware):
    """The cost of NVIDIA Dynamo's KV router. Information: none.

    ``cost = scale * max(0, prefill - credit * overlap) + decode``, in blocks: prefill are the
    tokens that the device still has to compute and the whole prompt, overlap the prompt's cached
    blocks, decode the KV blocks of all requests there with the new one's. Temperature 0 takes the
    smallest; above, a device is drawn with probability ~ exp(-cost / (range * temperature)), with
    the range of the costs.

    Source: ai-dynamo/dynamo, ``lib/kv-router/src/scheduling/selector.rs`` (``worker_logit``,
    ``softmax_sample_entries``), defaults in ``config.rs``; lower cache tiers, the decay of the
    credit and the weight of active requests are 0 there by default and left out. Its decode blocks
    leave out those that the new request shares with running ones, which observations do not show.
    """

    name = "dynamo_kv"
    rule = Rule.DYNAMO

    class Parameters(Inflight):
        """Parameters.

        ``credit``: overlap credit in [0, 1]; ``scale``: weight of the prefill blocks;
        ``temperature``: of the draw; ``inflight``: count what was just sent.
        """

        credit: float = Field(1.0, ge=0, le=1)
        scale: float = Field(1.0, ge=0)
        temperature: float = Field(0.0, ge=0)

    parameters: Parameters

    def constants(self) -> dict[str, Any]:
        """Return weights and temperature."""
        own = self.parameters
        weights = np.array([own.credit, own.scale, 0.0])
        return {"weights": weights, "temperature": own.temperature}


class SglangCacheAware(CacheAware):
    """SGLang's cache-aware routing: cache or load, by thresholds. Information: none.

    Loads are outstanding requests. When ``most - least > balance_abs`` and ``most > balance_rel *
    least``, the least loaded device takes the request. Else the device with the longest match, if
    that is more than ``cache_threshold`` of the prompt, and the least loaded one if not.

    Source: sgl-project/sglang, ``sgl-model-gateway/src/policies/cache_aware.rs``, defaults of
    ``CacheAwareConfig``. It matches against a tree of the texts that it has sent where; its header
    and earlier versions send a request without a match to the smallest tree instead.
    """

    name = "sglang_cache"
    rule = Rule.SGLANG

    class Parameters(Inflight):
        """Parameters.

        ``cache_threshold``: share of the prompt; ``balance_abs`` [requests], ``balance_rel``:
        thresholds of imbalance; ``inflight``: count what was just sent.
        """

        cache_threshold: float = Field(0.5, ge=0, le=1)
        balance_abs: float = Field(32, ge=0)
        balance_rel: float = Field(1.1, ge=0)

    parameters: Parameters

    def constants(self) -> dict[str, Any]:
        """Return the thresholds."""
        return self.parameters.model_dump(exclude={"inflight"})


class LinearCache(CacheAware):
    """A plain linear combination of hit and load. Information: none.

    ``cost = weight * (1 - hit) + (1 - weight) * load``: hit is the cached share of the prompt, load
    the outstanding requests over those of the most loaded device (at least 1). It is the form that
    LMETRIC's paper argues against, because the weight has to be tuned. The default is the best mean
    TTFT of 0.1, 0.2, ... 1 on seeds 0 to 9 of ``chat-prefix`` (``scripts/compare.py --scenario
    chat-prefix --seeds 10 --metrics ttft_mean_s --policies linear_cache:weight=0.1,...``, also with
    ``--set workload.arrivals.rate=40``); from 0.3 to 0.8 it is within 6% of that.
    """

    name = "linear_cache"
    rule = Rule.LINEAR

    class Parameters(Inflight):
        """``weight``: of the hit, in [0, 1]; ``inflight``: count what was just sent."""

        weight: float = Field(0.7, ge=0, le=1)

    parameters: Parameters

    def constants(self) -> dict[str, Any]:
        """Return the weight."""
        return {"weights": np.array([self.parameters.weight, 0.0, 0.0])}
