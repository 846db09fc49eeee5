"""N independent clusters in one set of arrays: what both environments are built on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmroute_env.cluster.kernel import reset_lanes, step_lanes
from llmroute_env.cluster.log import EpisodeStats, episode_stats, request_log
from llmroute_env.cluster.spec import ClusterSpec
from llmroute_env.cluster.state import NANOSECONDS, Handle, State, allocate, make_handle
from llmroute_env.jit import announce_compilation
from llmroute_env.scenario import Scenario
from llmroute_env.spaces import OBSERVATION_KEYS, OPTIONAL_KEYS
from llmroute_env.workload import RequestTable, Streams, generate

#: rows of an automatically sampled time series over the horizon
_SAMPLES = 1024

_OPTIONS = ("prediction", "requests")


def optional_keys(scenario: Scenario) -> tuple[str, ...]:
    """Which of ``OPTIONAL_KEYS`` the scenario's observations have."""
    has = {
        "text": getattr(scenario.workload, "text", None) is not None,
        "prefix": scenario.cluster.prefix_cache is not None,
    }
    return tuple(key for key in OPTIONAL_KEYS if has[key])


class Simulator:
    """Kernel state of N lanes, and the workloads that they play.

    Args:
        scenario: what to simulate; needs no further validation.
        lanes: N.
        series_stride: periods between two samples of the time series, 0 for none, None for about
            a thousand samples over the horizon.
    """

    def __init__(self, scenario: Scenario, lanes: int, series_stride: int | None = 0) -> None:
        announce_compilation()
        self.scenario = scenario
        self.lanes = lanes
        self.spec = ClusterSpec.from_scenario(scenario)
        horizon = int(scenario.horizon_periods)
        if series_stride is None:
            series_stride = -(-horizon // _SAMPLES)
        # Twice the horizon's samples, so that a drain has room; a longer one is cut off.
        self._samples = 2 * (horizon // series_stride + 1) if series_stride else 0
        self._fixed = (
            self.spec.constants(scenario, series_stride),
            self.spec.base_s(),
            self.spec.devices(scenario),
            int(scenario.router.window),
        )
        #: keys of the observations
        self.keys = (*OBSERVATION_KEYS, *optional_keys(scenario))
        self.tables: list[RequestTable | None] = [None] * lanes
        self._scenarios: dict[str, Scenario] = {}
        self._allocate(0)

    def _allocate(self, capacity: int) -> None:
        self.capacity = capacity
        self.state: State = allocate(*self._fixed, self.lanes, capacity, self._samples)
        self.handle: Handle = make_handle(self.state)

    def _grow(self, capacity: int) -> None:
        """Make room for longer request tables, keeping what the lanes have done."""
        old = self.state
        self._allocate(capacity)
        self.state.requests[:, : old.requests.shape[1]] = old.requests
        kept = {name: getattr(old, name) for name in State._fields if name != "requests"}
        self.state = self.state._replace(**kept)
        self.handle = make_handle(self.state)

    def draw(
        self, rng: np.random.Generator, options: Mapping[str, Any] | None = None
    ) -> tuple[RequestTable, Streams]:
        """Draw the next episode's requests from child streams of ``rng``.

        Args:
            rng: generator of the lane; its k-th call here gives the k-th episode.
            options: of ``reset``: ``prediction`` (a kind, or a mapping with its parameters)
                replaces the prediction on the same sample path, ``requests`` (a `RequestTable`)
                the whole workload.

        Raises:
            ValueError: an unknown option, or one of the wrong form.
        """
        streams = Streams.spawn(rng)
        options = options or {}
        for key in options:
            if key not in _OPTIONS:
                raise ValueError(f"reset option {key!r}: must be one of {', '.join(_OPTIONS)}")
        scenario = self._with_prediction(options.get("prediction"))
        requests = options.get("requests")
        if requests is None:
            return generate(scenario, streams), streams
        if not isinstance(requests, RequestTable):
            raise TypeError(
                f"reset option 'requests': must be a RequestTable, got {type(requests).__name__}"
            )
        requests.validate()
        prediction = options.get("prediction")
        if prediction == "perfect":
            requests = replace(requests, predicted=requests.decode.astype(np.float32))
        elif prediction is not None:
            raise ValueError(
                "reset option 'prediction': with 'requests' only 'perfect' is possible, since the "
                "table brings its own predictions"
            )
        return requests, streams

    def _with_prediction(self, prediction: Any) -> Scenario:
        if prediction is None:
            return self.scenario
        key = repr(prediction)
        if key not in self._scenarios:  # validating takes a thousand times as long as looking up
            self._scenarios[key] = self.scenario.with_prediction(prediction)
        return self._scenarios[key]

    def reset(self, lanes: Sequence[int], tables: Sequence[RequestTable]) -> None:
        """Start an episode on each of ``lanes`` and write their observations."""
        longest = max((len(table) for table in tables), default=0)
        if longest > self.capacity:
            self._grow(longest + longest // 8 + 16)
        for lane, table in zip(lanes, tables, strict=True):
            rows = self.state.requests[lane, : len(table)]
            rows["arrival_ns"] = np.rint(table.arrival_s * NANOSECONDS)
            rows["prompt"] = table.prompt
            rows["decode"] = table.decode
            rows["predicted"] = table.predicted
            rows["tier"] = table.tier
            self.tables[lane] = table
        counts = np.array([len(table) for table in tables], np.int64)
        reset_lanes(self.handle, np.array(lanes, np.int64), counts)

    def step(
        self,
        actions: NDArray[np.int64],
        skip: NDArray[np.bool_],
        first: int = 0,
        stop: int | None = None,
    ) -> None:
        """Play one period of lanes ``first`` to ``stop`` with ``actions`` (N, W).

        Lanes with ``skip`` (N,) stay as they are. Callers in several threads may step disjoint
        ranges at the same time: the kernel runs without the GIL.
        """
        step_lanes(self.handle, actions, skip, first, self.lanes if stop is None else stop)

    def request_log(self, lane: int) -> dict[str, NDArray[Any]]:
        """Request log of a lane's episode; see `llmroute_env.cluster.log`."""
        table = self.tables[lane]
        if table is None:
            raise RuntimeError("no episode yet: call reset first")
        return request_log(self.state, self.handle, lane, table)

    def episode_stats(self, lane: int) -> EpisodeStats:
        """Counters of a lane's episode."""
        return episode_stats(self.state, lane)

    # A handle lives in this process only: its arrays travel, and are boxed again.
    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key != "handle"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.handle = make_handle(self.state)
