"""How long one iteration of a device lasts.

``t(b, kv, prefill) = base_s[b] + kv_s * kv + prefill_s * prefill`` [s]: a table over the batch
size (overhead, linear layers, attention launch, all-reduce, output projection), the attention
kernel's KV traffic, and the tokens that have to be computed (again) before decoding goes on.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

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
    limit = _checked_batch(batch_limit)
    if limit > times.max_batch:
        raise ValueError(
            f"batch limit {limit} is beyond the profile of {times.model.name} on "
            f"{times.device.name} at tp {tp}, which ends at {times.max_batch:.0f} requests"
        )
    overhead = times.device.overhead_s if overhead_s is None else overhead_s
    if not (math.isfinite(overhead) and overhead >= 0):
        raise ValueError(f"timing.overhead_s = {overhead} must be finite and not negative")
    batch = np.maximum(np.arange(limit + 1), 1)
    return IterationTiming(
        overhead + times.batch_s(batch),
        kv_s=times.kv_s,
        prefill_s=times.prefill_s(PREFILL_REFERENCE_TOKENS),
        provenance=f"profile of {times.model.name} on {tp} x {times.device.name}",
    )


@dataclass(frozen=True)
class ProfiledTimes:
    """The parts of an iteration, each a function of what it depends on (no overhead)."""

    device: DeviceProfile
    model: ModelProfile
    tp: int

    def __post_init__(self) -> None:
        self.model.layer_profile(self.device.name, self.tp)
        if self.tp > 1 and self.tp not in self.device.all_reduce:
            known = ", ".join(str(degree) for degree in sorted(self.device.all_reduce)) or "none"
            raise ValueError(
                f"timing.tp = {self.tp}: {self.device.name} has all-reduce times for {known} only"
            )

    @property
    def max_batch(self) -> float:
        """Largest batch that was profiled with its output projection [requests]."""
        return self.model.layer_profile(self.device.name, self.tp).head.sizes[-1]

    def layer_s(self, tokens: np.ndarray | float) -> np.ndarray:
        """Linear operators of one layer [s] for ``tokens`` in the batch."""
        profile = self.model.layer_profile(self.device.name, self.tp)
        return profile.layer.seconds(padded(tokens))

    def head_s(self, tokens: np.ndarray | float) -> np.ndarray:
        """Embedding and output projection [s], once an iteration."""
        profile = self.model.layer_profile(self.device.name, self.tp)
        return profile.head.seconds(padded(tokens))

    def all_reduce_s(self, tokens: np.ndarray | float) -> np.ndarray:
        """The two all-reduces of one layer [s]; 0 on a single GPU."""
        if self.tp == 1:
            return np.zeros(np.shape(tokens))
        message = padded(tokens) * self.model.hidden * self.model.bytes_per_value
        return 2.0 * self.device.all_reduce[self.tp].seconds(message)

    def batch_s(self, batch: np.ndarray | float) -> np.ndarray:
        """Everything that ``batch`` decoding requests cost apart from their KV [s]."""
        per_layer = (
            self.layer_s(batch) + self.all_reduce_s(batch) + self.device.attention.decode_overhead_s
        )
        return np.asarray(self.model.layers * per_layer + self.head_s(batch))

    @property
    def kv_s(self) -> float:
        """Decode attention per KV token in the batch, all layers [s]."""
        traffic = self.model.kv_bytes_per_token(self.tp)
        return traffic * self.device.attention.decode_s_per_byte

    def prefill_attention_s(self, tokens: float, context: float = 0.0) -> float:
        """Attention of ``tokens`` new ones after ``context`` cached ones, all layers [s]."""
        width = self.model.heads * self.model.head_dim / self.tp
        pairs = tokens * (context + tokens / 2)  # a token sees what precedes it
        kernel = self.device.attention
        return self.model.layers * (
            kernel.prefill_overhead_s
            + kernel.prefill_s_per_query * width * tokens
            + kernel.prefill_s_per_flop * 4.0 * width * pairs
        )

    def prefill_s(self, reference_tokens: int) -> float:
        """Cost of a prefill token [s], attention averaged over a prompt of the given length."""
        profile = self.model.layer_profile(self.device.name, self.tp)
        layer = profile.prefill_us_per_token * 1e-6
        if self.tp > 1:
            message = self.model.hidden * self.model.bytes_per_value
            layer += 2.0 * self.device.all_reduce[self.tp].slope_us() * 1e-6 * message
        attention = self.prefill_attention_s(reference_tokens) / reference_tokens
        return self.model.layers * layer + attention


def padded(tokens: np.ndarray | float) -> np.ndarray:
    """Batch size that the kernels run with: 1, 2, 4, then the next multiple of 8.

    Engines capture decode graphs at these sizes and pad up to them; they are also the token
    counts that were profiled, so a batch of 65 pays for the tile step between 64 and 72.
    """
    size = np.asarray(tokens, np.float64)
    small = 2.0 ** np.ceil(np.log2(np.maximum(size, 1.0)))
    return np.where(size <= 4, small, 8.0 * np.ceil(size / 8.0))


def _checked_batch(batch_limit: int) -> int:
    if int(batch_limit) != batch_limit or batch_limit < 1:
        raise ValueError(f"batch limit {batch_limit} must be a whole number of at least 1")
    return int(batch_limit)
