"""What a period of one lane leaves behind: samples, totals, the end of the episode. Compiled."""

from __future__ import annotations

from llmroute_env.cluster.fifo import Record
from llmroute_env.cluster.state import COMPLETED, Array, Outcome, Series, State
from llmroute_env.jit import compiled, inlined

(_S_NOW, _S_QUEUE, _S_FIFO, _S_ACTIVE, _S_KV, _S_COMPLETED, _S_TOKENS, _S_REWARD, _S_REJECTED) = (
    int(f) for f in Series
)
(
    _O_ALPHA,
    _O_BETA,
    _O_GAMMA,
    _O_SIGMA,
    _O_ZETA1,
    _O_ZETA2,
    _O_REWARD,
    _O_COST,
    _O_INVALID,
    _O_TERMINATED,
    _O_TRUNCATED,
) = (int(f) for f in Outcome)


@compiled
def measure_imbalance(v: Record, devices: Array) -> None:
    """Add this period's (max - mean) / mean of the devices' KV load."""
    top, total = 0, 0
    for g in range(len(devices)):
        kv = devices[g].kv_held + devices[g].kv_progress
        total += kv
        top = max(top, kv)
    v.imbalance_count += 1
    if total > 0:
        v.imbalance_sum += top * len(devices) / total - 1.0


@inlined
def sample(state: State, lane: int) -> None:
    """Append a row to the lane's time series when it is due."""
    v, stride = state.lanes[lane], state.constants[0].series_stride
    if stride == 0 or v.period % stride != 0 or v.samples >= state.series.shape[1]:
        return
    kv = 0
    for g in range(state.devices.shape[1]):
        kv += state.devices[lane, g].kv_held + state.devices[lane, g].kv_progress
    row = state.series[lane, v.samples]
    row[_S_NOW] = v.now_ns * 1e-9
    row[_S_QUEUE] = v.visible + v.hidden
    row[_S_FIFO] = v.dispatched
    row[_S_ACTIVE] = v.in_batch
    row[_S_KV] = kv
    row[_S_COMPLETED] = v.completed
    row[_S_TOKENS] = v.tokens
    row[_S_REWARD] = v.reward_total
    row[_S_REJECTED] = v.rejected
    v.samples += 1


@inlined
def end_of_period(state: State, lane: int) -> None:
    """Decide whether the episode is over; the last step settles the open SLO misses."""
    p, v, q = state.constants[0], state.lanes[lane], state.requests[lane]
    late = v.period - p.horizon_periods
    if late < 0:
        return
    open_requests = v.arrived - v.completed - v.rejected
    if not p.drain or (open_requests > 0 and late >= p.max_drain_periods):
        v.truncated = 1
    elif open_requests == 0:
        v.terminated = 1
    else:
        return
    for j in range(v.arrived):
        if q[j].status < COMPLETED and not q[j].missed:
            q[j].missed = 1
            v.cost += 1


@compiled
def settle(v: Record, outcome: Array) -> None:
    """Write the outcome of the step and add it to the episode's totals."""
    outcome[_O_ALPHA] = v.alpha
    outcome[_O_BETA] = v.beta
    outcome[_O_GAMMA] = v.gamma
    outcome[_O_SIGMA] = v.sigma
    outcome[_O_ZETA1] = v.zeta1
    outcome[_O_ZETA2] = v.zeta2
    outcome[_O_REWARD] = v.alpha + v.beta + v.gamma + v.sigma + v.zeta1 + v.zeta2
    outcome[_O_COST] = v.cost
    outcome[_O_INVALID] = v.invalid
    outcome[_O_TERMINATED] = v.terminated
    outcome[_O_TRUNCATED] = v.truncated
    v.alpha_total += v.alpha
    v.beta_total += v.beta
    v.gamma_total += v.gamma
    v.sigma_total += v.sigma
    v.zeta1_total += v.zeta1
    v.zeta2_total += v.zeta2
    v.reward_total += outcome[_O_REWARD]
