"""What a fresh episode starts from. Compiled."""

from __future__ import annotations

from llmroute_env.cluster.fifo import Record
from llmroute_env.cluster.state import NOT_ARRIVED, Array
from llmroute_env.jit import compiled


@compiled
def clear_requests(q: Array) -> None:
    """Put all of ``q`` where it was before it arrived; the workload's columns stay."""
    for j in range(len(q)):
        request = q[j]
        request.dispatch_ns = -1
        request.start_ns = -1
        request.first_token_ns = -1
        request.finish_ns = -1
        request.device = -1
        request.emitted = 0
        request.preemptions = 0
        request.recomputed = 0
        request.following = -1
        request.status = NOT_ARRIVED
        request.reason = 0
        request.missed = 0


@compiled
def clear_extra(x: Array) -> None:
    """Put requests where they were before they arrived; the workload's columns stay."""
    for j in range(len(x)):
        extra = x[j]
        extra.referenced = extra.cached = extra.expected = extra.chunk = extra.lost = 0


@compiled
def clear_device(d: Record) -> None:
    """Empty a device; its limits stay."""
    d.up = 1
    d.active = d.count = d.turn = d.kv_held = d.blocks = d.next_finish = d.fresh = d.prefill = 0
    d.running = d.start_ns = d.end_ns = d.last_ns = 0
    d.fifo_head = d.fifo_tail = d.fifo_length = d.fifo_tokens = d.busy_slot_ns = 0
    d.fifo_predicted = d.kv_token_s = 0.0
    d.prefilling = d.kv_progress = d.prefill_left = d.growth = 0
    d.unused = d.oldest = d.newest = 0


@compiled
def clear_step(v: Record) -> None:
    """Zero what one step adds up."""
    v.alpha = v.beta = v.gamma = v.sigma = v.zeta1 = v.zeta2 = 0.0
    v.cost = v.invalid = 0


@compiled
def clear_lane(v: Record) -> None:
    """Zero what an episode adds up; ``shown`` stays, since the buffers do."""
    v.now_ns = v.period = v.arrived = v.hidden_head = v.hidden = v.visible = v.dispatched = 0
    v.in_batch = v.completed = v.rejected = v.tokens = v.warm_tokens = 0
    v.terminated = v.truncated = v.invalid_total = v.hidden_periods = 0
    v.imbalance_sum = 0.0
    v.imbalance_count = v.samples = 0
    v.alpha_total = v.beta_total = v.gamma_total = 0.0
    v.sigma_total = v.zeta1_total = v.zeta2_total = v.reward_total = 0.0
