"""The request table: what the workload hands to the cluster, one row per request."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from llmroute_env.scenario.fields import LONGEST_S

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Streams(NamedTuple):
    """Independent random streams of one episode.

    One stream per concern, so that another prediction model, or another sequence of actions,
    leaves the arrivals and the lengths of the same seed untouched (common random numbers).
    """

    arrivals: np.random.Generator
    lengths: np.random.Generator
    prediction: np.random.Generator
    episode: np.random.Generator  #: randomness inside the episode (failures, stragglers)

    @classmethod
    def spawn(cls, rng: np.random.Generator) -> Streams:
        """The next episode's streams: four children of ``rng``, in field order."""
        return cls(*rng.spawn(4))


@dataclass(frozen=True, slots=True)
class RequestTable:
    """Structure of arrays, R rows sorted by arrival (stable); the row number is the request id."""

    arrival_s: Floats  #: (R,) arrival since the episode started, >= 0 [s]
    prompt: Ints  #: (R,) prompt (KV) tokens s, >= 1
    decode: Ints  #: (R,) true decode tokens o, >= 1
    predicted: NDArray[np.float32]  #: (R,) predicted decode tokens ô, > 0, not rounded
    tier: Ints  #: (R,) request tier, 0 is the default tier

    def __len__(self) -> int:
        return len(self.arrival_s)

    def validate(self) -> RequestTable:
        """Check shapes, dtypes and ranges of a table built by hand.

        The generator's own tables satisfy this by construction (a test shows it), so episodes do
        not pay for the check.

        Raises:
            ValueError: naming the column, the row and the value.
        """
        rows = len(self)
        kinds = {
            "arrival_s": np.float64,
            "prompt": np.int64,
            "decode": np.int64,
            "predicted": np.float32,
            "tier": np.int64,
        }
        for name, kind in kinds.items():
            column = getattr(self, name)
            if column.shape != (rows,) or column.dtype != kind:
                raise ValueError(
                    f"request table: {name} must be {np.dtype(kind)} of shape ({rows},), "
                    f"got {column.dtype} of shape {column.shape}"
                )
        # The kernel counts tokens in int32 and time in int64 nanoseconds.
        limits = {
            "arrival_s": (0.0, LONGEST_S),
            "prompt": (1, 2**31 - 1),
            "decode": (1, 2**31 - 1),
            "tier": (0, 2**31 - 1),
        }
        for name, (least, most) in limits.items():
            column = getattr(self, name)
            bad = np.flatnonzero(~((column >= least) & (column <= most)))
            if bad.size:
                raise ValueError(
                    f"request table: {name}[{bad[0]}] = {column[bad[0]]}, must be from {least:g} "
                    f"to {most:.10g}"
                )
        bad = np.flatnonzero(~((self.predicted > 0) & np.isfinite(self.predicted)))
        if bad.size:
            raise ValueError(
                f"request table: predicted[{bad[0]}] = {self.predicted[bad[0]]}, must be positive"
            )
        late = np.flatnonzero(np.diff(self.arrival_s) < 0)
        if late.size:
            raise ValueError(f"request table: arrival_s is not sorted at row {late[0] + 1}")
        return self

    def with_prediction(self, predicted: NDArray[np.float32]) -> RequestTable:
        """The same requests with other predicted lengths."""
        return replace(self, predicted=predicted)
