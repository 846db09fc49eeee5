"""Offline datasets: episodes of a policy on disk, in Minari's layout without Minari.

An episode is one compressed ``.npz`` with Minari's names: ``observations/<key>`` (T + 1, ...),
``actions`` (T, W), ``rewards``, ``terminations`` and ``truncations`` (T,); and, beyond Minari,
``costs`` (T,) for constrained learning. ``metadata.json`` has scenario, policy, seeds, returns and
versions, as Minari's ``metadata.json`` does.

Why not Minari itself: it would add h5py and its own pins of gymnasium to an install whose only
binary dependencies are numpy's, and it stores whole float32 arrays, of which the rows past the
queue, 80% of an observation of a wide window, are zeros. ``np.load`` reads these files anywhere.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from llmroute_env.scenario import Scenario
from llmroute_env.spaces import OBSERVATION_KEYS
from llmroute_env.training.directory import git_revision, versions
from policies.registry import make

Array = NDArray[Any]

FORMAT = 1


@dataclass(frozen=True)
class Episode:
    """One episode of T steps.

    Attributes:
        observations: the environment's, (T + 1, ...) each.
        actions: (T, W) int64.
        rewards: (T,) float64.
        terminations: (T,) bool.
        truncations: (T,) bool.
        costs: (T,) int64, SLO misses that became certain.
        seed: of the environment.
    """

    observations: dict[str, Array]
    actions: Array
    rewards: Array
    terminations: Array
    truncations: Array
    costs: Array
    seed: int

    def __len__(self) -> int:
        return len(self.actions)


class OfflineDataset:
    """Episodes in a directory, read one at a time.

    Args:
        path: the directory.

    Raises:
        ValueError: it has no dataset of this format.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        file = self.path / "metadata.json"
        if not file.is_file():
            raise ValueError(f"dataset {path}: metadata.json is absent")
        self.metadata: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        if self.metadata.get("format") != FORMAT:
            raise ValueError(
                f"dataset {path}: format {self.metadata.get('format')}, this reads {FORMAT}"
            )

    def __len__(self) -> int:
        return len(self.metadata["episodes"])

    @property
    def steps(self) -> int:
        """Steps of all episodes."""
        return sum(int(episode["steps"]) for episode in self.metadata["episodes"])

    @property
    def scenario(self) -> Scenario:
        """The scenario that they were played on."""
        return Scenario.load(self.metadata["scenario"])

    def __getitem__(self, index: int) -> Episode:
        facts = self.metadata["episodes"][index]
        with np.load(self.path / facts["file"], allow_pickle=False) as file:
            return Episode(
                {key: file[f"observations/{key}"] for key in OBSERVATION_KEYS},
                file["actions"].astype(np.int64),
                file["rewards"],
                file["terminations"],
                file["truncations"],
                file["costs"],
                int(facts["seed"]),
            )

    def __iter__(self) -> Iterator[Episode]:
        return (self[index] for index in range(len(self)))


def collect(
    scenario: str | Path | Scenario | Mapping[str, Any],
    policy: str,
    out: Path,
    *,
    episodes: int,
    first_seed: int = 0,
    overrides: Mapping[str, Any] | None = None,
) -> OfflineDataset:
    """Play ``episodes`` episodes of ``policy``, with seeds from ``first_seed`` on, and record them.

    Raises:
        ValueError: the directory is not empty, or scenario or policy are unknown.
    """
    if episodes < 1:
        raise ValueError(f"--episodes {episodes}: must be at least 1")
    if out.exists() and any(out.iterdir()):
        raise ValueError(f"{out} is not empty: name another directory")
    env = gym.make(
        "llmroute_env:LLMRoute-v0", scenario=scenario, overrides=overrides, series_stride=0
    )
    router = make(policy, env, seed=first_seed)
    out.mkdir(parents=True, exist_ok=True)
    rows = []
    for index in range(episodes):
        seed = first_seed + index
        name = f"episode-{index:05d}.npz"
        rows.append({"file": name, "seed": seed, **_record(env, router, seed, out / name)})
    inner: Any = env.unwrapped
    facts = {
        "format": FORMAT,
        "env": "LLMRoute-v0",
        "scenario": inner.scenario.to_dict(),
        "policy": policy,
        "information": str(getattr(router, "information", "unknown")),
        "git": git_revision(),
        **versions(),
        "episodes": rows,
    }
    (out / "metadata.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    return OfflineDataset(out)


def _record(env: gym.Env[Any, Any], router: Any, seed: int, file: Path) -> dict[str, Any]:
    if hasattr(router, "reset"):
        router.reset(seed=seed)
    prediction = getattr(router, "prediction", None)
    options = {"prediction": prediction} if prediction else None
    observation, _ = env.reset(seed=seed, options=options)
    seen, actions = [observation], []
    columns: dict[str, list[Any]] = {
        "rewards": [],
        "terminations": [],
        "truncations": [],
        "costs": [],
    }
    over = False
    while not over:
        action, _ = router.predict(observation)
        observation, reward, terminated, truncated, info = env.step(action)
        seen.append(observation)
        actions.append(action.astype(np.int16))
        for name, value in zip(columns, (reward, terminated, truncated, info["cost"]), strict=True):
            columns[name].append(value)
        over = terminated or truncated
    arrays = {f"observations/{key}": np.stack([o[key] for o in seen]) for key in OBSERVATION_KEYS}
    arrays["actions"] = np.stack(actions)
    arrays |= {name: np.array(values) for name, values in columns.items()}
    np.savez_compressed(file, allow_pickle=False, **arrays)
    return {"steps": len(actions), "return": float(np.sum(columns["rewards"]))}
