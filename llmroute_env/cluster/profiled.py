"""The parts of an iteration, each a function of what it depends on, from the two profiles."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from llmroute_env.cluster.profiles import DeviceProfile, ModelProfile


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

    @property
    def max_tokens(self) -> float:
        """Tokens in an iteration up to which the linear layers were profiled."""
        return self.model.layer_profile(self.device.name, self.tp).layer.sizes[-1]

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

    @property
    def token_slope_s(self) -> float:
        """What a token beyond the profile adds to an iteration, all layers, no attention [s]."""
        slope = self.model.layer_profile(self.device.name, self.tp).layer.slope_us()
        if self.tp > 1:
            message = self.model.hidden * self.model.bytes_per_value
            slope += 2.0 * self.device.all_reduce[self.tp].slope_us() * message
        return self.model.layers * slope * 1e-6

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

    @property
    def prefill_attention(self) -> tuple[float, float, float]:
        """Prefill attention of all layers: seconds per chunk, per new token, and per pair.

        A pair is a new token and one that it sees.
        """
        width = self.model.heads * self.model.head_dim / self.tp
        kernel = self.device.attention
        return (
            self.model.layers * kernel.prefill_overhead_s,
            self.model.layers * kernel.prefill_s_per_query * width,
            self.model.layers * kernel.prefill_s_per_flop * 4.0 * width,
        )

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
