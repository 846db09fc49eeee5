"""Lanes that are asked one decision after the other, and the twins they are measured by. Compiled.

Lane i of N is played by the learner; lane N + i of the same kernel has the same requests and is
played by the reference policy, MC-SF. Where the learner has nothing to decide, periods pass.

**Reward.** Of the objective's terms, beta and gamma pay ``periods left`` at one moment for what
was decided long before. Adding the potential ``left * (beta * unfinished + gamma * unstarted)``
turns them into a cost per period for what is unfinished and what waits, and changes no ranking of
policies (Ng, Harada, Russell, ICML 1999; arrivals, which no action changes, are left out). The
twin's reward over the same periods is subtracted: it depends on the requests alone, so it is a
baseline that takes out most of the workload's noise (Mao et al., "Variance reduction for
reinforcement learning in input-driven environments", ICLR 2019). An episode's return is therefore
the objective gained over the reference policy on the same requests, divided by the scale.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmroute_env.cluster.kernel import is_over, step_lane
from llmroute_env.cluster.observe import observe
from llmroute_env.cluster.state import Handle, State
from llmroute_env.jit import compiled
from llmroute_env.spaces import Active, Clock, Device, Queue
from llmroute_env.training.lanes import Asked, rate_of, scratch_of
from llmroute_env.training.layout import Privileged
from policies.learned.answer import answer
from policies.learned.features import ask, begin, log_scale
from policies.learned.question import FeatureParams, Question
from policies.learned.rates import watch
from policies.mc_sf import McSfParams, McSfScratch
from policies.mc_sf import decide as refer
from policies.startable import TieMemory, measure

Array = NDArray[Any]


@compiled
def _potential(state: State, lane: int) -> float:
    p, v = state.constants[0], state.lanes[lane]
    left = max(p.horizon_periods - v.period, 0)
    unfinished = v.arrived - v.completed - v.rejected
    unstarted = v.visible + v.hidden + v.dispatched
    return left * (p.beta * unfinished + p.gamma * unstarted)  # type: ignore[no-any-return]


@compiled
def _step(state: State, lane: int, action: Array) -> float:
    """Play a period; return its reward with the potential's change."""
    p, v = state.constants[0], state.lanes[lane]
    before, taken = _potential(state, lane), v.arrived - v.rejected
    total = v.reward_total
    step_lane(state, lane, action)
    observe(state, lane)
    left = max(p.horizon_periods - v.period, 0)
    arrived = (v.arrived - v.rejected - taken) * left * (p.beta + p.gamma)
    return v.reward_total - total + _potential(state, lane) - before - arrived  # type: ignore[no-any-return]


@compiled
def _work(state: State, lane: int) -> tuple[float, float]:
    """Predicted tokens left in the batches, and waiting (none beyond the horizon)."""
    seen, v = state.observed, state.lanes[lane]
    left = np.float64(seen.clock[lane, Clock.LEFT])
    running, waiting = 0.0, 0.0
    for g in range(seen.devices.shape[1]):
        for b in range(state.devices[lane, g].active):
            running += min(np.float64(seen.active[lane, g, b, Active.REMAINING]), left)
    for i in range(v.visible):
        waiting += min(np.float64(seen.queue[lane, i, Queue.PREDICTED]), left)
    return running, waiting


@compiled
def _contention(state: State, lane: int) -> float:
    """Predicted tokens left in each batch times the share of its memory that is in use."""
    seen, total = state.observed, 0.0
    for g in range(seen.devices.shape[1]):
        running = 0.0
        for b in range(state.devices[lane, g].active):
            running += np.float64(seen.active[lane, g, b, Active.REMAINING])
        row = seen.devices[lane, g]
        total += running * row[Device.KV_USED] / row[Device.KV_LIMIT]
    return total


@compiled
def _criticize(state: State, lane: int, twin: int, out: Array) -> None:
    v, w = state.lanes[lane], state.lanes[twin]
    slots = 0.0
    for g in range(state.devices.shape[1]):
        slots += state.observed.devices[lane, g, Device.BATCH_LIMIT]
    running, waiting = _work(state, lane)
    twin_running, twin_waiting = _work(state, twin)
    out[Privileged.WAITING] = (v.visible + v.hidden - w.visible - w.hidden) / slots
    out[Privileged.RUNNING] = (v.in_batch - w.in_batch) / slots
    out[Privileged.WORK] = (running - twin_running) / slots / 100.0
    out[Privileged.WAITING_WORK] = (waiting - twin_waiting) / slots / 100.0
    out[Privileged.LEFT] = state.observed.clock[lane, Clock.LEFT] / 1000.0
    out[Privileged.WAITING_LEFT] = out[Privileged.WAITING] * out[Privileged.LEFT]
    out[Privileged.RUNNING_LEFT] = out[Privileged.RUNNING] * out[Privileged.LEFT]
    out[Privileged.TWIN_WAITING] = log_scale(w.visible + w.hidden)
    out[Privileged.TWIN_RUNNING] = w.in_batch / slots
    contention = _contention(state, lane) - _contention(state, twin)
    out[Privileged.CONTENTION] = contention / slots / 10.0


