"""How long one iteration of a device lasts.

A device that only decodes, `IterationTiming`: ``t(b, kv, prefill) = base_s[b] + kv_s * kv +
prefill_s * prefill`` [s], a table over the batch size (overhead, linear layers, attention launch,
all-reduce, output projection), the attention kernel's KV traffic, and the tokens that have to be
computed (again) before decoding goes on.

A device that prefills too, `MixedTiming`: a table over all tokens of the iteration, decoding ones
and prefill chunks, the same KV traffic, and the prefill attention of each chunk.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from llmroute_env.cluster.profiled import ProfiledTimes
from llmroute_env.cluster.profiles import DeviceProfile, ModelProfile, load_device, load_model

#: Prompt length at which the quadratic prefill attention is turned into a cost per token. About
#: the Azure conversation trace's mean context, which is what a preemption recomputes.
PREFILL_REFERENCE_TOKENS = 1024


@dataclass(frozen=True, eq=False)
class IterationTiming:
    """Iteration time of one device, ready for the kernel.

    Attributes:
        base_s: (B+1,) time by batch size [s], non-decreasing. Entry 0 equals entry 1: an iteration
            that only recomputes tokens reads the weights too.
        kv_s: per KV token that the iteration holds, the sum of s + emitted + 1 [s].
        prefill_s: per recomputed (prefill) token [s].
        provenance: where the numbers come from, one line.
    """

    base_s: np.ndarray
    kv_s: float
    prefill_s: float
    provenance: str

    def __post_init__(self) -> None:
        if self.base_s.ndim != 1 or len(self.base_s) < 2:
            raise ValueError(f"base_s needs shape (B+1,) with B >= 1, has {self.base_s.shape}")
        values = (*self.base_s, self.kv_s, self.prefill_s)
        if not all(math.isfinite(value) and value >= 0 for value in values):
            raise ValueError("iteration times must be finite and not negative")
        if self.base_s[1] <= 0:  # an iteration of no length would never let time pass
            raise ValueError(f"base_s[1] = {self.base_s[1]} must be above 0")
        if np.any(np.diff(self.base_s) < 0):
            raise ValueError("base_s must not decrease with the batch size")

    @property
    def batch_limit(self) -> int:
        """Largest batch the table covers, B [requests]."""
        return len(self.base_s) - 1

    def iteration_s(self, batch: int, kv: float, prefill: float = 0.0) -> float:
        """Duration of an iteration [s].

        Args:
            batch: active requests, 0 to B.
            kv: KV tokens held, the sum of s + emitted + 1 over the batch.
            prefill: tokens computed in this iteration besides one per request.

        Raises:
            ValueError: a batch outside the table.
        """
        if not 0 <= batch <= self.batch_limit:
            raise ValueError(f"batch = {batch} is outside 0 to {self.batch_limit}")
        return float(self.base_s[batch] + self.kv_s * kv + self.prefill_s * prefill)


def constant(iteration_s: float, batch_limit: int) -> IterationTiming:
    """Every iteration lasts ``iteration_s``; equal to the period it is the lock-step model."""
    if not (math.isfinite(iteration_s) and iteration_s > 0):
        raise ValueError(f"timing.iteration_s = {iteration_s} must be a finite number above 0")
    return IterationTiming(
        np.full(_checked_batch(batch_limit) + 1, float(iteration_s)),
        kv_s=0.0,
        prefill_s=0.0,
        provenance=f"constant {iteration_s:g} s",
    )


def from_profile(
    device: str | Path | DeviceProfile,
    model: str | Path | ModelProfile,
    tp: int,
    batch_limit: int,
    *,
    overhead_s: float | None = None,
) -> IterationTiming:
    """Timing of ``model`` on ``tp`` GPUs of ``device``.

    Args:
        device: name under ``configs/devices``, path, or profile.
        model: name under ``configs/models``, path, or profile.
        tp: tensor-parallel degree of the replica.
        batch_limit: B, largest batch [requests].
        overhead_s: replaces the device's overhead per iteration [s].

    Raises:
        ValueError: unknown names, or a degree or batch that was not profiled.
    """
    times = ProfiledTimes(load_device(device), load_model(model), tp)
    limit = _profiled_batch(times, batch_limit)
    overhead = _checked_overhead(times.device, overhead_s)
    batch = np.maximum(np.arange(limit + 1), 1)
    return IterationTiming(
        overhead + times.batch_s(batch),
        kv_s=times.kv_s,
        prefill_s=times.prefill_s(PREFILL_REFERENCE_TOKENS),
        provenance=f"profile of {times.model.name} on {tp} x {times.device.name}",
    )


@dataclass(frozen=True, eq=False)
class MixedTiming:
    """Iteration time of a device that prefills beside decoding, ready for the kernel.

    ``t = token_s[n] + kv_s * kv + sum over chunks (chunk_s + query_s * m + pair_s * m *
    (context + m / 2))`` [s], with n tokens in the iteration (one per decoding request and those of
    the prefill chunks), kv the sum of s + emitted + 1 over the decoding requests, and a chunk of m
    new tokens after ``context`` ones that are in the KV cache already.

    Attributes:
        token_s: (C+1,) time by tokens in the iteration [s], non-decreasing: overhead, linear
            layers, all-reduce, output projection, and the launch of decode attention. Entry 0
            equals entry 1.
        token_slope_s: per token beyond the table [s].
        kv_s: decode attention per KV token [s].
        chunk_s: prefill attention per chunk [s].
        query_s: prefill attention per new token [s].
        pair_s: prefill attention per pair of a new token and one that it sees [s].
        provenance: where the numbers come from, one line.
    """

    token_s: np.ndarray
    token_slope_s: float
    kv_s: float
    chunk_s: float
    query_s: float
    pair_s: float
    provenance: str

    def __post_init__(self) -> None:
        if self.token_s.ndim != 1 or len(self.token_s) < 2:
            raise ValueError(f"token_s needs shape (C+1,) with C >= 1, has {self.token_s.shape}")
        rates = (self.token_slope_s, self.kv_s, self.chunk_s, self.query_s, self.pair_s)
        if not all(math.isfinite(value) and value >= 0 for value in (*self.token_s, *rates)):
            raise ValueError("iteration times must be finite and not negative")
        if self.token_s[1] <= 0:  # an iteration of no length would never let time pass
            raise ValueError(f"token_s[1] = {self.token_s[1]} must be above 0")
        if np.any(np.diff(self.token_s) < 0):
            raise ValueError("token_s must not decrease with the tokens")

    @property
    def table_tokens(self) -> int:
        """Tokens that the table covers, C."""
        return len(self.token_s) - 1

    def iteration_s(self, decoding: int, kv: float, chunks: Sequence[tuple[int, int]]) -> float:
        """Duration of an iteration [s].

        Args:
            decoding: requests that decode in it.
            kv: the sum of s + emitted + 1 over them [tokens].
            chunks: per prefilling request its new tokens, at least 1, and its context: the tokens
                that are in the KV cache before the chunk.

        Raises:
            ValueError: a negative count, or a chunk without tokens.
        """
        if decoding < 0 or any(new < 1 or context < 0 for new, context in chunks):
            raise ValueError(
                f"decoding = {decoding} and contexts must be at least 0, chunks at least 1 token"
            )
        tokens = decoding + sum(new for new, _ in chunks)
        inside = min(tokens, self.table_tokens)
        seconds = float(self.token_s[inside]) + self.token_slope_s * (tokens - inside)
        seconds += self.kv_s * kv
        for new, context in chunks:
            pairs = new * (context + new / 2)
            seconds += self.chunk_s + self.query_s * new + self.pair_s * pairs
        return seconds


def constant_mixed(iteration_s: float, prefill_s_per_token: float = 0.0) -> MixedTiming:
    """Every iteration lasts ``iteration_s`` and ``prefill_s_per_token`` for each prefill token.

    Raises:
        ValueError: an iteration of no length, or a negative or infinite time per token.
    """
    if not (math.isfinite(iteration_s) and iteration_s > 0):
        raise ValueError(f"timing.iteration_s = {iteration_s} must be a finite number above 0")
    if not (math.isfinite(prefill_s_per_token) and prefill_s_per_token >= 0):
        raise ValueError(
            f"timing.prefill_s_per_token = {prefill_s_per_token} must be finite and not negative"
        )
    return MixedTiming(
        np.full(2, float(iteration_s)),
        token_slope_s=0.0,
        kv_s=0.0,
        chunk_s=0.0,
        query_s=float(prefill_s_per_token),  # a decoding request's token must not pay it
        pair_s=0.0,
        provenance=f"constant {iteration_s:g} s, {prefill_s_per_token:g} s per prefill token",
    )


def from_profile_mixed(
    device: str | Path | DeviceProfile,
    model: str | Path | ModelProfile,
    tp: int,
    batch_limit: int,
    chunk_tokens: int | None = None,
    *,
    overhead_s: float | None = None,
) -> MixedTiming:
    """Mixed timing of ``model`` on ``tp`` GPUs of ``device``.

    Without prefill chunks an iteration lasts as long as with `from_profile`. Two conventions make
    that so: the launch of decode attention is in ``token_s`` always, so an iteration that only
    prefills pays for one that it does not have (about 20 microseconds a layer, 1.6 ms of 80
    layers); and the output projection runs on one token per request, so on at most ``batch_limit``.

    Args:
        device: name under ``configs/devices``, path, or profile.
        model: name under ``configs/models``, path, or profile.
        tp: tensor-parallel degree of the replica.
        batch_limit: B, largest batch [requests].
        chunk_tokens: token budget of an iteration; None where whole prompts are prefilled. The
            table then ends where the profile does.
        overhead_s: replaces the device's overhead per iteration [s].

    Raises:
        ValueError: unknown names, a degree or batch that was not profiled, a budget below 1.
    """
    times = ProfiledTimes(load_device(device), load_model(model), tp)
    limit = _profiled_batch(times, batch_limit)
    overhead = _checked_overhead(times.device, overhead_s)
    if chunk_tokens is not None and (int(chunk_tokens) != chunk_tokens or chunk_tokens < 1):
        raise ValueError(f"chunk_tokens = {chunk_tokens} must be a whole number of at least 1")
    largest = times.max_tokens if chunk_tokens is None else chunk_tokens
    tokens = np.maximum(np.arange(max(int(largest), limit) + 1), 1)
    per_layer = (
        times.layer_s(tokens)
        + times.all_reduce_s(tokens)
        + times.device.attention.decode_overhead_s
    )
    head = times.head_s(np.minimum(tokens, limit))
    chunk, query, pair = times.prefill_attention
    return MixedTiming(
        overhead + (times.model.layers * per_layer + head),
        token_slope_s=times.token_slope_s,
        kv_s=times.kv_s,
        chunk_s=chunk,
        query_s=query,
        pair_s=pair,
        provenance=f"mixed profile of {times.model.name} on {tp} x {times.device.name}",
    )


def _checked_batch(batch_limit: int) -> int:
    if int(batch_limit) != batch_limit or batch_limit < 1:
        raise ValueError(f"batch limit {batch_limit} must be a whole number of at least 1")
    return int(batch_limit)


def _profiled_batch(times: ProfiledTimes, batch_limit: int) -> int:
    limit = _checked_batch(batch_limit)
    if limit > times.max_batch:
        raise ValueError(
            f"batch limit {limit} is beyond the profile of {times.model.name} on "
            f"{times.device.name} at tp {times.tp}, which ends at {times.max_batch:.0f} requests"
        )
    return limit


def _checked_overhead(device: DeviceProfile, overhead_s: float | None) -> float:
    overhead = device.overhead_s if overhead_s is None else overhead_s
    if not (math.isfinite(overhead) and overhead >= 0):
        raise ValueError(f"timing.overhead_s = {overhead} must be finite and not negative")
    return overhead
