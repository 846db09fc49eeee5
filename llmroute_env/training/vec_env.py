"""The decisions of N lanes as a stable-baselines3 ``VecEnv`` with action masks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from llmroute_env import metrics
from llmroute_env.cluster.simulator import Simulator
from llmroute_env.scenario import Scenario
from llmroute_env.training.decisions import advance, start
from llmroute_env.training.lanes import asked
from llmroute_env.training.layout import Layout
from llmroute_env.workload import prepare
from policies.learned.question import FeatureParams
from policies.mc_sf import McSf
from policies.spec import RouterSpec

try:
    from stable_baselines3.common.vec_env import VecEnv
except ImportError as error:
    raise gym.error.DependencyNotInstalled(
        'DecisionVecEnv needs stable-baselines3: pip install "llmroute-env[rl]"'
    ) from error

Array = NDArray[Any]


class _Fleet:
    """Lanes of one scenario, each with its twin, over a slice of the flat observation."""

    def __init__(self, scenario: Scenario, lanes: int, layout: Layout, flat: Array, oldest: int):
        prepare(scenario)
        self.scenario, self.lanes = scenario, lanes
        self.sim = Simulator(scenario, 2 * lanes)
        spec = RouterSpec.from_env(SimpleNamespace(scenario=scenario, spec_cluster=self.sim.spec))
        self.params = feature_params(spec, oldest)
        reference = McSf(spec)
        self.twin = (reference.params, reference.scratch)
        self.asked = asked(layout, lanes, spec, flat)
        self.legal = self.asked.question.legal.reshape(lanes, -1)

    def start(self, lane: int, rng: np.random.Generator, skip: int = 0) -> None:
        """Draw episodes until one asks something after its first ``skip`` periods."""
        for _ in range(100):
            table, _ = self.sim.draw(rng)
            self.sim.reset([lane, lane + self.lanes], [table, table])
            if start(self.sim.handle, self.asked, lane, self.params, *self.twin, skip):
                return
        raise ValueError(f"scenario {self.scenario.name}: 100 episodes without a decision")


def feature_params(spec: RouterSpec, oldest: int) -> FeatureParams:
    """Constants of the features of a router."""
    return FeatureParams(
        spec.period_s,
        float(spec.objective.tail_eel_s),
        float(spec.objective.tail_ttft_s),
        oldest,
        np.array(spec.context_limit, np.int64),
    )


class DecisionVecEnv(VecEnv):  # type: ignore[misc]
    """Asks which waiting request starts next, and where, on N lanes at once.

    Observation: the flat vector of `Layout`. Action: ``Discrete(1 + K * G)``, 0 to hold, masked.
    Reward: the objective gained over MC-SF on the same requests, divided by ``reward_scale``; see
    `llmroute_env.training.decisions`. Episodes end at the horizon, after which nothing is earned,
    so no value is bootstrapped there. The info of a finished lane has ``metrics`` (the episode's
    summary), ``rewards`` by component, ``reference_reward`` and ``scenario``.

    Args:
        scenarios: scenarios to mix; lanes are dealt out in turn. Fleets may differ in size.
        lanes: N.
        candidates: K.
        oldest: how many of the candidates are chosen by age.
        patience: most periods that a hold lasts while nothing happens.
        reward_scale: what one unit of reward is worth in the objective; one, or one per scenario.
        stagger: the first episodes start at different times, the reference policy having played
            until then, so that a rollout has decisions from all parts of an episode.
    """

    #: lanes draw no pictures; stable-baselines3 asks for it
    render_mode: str | None = None

    def __init__(
        self,
        scenarios: Sequence[Scenario],
        lanes: int,
        *,
        candidates: int = 16,
        oldest: int = 4,
        patience: int = 8,
        reward_scale: float | Sequence[float] = 1000.0,
        stagger: bool = False,
    ) -> None:
        if lanes < len(scenarios):
            raise ValueError(f"lanes {lanes}: must be at least the {len(scenarios)} scenarios")
        if not 0 <= oldest < candidates:
            raise ValueError(
                f"oldest {oldest}: must be from 0 to candidates - 1 = {candidates - 1}"
            )
        self.layout = Layout(candidates, max(int(s.cluster.devices) for s in scenarios))
        self.patience, self.stagger = patience, stagger
        self.reward_scale = np.broadcast_to(np.asarray(reward_scale, float), len(scenarios))
        self._flat = self.layout.buffer(lanes)
        self._fleets: list[_Fleet] = []
        self._first: list[int] = []
        bounds = [lanes * i // len(scenarios) for i in range(len(scenarios) + 1)]
        for scenario, first, stop in zip(scenarios, bounds, bounds[1:], strict=False):
            flat = self._flat[first:stop]
            self._fleets.append(_Fleet(scenario, stop - first, self.layout, flat, oldest))
            self._first.append(first)
        self._rngs = [np.random.default_rng() for _ in range(lanes)]
        self._choices = np.zeros(lanes, np.int64)
        self._over = np.zeros(lanes, np.bool_)
        size = (self.layout.size,)
        super().__init__(
            lanes,
            spaces.Box(-np.inf, np.inf, size, np.float32),
            spaces.Discrete(self.layout.actions),
        )

    def reset(self) -> Array:
        """Start an episode on every lane, with the seeds set before."""
        for lane, seed in enumerate(self._seeds):
            if seed is not None:
                self._rngs[lane] = np.random.default_rng(seed)
        for fleet, first in zip(self._fleets, self._first, strict=True):
            for lane in range(fleet.lanes):
                skip = fleet.scenario.horizon_periods * lane // fleet.lanes if self.stagger else 0
                fleet.start(lane, self._rngs[first + lane], int(skip))
        self.reset_infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        self._reset_seeds()
        self._reset_options()
        return self._flat.copy()

    def step_async(self, actions: Array) -> None:
        """Keep the choices (N,) for `step_wait`."""
        self._choices[:] = actions

    def step_wait(self) -> tuple[Array, Array, Array, list[dict[str, Any]]]:
        """Carry them out, and go on to the next question of every lane."""
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        rewards = np.empty(self.num_envs, np.float32)
        fleets = zip(self._fleets, self._first, self.reward_scale, strict=True)
        for fleet, first, scale in fleets:
            here = slice(first, first + fleet.lanes)
            over = self._over[here]
            advance(
                fleet.sim.handle,
                fleet.asked,
                self._choices[here],
                fleet.params,
                *fleet.twin,
                self.patience,
                over,
            )
            rewards[here] = fleet.asked.reward / scale
            for lane in np.flatnonzero(over).tolist():
                infos[first + lane] = {**self._ended(fleet, lane), "TimeLimit.truncated": False}
                infos[first + lane]["terminal_observation"] = self._flat[first + lane].copy()
                fleet.start(lane, self._rngs[first + lane])
        return self._flat.copy(), rewards, self._over.copy(), infos

    def _ended(self, fleet: _Fleet, lane: int) -> dict[str, Any]:
        stats = fleet.sim.episode_stats(lane)
        log = fleet.sim.request_log(lane)
        return {
            "metrics": metrics.summarize(log, stats, fleet.scenario.objective),
            "rewards": dict(stats.rewards),
            "reference_reward": fleet.sim.episode_stats(lane + fleet.lanes).reward,
            "scenario": fleet.scenario.name,
        }

    def action_masks(self) -> NDArray[np.bool_]:
        """(N, 1 + K * G) legal choices."""
        masks = np.ones((self.num_envs, self.layout.actions), np.bool_)
        for fleet, first in zip(self._fleets, self._first, strict=True):
            masks[first : first + fleet.lanes, 1:] = fleet.legal
        return masks

    def close(self) -> None:
        """Nothing to stop."""

    def get_attr(self, attr_name: str, indices: int | Iterable[int] | None = None) -> list[Any]:
        """An attribute of this object, once per lane."""
        if attr_name == "action_masks":
            return [lambda lane=lane: self.action_masks()[lane] for lane in self._lanes(indices)]
        return [getattr(self, attr_name)] * len(self._lanes(indices))

    def set_attr(
        self,
        attr_name: str,
        value: Any,
        indices: int | Iterable[int] | None = None,  # noqa: ARG002
    ) -> None:
        """Set an attribute of this object; the lanes share them."""
        setattr(self, attr_name, value)

    def env_method(
        self,
        method_name: str,
        *method_args: Any,  # noqa: ARG002
        indices: int | Iterable[int] | None = None,
        **method_kwargs: Any,  # noqa: ARG002
    ) -> list[Any]:
        """Call ``action_masks`` for each lane, which is how sb3-contrib asks for them."""
        if method_name != "action_masks":
            raise AttributeError(f"method {method_name!r}: a lane has action_masks only")
        masks = self.action_masks()
        return [masks[lane] for lane in self._lanes(indices)]

    def env_is_wrapped(
        self,
        wrapper_class: type[Any],  # noqa: ARG002
        indices: int | Iterable[int] | None = None,
    ) -> list[bool]:
        """False for every lane."""
        return [False] * len(self._lanes(indices))

    def _lanes(self, indices: int | Iterable[int] | None) -> list[int]:
        return list(self._get_indices(indices))
