"""Fields of the kernel's structured arrays: of a request, a device, a slot and a lane."""

from __future__ import annotations

from enum import IntEnum

import numpy as np


class Component(IntEnum):
    """The reward components, by their weight in the objective."""

    ALPHA = 0
    BETA = 1
    GAMMA = 2
    SIGMA = 3
    ZETA1 = 4
    ZETA2 = 5


#: names of the reward components, in the order of `Component`
COMPONENTS = tuple(component.name.lower() for component in Component)

#: What does not change in an episode, shared by all lanes; (1,).
CONSTANTS = np.dtype(
    [
        ("period_ns", np.int64),
        ("horizon_ns", np.int64),  # T * period
        ("horizon_periods", np.int64),  # T
        ("drain", np.int64),
        ("max_drain_periods", np.int64),
        ("warmup_ns", np.int64),
        ("block", np.int64),  # tokens in a KV block, 1 for exact accounting
        ("head_of_line_skip", np.int64),
        ("series_stride", np.int64),  # periods between two samples of the time series, 0 for none
        ("largest", np.int64),  # largest s + o that some device can hold
        ("largest_kv", np.int64),  # the same by KV alone
        ("uneven", np.int64),  # whether some devices hold larger requests than others
        ("prefill", np.int64),  # whether devices prefill what they decode
        ("emits_token", np.int64),  # whether the end of a prefill emits a token
        ("chunk_tokens", np.int64),  # tokens of an iteration, 0 where there is no budget
        ("prefix_block", np.int64),  # tokens of a cached block, 0 without prefix caches
        ("per_cached", np.int64),  # KV blocks of a cached block
        ("text", np.int64),  # whether requests have a size and a category
        ("handoff", np.int64),  # whether a request's KV travels to its device
        ("kv_bytes", np.float64),  # of a token, for the journey
        ("link_bytes_per_s", np.float64),
        ("tail_eel_ns", np.int64),
        ("tail_ttft_ns", np.int64),
        *((name, np.float64) for name in COMPONENTS),  # weights
    ],
    align=True,
)

#: (N, R): the request table and what has happened to each request.
REQUEST = np.dtype(
    [
        ("arrival_ns", np.int64),
        ("ready_ns", np.int64),  # when the router first sees it
        ("dispatch_ns", np.int64),  # -1 where not reached, like the next three
        ("start_ns", np.int64),
        ("first_token_ns", np.int64),
        ("finish_ns", np.int64),
        ("prompt", np.int32),
        ("decode", np.int32),
        ("predicted", np.float32),
        ("tier", np.int32),
        ("device", np.int32),  # -1 before dispatch
        ("emitted", np.int32),  # up to date unless the request is active
        ("preemptions", np.int32),
        ("recomputed", np.int32),
        ("following", np.int32),  # next request in the same FIFO, -1 at the tail
        ("status", np.int8),
        ("reason", np.int8),
        ("missed", np.int8),  # 1 when an SLO limit is known to be missed
    ],
    align=True,
)

#: (N, R), in use only where devices prefill or requests have texts.
EXTRA = np.dtype(
    [
        ("chain", np.int64),  # where its chain of prefix blocks starts
        ("links", np.int32),  # blocks of the chain
        ("referenced", np.int32),  # blocks of the chain that it references on its device
        ("cached", np.int32),  # prompt tokens that it found cached when it first joined a batch
        ("expected", np.int32),  # tokens that it would have found when it was dispatched
        ("chunk", np.int32),  # tokens that it prefills in the running iteration
        ("lost", np.int32),  # tokens that it had in KV when it was preempted
        ("size_bytes", np.float32),
        ("category", np.float32),
    ],
    align=True,
)

#: (N, G, U): what a device's cache knows of each prefix block. Those without references are in a
#: doubly linked list, the least recently used at its head.
CACHED = np.dtype(
    [
        ("references", np.int32),  # requests that use it, -1 where it is not in the cache
        ("previous", np.int32),
        ("following", np.int32),
    ],
    align=True,
)

