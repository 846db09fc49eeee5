"""What a training run consists of: the schema of ``configs/training/*.yaml``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from llmroute_env.scenario import Scenario, config_directory

Positive = Annotated[int, Field(ge=1)]
Rate = Annotated[float, Field(gt=0, le=1)]
Share = Annotated[float, Field(ge=0, le=1)]


class Section(BaseModel):
    """A part of the file: no unknown keys, no NaN."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class TrainingScenario(Section):
    """A scenario, and dotted keys to change in it."""

    scenario: str
    overrides: dict[str, Any] = {}
    #: what one unit of reward is worth in the objective; None: the task's
    reward_scale: Annotated[float, Field(gt=0)] | None = None

    @property
    def label(self) -> str:
        """Name with what differs, ``paper-overload rate=0.6``."""
        changes = [f"{key.rpartition('.')[2]}={value}" for key, value in self.overrides.items()]
        return " ".join([Path(self.scenario).stem, *changes])

    def load(self) -> Scenario:
        """The validated scenario."""
        return Scenario.load(self.scenario, self.overrides or None)


class PairsTask(Section):
    """Which request starts next, and where: `DecisionVecEnv`."""

    kind: Literal["pairs"] = "pairs"
    lanes: Positive
    candidates: Positive
    oldest: Annotated[int, Field(ge=0)]
    patience: Positive
    reward_scale: Annotated[float, Field(gt=0)]
    stagger: bool


class OneRequestTask(Section):
    """One visible request after the other: `OneRequestEnv` with flat features."""

    kind: Literal["one_request"]
    lanes: Positive
    include_active: bool
    reward_scale: Annotated[float, Field(gt=0)]


class WindowTask(Section):
    """All visible requests at once: `SB3VecEnv` with flat features; for windows of at most 16."""

    kind: Literal["window"]
    lanes: Positive
    include_active: bool
    reward_scale: Annotated[float, Field(gt=0)]


class PairsNetwork(Section):
    """The permutation-equivariant network of `policies.learned`."""

    kind: Literal["pairs"]
    width: Positive


class MlpNetwork(Section):
    """Stable-baselines3's own MLP."""

    kind: Literal["mlp"]
    layers: list[Positive]


class Imitation(Section):
    """Behaviour cloning before reinforcement."""

    teacher: str
    decisions: Positive
    epochs: Positive
    batch_size: Positive
    learning_rate: Rate
    #: probability of holding in the targets, where the teacher starts a request that is at least
    #: ``hold_above`` times as long as the mean of those arriving
    smoothing: Share
    hold_above: Annotated[float, Field(gt=0)]
    #: probability in the targets that goes evenly to the devices that can start the same request
    spread: Share


class PolicyGradient(Section):
    """PPO and its kin; names are stable-baselines3's."""

    kind: Literal["maskable_ppo", "ppo", "recurrent_ppo"]
    learning_rate: Rate
    n_steps: Positive
    batch_size: Positive
    n_epochs: Positive
    gamma: Share
    gae_lambda: Share
    clip_range: Share
    ent_coef: Annotated[float, Field(ge=0)]
    vf_coef: Annotated[float, Field(ge=0)]
    max_grad_norm: Annotated[float, Field(gt=0)]
    target_kl: Annotated[float, Field(gt=0)] | None
    #: first rollouts in which the critic alone learns, with its own rate and epochs
    critic_rollouts: Annotated[int, Field(ge=0)] = 0
    critic_learning_rate: Rate = 1e-3
    critic_epochs: Positive = 10


class ValueBased(Section):
    """DQN and QR-DQN; names are stable-baselines3's."""

    kind: Literal["dqn", "qrdqn"]
    learning_rate: Rate
    buffer_size: Positive
    learning_starts: Annotated[int, Field(ge=0)]
    batch_size: Positive
    gamma: Share
    train_freq: Positive
    gradient_steps: int
    target_update_interval: Positive
    exploration_fraction: Share
    exploration_final_eps: Share


class Evolution(Section):
    """Evolution strategies on the deterministic router after reinforcement; task pairs only."""

    scenarios: list[TrainingScenario] = Field(min_length=1)
    layers: list[str] = Field(min_length=1)  # of `policies.learned.network.Weights`
    generations: Positive
    pairs: Positive
    paths: Positive
    sigma: Annotated[float, Field(gt=0)]
    learning_rate: Rate
    threads: Positive
    every: Positive  # generations between two checkpoints


