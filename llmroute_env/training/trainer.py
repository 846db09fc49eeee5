"""A training run from its configuration to its last checkpoint."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from stable_baselines3.common.callbacks import BaseCallback, CallbackList, ProgressBarCallback
from stable_baselines3.common.logger import Logger, make_output_format

from llmroute_env.training.build import load_model, make_layout, make_model, make_training_env
from llmroute_env.training.callbacks import (
    Clock,
    CriticFirst,
    EpisodeMetrics,
    HeldOutScores,
    describe,
    record,
)
from llmroute_env.training.config import PairsTask, PolicyGradient, TrainingConfig
from llmroute_env.training.demonstrations import demonstrate, joined
from llmroute_env.training.directory import RunDirectory, command_line
from llmroute_env.training.evolution import evolve
from llmroute_env.training.imitation import clone
from llmroute_env.training.scoring import Scorer
from policies.learned.checkpoint import load, save

#: how far apart generations of evolution are drawn, in steps, so that curves show all stages
GENERATION_STEPS = 10_000


def train(
    config: TrainingConfig, out: Path, *, progress: bool = False, quiet: bool = False
) -> RunDirectory:
    """Run ``config`` in an absent or empty directory.

    Raises:
        RunExistsError: there is something in it.
    """
    torch.set_num_threads(1)
    clock = Clock({})
    run = RunDirectory.create(out, config, command_line())
    model = make_model(config, make_training_env(config))
    model.set_logger(_logger(run, quiet))
    _finish(config, run, model, progress, clock)
    return run


def resume(out: Path, *, progress: bool = False, quiet: bool = False) -> RunDirectory:
    """Go on with a run from its last checkpoint; one that has none starts anew.

    Workloads from here on are drawn from a seed that depends on the step, so that the episodes
    before the kill are not played a second time.

    Raises:
        ValueError: there is no run in the directory.
    """
    torch.set_num_threads(1)
    run, config = RunDirectory.resume(out)
    state = run.state()
    clock = Clock(state)
    env = make_training_env(config)
    if not state:
        model = make_model(config, env)
    else:
        env.seed(config.seed + 7919 * (1 + int(state["steps"])))
        model = load_model(config, run.path / "last.zip", env)
    model.set_logger(_logger(run, quiet))
    _finish(config, run, model, progress, clock)
    return run


def _finish(
    config: TrainingConfig, run: RunDirectory, model: Any, progress: bool, clock: Clock
) -> None:
    """Do what is left of imitation, PPO and evolution; close the curves' files after it."""
    try:
        if config.imitation is not None and not run.state():
            imitate(config, model)
        _learn(config, run, model, progress, clock)
        _evolve(config, run, model.logger, clock)
    finally:
        model.logger.close()


def imitate(config: TrainingConfig, model: Any) -> dict[str, float]:
    """Clone the teacher into the model's actor; curves go to the model's logger."""
    settings, task = config.imitation, config.task
    assert settings is not None
    assert isinstance(task, PairsTask)
    layout, count = make_layout(config), settings.decisions // len(config.scenarios)
    shown = joined(
        [
            demonstrate(
                entry.load(),
                settings.teacher,
                layout,
                oldest=task.oldest,
                decisions=count,
                seed=config.seed,
            )
            for entry in config.scenarios
        ]
    )

    def report(epoch: int, losses: dict[str, float]) -> None:
        for name, value in losses.items():
            model.logger.record(f"imitation/{name}", value)
        model.logger.dump(epoch)

    return clone(
        model.policy,
        shown,
        epochs=settings.epochs,
        batch_size=settings.batch_size,
        learning_rate=settings.learning_rate,
        smoothing=settings.smoothing,
        hold_above=settings.hold_above,
        spread=settings.spread,
        seed=config.seed,
        report=report,
    )


def _learn(
    config: TrainingConfig, run: RunDirectory, model: Any, progress: bool, clock: Clock
) -> None:
    state = run.state()
    left = config.steps - int(state.get("steps", 0))
    if left <= 0:
        return
    scores = HeldOutScores(config, run, Scorer(config), clock)
    callbacks: list[BaseCallback] = [EpisodeMetrics(), scores]
    if isinstance(config.algorithm, PolicyGradient) and config.algorithm.critic_rollouts:
        callbacks.insert(0, CriticFirst(config.algorithm, int(state.get("rollouts", 0))))
    if progress:
        callbacks.append(ProgressBarCallback())
    model.learn(
        left,
        callback=CallbackList(callbacks),
        reset_num_timesteps=not state,
        log_interval=1 if isinstance(config.algorithm, PolicyGradient) else 4,
    )


def _evolve(config: TrainingConfig, run: RunDirectory, logger: Logger, clock: Clock) -> None:
    """Climb from the best checkpoint, in intervals of ``every`` generations, each saved."""
    settings, state = config.evolution, run.state()
    if settings is None:
        return
    scorer = Scorer(config)
    scenarios = [entry.load() for entry in settings.scenarios]
    done = int(state.get("generations", 0))
    current = load(run.path / ("last.npz" if done else "best.npz"))

    def report(generation: int, found: dict[str, float]) -> None:
        for name, value in found.items():
            logger.record(f"evolution/{name}", value)
        logger.dump(config.steps + GENERATION_STEPS * generation)

    while done < settings.generations:
        ahead = min(settings.every, settings.generations - done)
        current = evolve(
            current,
            scenarios,
            reference=config.evaluation.reference,
            generations=ahead,
            pairs=settings.pairs,
            paths=settings.paths,
            sigma=settings.sigma,
            learning_rate=settings.learning_rate,
            layers=settings.layers,
            threads=settings.threads,
            seed=config.seed,
            report=report,
            first=done,
        )
        done += ahead
        score = scorer.score_checkpoint(current)
        facts = describe(config, run, scorer, score, config.steps, clock)
        current = replace(current, about=facts | {"generations": done})
        save(run.path / "last.npz", current)
        if score.value > state["best_value"]:
            state |= {"best_value": score.value, "best_gain": score.mean}
            save(run.path / "best.npz", current)
        record(logger, score)
        logger.dump(config.steps + GENERATION_STEPS * done)
        state |= {"generations": done, "gain": score.mean, **clock.spent()}
        run.write_state(state)


def _logger(run: RunDirectory, quiet: bool) -> Logger:
    """Curves of this process; a resumed run writes its table beside the earlier one."""
    steps = int(run.state().get("steps", 0))
    suffix = f"-{steps}" if steps else ""
    formats = ["tensorboard", "csv"] if quiet else ["stdout", "tensorboard", "csv"]
    folder = str(run.tensorboard)
    run.tensorboard.mkdir(exist_ok=True)
    return Logger(folder, [make_output_format(name, folder, suffix) for name in formats])
