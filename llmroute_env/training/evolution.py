"""Evolution strategies on whole episodes of the deterministic router.

Reinforcement tunes a router that samples; what is shipped takes the best choice each time, and the
two differ where a choice is close: holding with probability 0.6 is a short delay, always holding
is none at all. An episode of the deterministic router is one compiled call, thirty times as fast as
one of training, so its objective is climbed directly: antithetic perturbations of the weights, all
played on the same requests, ranked, and averaged (Salimans et al., "Evolution strategies as a
scalable alternative to reinforcement learning", 2017; common random numbers are ours).
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from llmroute_env.scenario import Scenario
from llmroute_env.workload import RequestTable
from policies.learned.checkpoint import Checkpoint
from policies.learned.network import Weights
from policies.learned.policy import Learned
from policies.registry import make

Floats = NDArray[np.float64]
Report = Callable[[int, dict[str, float]], None]

_ADAM = (0.9, 0.99)


@dataclass(frozen=True)
class Path:
    """One sample path: requests of a scenario, and what the reference policy gets on them."""

    scenario: int
    requests: RequestTable
    reference: float


class Stage:
    """Environments of the training scenarios, a router and a reference; one per thread."""

    def __init__(self, scenarios: Sequence[Scenario], start: Checkpoint, reference: str) -> None:
        self.envs: list[Any] = [
            gym.make("llmroute_env:LLMRoute-v0", scenario=scenario, series_stride=0).unwrapped
            for scenario in scenarios
        ]
        own = replace(start, weights=Weights(*(w.copy() for w in start.weights)))
        self.routers = [Learned(env, checkpoint=own) for env in self.envs]
        self.references = [make(reference, env) for env in self.envs]
        self.weights = own.weights

    def path(self, scenario: int, seed: int) -> Path:
        """Draw a sample path and play the reference policy on it."""
        env = self.envs[scenario]
        env.reset(seed=seed)
        requests = env.requests
        return Path(scenario, requests, self._play(self.references[scenario], env, requests))

    def gain(self, vector: Floats, paths: Sequence[Path]) -> list[float]:
        """Relative gain over the reference on each path of the router with these weights."""
        unpack(vector, self.weights)
        return [
            self._play(self.routers[p.scenario], self.envs[p.scenario], p.requests) / p.reference
            - 1.0
            for p in paths
        ]

    @staticmethod
    def _play(policy: Any, env: Any, requests: RequestTable) -> float:
        env.reset(options={"requests": requests})
        policy.reset(seed=0)
        policy.run_episode(env, timed=False)
        return float(env.episode_stats().reward)


def pack(weights: Weights) -> Floats:
    """All parameters in one vector."""
    return np.concatenate([w.ravel() for w in weights]).astype(np.float64)


def unpack(vector: Floats, weights: Weights) -> None:
    """Write a vector into the arrays of ``weights``."""
    start = 0
    for array in weights:
        array[...] = vector[start : start + array.size].reshape(array.shape)
        start += array.size


def _ranks(gains: Floats) -> Floats:
    """Mean over the paths of each perturbation's rank, -0.5 to 0.5; ``gains`` (2 pairs, paths)."""
    # Equal gains share a rank, or the order of the perturbations would decide.
    ranks = np.stack([rankdata(column) for column in gains.T])
    ranked: Floats = (ranks.mean(axis=0) - 1.0) / max(len(gains) - 1, 1) - 0.5
    return ranked


def evolve(
    start: Checkpoint,
    scenarios: Sequence[Scenario],
    *,
    reference: str,
    generations: int,
    pairs: int,
    paths: int,
    sigma: float,
    learning_rate: float,
    layers: Sequence[str],
    threads: int,
    seed: int,
    report: Report | None = None,
    first: int = 0,
) -> Checkpoint:
    """Climb the gain over ``reference``, each sample path counting the same.

    Perturbations are ranked on each path by itself: a scenario in which little can be gained or
    lost would otherwise never be heard.

    Args:
        start: weights to start from.
        scenarios: training scenarios; each generation's paths are dealt out to them in turn.
        reference: policy that gains are measured against.
        generations: steps.
        pairs: antithetic pairs of perturbations in a step.
        paths: sample paths in a step, the same for all perturbations.
        sigma: standard deviation of a perturbation.
        learning_rate: of Adam.
        layers: which of the `Weights` move; few numbers need few perturbations.
        threads: workers.
        seed: of perturbations and of the paths.
        report: called after each generation with its number and its statistics.
        first: generations that were done before.

    Returns:
        The checkpoint with the last weights.

    Raises:
        ValueError: a layer that the network does not have.
    """
    unknown = [name for name in layers if name not in Weights._fields]
    if unknown:
        raise ValueError(f"evolution.layers: {unknown[0]} is none of {', '.join(Weights._fields)}")
    stages: queue.SimpleQueue[Stage] = queue.SimpleQueue()
    for _ in range(threads):
        stages.put(Stage(scenarios, start, reference))
    center = pack(start.weights)
    scale = np.concatenate(
        [
            np.full(w.size, 1.0 if name in layers else 0.0)
            for name, w in start.weights._asdict().items()
        ]
    )
    mean, square = np.zeros_like(center), np.zeros_like(center)

    def draw(scenario: int, path_seed: int) -> Path:
        stage = stages.get()
        try:
            return stage.path(scenario, path_seed)
        finally:
            stages.put(stage)

    def gain(vector: Floats, drawn: Sequence[Path]) -> list[float]:
        stage = stages.get()
        try:
            return stage.gain(vector, drawn)
        finally:
            stages.put(stage)

    turns = [i % len(scenarios) for i in range(paths)]
    with ThreadPoolExecutor(threads) as pool:
        for generation in range(first + 1, first + generations + 1):
            rng = np.random.default_rng((seed, generation))
            seeds = rng.integers(2**31, 2**32, paths).tolist()  # no seed of evaluations is there
            drawn = list(pool.map(draw, turns, seeds))
            noise = rng.standard_normal((pairs, len(center)))
            tried = [center + sign * sigma * scale * n for n in noise for sign in (1.0, -1.0)]
            gains = np.array(list(pool.map(gain, tried, repeat(drawn))))
            ranks = _ranks(gains)
            slope = ((ranks[0::2] - ranks[1::2])[:, None] * noise).mean(0)
            steps = generation - first
            mean = _ADAM[0] * mean + (1 - _ADAM[0]) * slope
            square = _ADAM[1] * square + (1 - _ADAM[1]) * slope**2
            update = mean / (1 - _ADAM[0] ** steps)
            update /= np.sqrt(square / (1 - _ADAM[1] ** steps)) + 1e-8
            center += learning_rate * scale * update
            if report is not None:
                percent = 100.0 * gains
                report(generation, {"gain": float(percent.mean()), "spread": float(percent.std())})
    found = Weights(*(w.copy() for w in start.weights))
    unpack(center, found)
    return replace(start, weights=found)
