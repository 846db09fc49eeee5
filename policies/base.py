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

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np
from pydantic import BaseModel, ConfigDict

from llmroute_env.spaces import Active, Clock, Device, Queue
from policies.memory import LaneMemory, PolicyState
from policies.rng import lane_seed
from policies.spec import RouterSpec


class PolicyParameters(BaseModel):
    """Parameters of a policy, as a command line gives them: typed, checked, none unknown."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Kernels(NamedTuple):
    """The compiled functions of a family.

    ``decide(queue, queue_id, devices, active, clock, params, memory, scratch, action)`` decides
    one lane for one period: queue (W, 4) f4, queue_id (W,) i8, devices (G, 10) f4, active
    (G, B_max, 2) f4, clock (4,) f4, all C-contiguous and read only; memory and scratch are changed
    in place; all of action (W,) i8 is written, 0 to hold and g + 1 to send.

    ``decide_lanes`` takes the same with a leading lane axis on observation, memory and action.

    ``run(handle, params, memory, scratch, action, times)`` plays a whole episode on lane 0 of an
    environment's kernel; ``times`` is int64, (periods,) for decision times [ns] or empty.
    """

    decide: Callable[..., None]
    decide_lanes: Callable[..., None]
    run: Callable[..., Any] | None = None


class Build(NamedTuple):
    """What a policy hands to the compiled code: constants, one fresh lane, working space."""

    params: Any
    memory: Any
    scratch: Any


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
        self._current = self._fresh(1)
        self._spare: LaneMemory | None = None

    @property
    def memory(self) -> Any:
        """Lane 0 of the current memory: the family's NamedTuple with views."""
        return self._current.first

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
        shapes = (queue.shape, queue_id.shape, devices.shape, active.shape, clock.shape)
        if shapes != (self._shapes if not batch else self._batch_shapes(lanes)):
            self._refuse(shapes)
        memory = self._resume(state, lanes)
        if batch:
            self._start_lanes(memory, clock[:, Clock.PERIOD], lanes, state, episode_start)
            action: np.ndarray = np.empty(queue.shape[:2], np.int64)
            decide = self.kernels.decide_lanes
            arrays = memory.arrays
        else:
            period = clock[Clock.PERIOD]
            if (
                (state is None and not period > memory.last_period[0])
                if episode_start is None
                else np.any(episode_start)
            ):
                self._restart(memory, 0)
            memory.last_period[0] = period
            action = np.empty(queue.shape[0], np.int64)
            decide = self.kernels.decide
            arrays = memory.first
        decide(queue, queue_id, devices, active, clock, self.params, arrays, self.scratch, action)
        return action, memory.snapshot(lanes)

    # -- lanes and states -------------------------------------------------------------------

    def _fresh(self, lanes: int) -> LaneMemory:
        memory = LaneMemory(self._template, lanes)
        for lane in range(lanes):
            self.start_lane(memory.lane(lane), lane_seed(self.seed, lane, 0))
        return memory

    def _restart(self, memory: LaneMemory, lane: int) -> None:
        """Start a new episode in a lane; a lane that has decided nothing is already there."""
        if memory.last_period[lane] < 0:
            return
        memory.episode[lane] += 1
        memory.last_period[lane] = -1.0
        memory.refill(lane)
        seed = lane_seed(self.seed, lane, int(memory.episode[lane]))
        self.start_lane(memory.lane(lane), seed)

    def _start_lanes(
        self,
        memory: LaneMemory,
        periods: np.ndarray,
        lanes: int,
        state: PolicyState | None,
        episode_start: np.ndarray | None,
    ) -> None:
        last = memory.last_period[:lanes]
        if episode_start is not None:
            starting = np.broadcast_to(np.asarray(episode_start, bool), lanes)
        elif state is None:
            starting = ~(periods > last)
        else:
            starting = np.zeros(lanes, bool)
        if starting.any():
            for lane in np.flatnonzero(starting):
                self._restart(memory, int(lane))
        last[:] = periods

    def _resume(self, state: PolicyState | None, lanes: int) -> LaneMemory:
        """Return the memory to decide on, which no snapshot shares, as the current one."""
        source = self._current
        if state is not None:
            source = self._given(state, lanes)
        elif source.lanes < lanes:
            source = self._grown(source, lanes)
        target = source
        if source.shared or state is not None:
            target = self._copied(source)
        if target is not self._current:
            self._spare, self._current = self._current, target
        return target

    def _copied(self, source: LaneMemory) -> LaneMemory:
        """Copy to a memory that nobody looks at; two take turns, so nothing is allocated."""
        for memory in (self._spare, self._current):
            if (
                memory is not None
                and memory is not source
                and memory.lanes == source.lanes
                and not memory.shared
            ):
                memory.copy_from(source)
                return memory
        return source.copy()

    def _grown(self, memory: LaneMemory, lanes: int) -> LaneMemory:
        grown = memory.copy(lanes)
        for lane in range(memory.lanes, lanes):
            self.start_lane(grown.lane(lane), lane_seed(self.seed, lane, 0))
        return grown

    def _given(self, state: object, lanes: int) -> LaneMemory:
        if not isinstance(state, PolicyState) or not state.memory.matches(self._current):
            raise ValueError(f"{self.name}: state is not one that this policy's predict returned")
        if state.lanes != lanes:
            raise ValueError(f"{self.name}: state has {state.lanes} lanes, the observation {lanes}")
        return state.memory

    # -- checks -----------------------------------------------------------------------------

    def _batch_shapes(self, lanes: int) -> tuple[tuple[int, ...], ...]:
        return tuple((lanes, *shape) for shape in self._shapes)

    def _refuse(self, shapes: tuple[tuple[int, ...], ...]) -> None:
        keys = ("queue", "queue_id", "devices", "active", "clock")
        batch = len(shapes[0]) == 3
        wanted = self._batch_shapes(shapes[0][0]) if batch else self._shapes
        for key, shape, want in zip(keys, shapes, wanted, strict=True):
            if shape != want:
                raise ValueError(f"{self.name}: observation[{key!r}] is {shape}, expected {want}")
