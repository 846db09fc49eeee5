"""Offered load of a scenario: how near to saturation its slots and its memory are."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from llmroute_env.scenario.cluster import Group, Prefill
from llmroute_env.scenario.errors import ScenarioError
from llmroute_env.scenario.mixed_load import Floats, served

if TYPE_CHECKING:
    from llmroute_env.cluster.timing import IterationTiming, MixedTiming
    from llmroute_env.scenario.models import Scenario


class Limits(NamedTuple):
    """What one device of the scenario holds, and how long its iterations last."""

    batch_limit: int  #: B [requests]
    kv_limit: int  #: M [tokens]
    context_limit: int | None  #: largest s + o [tokens], None where there is no limit
    timing: IterationTiming
    mixed: MixedTiming | None = None  #: where devices prefill what they decode


class OfferedLoad(NamedTuple):
    """Load as a share of what the devices can serve; the larger one binds, 1 is saturation.

    With iteration times that depend on the batch, the capacity is that of full devices: batch
    min(B, M / mean KV of an active request), at its own iteration time. Requests that no device
    can hold are left out; recomputation after preemption is not foreseen. Everything is NaN
    where the scenario's trace file is missing.

    Where devices prefill what they decode, iterations last longer by what they prefill and a
    token budget is a third resource. No prompt token is taken to be cached, since hits depend on
    the router: with prefix caches these are upper bounds, and a load above 1 may well be served.
    """

    batch: float  #: request-iterations offered per slot-iteration available
    kv: float  #: KV token-iterations offered per token-iteration available
    peak: float  #: the larger of the two while the arrival rate is highest
    iteration_s: float  #: iteration time of a full device [s]
    requests: float  #: expected requests in an episode
    rejected_share: float  #: share of requests over the KV or context limit
    budget: float = 0.0  #: tokens offered per token of the iterations' budget; 0 without one

    @property
    def rho(self) -> float:
        """The load of the resource that binds."""
        return max(self.batch, self.kv, self.budget)

    @property
    def binding(self) -> str:
        """``batch``, ``kv`` or ``budget``."""
        if self.budget > max(self.batch, self.kv):
            return "budget"
        return "kv" if self.kv > self.batch else "batch"


def limits(scenario: Scenario) -> tuple[Limits, ...]:
    """B, M, context limit and timing by group, from the planner where the scenario says so.

    Raises:
        ScenarioError: the model does not fit the device, or a profile is missing.
    """
    cluster = scenario.cluster
    try:
        return tuple(_limits(group, cluster.kv_block, cluster.prefill) for group in cluster.fleet)
    except ScenarioError:
        raise
    except ValueError as error:
        raise ScenarioError(f"scenario {scenario.name}: cluster: {error}") from None


def largest_context(scenario: Scenario) -> int | None:
    """Largest s + o that some device takes [tokens], None where one has no limit."""
    contexts = [device.context_limit for device in limits(scenario)]
    known = [context for context in contexts if context is not None]
    return max(known) if len(known) == len(contexts) else None


@lru_cache(maxsize=64)
def _limits(group: Group, kv_block: int, prefill: Prefill | None) -> Limits:
    from llmroute_env.cluster import timing as timings

    batch, kv, context = group.batch_limit, group.kv_limit, group.context_limit
    timing = group.timing
    if timing.kind == "constant":
        assert batch is not None  # validated: a constant timing needs both
        assert kv is not None
        kv -= kv % kv_block  # whole blocks
        mixed = timings.constant_mixed(timing.iteration_s, timing.prefill_s_per_token)
        plain = timings.constant(timing.iteration_s, batch)
        return Limits(batch, kv, context, plain, mixed if prefill else None)
    from llmroute_env.cluster.memory import plan

    inputs = {} if group.memory is None else group.memory.model_dump(exclude_none=True)
    planned = plan(timing.device, timing.model, timing.tp, kv_block=kv_block, **inputs)
    # A batch or KV limit that the scenario gives stands for an engine configured that way.
    batch = planned.batch_limit if batch is None else batch
    kv = planned.kv_limit if kv is None else kv
    kv -= kv % kv_block  # whole blocks
    context = planned.context_limit if context is None else context
    table = timings.from_profile(
        timing.device, timing.model, timing.tp, batch, overhead_s=timing.overhead_s
    )
    if prefill is None:
        return Limits(batch, kv, context, table)
    mixed = timings.from_profile_mixed(
        timing.device,
        timing.model,
        timing.tp,
        batch,
        prefill.chunk_tokens,
        overhead_s=timing.overhead_s,
    )
    return Limits(batch, kv, context, table, mixed)


def offered_load(scenario: Scenario) -> OfferedLoad:
    """See :class:`OfferedLoad`."""
    from llmroute_env.workload.traces import TraceMissingError

    try:
        return _offered(scenario)
    except TraceMissingError:
        return OfferedLoad(*(math.nan,) * len(OfferedLoad._fields))


@lru_cache(maxsize=64)
def _offered(scenario: Scenario) -> OfferedLoad:
    from llmroute_env.workload.demand import demand

    requests, rate, peak_rate, prompt, decode = demand(scenario)
    devices = limits(scenario)
    largest = max(min(d.kv_limit, d.context_limit or d.kv_limit) for d in devices)
    fits = prompt + decode <= largest
    share = float(fits.mean()) if len(fits) else 0.0
    if share == 0.0:
        return OfferedLoad(0.0, 0.0, 0.0, devices[0].timing.iteration_s(1, 0), requests, 1.0)
    s, o = prompt[fits].astype(np.float64), decode[fits].astype(np.float64)
    if scenario.cluster.prefill is not None:
        return _offered_mixed(scenario, requests, rate, peak_rate, share, s, o)
    iterations = share * float(o.mean())  # per arriving request
    kv_tokens = share * float((o * s + 0.5 * o * (o + 1.0)).mean())  # sum of s + age + 1
    kv_tokens += iterations * 0.5 * (scenario.cluster.kv_block - 1)  # the last block, half full
    held = kv_tokens / iterations
    slots_per_s = kv_per_s = full_s = 0.0  # capacity of the fleet
    for device, group in zip(devices, scenario.cluster.fleet, strict=True):
        full = max(1, min(device.batch_limit, int(device.kv_limit / held)))
        iteration_s = device.timing.iteration_s(full, full * held)
        slots_per_s += group.devices * device.batch_limit / iteration_s
        kv_per_s += group.devices * device.kv_limit / iteration_s
        full_s += group.devices * iteration_s / scenario.cluster.devices
    batch = rate * iterations / slots_per_s
    kv = rate * kv_tokens / kv_per_s
    peak = max(batch, kv) * peak_rate / rate
    return OfferedLoad(batch, kv, peak, full_s, requests, 1.0 - share)


def _offered_mixed(
    scenario: Scenario,
    requests: float,
    rate: float,
    peak_rate: float,
    share: float,
    prompt: Floats,
    decode: Floats,
) -> OfferedLoad:
    """The load where devices prefill what they decode; the lengths are of requests that fit."""
    cluster = scenario.cluster
    prefill = cluster.prefill
    assert prefill is not None
    batch_per_s = kv_per_s = budget_per_s = full_s = 0.0  # requests that the fleet can serve [1/s]
    for device, group in zip(limits(scenario), cluster.fleet, strict=True):
        assert device.mixed is not None
        one = served(
            device.mixed,
            device.batch_limit,
            device.kv_limit,
            prefill.chunk_tokens,
            prompt,
            decode,
            emits_token=prefill.emits_token,
        )
        held = one.kv_tokens + one.iterations * 0.5 * (cluster.kv_block - 1)
        batch_per_s += group.devices * device.batch_limit / one.iterations / one.iteration_s
        kv_per_s += group.devices * device.kv_limit / held / one.iteration_s
        if prefill.chunk_tokens is not None:
            budget_per_s += group.devices * prefill.chunk_tokens / one.tokens / one.iteration_s
        full_s += group.devices * one.iteration_s / cluster.devices
    served_rate = rate * share
    batch, kv = served_rate / batch_per_s, served_rate / kv_per_s
    budget = served_rate / budget_per_s if budget_per_s else 0.0
    peak = max(batch, kv, budget) * peak_rate / rate
    return OfferedLoad(batch, kv, peak, full_s, requests, 1.0 - share, budget)
