"""``learned``: a trained router among the others."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from pydantic import Field

from policies.base import Build, Kernels, Policy, PolicyParameters
from policies.learned.checkpoint import SHIPPED, Checkpoint, load
from policies.learned.decision import (
    LearnedParams,
    LearnedScratch,
    decide,
    decide_lanes,
    run,
)
from policies.learned.network import network_scratch
from policies.learned.question import FeatureParams, feature_scratch, question
from policies.learned.rates import rate_memory
from policies.memory import PolicyState
from policies.spec import RouterSpec

WEIGHTS = ("alpha", "beta", "gamma", "sigma", "zeta1", "zeta2")


class Learned(Policy):
    """A network trained by imitation and reinforcement. Information: predicted.

    Which request starts next, and where, is the pair of a waiting request and a device with the
    highest score, until holding scores higher; only what starts at once and overflows no memory by
    prediction is scored (``policies.learned.question``). The network shares its weights over
    requests and devices, so one checkpoint runs on any fleet and any window, without torch.

    ``path`` is a checkpoint's ``.npz``, or the directory of a run of ``scripts/train.py`` (its best
    checkpoint); or, with the extra ``rl``, the ``.zip`` of a stable-baselines3 model that such a
    run trained on flat features. Without it, the shipped checkpoint is used.

    Args:
        spec: as for every policy, like ``seed`` and ``oracle``.
        checkpoint: one in memory, in place of ``path``.
        values: parameters.

    Attributes:
        checkpoint: weights and their provenance; None for a model of stable-baselines3.
        scenario: name of the scenario that it was trained on.
    """

    name = "learned"
    information = "predicted"
    kernels: ClassVar[Kernels] = Kernels(decide, decide_lanes, run)

    class Parameters(PolicyParameters):
        """``path``: checkpoint; ``candidates``: K, 0 for the checkpoint's own."""

        path: Path | None = None
        candidates: int = Field(0, ge=0, le=4096)

    parameters: Parameters

    def __init__(
        self,
        spec: RouterSpec | Any,
        seed: int = 0,
        *,
        oracle: bool = False,
        checkpoint: Checkpoint | None = None,
        **values: Any,
    ) -> None:
        self.checkpoint = checkpoint
        self._model: Any = None
        super().__init__(spec, seed, oracle=oracle, **values)

    def build(self) -> Build:
        """Load the checkpoint; return params, the memory of one fresh lane, and scratch."""
        found = self.checkpoint
        if found is None:
            path = checkpoint_path(self.parameters.path)
            if path.suffix == ".zip":
                return self._build_model(path)
            self.checkpoint = found = load(path)
        self.scenario = found.scenario
        self._compare_objective(found.objective)
        k = self.parameters.candidates or found.candidates
        g, h = self.spec.devices, len(found.weights.score) - 1
        params = LearnedParams(
            FeatureParams(
                self.spec.period_s,
                float(self.spec.objective.tail_eel_s),
                float(self.spec.objective.tail_ttft_s),
                min(found.oldest, k - 1),
                np.array(self.spec.context_limit, np.int64),
            ),
            found.weights,
        )
        scratch = LearnedScratch(
            feature_scratch(k, g, self.spec.slots, self.spec.largest, self.spec.chunk_tokens),
            question(k, g),
            network_scratch(h, k, g),
        )
        return Build(params, rate_memory(), scratch)

    def predict(
        self,
        observation: Any,
        state: PolicyState | None = None,
        episode_start: np.ndarray | None = None,
        deterministic: bool = True,
    ) -> tuple[np.ndarray, PolicyState]:
        """Decide as every policy does; a model of stable-baselines3 may sample."""
        if self._model is None:
            return super().predict(observation, state, episode_start, deterministic)
        action: np.ndarray = self._model.decide(observation, deterministic)
        return action, self._lanes.current.snapshot(len(action) if action.ndim == 2 else 1)

    def diagnostics(self) -> dict[str, Any]:
        """Return what the checkpoint says of its making."""
        return dict(self.checkpoint.about) if self.checkpoint else {}

    def _build_model(self, path: Path) -> Build:
        from policies.learned.sb3_model import Sb3Model

        self._model = Sb3Model.load(path, self.spec)
        self.scenario = self._model.scenario
        self.kernels = Kernels(decide, decide_lanes)  # type: ignore[misc]  # no compiled episode
        return Build(None, rate_memory(), None)

    def _compare_objective(self, trained: dict[str, float]) -> None:
        """Say when the objective is another one than in training: it still runs."""
        differing = [
            key for key in WEIGHTS if float(getattr(self.spec.objective, key)) != trained.get(key)
        ]
        if differing:
            key = differing[0]
            warnings.warn(
                f"learned: trained on {self.scenario} for {key}={trained.get(key)}, scenario "
                f"{self.spec.scenario} has {key}={getattr(self.spec.objective, key)}: it still "
                "pursues the objective of its training",
                stacklevel=2,
            )


def checkpoint_path(path: Path | None) -> Path:
    """The file of a checkpoint: the shipped one, a file, or the best one of a training run.

    Raises:
        ValueError: there is none; one line with the path.
    """
    if path is None:
        return SHIPPED
    if path.is_dir():
        for name in ("best.npz", "last.npz", "best.zip", "last.zip"):
            if (path / name).is_file():
                return path / name
        raise ValueError(f"checkpoint {path}: the directory has no best or last checkpoint")
    beside = path.with_suffix(".npz")
    return beside if path.suffix == ".zip" and beside.is_file() else path
