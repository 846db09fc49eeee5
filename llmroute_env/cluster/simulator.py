"""N independent clusters in one set of arrays: what both environments are built on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmroute_env.cluster.kernel import reset_lanes, step_lanes
from llmroute_env.cluster.log import EpisodeStats, episode_stats, request_log
from llmroute_env.cluster.spec import ClusterSpec, optional_keys
from llmroute_env.cluster.state import NANOSECONDS, Handle, Sizes, State, allocate, make_handle
from llmroute_env.jit import announce_compilation
from llmroute_env.scenario import Scenario
from llmroute_env.spaces import OBSERVATION_KEYS
from llmroute_env.workload import RequestTable, Streams, generate

#: rows of an automatically sampled time series over the horizon
_SAMPLES = 1024

_OPTIONS = ("prediction", "requests")

#: arrays of ``state.mixed`` whose last axis grows with the workload
_GROWING = ("extra", "chains", "cache")


def _copy_rows(old: NDArray[Any], new: NDArray[Any]) -> None:
    new[..., : old.shape[-1]] = old


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
            self.spec.token_s(),
            self.spec.devices(scenario),
            int(scenario.router.window),
        )
        #: keys of the observations
        self.keys = (*OBSERVATION_KEYS, *optional_keys(scenario))
        self.tables: list[RequestTable | None] = [None] * lanes
        self._scenarios: dict[str, Scenario] = {}
        self._allocate(Sizes(0))

    def _allocate(self, sizes: Sizes) -> None:
        self.sizes = sizes
        self.state: State = allocate(*self._fixed, self.lanes, sizes, self._samples)
        self.handle: Handle = make_handle(self.state)

    def _grow(self, needed: Sizes) -> None:
        """Make room for larger workloads, keeping what the lanes have done."""
        old, now = self.state, self.sizes
        self._allocate(
            Sizes(
                *(
                    have if need <= have else need + need // 8 + 16
                    for have, need in zip(now, needed, strict=True)
                )
            )
        )
        new = self.state
        _copy_rows(old.requests, new.requests)
        if old.mixed is not None and new.mixed is not None:
            for name in _GROWING:
                _copy_rows(getattr(old.mixed, name), getattr(new.mixed, name))
        self.state = old._replace(requests=new.requests, mixed=new.mixed)
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
        self._make_room(tables)
        for lane, table in zip(lanes, tables, strict=True):
            rows = self.state.requests[lane, : len(table)]
            rows["arrival_ns"] = np.rint(table.arrival_s * NANOSECONDS)
            if table.ready_s is None:
                rows["ready_ns"] = rows["arrival_ns"]
            else:
                rows["ready_ns"] = np.rint(table.ready_s * NANOSECONDS)
            rows["prompt"] = table.prompt
            rows["decode"] = table.decode
            rows["predicted"] = table.predicted
            rows["tier"] = table.tier
            if self.state.mixed is not None:
                self._load_extra(lane, table)
            self.tables[lane] = table
        counts = np.array([len(table) for table in tables], np.int64)
        reset_lanes(self.handle, np.array(lanes, np.int64), counts)

    def _make_room(self, tables: Sequence[RequestTable]) -> None:
        needed = list(self.sizes)
        for table in tables:
            links = blocks = 0
            if self.spec.prefix_block and table.block_ids is not None and len(table.block_ids):
                links, blocks = len(table.block_ids), int(table.block_ids.max()) + 1
            needed = [max(pair) for pair in zip(needed, (len(table), links, blocks), strict=True)]
        if tuple(needed) != self.sizes:
            self._grow(Sizes(*needed))

    def _load_extra(self, lane: int, table: RequestTable) -> None:
        """Write texts and chains of prefix blocks; what the workload has none of is 0."""
        mixed = self.state.mixed
        assert mixed is not None
        rows = mixed.extra[lane, : len(table)]
        rows["size_bytes"] = 0.0 if table.size_bytes is None else table.size_bytes
        rows["category"] = 0.0 if table.category is None else table.category
        if not self.spec.prefix_block or table.block_ids is None or table.block_start is None:
            rows["chain"] = rows["links"] = 0
            return
        mixed.chains[lane, : len(table.block_ids)] = table.block_ids
        rows["chain"] = table.block_start[:-1]
        rows["links"] = np.diff(table.block_start)

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