@compiled
def _ask(state: State, lanes: Asked, i: int, params: FeatureParams) -> bool:
    """Write the next question of the period; tell whether there is one."""
    seen, q = state.observed, lanes.question
    out = Question(q.context[i], q.requests[i], q.devices[i], q.pairs[i], q.rows[i], q.legal[i])
    legal = ask(
        seen.queue[i],
        seen.queue_id[i],
        seen.devices[i],
        seen.clock[i],
        params,
        rate_of(lanes, i),
        scratch_of(lanes, i),
        lanes.action[i],
        out,
    )
    if legal == 0:
        return False
    for c in range(out.rows.shape[0]):
        lanes.present[i, c] = 1.0 if out.rows[c] >= 0 else 0.0
        for g in range(out.legal.shape[1]):
            lanes.startable[i, c, g] = 1.0 if out.legal[c, g] else 0.0
    _criticize(state, i, i + lanes.reward.shape[0], lanes.critic[i])
    return True


@compiled
def _open(state: State, lanes: Asked, i: int, params: FeatureParams) -> bool:
    """Look at a new period; tell whether there is something to ask."""
    seen, scratch = state.observed, scratch_of(lanes, i)
    if seen.queue_id[i, 0] < 0 or measure(seen.devices[i], scratch.room) == 0:
        return False
    begin(seen.devices[i], seen.active[i], params, scratch)
    return _ask(state, lanes, i, params)


@compiled
def _pass_period(
    state: State, lanes: Asked, i: int, twin_params: McSfParams, twin_scratch: McSfScratch
) -> None:
    """Play the period on the lane and on its twin."""
    twin = i + lanes.reward.shape[0]
    seen = state.observed
    refer(
        seen.queue[twin],
        seen.queue_id[twin],
        seen.devices[twin],
        seen.active[twin],
        seen.clock[twin],
        twin_params,
        TieMemory(lanes.twin.pointer[i]),
        twin_scratch,
        lanes.twin_action[i],
    )
    gained = _step(state, i, lanes.action[i])
    lanes.reward[i] += gained - _step(state, twin, lanes.twin_action[i])
    lanes.periods[i] += 1
    lanes.action[i, :] = 0
    watch(seen.queue[i], seen.queue_id[i], seen.devices[i], rate_of(lanes, i))


@compiled
def start(
    handle: Handle,
    lanes: Asked,
    i: int,
    params: FeatureParams,
    twin_params: McSfParams,
    twin_scratch: McSfScratch,
    skip: int,
) -> bool:
    """Begin a lane's episode, just reset; tell whether a question came up before its end.

    The reference policy plays the first ``skip`` periods on both, so that lanes can be spread over
    the times of an episode.
    """
    state = handle.state
    r = rate_of(lanes, i)
    r.seen[0], r.weight[0], r.arrivals[0], r.tokens[0] = -1, 0.0, 0.0, 0.0
    lanes.action[i, :] = 0
    lanes.reward[i], lanes.periods[i] = 0.0, 0
    seen = state.observed
    watch(seen.queue[i], seen.queue_id[i], seen.devices[i], r)
    while skip > 0 or not _open(state, lanes, i, params):
        if skip > 0:
            skip -= 1
            refer(
                seen.queue[i],
                seen.queue_id[i],
                seen.devices[i],
                seen.active[i],
                seen.clock[i],
                twin_params,
                TieMemory(lanes.twin.pointer[i].copy()),
                twin_scratch,
                lanes.action[i],
            )
        _pass_period(state, lanes, i, twin_params, twin_scratch)
        if is_over(state, i):
            return False
    lanes.reward[i], lanes.periods[i] = 0.0, 0
    return True


@compiled
def advance(
    handle: Handle,
    lanes: Asked,
    choices: Array,
    params: FeatureParams,
    twin_params: McSfParams,
    twin_scratch: McSfScratch,
    patience: int,
    over: Array,
) -> None:
    """Carry out one choice on every lane and go on to its next question.

    Args:
        handle: the kernel's state, 2 N lanes.
        lanes: what was asked.
        choices: (N,) int64, 0 to hold and ``1 + c * G + g`` for a pair; an illegal one holds.
        params: of the features.
        twin_params: of the reference policy.
        twin_scratch: of the reference policy.
        patience: after a hold the next question comes when a request arrives or completes, or
            after this many periods.
        over: (N,) bool, out: the episode ended.
    """
    state = handle.state
    machines = lanes.question.legal.shape[2]
    for i in range(choices.shape[0]):
        lanes.reward[i], lanes.periods[i] = 0.0, 0
        over[i] = False
        pair = choices[i] - 1
        c, g = pair // machines, pair % machines
        held = pair < 0 or not lanes.question.legal[i, c, g]
        v = state.lanes[i]
        if not held:
            row = lanes.question.rows[i, c]
            answer(state.observed.queue[i], row, g, params, scratch_of(lanes, i), lanes.action[i])
            if _ask(state, lanes, i, params):
                continue
        arrived, completed, waited = v.arrived, v.completed, 0
        while True:
            _pass_period(state, lanes, i, twin_params, twin_scratch)
            waited += 1
            if is_over(state, i):
                over[i] = True
                break
            if held and waited < patience and v.arrived == arrived and v.completed == completed:
                continue
            if _open(state, lanes, i, params):
                break
