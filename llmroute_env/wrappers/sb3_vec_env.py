"""The native vector environment as a stable-baselines3 ``VecEnv``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from llmroute_env.env import DEFAULT_SCENARIO, Source
from llmroute_env.vector import LLMRouteVectorEnv
from llmroute_env.wrappers.flat import FlatFeatures, Scales

try:
    from stable_baselines3.common.vec_env import VecEnv
except ImportError as error:
    raise gym.error.DependencyNotInstalled(
        'SB3VecEnv needs stable-baselines3: pip install "llmroute-env[rl]"'
    ) from error

Indices = int | Iterable[int] | None

#: Methods of the vector environment that speak of one lane.
_LANE_METHODS = ("action_masks", "request_log", "episode_stats")


class SB3VecEnv(VecEnv):
    """N lanes of one kernel, for stable-baselines3 and sb3-contrib.

    A finished lane starts anew in the same step; its info then has ``terminal_observation``,
    ``TimeLimit.truncated`` and ``metrics``, the summary of the episode. Every info has
    ``rewards``, ``cost`` and ``invalid_actions``. Masks come from ``env_method("action_masks")``,
    which is how sb3-contrib asks for them.

    `SB3VecEnv.make` builds both at once.

    Args:
        envs: a native vector environment with ``autoreset_mode="SameStep"``.
        flat: observe `FlatFeatures` (N, F) in [0, 1] in place of the ``Dict``.
        include_active: the flat features have the batch slots one by one.

    Raises:
        ValueError: another autoreset mode, or shared buffers with ``flat=False``: learners keep
            an observation over the next step.
    """

    def __init__(
        self, envs: LLMRouteVectorEnv, *, flat: bool = False, include_active: bool = True
    ) -> None:
        mode = envs.metadata["autoreset_mode"]
        if mode is not AutoresetMode.SAME_STEP:
            raise ValueError(f"autoreset_mode = {mode}: SB3VecEnv needs AutoresetMode.SAME_STEP")
        if not flat and not envs._copy:
            raise ValueError("copy = False: SB3VecEnv needs copy=True unless flat=True")
        self.envs = envs
        space: Any = envs.single_observation_space
        self.features = FlatFeatures(space, Scales.of(envs), include_active) if flat else None
        self._actions: NDArray[np.int64] | None = None
        super().__init__(
            envs.num_envs,
            self.features.space if self.features else space,
            envs.single_action_space,
        )

    @classmethod
    def make(
        cls,
        num_envs: int,
        scenario: Source = DEFAULT_SCENARIO,
        overrides: Mapping[str, Any] | None = None,
        *,
        flat: bool = False,
        include_active: bool = True,
        threads: int | None = None,
    ) -> SB3VecEnv:
        """Build the vector environment and wrap it; arguments as for both."""
        envs = LLMRouteVectorEnv(
            num_envs,
            scenario,
            overrides,
            copy=not flat,  # flat features are fresh arrays anyway
            autoreset_mode=AutoresetMode.SAME_STEP,
            threads=threads,
        )
        return cls(envs, flat=flat, include_active=include_active)

    def reset(self) -> Any:
        """Start an episode on every lane, with the seeds and options set before."""
        options = self._options[0]
        if any(other != options for other in self._options):
            raise ValueError("options: SB3VecEnv takes the same options for all lanes")
        seeds = self._seeds if any(seed is not None for seed in self._seeds) else None
        observation, _ = self.envs.reset(seed=seeds, options=options or None)
        self.reset_infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        self._reset_seeds()
        self._reset_options()
        return self._observed(observation)

    def step_async(self, actions: NDArray[np.int64]) -> None:
        """Keep the actions (N, W) for `step_wait`."""
        self._actions = actions

    def step_wait(self) -> tuple[Any, NDArray[np.float32], NDArray[np.bool_], list[dict[str, Any]]]:
        """Play one period on every lane."""
        if self._actions is None:
            raise RuntimeError("step_wait: call step_async first")
        actions, self._actions = self._actions, None
        observation, reward, terminated, truncated, step = self.envs.step(actions)
        done = terminated | truncated
        infos = self._infos(step)
        for lane in np.flatnonzero(done).tolist():
            infos[lane] = {
                **_of_lane(step["final_info"], lane),
                "terminal_observation": self._observed(step["final_obs"][lane]),
                "TimeLimit.truncated": bool(truncated[lane] and not terminated[lane]),
            }
        return self._observed(observation), reward.astype(np.float32), done, infos

    def close(self) -> None:
        """Stop the worker threads."""
        self.envs.close()

    def get_attr(self, attr_name: str, indices: Indices = None) -> list[Any]:
        """An attribute once per lane; the lanes share all but `_LANE_METHODS`."""
        lanes = self._lanes(indices)
        if attr_name in _LANE_METHODS:
            return [_LaneMethod(self, attr_name, lane) for lane in lanes]
        return [getattr(self.envs, attr_name)] * len(lanes)

    def set_attr(self, attr_name: str, value: Any, indices: Indices = None) -> None:
        """Set an attribute of the vector environment.

        Raises:
            ValueError: for some lanes only; they share their attributes.
        """
        if len(self._lanes(indices)) != self.num_envs:
            raise ValueError(f"set_attr {attr_name!r}: the lanes share attributes, set all of them")
        setattr(self.envs, attr_name, value)

    def env_method(
        self, method_name: str, *method_args: Any, indices: Indices = None, **method_kwargs: Any
    ) -> list[Any]:
        """Call ``action_masks``, ``request_log`` or ``episode_stats`` for each lane."""
        lanes = self._lanes(indices)
        if method_name == "action_masks":
            masks = self.envs.action_masks()
            return [masks[lane] for lane in lanes]
        if method_name in _LANE_METHODS:
            method = getattr(self.envs, method_name)
            return [method(lane, *method_args, **method_kwargs) for lane in lanes]
        raise AttributeError(f"method {method_name!r}: a lane has {', '.join(_LANE_METHODS)}")

    def env_is_wrapped(self, wrapper_class: type[Any], indices: Indices = None) -> list[bool]:  # noqa: ARG002
        """False for every lane: they are lanes of a kernel and not environments."""
        return [False] * len(self._lanes(indices))

    def _lanes(self, indices: Indices) -> Sequence[int]:
        return list(self._get_indices(indices))

    def _observed(self, observation: Mapping[str, NDArray[Any]]) -> Any:
        return self.features(observation) if self.features else dict(observation)

    def _infos(self, step: Mapping[str, Any]) -> list[dict[str, Any]]:
        """One dict per lane; empty where the lane has just started anew."""
        if "cost" not in step:
            return [{} for _ in range(self.num_envs)]
        components = [name for name in step["rewards"] if not name.startswith("_")]
        columns = zip(*(step["rewards"][name].tolist() for name in components), strict=True)
        return [
            {
                "rewards": dict(zip(components, column, strict=True)),
                "cost": cost,
                "invalid_actions": invalid,
                "TimeLimit.truncated": False,
            }
            for column, cost, invalid in zip(
                columns, step["cost"].tolist(), step["invalid_actions"].tolist(), strict=True
            )
        ]


class _LaneMethod:
    """A method of one lane, for `VecEnv.get_attr`."""

    def __init__(self, envs: SB3VecEnv, name: str, lane: int) -> None:
        self._call = (envs, name, lane)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        envs, name, lane = self._call
        return envs.env_method(name, *args, indices=lane, **kwargs)[0]


def _of_lane(infos: Mapping[str, Any], lane: int) -> dict[str, Any]:
    """One lane's entries of infos in Gymnasium's layout; numbers as Python's own."""
    entries: dict[str, Any] = {}
    for name, value in infos.items():
        if name.startswith("_") and name[1:] in infos:
            continue
        if isinstance(value, Mapping):
            entries[name] = _of_lane(value, lane)
        else:
            item = value[lane]
            entries[name] = item.item() if isinstance(item, np.generic) else item
    return entries
