"""The base class of the compiled policies: lanes, states, seeds, and the call into compiled code.

A family of policies adds one module with

* ``Memory``, a NamedTuple of arrays (at least 1-D) that survive to the next period. Fields named
  ``rng`` ((1,) uint64) and ``pointer`` ((1,) int64) are seeded by this class;
* ``Params`` and ``Scratch``, NamedTuples: constants, and arrays whose content is meaningless
  between calls;
* ``decide``, ``decide_lanes`` and ``run``, compiled, with the signatures of ``Kernels``;
* a subclass of ``Policy`` that names them and fills ``build``.

Give the NamedTuples names of their own: numba's fast dispatch knows one by its name and fields,
not by its module, and a second one alike makes every call of the other family 200 µs slower.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from llmroute_env.spaces import Active, Clock, Device, Queue, Text
from policies.family import Build, Kernels, PolicyParameters
from policies.lanes import LaneStore
from policies.memory import PolicyState
from policies.spec import RouterSpec

__all__ = ["Build", "Kernels", "Policy", "PolicyParameters"]


class Policy:
    """A router with Stable-Baselines3's ``predict``, decided by compiled code.

    Args:
        spec: sizes and clock of the environment, or the environment itself.
        seed: seed of ties and draws; a lane's stream depends on (seed, lane, episode) alone.
        oracle: the twin that is told the true lengths (through ``prediction = "perfect"``).
        values: parameters, see ``Parameters`` of the class.

    Attributes:
        name: name in the registry.
        information: what it uses of the decode length: ``none``, ``predicted`` or ``oracle``.
        prediction: prediction model that the environment must be reset with, or None.
        label: the command-line string that makes this policy.
    """

    name: str = "policy"
    information: str = "none"
    prediction: str | None = None
    label: str = ""
    kernels: ClassVar[Kernels]
    #: optional observations that ``decide`` takes after ``clock``, zeros where there are none
    extra: ClassVar[tuple[str, ...]] = ()

    #: parameters that a subclass takes
    Parameters: ClassVar[type[PolicyParameters]] = PolicyParameters

    def __init__(
        self, spec: RouterSpec | Any, seed: int = 0, *, oracle: bool = False, **values: Any
    ) -> None:
        self.spec = RouterSpec.from_env(spec)
        self.parameters = self.Parameters(**values)
        self.seed = int(seed)
        if oracle:
            self.name = f"{self.name}_oracle"
            self.information = "oracle"
            self.prediction = "perfect"
        self.label = self.label or self.name
        self.params, self._template, self.scratch = self.build()
        if any(field.ndim == 0 for field in self._template):
            raise TypeError(f"{type(self).__name__}: memory fields need at least one axis")
        w, g = self.spec.window, self.spec.devices
        self._shapes = (
            (w, len(Queue)),
            (w,),
            (g, len(Device)),
            (g, self.spec.slots, len(Active)),
            (len(Clock),),
        )
        self.reset()

    # -- for subclasses ---------------------------------------------------------------------

    def build(self) -> Build:
        """Return params, the memory of one fresh lane, and scratch; called once."""
        raise NotImplementedError

    def start_lane(self, memory: Any, seed: int) -> None:
        """Seed a fresh lane's memory (NamedTuple of views, in place) with a 64-bit seed."""
        if hasattr(memory, "rng"):
            memory.rng[0] = seed
        if hasattr(memory, "pointer"):
            memory.pointer[0] = seed % self.spec.devices

    def diagnostics(self) -> dict[str, Any]:
        """Return what the policy can say of its state (lane 0) for plots; may be empty."""
        return {}

    # -- for users --------------------------------------------------------------------------

    def reset(self, seed: int | None = None) -> None:
        """Become as freshly constructed, with another seed if one is given."""
        if seed is not None:
            self.seed = int(seed)
        self._lanes = LaneStore(self.name, self._template, self.start_lane, self.seed)

    @property
    def memory(self) -> Any:
        """Lane 0 of the current memory: the family's NamedTuple with views."""
        return self._lanes.current.first

    def predict(
        self,
        observation: Mapping[str, np.ndarray],
        state: PolicyState | None = None,
        episode_start: np.ndarray | None = None,
        deterministic: bool = False,  # noqa: ARG002  (a heuristic is what its seed makes it)
    ) -> tuple[np.ndarray, PolicyState]:
        """Decide one observation, or a batch of N (recognised by ``queue.ndim == 3``).

        Args:
            observation: the environment's, lanes first in a batch.
            state: a state returned earlier, to go on from; it wins over the policy's own.
            episode_start: (N,) bool (or a scalar), lanes whose episode starts now.
            deterministic: without effect.

        Returns:
            action: (W,) or (N, W) int64.
            state: snapshot after this decision.

        Without ``state`` and ``episode_start``, a lane starts anew when its period index does not
        increase.

        Raises:
            ValueError: if the observation or the state is not of this policy's environment.
        """
        queue = np.ascontiguousarray(observation["queue"], np.float32)
        queue_id = np.ascontiguousarray(observation["queue_id"], np.int64)
        devices = np.ascontiguousarray(observation["devices"], np.float32)
        active = np.ascontiguousarray(observation["active"], np.float32)
        clock = np.ascontiguousarray(observation["clock"], np.float32)
        batch = queue.ndim == 3
        lanes = queue.shape[0] if batch else 1
        extra = [self._optional(observation, key, lanes if batch else 0) for key in self.extra]
        shapes = (queue.shape, queue_id.shape, devices.shape, active.shape, clock.shape)
        if shapes != (self._shapes if not batch else self._batch_shapes(lanes)):
            self._refuse(shapes)
        memory = self._lanes.acquire(state, lanes)
        if batch:
            self._lanes.begin_many(memory, clock[:, Clock.PERIOD], state, episode_start)
            decide, arrays = self.kernels.decide_lanes, memory.arrays
        else:
            self._lanes.begin(memory, clock[Clock.PERIOD], state, episode_start)
            decide, arrays = self.kernels.decide, memory.first
        action = np.empty(queue_id.shape, np.int64)
        seen = (queue, queue_id, devices, active, clock, *extra)
        decide(*seen, self.params, arrays, self.scratch, action)
        return action, memory.snapshot(lanes)

    def run_episode(self, env: Any, *, timed: bool = True) -> np.ndarray:
        """Play an environment's episode to its end inside one compiled call.

        The environment, single and already reset, and this policy end up exactly as if every
        period had been decided by ``predict`` and stepped.

        Args:
            env: a single LLMRoute environment; wrappers are passed by, they see no step.
            timed: measure each decision, at about 50 ns a period.

        Returns:
            (periods,) int64, time of each decision [ns]; empty if not timed.

        Raises:
            ValueError: the policy has no compiled episode, or is of another environment.
        """
        inner = env.unwrapped
        if self.kernels.run is None:
            raise ValueError(f"{self.name}: this policy has no compiled episode, step it")
        sizes = ("window", "devices", "slots")
        other = RouterSpec.from_env(inner)
        for size in sizes:
            mine, its = getattr(self.spec, size), getattr(other, size)
            if mine != its:
                raise ValueError(f"{self.name}: made for {size}={mine}, the environment has {its}")
        memory = self._lanes.acquire(None, 1)
        first = float(inner.episode_stats().periods)
        self._lanes.begin(memory, first, None, None)
        scenario = inner.scenario
        most = int(scenario.horizon_periods)
        if scenario.drain:
            most += int(scenario.max_drain_periods)
        times = np.empty(most + 1 if timed else 0, np.int64)
        action = np.zeros(self.spec.window, np.int64)
        played = self.kernels.run(
            inner.handle, self.params, memory.first, self.scratch, action, times
        )
        memory.last_period[0] = first + max(played - 1, 0)
        inner.finish()
        return times[:played].copy()

    # -- checks -----------------------------------------------------------------------------

    def _optional(self, observation: Mapping[str, np.ndarray], key: str, lanes: int) -> np.ndarray:
        """An optional observation, zeros where the scenario has none; ``lanes`` 0 for no batch."""
        columns = {"text": len(Text), "prefix": self.spec.devices}[key]
        shape = (self.spec.window, columns)
        shape = (lanes, *shape) if lanes else shape  # type: ignore[assignment]
        found = observation.get(key)
        if found is None:
            return np.zeros(shape, np.float32)
        if found.shape != shape:
            raise ValueError(
                f"{self.name}: observation[{key!r}] is {found.shape}, expected {shape}"
            )
        return np.ascontiguousarray(found, np.float32)

    def _batch_shapes(self, lanes: int) -> tuple[tuple[int, ...], ...]:
        return tuple((lanes, *shape) for shape in self._shapes)

    def _refuse(self, shapes: tuple[tuple[int, ...], ...]) -> None:
        keys = ("queue", "queue_id", "devices", "active", "clock")
        batch = len(shapes[0]) == 3
        wanted = self._batch_shapes(shapes[0][0]) if batch else self._shapes
        for key, shape, want in zip(keys, shapes, wanted, strict=True):
            if shape != want:
                raise ValueError(f"{self.name}: observation[{key!r}] is {shape}, expected {want}")
