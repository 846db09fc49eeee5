"""LMETRIC, and the rule that prices a request's new prefill tokens by the delay that they cause."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from pydantic import Field

from policies.cache_aware.detector import MOST_DEVICES
from policies.cache_aware.routers import CacheAware, Inflight
from policies.cache_aware.scores import Rule
from policies.cache_aware.state import DETECT, FILTER, OFF


class Lmetric(CacheAware):
    """LMETRIC, arXiv 2603.15202: new prefill tokens times batch size. Information: none.

    ``cost = max(1, queued + prompt - cached) * (batch + 1)``: queued are the uncached prompt tokens
    that the device still has to compute, batch its running and waiting requests. No weight to tune.
    Both factors are brought up to date with each request sent. Without prefill on the device the
    first factor is the same everywhere, and this is join-shortest-queue (``lor``), tie by tie.

    As published a full hit with nothing queued costs 0 whatever the batch; ``legacy`` keeps that.
    Engines compute at least one token, and the caches here never show a full hit, so inside this
    environment both are the same.

    *Failure detector* (``guard``): see ``policies.cache_aware.detector``. ``detect`` counts,
    ``filter`` also keeps requests of a class that overloads its devices persistently off them.

    Two public routers have picked the rule up without the queued tokens: ``cost = (prompt - cached)
    * (batch + 1)`` in ``lmetric-scorer`` of llm-d/llm-d-router and in ``lmetric.rs`` of
    sgl-project/sglang (``sgl-model-gateway/src/policies``). ``queued=false`` is that;
    ``cache=false`` is an ablation.
    """

    name = "lmetric"
    rule = Rule.LMETRIC

    class Parameters(Inflight):
        """Parameters.

        ``inflight``: count what was just sent; ``legacy``: a full hit costs 0; ``cache``: count
        cached tokens; ``queued``: count tokens that others still have to prefill; ``guard``: what
        the failure detector does, over ``guard_window`` requests, ``guard_z`` its margin.
        """

        legacy: bool = False
        cache: bool = True
        queued: bool = True
        guard: Literal["off", "detect", "filter"] = "filter"
        guard_window: int = Field(256, ge=2, le=100_000)
        guard_z: float = Field(3.0, ge=0)

    parameters: Parameters

    def constants(self) -> dict[str, Any]:
        """Return LMETRIC's fields."""
        own = self.parameters
        guard = {"off": OFF, "detect": DETECT, "filter": FILTER}[own.guard]
        return {
            "cache": own.cache,
            "queued": own.queued,
            "least": 0.0 if own.legacy else 1.0,
            # A set of devices is 63 bits; larger fleets go without.
            "guard": guard if self.spec.devices <= MOST_DEVICES else OFF,
            "guard_z": own.guard_z,
        }

    def window(self) -> int:
        """Return the detector's."""
        return self.parameters.guard_window


class PrefixPriced(CacheAware):
    """Each prefill token at the price of the delay that it causes. Information: none.

    The reward of starting a request is the same on every device, so OLP's rule, reward minus the
    price of the resources used, is here the least price. The resource is prefill time, a cached
    token uses none, and a token's price is the number of requests that wait for it:
    ``cost = queued + new * (1 + batch + future * (queued + new) / mean)``, with ``new = prompt -
    cached``. The request itself waits for what is queued and for its own tokens; the requests on
    the device wait for its own; and so do those that arrive before the device has worked off both,
    for which ``future`` stands: in a queue of load rho they are rho / (1 - rho) per mean request of
    work, 4 at a load of 0.8. ``mean`` is that of the new tokens of about the last 100 requests.

    The prices come from the telemetry, not from OLP's dual. LMETRIC's product has the term ``new *
    (batch + 1)`` as well, but multiplies what is queued by the batch, too, so that its preference
    for a cached prefix fades as queues grow. This rule is ours.
    """

    name = "prefix_priced"
    rule = Rule.PRICED

    class Parameters(Inflight):
        """``future``: later requests delayed per mean request of work; ``inflight`` as ever."""

        future: float = Field(4.0, ge=0)

    parameters: Parameters

    def constants(self) -> dict[str, Any]:
        """Return the weight of requests to come."""
        return {"weights": np.array([self.parameters.future, 0.0, 0.0])}
