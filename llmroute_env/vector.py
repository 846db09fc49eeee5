"""The native vector environment: N lanes of one kernel."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
from gymnasium.error import ResetNeeded
from gymnasium.utils.seeding import np_random
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import ArrayLike, NDArray

from llmroute_env import metrics, spaces
from llmroute_env.cluster.log import EpisodeStats
from llmroute_env.cluster.simulator import Simulator
from llmroute_env.cluster.spec import ClusterSpec
from llmroute_env.cluster.state import Handle, Outcome
from llmroute_env.env import DEFAULT_SCENARIO, Observation, Source
from llmroute_env.outcome import step_info, step_infos
from llmroute_env.scenario import Scenario
from llmroute_env.spaces import OBSERVATION_KEYS
from llmroute_env.workload import prepare

#: Lanes from which a second thread pays for waking it up: ``scripts/benchmark.py --only vector`` on
#: two quiet cores has 0.76 times the speed with it at 256 lanes and 1.18 times at 512.
THREADED_LANES = 512

Array = NDArray[Any]


class LLMRouteVectorEnv(VectorEnv[Observation, Array, Array]):
    """`LLMRouteEnv` N times in one kernel; lane i of ``reset(seed=s)`` is the single one at s + i.

    ``gymnasium.make_vec("LLMRoute-v0", num_envs=N)`` builds it.

    Args:
        num_envs: N.
        scenario: as for `LLMRouteEnv`, like ``overrides``.
        overrides: dotted keys to values.
        copy: False shares observation and mask buffers between calls.
        autoreset_mode: ``NEXT_STEP`` (a finished lane ignores its next action and starts anew) or
            ``SAME_STEP`` (it starts anew at once; ``infos["final_obs"]`` and ``["final_info"]``
            have what it ended with).
        threads: threads that step the lanes; None for one below `THREADED_LANES` lanes, and one
            per core (at most 4) from there on. Results do not depend on it.
        series_stride: periods between two samples of each lane's time series, 0 for none.
    """

    metadata: ClassVar[dict[str, Any]] = {  # type: ignore[misc]
        "render_modes": [],
        "autoreset_mode": AutoresetMode.NEXT_STEP,
    }

    def __init__(
        self,
        num_envs: int = 1,
        scenario: Source = DEFAULT_SCENARIO,
        overrides: Mapping[str, Any] | None = None,
        *,
        copy: bool = True,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        threads: int | None = None,
        series_stride: int | None = 0,
    ) -> None:
        if num_envs < 1:
            raise ValueError(f"num_envs {num_envs}: must be at least 1")
        if threads is not None and threads < 1:
            raise ValueError(f"threads {threads}: must be at least 1, or None")
        mode = AutoresetMode(autoreset_mode)
        if mode is AutoresetMode.DISABLED:
            raise ValueError("autoreset_mode: must be NEXT_STEP or SAME_STEP")
        self.num_envs = num_envs
        self.scenario = Scenario.load(scenario, overrides)
        prepare(self.scenario)
        self.metadata = {**self.metadata, "autoreset_mode": mode}  # type: ignore[misc]
        self._same_step = mode is AutoresetMode.SAME_STEP
        self._copy = bool(copy)
        self._sim = Simulator(self.scenario, num_envs, series_stride)
        spec, window = self._sim.spec, self.scenario.router.window
        self.single_observation_space = spaces.observation_space(
            window,
            spec.batch_limit,
            spec.kv_limit,
            int(self.scenario.horizon_periods),
            self._sim.keys[len(OBSERVATION_KEYS) :],
        )
        self.single_action_space = spaces.action_space(window, len(spec.batch_limit))
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        if threads is None:
            threads = min(os.cpu_count() or 1, 4) if num_envs >= THREADED_LANES else 1
        self._threads = min(threads, num_envs)
        self._pool: ThreadPoolExecutor | None = None
        self._rngs: list[np.random.Generator | None] = [None] * num_envs
        self._over = np.zeros(num_envs, np.bool_)
        self._started = False

    # -- the Gymnasium interface ------------------------------------------------------------

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[Observation, dict[str, Any]]:
        """Start an episode on all lanes, or on those of ``options["reset_mask"]`` (N,) bool.

        Args:
            seed: s seeds lane i with s + i; a sequence gives each lane its own.
            options: as for `LLMRouteEnv.reset`, for all lanes; later episodes have none.

        Raises:
            ValueError: a seed or an option of the wrong form.
        """
        options = dict(options or {})
        chosen = self._reset_mask(options.pop("reset_mask", None))
        lanes = np.flatnonzero(chosen)
        for lane, value in enumerate(self._seeds(seed)):
            if chosen[lane] and (value is not None or self._rngs[lane] is None):
                self._rngs[lane], _ = np_random(value)
        self._start(lanes, options)
        self._over[lanes] = False
        self._started = True
        return self._observation(), self._mask_info(chosen)

    def step(self, actions: ArrayLike) -> tuple[Observation, Array, Array, Array, dict[str, Any]]:
        """Play one period on all lanes with ``actions`` (N, W).

        Raises:
            ResetNeeded: before the first reset.
            ValueError: actions that are not (N, W) whole numbers.
        """
        if not self._started:
            raise ResetNeeded("step: call reset first")
        choices = np.ascontiguousarray(actions)
        shape = (self.num_envs, self.scenario.router.window)
        if choices.shape != shape or choices.dtype.kind not in "iu":
            raise ValueError(
                f"actions: must be whole numbers of shape {shape}, got {choices.dtype} of shape "
                f"{choices.shape}"
            )
        idle = self._over  # in NEXT_STEP mode these start anew in this step
        self._run(choices.astype(np.int64, copy=False), idle)
        outcome = self._sim.state.outcome.copy()
        restarted = idle
        if idle.any():
            self._start(np.flatnonzero(idle), {})
            outcome[idle] = 0.0
        terminated = outcome[:, Outcome.TERMINATED] > 0
        truncated = outcome[:, Outcome.TRUNCATED] > 0
        over = terminated | truncated
        final: dict[str, Any] = {}
        if over.any() and self._same_step:
            final = self._final(over, outcome)
            self._start(np.flatnonzero(over), {})
            restarted, over = over, np.zeros_like(over)
        infos = final | self._mask_info(np.ones(self.num_envs, np.bool_))
        infos |= step_infos(outcome, ~restarted)
        for lane in np.flatnonzero(over).tolist():
            infos = self._add_info(infos, {"metrics": self._summary(lane)}, lane)
        self._over = over
        reward = np.ascontiguousarray(outcome[:, Outcome.REWARD])
        return self._observation(), reward, terminated, truncated, infos

    def close_extras(self, **kwargs: Any) -> None:  # noqa: ARG002  (Gymnasium's signature)
        """Stop the worker threads."""
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None

    # -- beyond Gymnasium -------------------------------------------------------------------

    def action_masks(self) -> NDArray[np.bool_]:
        """(N, W * (G + 1)) legal choices, as sb3-contrib wants them."""
        return self._sim.state.observed.mask.astype(np.bool_).reshape(self.num_envs, -1)

    @property
    def spec_cluster(self) -> ClusterSpec:
        """Limits and iteration times of the devices."""
        return self._sim.spec

    @property
    def handle(self) -> Handle:
        """The kernel's state, for compiled code."""
        return self._sim.handle

    def request_log(self, lane: int = 0) -> dict[str, Array]:
        """What has happened to each request of a lane's episode."""
        return self._sim.request_log(lane)

    def episode_stats(self, lane: int = 0) -> EpisodeStats:
        """Counters of a lane's episode so far."""
        return self._sim.episode_stats(lane)

    # -- internals --------------------------------------------------------------------------

    def _seeds(self, seed: int | Sequence[int | None] | None) -> Sequence[int | None]:
        if seed is None:
            return [None] * self.num_envs
        if isinstance(seed, int | np.integer):
            return [int(seed) + lane for lane in range(self.num_envs)]
        if len(seed) != self.num_envs:
            raise ValueError(f"seed: must be one of {self.num_envs} lanes each, got {len(seed)}")
        return seed

    def _reset_mask(self, mask: Any) -> NDArray[np.bool_]:
        if mask is None or not self._started:
            if mask is not None and not np.all(mask):
                raise ValueError("reset option 'reset_mask': the first reset needs all lanes")
            return np.ones(self.num_envs, np.bool_)
        chosen = np.asarray(mask)
        if chosen.shape != (self.num_envs,) or chosen.dtype != np.bool_ or not chosen.any():
            raise ValueError(
                f"reset option 'reset_mask': must be ({self.num_envs},) bool with a true entry"
            )
        return chosen

    def _start(self, lanes: NDArray[np.intp], options: Mapping[str, Any]) -> None:
        tables = []
        for lane in lanes:
            rng = self._rngs[lane]
            assert rng is not None  # every lane is seeded at the first reset
            tables.append(self._sim.draw(rng, options)[0])
        self._sim.reset(lanes.tolist(), tables)

    def _run(self, actions: NDArray[np.int64], idle: NDArray[np.bool_]) -> None:
        """Step the lanes, in equal shares where several threads do it."""
        if self._threads == 1:
            self._sim.step(actions, idle)
            return
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._threads - 1, "llmroute")
        bounds = [self.num_envs * i // self._threads for i in range(self._threads + 1)]
        shares = [
            self._pool.submit(self._sim.step, actions, idle, first, stop)
            for first, stop in pairwise(bounds[1:])
        ]
        self._sim.step(actions, idle, 0, bounds[1])
        for share in shares:
            share.result()

    def _observation(self) -> Observation:
        observed = self._sim.state.observed
        buffers = {key: getattr(observed, key) for key in self._sim.keys}
        return {key: b.copy() for key, b in buffers.items()} if self._copy else buffers

    def _mask_info(self, present: NDArray[np.bool_]) -> dict[str, Any]:
        mask = self._sim.state.observed.mask
        return {"action_mask": mask.copy() if self._copy else mask, "_action_mask": present.copy()}

    def _final(self, over: NDArray[np.bool_], outcome: Array) -> dict[str, Any]:
        """What the lanes that end in this step end with."""
        observed = self._sim.state.observed
        infos: dict[str, Any] = {}
        for lane in np.flatnonzero(over).tolist():
            last = {"action_mask": observed.mask[lane].copy()}
            last |= step_info(outcome[lane]) | {"metrics": self._summary(lane)}
            observation = {key: getattr(observed, key)[lane].copy() for key in self._sim.keys}
            infos = self._add_info(infos, {"final_obs": observation, "final_info": last}, lane)
        return infos

    def _summary(self, lane: int) -> dict[str, float]:
        return metrics.summarize(
            self.request_log(lane), self.episode_stats(lane), self.scenario.objective
        )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_pool": None}

    def __deepcopy__(self, memo: dict[int, Any]) -> LLMRouteVectorEnv:
        twin = object.__new__(type(self))
        memo[id(self)] = twin
        twin.__dict__.update(
            {key: deepcopy(item, memo) for key, item in self.__getstate__().items()}
        )
        return twin
