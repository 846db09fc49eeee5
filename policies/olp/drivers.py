"""Compiled loops around the decision: over lanes, and over the periods of an episode."""

from __future__ import annotations

import numpy as np

from llmroute_env.cluster.clock import now_ns
from llmroute_env.cluster.kernel import is_over, step_lane
from llmroute_env.cluster.observe import observe
from llmroute_env.cluster.state import Handle
from llmroute_env.jit import compiled
from policies.olp.decision import decide
from policies.olp.state import OlpMemory, OlpParams, OlpScratch


@compiled
def decide_lanes(
    queue: np.ndarray,
    queue_id: np.ndarray,
    devices: np.ndarray,
    active: np.ndarray,
    clock: np.ndarray,
    params: OlpParams,
    memory: OlpMemory,
    scratch: OlpScratch,
    action: np.ndarray,
) -> None:
    """Decide a batch: everything but params and scratch has a leading lane axis."""
    for lane in range(queue.shape[0]):
        own = OlpMemory(
            memory.rng[lane],
            memory.pointer[lane],
            memory.numbers[lane],
            memory.prices[lane],
            memory.columns[lane],
            memory.rewards[lane],
            memory.arrivals[lane],
            memory.margins[lane],
            memory.series[lane],
            memory.goals[lane],
            memory.sent[lane],
            memory.held[lane],
            memory.seen[lane],
            memory.seen_count[lane],
            memory.pace[lane],
            memory.trend[lane],
        )
        decide(
            queue[lane],
            queue_id[lane],
            devices[lane],
            active[lane],
            clock[lane],
            params,
            own,
            scratch,
            action[lane],
        )


@compiled
def run(
    handle: Handle,
    params: OlpParams,
    memory: OlpMemory,
    scratch: OlpScratch,
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
        step_lane(state, 0, action[: state.lanes[0].visible])
        observe(state, 0)
        period += 1
    return period
