"""Beside learning: our curves, held-out scores, checkpoints, the critic's head start."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import HParam, TensorBoardOutputFormat

from llmroute_env.training.config import PolicyGradient, TrainingConfig
from llmroute_env.training.directory import RunDirectory
from llmroute_env.training.scoring import Score, Scorer
from policies.learned.checkpoint import save

#: metrics of training episodes that are logged
EPISODE = ("eel_mean_s", "eel_p99_s", "ttft_p95_s", "slo_attainment", "goodput_qps", "unfinished")

#: TensorBoard's custom scalars: what belongs together in one chart
_LAYOUT = {
    "learning": {
        "gain over the reference on held-out seeds [%]": [
            "Margin",
            ["held_out/gain", "held_out/gain_low", "held_out/gain_high"],
        ],
        "gain by scenario on held-out seeds [%]": ["Multiline", ["gain/.*"]],
        "objective gained over the reference, training episodes": [
            "Multiline",
            ["episode/gain_over_reference"],
        ],
        "imitation": ["Multiline", ["imitation/loss", "imitation/train_loss"]],
        "evolution: mean gain of the perturbed routers [%]": ["Multiline", ["evolution/gain"]],
    },
    "cluster": {
        "EEL [s]": ["Multiline", ["episode/eel_mean_s", "episode/eel_p99_s"]],
        "reward by component": [
            "Multiline",
            [f"reward/{name}" for name in ("alpha", "beta", "gamma", "sigma", "zeta1", "zeta2")],
        ],
    },
}


class Clock:
    """Seconds of a run, of the wall and of processors, those of earlier processes included.

    Args:
        state: of the run, as this process found it.
    """

    def __init__(self, state: Mapping[str, Any]) -> None:
        self._wall = float(state.get("seconds", 0.0)) - time.monotonic()
        self._cpu = float(state.get("cpu_seconds", 0.0))

    def spent(self) -> dict[str, float]:
        """``seconds`` and ``cpu_seconds`` so far."""
        return {
            "seconds": self._wall + time.monotonic(),
            "cpu_seconds": self._cpu + time.process_time(),
        }


class EpisodeMetrics(BaseCallback):  # type: ignore[misc]
    """Logs the cluster's metrics and the reward by component of the episodes that ended."""

    def __init__(self) -> None:
        super().__init__()
        self._found: dict[str, list[float]] = {}

    def _on_training_start(self) -> None:
        for output in self.logger.output_formats:
            if isinstance(output, TensorBoardOutputFormat):
                output.writer.add_custom_scalars(_LAYOUT)

    def _on_step(self) -> bool:
        for info in self.locals["infos"]:
            if "metrics" not in info:
                continue
            for name in EPISODE:
                self._add(f"episode/{name}", info["metrics"][name])
            self._add("episode/reward", info["metrics"]["reward"])
            if "reference_reward" in info:
                gain = info["metrics"]["reward"] - info["reference_reward"]
                self._add("episode/gain_over_reference", gain)
            if "rewards" in info and "reference_reward" in info:
                for name, value in info["rewards"].items():
                    self._add(f"reward/{name}", value)
        return True

    def _on_rollout_end(self) -> None:
        for name, values in self._found.items():
            self.logger.record(name, float(np.mean(values)))
        self._found.clear()

    def _add(self, name: str, value: float) -> None:
        self._found.setdefault(name, []).append(float(value))


class CriticFirst(BaseCallback):  # type: ignore[misc]
    """In the first rollouts the critic learns alone, with its own rate and number of epochs.

    A cloned actor and an ignorant critic would give arbitrary advantages, which undo the cloning.
    """

    def __init__(self, config: PolicyGradient, finished: int = 0) -> None:
        super().__init__()
        self.config, self.rollouts = config, finished

    def _on_step(self) -> bool:
        return True

    def _on_rollout_end(self) -> None:
        self.rollouts += 1
        alone = self.rollouts <= self.config.critic_rollouts
        rate = self.config.critic_learning_rate if alone else self.config.learning_rate
        for parameter in self.model.policy.actor.parameters():
            parameter.requires_grad_(not alone)
        self.model.n_epochs = self.config.critic_epochs if alone else self.config.n_epochs
        self.model.lr_schedule = _Constant(rate)


class _Constant:
    def __init__(self, value: float) -> None:
        self.value = value

    def __call__(self, progress: float) -> float:  # noqa: ARG002
        return self.value


