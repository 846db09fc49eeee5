"""The learned router's decision, of one lane, of many, and of a whole episode. Compiled."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from llmroute_env.cluster.clock import now_ns
from llmroute_env.cluster.kernel import is_over, step_lane
from llmroute_env.cluster.observe import observe
from llmroute_env.cluster.state import Handle
from llmroute_env.jit import compiled
from policies.learned.answer import answer
from policies.learned.features import ask, begin
from policies.learned.network import NetworkScratch, Weights, best, forward
from policies.learned.question import FeatureParams, FeatureScratch, Question
from policies.learned.rates import RateMemory, watch
from policies.startable import measure


class LearnedParams(NamedTuple):
    """Constants of a learned router."""

    features: FeatureParams
    weights: Weights


class LearnedScratch(NamedTuple):
    """Working space of a learned router."""

    features: FeatureScratch
    question: Question
    network: NetworkScratch


@compiled
def decide(
    queue: np.ndarray,
    queue_id: np.ndarray,
    devices: np.ndarray,
    active: np.ndarray,
    clock: np.ndarray,
    params: LearnedParams,
    memory: RateMemory,
    scratch: LearnedScratch,
    action: np.ndarray,
) -> None:
    """Start the best pair until the network holds. See ``policies.family.Kernels``."""
    action[:] = 0
    watch(queue, queue_id, devices, memory)
    if queue_id[0] < 0 or measure(devices, scratch.features.room) == 0:
        return
    begin(devices, active, params.features, scratch.features)
    question, machines = scratch.question, devices.shape[0]
    while True:
        if (
            ask(
                queue,
                queue_id,
                devices,
                clock,
                params.features,
                memory,
                scratch.features,
                action,
                question,
            )
            == 0
        ):
            return
        forward(question, params.weights, scratch.network)
        chosen = best(scratch.network.scores, machines, memory.pointer[0]) - 1
        if chosen < 0:
            return
        c, g = chosen // machines, chosen % machines
        answer(queue, question.rows[c], g, params.features, scratch.features, action)
        memory.pointer[0] = (g + 1) % machines


@compiled
def decide_lanes(
    queue: np.ndarray,
    queue_id: np.ndarray,
    devices: np.ndarray,
    active: np.ndarray,
    clock: np.ndarray,
    params: LearnedParams,
    memory: RateMemory,
    scratch: LearnedScratch,
    action: np.ndarray,
) -> None:
    """Decide a batch: everything but params and scratch has a leading lane axis."""
    for lane in range(queue.shape[0]):
        decide(
            queue[lane],
            queue_id[lane],
            devices[lane],
            active[lane],
            clock[lane],
            params,
            RateMemory(
                memory.seen[lane],
                memory.weight[lane],
                memory.arrivals[lane],
                memory.tokens[lane],
                memory.pointer[lane],
            ),
            scratch,
            action[lane],
        )


@compiled
def run(
    handle: Handle,
    params: LearnedParams,
    memory: RateMemory,
    scratch: LearnedScratch,
    action: np.ndarray,
    times: np.ndarray,
) -> int:
    """Play lane 0 to the end of its episode; see ``policies.family.Kernels``."""
    state = handle.state
    seen = state.observed
    period = 0
    while not is_over(state, 0):
        start = now_ns() if period < times.shape[0] else 0
        decide(
            seen.queue[0],
            seen.queue_id[0],
            seen.devices[0],
            seen.active[0],
            seen.clock[0],
            params,
            memory,
            scratch,
            action,
        )
        if period < times.shape[0]:
            times[period] = now_ns() - start
        step_lane(state, 0, action)
        observe(state, 0)
        period += 1
    return period