class HeldOut(Section):
    """Evaluation during training, paired with a reference policy.

    The best checkpoint has the largest mean over the scenarios of the gain relative to the
    reference; a loss counts LOSS_WEIGHT times, so that none is bought with a gain elsewhere.
    """

    #: empty: the run's first
    scenarios: list[TrainingScenario] = []
    every: Positive  # steps of all lanes together
    seeds: Positive
    first_seed: int
    reference: str
    #: processors that play the episodes
    threads: Positive = 1
    #: what is tried to be added to the score of holding, task pairs only; the best is kept
    hold_shifts: list[float] = Field([0.0], min_length=1)


class TrainingConfig(Section):
    """A whole run.

    Scenarios are mixed over the lanes, and the teacher shows as much of each; the first one is the
    scenario of the checkpoint. Evaluation and evolution have scenarios of their own.
    """

    name: str
    description: str
    seed: int
    steps: Positive
    scenarios: list[TrainingScenario] = Field(min_length=1)
    task: Annotated[PairsTask | OneRequestTask | WindowTask, Field(discriminator="kind")]
    network: Annotated[PairsNetwork | MlpNetwork, Field(discriminator="kind")]
    algorithm: Annotated[PolicyGradient | ValueBased, Field(discriminator="kind")]
    imitation: Imitation | None = None
    evolution: Evolution | None = None
    evaluation: HeldOut

    @model_validator(mode="after")
    def _consistent(self) -> TrainingConfig:
        task, algorithm = self.task.kind, self.algorithm.kind
        if task == "pairs" and algorithm != "maskable_ppo":
            raise ValueError(f"algorithm.kind {algorithm}: task pairs needs masks, maskable_ppo")
        if task == "window" and algorithm in ("dqn", "qrdqn"):
            raise ValueError(f"algorithm.kind {algorithm}: needs one action, task one_request")
        if (task == "pairs") != (self.network.kind == "pairs"):
            raise ValueError(
                f"network.kind {self.network.kind}: task is {task}, both or none pairs"
            )
        if task != "pairs" and (self.imitation or self.evolution):
            raise ValueError(f"imitation and evolution: need task pairs, not {task}")
        if task != "pairs" and len(self.scenarios) > 1:
            raise ValueError(f"scenarios: task {task} takes one")
        return self


def load_config(
    source: str | Path | Mapping[str, Any], overrides: Mapping[str, Any] | None = None
) -> TrainingConfig:
    """Read and check a configuration.

    Args:
        source: a name under ``configs/training``, a path, or a mapping.
        overrides: dotted keys to values, ``{"algorithm.n_steps": 64}``.

    Raises:
        ValueError: one line that names the key, its value and what is allowed.
    """
    if isinstance(source, Mapping):
        data, label = dict(source), "training config"
    else:
        path = _find(source)
        label = str(path)
        loaded = yaml.safe_load(path.read_text(encoding="utf-8"))
        if not isinstance(loaded, dict):
            raise ValueError(f"{label}: a mapping of keys is expected")  # noqa: TRY004
        data = loaded
    for key, value in (overrides or {}).items():
        _set(data, key, value)
    try:
        return TrainingConfig.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        reason = first["msg"].removeprefix("Value error, ")
        raise ValueError(f"{label}: {where + ': ' if where else ''}{reason}") from None


def dump_config(config: TrainingConfig) -> str:
    """The configuration as YAML, every value of it."""
    text: str = yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)
    return text


def _find(source: str | Path) -> Path:
    path = Path(source)
    if path.is_file():
        return path
    known = config_directory() / "training"
    named = known / f"{source}.yaml"
    if named.is_file():
        return named
    names = ", ".join(sorted(p.stem for p in known.glob("*.yaml")))
    raise ValueError(f"training config {source}: no such file, and no name among {names}")


def _set(data: dict[str, Any], key: str, value: Any) -> None:
    *parents, last = key.split(".")
    for part in parents:
        below = data.get(part)
        if not isinstance(below, dict):
            raise ValueError(f"--set {key}: {part} is no section")  # noqa: TRY004
        data[part] = data = dict(below)
    data[last] = value
