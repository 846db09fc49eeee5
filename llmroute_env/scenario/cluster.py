"""The cluster part of a scenario: devices, their limits and their iteration time."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from llmroute_env.scenario.fields import (
    Count,
    Flag,
    Fraction,
    NonNegative,
    Number,
    Positive,
    Section,
)


class ConstantTiming(Section):
    """Every iteration takes the same time; equal to ``period_s`` it is the paper's lock-step."""

    kind: Literal["constant"] = "constant"
    iteration_s: Positive  #: [s]


class ProfileTiming(Section):
    """Iteration time fitted from a device profile."""

    kind: Literal["profile"] = "profile"
    device: str  #: a name under ``configs/devices``, or a path
    model: str  #: a name under ``configs/models``, or a path
    tp: Count = 1  #: tensor-parallel degree
    overhead_s: NonNegative | None = None  #: per iteration; null: the device profile's [s]


Timing = Annotated[ConstantTiming | ProfileTiming, Field(discriminator="kind")]


class Memory(Section):
    """Inputs of the memory planner, used where ``batch_limit`` or ``kv_limit`` is null."""

    utilization: Annotated[Number, Field(gt=0, le=1)] = 0.9  #: share of device memory used
    max_num_seqs: Count = 64  #: largest batch that the engine takes [requests]
    activation_reserve_gib: NonNegative | None = None  #: null: the device profile's [GiB]


class Cluster(Section):
    """G equal devices."""

    devices: Count  #: G
    batch_limit: Count | None = None  #: B [requests]; null: from the memory planner
    kv_limit: Count | None = None  #: M [tokens]; null: from the memory planner
    context_limit: Count | None = None  #: largest s + o [tokens]; null: the model's, or none
    kv_block: Count = 1  #: KV is allocated in blocks of so many tokens; engines use 16
    kv_watermark: Fraction = 0.0  #: share of the blocks kept free at admission
    head_of_line_skip: Flag = False  #: a later request may join where the FIFO's head does not fit
    timing: Timing
    memory: Memory | None = None  #: null: the planner's defaults, with ``timing.kind: profile``

    @model_validator(mode="after")
    def _limits(self) -> Cluster:
        if self.timing.kind == "constant":
            for key in ("batch_limit", "kv_limit"):
                if getattr(self, key) is None:
                    raise ValueError(
                        f"{key} = null: a number is needed with timing.kind = 'constant' "
                        "(the memory planner needs timing.kind = 'profile')"
                    )
            if self.memory is not None:
                raise ValueError("memory: only allowed with timing.kind = 'profile'")
        for key in ("kv_limit", "context_limit"):
            limit = getattr(self, key)
            if limit is not None and limit < 2:  # one prompt token and one decode token
                raise ValueError(f"{key} = {limit}: must be at least 2, a request's least s + o")
        if self.kv_limit is not None and self.kv_block > self.kv_limit:
            raise ValueError(
                f"kv_block = {self.kv_block}: must be at most kv_limit = {self.kv_limit}"
            )
        return self


class Router(Section):
    """What the router sees."""

    window: Count = 128  #: W, visible waiting requests


class Objective(Section):
    """Weights of the paper's multi-SLO reward, and the tail limits that zeta1 and zeta2 test."""

    alpha: NonNegative = 0.0  #: per decoded token
    beta: NonNegative = 1.0  #: per period saved at the end of a request
    gamma: NonNegative = 1.0  #: per period saved at the start of a request
    sigma: NonNegative = 0.0  #: per started request
    zeta1: NonNegative = 0.0  #: per request that finishes within ``tail_eel_s``
    zeta2: NonNegative = 0.0  #: per request that starts within ``tail_ttft_s``
    tail_eel_s: Positive  #: limit of finish - arrival [s]
    tail_ttft_s: Positive  #: limit of start - arrival [s]