class HeldOutScores(BaseCallback):  # type: ignore[misc]
    """Scores the model on held-out seeds every so many steps, and keeps last and best of it.

    sb3-contrib's ``MaskableEvalCallback`` does not do: it cannot pair episodes with a reference
    policy, and without pairs the differences that matter drown in the workload's noise.

    Args:
        config: of the run.
        run: where checkpoints go.
        scorer: of the run.
        clock: of the run.
    """

    def __init__(
        self, config: TrainingConfig, run: RunDirectory, scorer: Scorer, clock: Clock
    ) -> None:
        super().__init__()
        self.config, self.run, self.scorer, self.clock = config, run, scorer, clock
        self._due = 0
        state = run.state()
        self.best = float(state.get("best_value", -np.inf))
        self.best_gain = float(state.get("best_gain", -np.inf))

    def _on_training_start(self) -> None:
        hparams = _hparams(self.config)
        outcome = {"held_out/gain": 0.0, "held_out/reward": 0.0}
        self.logger.record("hparams", HParam(hparams, outcome), exclude=("stdout", "csv", "log"))
        self.checkpoint()

    def _on_step(self) -> bool:
        return True

    def _on_rollout_start(self) -> None:
        if self.num_timesteps >= self._due:
            self.checkpoint()

    def _on_training_end(self) -> None:
        self.checkpoint()

    def checkpoint(self) -> Score:
        """Score and save now."""
        every = self.config.evaluation.every
        self._due = (self.num_timesteps // every + 1) * every
        score = self.scorer.score(self.model)
        record(self.logger, score)
        self.logger.dump(self.num_timesteps)
        self._save("last", score)
        if score.value > self.best:
            self.best, self.best_gain = score.value, score.mean
            self._save("best", score)
        self.run.write_state(
            {
                "steps": int(self.num_timesteps),
                **self.clock.spent(),
                "best_value": self.best,
                "best_gain": self.best_gain,
                "gain": score.mean,
                "rollouts": _rollouts(self.config, self.num_timesteps),
            }
        )
        return score

    def _save(self, name: str, score: Score) -> None:
        partial = self.run.path / f".{name}.partial.zip"
        self.model.save(partial)
        partial.replace(self.run.path / f"{name}.zip")
        if self.config.network.kind != "pairs":
            return
        about = describe(self.config, self.run, self.scorer, score, self.num_timesteps, self.clock)
        save(self.run.path / f"{name}.npz", self.scorer.checkpoint(self.model, score.shift, about))


def record(logger: Any, score: Score) -> None:
    """Put a held-out score into the curves."""
    for name, value in score.metrics.items():
        logger.record(f"held_out/{name}", value)
    logger.record("held_out/gain", score.mean)
    logger.record("held_out/gain_low", score.mean - score.half_width)
    logger.record("held_out/gain_high", score.mean + score.half_width)
    logger.record("held_out/worst", score.worst)
    logger.record("held_out/hold_shift", score.shift)
    for label, gains in score.gains.items():
        # SB3 writes names into the head of progress.csv unquoted: a comma would shift its columns.
        logger.record(f"gain/{label.replace(',', ';')}", float(gains.mean()))


def describe(
    config: TrainingConfig,
    run: RunDirectory,
    scorer: Scorer,
    score: Score,
    steps: int,
    clock: Clock,
) -> dict[str, Any]:
    """What a checkpoint says of its making."""
    return {
        **run.facts,
        "config": config.name,
        "seed": config.seed,
        "steps": int(steps),
        **{name: round(value, 1) for name, value in clock.spent().items()},
        "gain_percent": score.mean,
        "gain_half_width": score.half_width,
        "gains_percent": {label: float(gains.mean()) for label, gains in score.gains.items()},
        "hold_shift": score.shift,
        "held_out_seeds": [scorer.seeds.start, scorer.seeds.stop - 1],
        "reference": config.evaluation.reference,
    }


def _rollouts(config: TrainingConfig, steps: int) -> int:
    algorithm = config.algorithm
    if not isinstance(algorithm, PolicyGradient):
        return 0
    return int(steps // (algorithm.n_steps * config.task.lanes))


def _hparams(config: TrainingConfig) -> dict[str, Any]:
    found: dict[str, Any] = {"config": config.name, "seed": config.seed}
    for section in ("task", "network", "algorithm", "imitation"):
        part = getattr(config, section)
        for key, value in (part.model_dump() if part else {}).items():
            if isinstance(value, bool | int | float | str):
                found[f"{section}.{key}"] = value
            elif isinstance(value, Iterable):
                found[f"{section}.{key}"] = str(value)
    return found