#: (N, G). A device counts its iterations, and a slot holds the count at which its request
#: completes. At count n the request has emitted o - (finish - n): an iteration touches no request,
#: and the next completion is known without looking at the batch.
DEVICE = np.dtype(
    [
        ("batch_limit", np.int64),  # B
        ("kv_limit", np.int64),  # M [tokens]
        ("kv_blocks", np.int64),  # M in blocks
        ("watermark", np.int64),  # blocks kept free at admission
        ("largest", np.int64),  # largest s + o that it can hold
        ("kv_s", np.float64),  # iteration time per KV token [s]
        ("prefill_s", np.float64),  # iteration time per recomputed token [s]
        ("up", np.int64),
        ("active", np.int64),  # requests in the batch
        ("count", np.int64),  # finished iterations
        ("turn", np.int64),  # count modulo the block size
        ("kv_held", np.int64),  # sum of s + emitted over the batch [tokens]
        ("blocks", np.int64),  # KV blocks that the coming or running iteration needs
        ("next_finish", np.int64),  # count at which the first of the batch completes
        ("fresh", np.int64),  # newest slots that have not finished an iteration since admission
        ("prefill", np.int64),  # tokens that the coming iteration recomputes
        ("running", np.int64),
        ("start_ns", np.int64),  # of the running iteration, or of the last one
        ("end_ns", np.int64),
        ("last_ns", np.int64),  # duration of the last finished iteration
        ("fifo_head", np.int64),
        ("fifo_tail", np.int64),
        ("fifo_length", np.int64),
        ("fifo_tokens", np.int64),
        ("fifo_predicted", np.float64),
        ("busy_slot_ns", np.int64),  # request-nanoseconds after the warm-up
        ("kv_token_s", np.float64),  # token-seconds after the warm-up
        ("shown", np.int64),  # rows of the observed batch that are not zero
        # Devices that prefill: such requests follow the decoding ones in the slots.
        ("prefilling", np.int64),  # requests in the batch that prefill
        ("kv_progress", np.int64),  # tokens that they have in KV
        ("prefill_left", np.int64),  # tokens still to prefill, batch and FIFO
        ("growth", np.int64),  # blocks that joining decoders add at the next start
        ("token_limit", np.int64),  # last entry of its table of times by tokens
        ("token_slope_s", np.float64),  # beyond the table, per token [s]
        ("chunk_s", np.float64),  # prefill attention per chunk [s]
        ("query_s", np.float64),  # and per new token [s]
        ("pair_s", np.float64),  # and per pair of a new token and one that it sees [s]
        ("unused", np.int64),  # cached prefix blocks without references
        ("oldest", np.int64),  # the least recently used of them
        ("newest", np.int64),
    ],
    align=True,
)

#: (N, G, B_max): batch slots, occupied ones first, in admission order. For a request that prefills,
#: ``finish`` is the tokens that its prefill has to reach, ``kv`` those it has, ``predicted`` ô.
SLOT = np.dtype(
    [
        ("finish", np.int64),  # count at which the request completes
        ("kv", np.int64),  # plus the count it is s + emitted
        ("predicted", np.float64),  # minus the count it is ô - emitted
        ("request", np.int64),
    ],
    align=True,
)

#: (N,): counters of each environment.
LANE = np.dtype(
    [
        ("now_ns", np.int64),
        ("period", np.int64),  # k
        ("requests", np.int64),  # rows of the request table in use
        ("arrived", np.int64),  # rows that have arrived, rejected ones included
        ("hidden_head", np.int64),  # first row that may wait beyond the window
        ("hidden", np.int64),  # waiting requests beyond the window
        ("visible", np.int64),  # waiting requests in the window
        ("shown", np.int64),  # rows of the observed queue that are not zero
        ("dispatched", np.int64),  # requests in some FIFO
        ("in_batch", np.int64),
        ("completed", np.int64),
        ("rejected", np.int64),
        ("tokens", np.int64),  # decode tokens emitted
        ("warm_tokens", np.int64),  # of them after the warm-up
        ("terminated", np.int64),
        ("truncated", np.int64),
        ("cost", np.int64),  # SLO misses settled in the last step
        ("invalid", np.int64),  # illegal actions in the last step
        ("invalid_total", np.int64),
        ("hidden_periods", np.int64),
        ("imbalance_sum", np.float64),
        ("imbalance_count", np.int64),
        ("samples", np.int64),  # rows of the time series in use
        *((name, np.float64) for name in COMPONENTS),  # reward of the last step
        *((f"{name}_total", np.float64) for name in COMPONENTS),
        ("reward_total", np.float64),
    ],
    align=True,
)
