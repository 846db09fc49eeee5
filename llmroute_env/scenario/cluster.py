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
    prefill_s_per_token: NonNegative = 0.0  #: with ``cluster.prefill``: per prefill token [s]


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


def _check_limits(section: Group | Cluster, timing: Timing) -> None:
    if timing.kind == "constant":
        for key in ("batch_limit", "kv_limit"):
            if getattr(section, key) is None:
                raise ValueError(
                    f"{key} = null: a number is needed with timing.kind = 'constant' "
                    "(the memory planner needs timing.kind = 'profile')"
                )
        if section.memory is not None:
            raise ValueError("memory: only allowed with timing.kind = 'profile'")
    for key in ("kv_limit", "context_limit"):
        limit = getattr(section, key)
        if limit is not None and limit < 2:  # one prompt token and one decode token
            raise ValueError(f"{key} = {limit}: must be at least 2, a request's least s + o")


class Group(Section):
    """Equal devices: all of a fleet, or one pool of it."""

    name: Annotated[str, Field(min_length=1)] = "default"  #: the pool
    devices: Count
    batch_limit: Count | None = None  #: B [requests]; null: from the memory planner
    kv_limit: Count | None = None  #: M [tokens]; null: from the memory planner
    context_limit: Count | None = None  #: largest s + o [tokens]; null: the model's, or none
    timing: Timing
    memory: Memory | None = None  #: null: the planner's defaults, with ``timing.kind: profile``

    @model_validator(mode="after")
    def _limits(self) -> Group:
        _check_limits(self, self.timing)
        return self


class Prefill(Section):
    """Devices prefill what they decode: an iteration mixes prompt chunks with decode tokens."""

    chunk_tokens: Count | None = None
    """Tokens of an iteration, one per decoding request included; null: whole prompts at once."""
    emits_token: Flag = False
    """Whether the iteration that ends a prefill emits a token, as engines do: o - 1 decode steps
    follow. ``false`` is the OLP paper's appendix A: one prefill step, then o decode steps."""


class PrefixCache(Section):
    """Devices keep the KV of prompts they have seen, in blocks, least recently used out first."""

    block: Count = 16  #: tokens in a cached block, a multiple of ``kv_block``


class Handoff(Section):
    """Prefill elsewhere takes time, and so does the KV cache's way to the chosen device.

    The router sees a request ``prefill_base_s + prefill_s_per_token * s`` after its arrival
    (prefill workers are never short); a dispatched request joins the batch no sooner than
    ``s * kv_bytes_per_token / link_bytes_per_s`` after its dispatch.
    """

    prefill_base_s: NonNegative = 0.0  #: [s]
    prefill_s_per_token: NonNegative = 0.0  #: [s]
    kv_bytes_per_token: NonNegative = 0.0  #: KV cache of a token, all layers [bytes]
    link_bytes_per_s: Positive = 25e9  #: bandwidth to a device [bytes/s]


#: keys that describe the one group of a fleet of equal devices
_GROUP_KEYS = ("batch_limit", "kv_limit", "context_limit", "timing", "memory")


class Cluster(Section):
    """G devices: equal ones, or several groups.

    A fleet of equal devices is described by ``devices``, the limits and ``timing`` right here;
    one of several groups by ``groups``, and then ``devices`` is their sum.
    """

    devices: Count  #: G
    batch_limit: Count | None = None  #: B [requests]; null: from the memory planner
    kv_limit: Count | None = None  #: M [tokens]; null: from the memory planner
    context_limit: Count | None = None  #: largest s + o [tokens]; null: the model's, or none
    kv_block: Count = 1  #: KV is allocated in blocks of so many tokens; engines use 16
    kv_watermark: Fraction = 0.0  #: share of the blocks kept free at admission
    head_of_line_skip: Flag = False  #: a later request may join where the FIFO's head does not fit
    timing: Timing | None = None  #: required, except with ``groups``
    memory: Memory | None = None  #: null: the planner's defaults, with ``timing.kind: profile``
    groups: tuple[Group, ...] | None = None  #: pools of unlike devices
    prefill: Prefill | None = None  #: null: prefill is done before a request comes
    prefix_cache: PrefixCache | None = None  #: with ``prefill``
    handoff: Handoff | None = None  #: without ``prefill``

    @model_validator(mode="before")
    @classmethod
    def _count_devices(cls, data: object) -> object:
        """``devices`` may be left out with groups: it is their sum."""
        groups = data.get("groups") if isinstance(data, dict) else None
        if groups == []:
            raise ValueError("groups = []: must hold at least one group")
        if groups and isinstance(data, dict) and data.get("devices") is None:
            counts = [
                group.get("devices") if isinstance(group, dict) else getattr(group, "devices", None)
                for group in groups
            ]
            if all(isinstance(count, int | float) for count in counts):
                return {**data, "devices": sum(counts)}
        return data

    @model_validator(mode="after")
    def _consistent(self) -> Cluster:
        if self.groups is None:
            if self.timing is None:
                raise ValueError("timing is missing")
            _check_limits(self, self.timing)
        else:
            self._groups_alone()
        for group in self.fleet:
            if group.kv_limit is not None and self.kv_block > group.kv_limit:
                raise ValueError(
                    f"kv_block = {self.kv_block}: must be at most kv_limit = {group.kv_limit}"
                )
        if self.prefix_cache is not None:
            if self.prefill is None:
                raise ValueError("prefix_cache: needs prefill, since a hit shortens the prefill")
            if self.prefix_cache.block % self.kv_block:
                raise ValueError(
                    f"prefix_cache.block = {self.prefix_cache.block}: must be a multiple of "
                    f"kv_block = {self.kv_block}"
                )
        if self.handoff is not None and self.prefill is not None:
            raise ValueError("handoff: not together with prefill (nothing is handed over)")
        return self

    def _groups_alone(self) -> None:
        assert self.groups is not None
        for key in _GROUP_KEYS:
            if getattr(self, key) is not None:
                raise ValueError(f"{key}: with groups, each group has its own")
        total = sum(group.devices for group in self.groups)
        if self.devices != total:
            raise ValueError(
                f"devices = {self.devices}: the groups have {total}; change groups instead"
            )
        names = [group.name for group in self.groups]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"groups: name {name!r} occurs twice, each pool needs its own")

    @property
    def fleet(self) -> tuple[Group, ...]:
        """The groups; one, named ``default``, where all devices are equal."""
        if self.groups is not None:
            return self.groups
        assert self.timing is not None  # validated
        return (
            Group(
                devices=self.devices,
                batch_limit=self.batch_limit,
                kv_limit=self.kv_limit,
                context_limit=self.context_limit,
                timing=self.timing,
                memory=self.memory,
            ),
        )


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
