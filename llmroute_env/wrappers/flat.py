"""Flat, normalized features for learners: every entry lies in [0, 1]."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from llmroute_env.spaces import Active, Clock, Device, Queue

Observation = Mapping[str, NDArray[Any]]
Features = NDArray[np.float32]

_QUEUE_FEATURES = len(Queue) + 1  # and one for "a request is here"
_CLOCK_FEATURES = 3


@dataclass(frozen=True)
class Block:
    """A part of the flat vector: ``features[..., start:stop].reshape(..., *shape)``."""

    start: int
    stop: int
    shape: tuple[int, ...]

    def of(self, features: NDArray[Any]) -> NDArray[Any]:
        """View of this block, (..., *shape), in ``features`` (..., F)."""
        rows: NDArray[Any] = features[..., self.start : self.stop]
        return rows.reshape(*features.shape[:-1], *self.shape)


@dataclass(frozen=True)
class Scales:
    """The magnitudes that features are measured in.

    Attributes:
        batch: largest batch limit of the fleet [requests].
        kv: largest KV limit of the fleet [tokens].
        wait_s: age at which the feature of waiting is 1/2 [s].
        iteration_s: duration at which the feature of an iteration is 1/2 [s].
        periods: horizon [periods].
        window: W, rows of the visible queue.
    """

    batch: float
    kv: float
    wait_s: float
    iteration_s: float
    periods: float
    window: float

    @classmethod
    def of(cls, env: gym.Env[Any, Any] | gym.vector.VectorEnv[Any, Any, Any]) -> Scales:
        """Read the scales off an LLMRoute environment, single or vector, wrapped or not."""
        bare: Any = env.unwrapped
        scenario, cluster = bare.scenario, bare.spec_cluster
        limit = float(scenario.objective.tail_ttft_s)
        period = float(scenario.period_s)
        return cls(
            batch=float(np.max(cluster.batch_limit)),
            kv=float(np.max(cluster.kv_limit)),
            wait_s=limit if math.isfinite(limit) and limit > 0 else 50 * period,
            iteration_s=period,
            periods=float(scenario.horizon_periods),
            window=float(scenario.router.window),
        )


class FlatFeatures:
    """Turns a ``Dict`` observation, of one lane or of a batch of lanes, into a flat vector.

    The blocks follow each other in this order, each with its rows in the order of the
    observation (row-major), so that ``layout["devices"].of(features)`` gives (..., G, 10) again
    and an equivariant extractor can share its weights over rows:

    ========= ================ ==================================================================
    block     shape            features of a row
    ========= ================ ==================================================================
    queue     (W, 5)           log s, log ô, waited, tier, 1 (0 in the rows past the queue)
    request   (5,)             the same of the request to be dispatched (`OneRequestEnv` only)
    devices   (G, 11)          the fields of `Device`, in their order
    active    (G, B_max, 2)    KV tokens / M, log of the predicted remaining tokens
    clock     (3,)             k/T, periods left/T, hidden queue
    pending   (2,)             requests still to ask about, held (`OneRequestEnv` only)
    ========= ================ ==================================================================

    Scales: token counts of one request are ``log(1 + x) / log(1 + M_max)``; what has a limit is
    divided by it (active/B, KV/M, B/B_max, M/M_max); what has none is ``x / (x + scale)``, 1/2 at
    its scale: waiting at the start-delay limit, iteration times at one period, FIFO lengths at B,
    FIFO tokens at M, hidden and pending requests at W.

    Args:
        space: the observation space, of one lane.
        scales: magnitudes, see `Scales`.
        include_active: with the block ``active``, by far the largest one.
    """

    def __init__(self, space: spaces.Dict, scales: Scales, include_active: bool = True) -> None:
        self.scales = scales
        self.layout: dict[str, Block] = {}
        start = 0
        for name, shape in _shapes(space, include_active).items():
            stop = start + math.prod(shape)
            self.layout[name] = Block(start, stop, shape)
            start = stop
        self.space = spaces.Box(0.0, 1.0, (start,), np.float32)
        self._log_kv = np.float32(1.0 / math.log1p(scales.kv))

    def __call__(self, observation: Observation) -> Features:
        """Features (..., F) of an observation with any leading batch axes; a fresh array."""
        lead = observation["clock"].shape[:-1]
        features = np.zeros((*lead, self.space.shape[0]), np.float32)
        for name, block in self.layout.items():
            getattr(self, f"_{name}")(observation, block.of(features))
        np.minimum(features, np.float32(1.0), out=features)
        return features

    def _log_tokens(self, tokens: NDArray[Any]) -> NDArray[Any]:
        logs: NDArray[Any] = np.log1p(tokens) * self._log_kv
        return logs

    def _requests(self, rows: NDArray[Any], present: NDArray[Any], out: Features) -> None:
        out[..., Queue.PROMPT] = self._log_tokens(rows[..., Queue.PROMPT])
        out[..., Queue.PREDICTED] = self._log_tokens(rows[..., Queue.PREDICTED])
        out[..., Queue.WAITED] = _saturating(rows[..., Queue.WAITED], self.scales.wait_s)
        out[..., Queue.TIER] = _saturating(rows[..., Queue.TIER], 1.0)
        out[..., len(Queue)] = present

    def _queue(self, observation: Observation, out: Features) -> None:
        self._requests(observation["queue"], observation["queue_id"] >= 0, out)

    def _request(self, observation: Observation, out: Features) -> None:
        rows = observation["request"]
        self._requests(rows, rows[..., Queue.PROMPT] > 0, out)

    def _devices(self, observation: Observation, out: Features) -> None:
        rows = observation["devices"]
        batch, kv = rows[..., Device.BATCH_LIMIT], rows[..., Device.KV_LIMIT]
        out[..., Device.ACTIVE] = rows[..., Device.ACTIVE] / batch
        out[..., Device.BATCH_LIMIT] = batch / self.scales.batch
        out[..., Device.KV_USED] = rows[..., Device.KV_USED] / kv
        out[..., Device.KV_LIMIT] = kv / self.scales.kv
        out[..., Device.FIFO_LENGTH] = _saturating(rows[..., Device.FIFO_LENGTH], batch)
        out[..., Device.FIFO_TOKENS] = _saturating(rows[..., Device.FIFO_TOKENS], kv)
        out[..., Device.FIFO_PREDICTED] = _saturating(rows[..., Device.FIFO_PREDICTED], kv)
        out[..., Device.PREFILL] = _saturating(rows[..., Device.PREFILL], kv)
        for field in (Device.LAST_ITERATION, Device.TIME_TO_END):
            out[..., field] = _saturating(rows[..., field], self.scales.iteration_s)
        out[..., Device.UP] = rows[..., Device.UP]

    def _active(self, observation: Observation, out: Features) -> None:
        slots = observation["active"]
        limits = observation["devices"][..., Device.KV_LIMIT, np.newaxis]
        out[..., Active.KV] = slots[..., Active.KV] / limits
        out[..., Active.REMAINING] = self._log_tokens(slots[..., Active.REMAINING])

    def _clock(self, observation: Observation, out: Features) -> None:
        clock = observation["clock"]
        out[..., 0] = clock[..., Clock.PERIOD] / self.scales.periods
        out[..., 1] = clock[..., Clock.LEFT] / self.scales.periods
        out[..., 2] = _saturating(clock[..., Clock.HIDDEN], self.scales.window)

    def _pending(self, observation: Observation, out: Features) -> None:
        out[...] = _saturating(observation["pending"], self.scales.window)


class FlatObservation(
    gym.ObservationWrapper[Features, Any, Observation], gym.utils.RecordConstructorArgs
):
    """One float32 vector in [0, 1] instead of the ``Dict``; works over `OneRequestEnv` too.

    ``env.layout`` names the blocks of the vector; their order and scales are those of
    `FlatFeatures`.

    Args:
        env: an LLMRoute environment.
        include_active: with the batch slots one by one, 2·G·B_max features.
    """

    def __init__(self, env: gym.Env[Observation, Any], include_active: bool = True) -> None:
        gym.utils.RecordConstructorArgs.__init__(self, include_active=include_active)
        gym.ObservationWrapper.__init__(self, env)
        space: Any = env.observation_space
        if not isinstance(space, spaces.Dict):
            raise TypeError(f"FlatObservation needs LLMRoute's Dict observations, not {space}")
        self.features = FlatFeatures(space, Scales.of(env), include_active)
        self.layout: dict[str, Block] = self.features.layout
        self.observation_space = self.features.space

    def observation(self, observation: Observation) -> Features:
        """Features (F,) of one observation."""
        return self.features(observation)

    def action_masks(self) -> NDArray[np.bool_]:
        """The wrapped environment's mask, for sb3-contrib."""
        masks: NDArray[np.bool_] = self.env.get_wrapper_attr("action_masks")()
        return masks


def _shapes(space: spaces.Dict, include_active: bool) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {}
    if "queue" in space.spaces:
        window = _shape(space, "queue")[0]
        shapes["queue"] = (window, _QUEUE_FEATURES)
    if "request" in space.spaces:
        shapes["request"] = (_QUEUE_FEATURES,)
    shapes["devices"] = _shape(space, "devices")
    if include_active:
        shapes["active"] = _shape(space, "active")
    shapes["clock"] = (_CLOCK_FEATURES,)
    if "pending" in space.spaces:
        shapes["pending"] = _shape(space, "pending")
    return shapes


def _shape(space: spaces.Dict, name: str) -> tuple[int, ...]:
    shape = space[name].shape
    if shape is None:
        raise TypeError(f'observation "{name}" has no shape')
    return shape


def _saturating(value: NDArray[Any], scale: NDArray[Any] | float) -> NDArray[Any]:
    """0 at 0, 1/2 at ``scale``, below 1 everywhere."""
    ratio: NDArray[Any] = value / (value + scale)
    return ratio
