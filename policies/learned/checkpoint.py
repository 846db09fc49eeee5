"""Checkpoints of a learned router: one ``.npz`` with the weights and what they were made from."""

from __future__ import annotations

import json
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from policies.learned.network import Weights, weights

FORMAT = 2  # 2: features in service times, costs of a placement
#: the checkpoint in the wheel
SHIPPED = Path(__file__).parent / "checkpoints" / "shipped.npz"


@dataclass(frozen=True)
class Checkpoint:
    """Weights, and the facts that a reader of results needs.

    Attributes:
        weights: of the network.
        scenario: name of the scenario that it was trained on.
        objective: the scenario's weights and limits.
        candidates: K in training.
        oldest: how many of the candidates were chosen by age.
        about: git revision, command, seed, time and scores of the training.
        path: where it was read from.
    """

    weights: Weights
    scenario: str
    objective: dict[str, float]
    candidates: int = 16
    oldest: int = 4
    about: dict[str, Any] = field(default_factory=dict)
    path: Path | None = None


def save(path: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint, whole or not at all."""
    facts = {
        "format": FORMAT,
        "scenario": checkpoint.scenario,
        "objective": checkpoint.objective,
        "candidates": checkpoint.candidates,
        "oldest": checkpoint.oldest,
        "about": checkpoint.about,
    }
    arrays: dict[str, Any] = dict(checkpoint.weights._asdict())
    text = np.frombuffer(json.dumps(facts).encode(), np.uint8)
    partial = path.with_name(f".{path.name}.partial")
    with partial.open("wb") as file:
        np.savez_compressed(file, facts=text, **arrays)
    partial.replace(path)


def load(path: Path) -> Checkpoint:
    """Read a checkpoint.

    Raises:
        ValueError: the file is absent or no checkpoint of this format; one line with its path.
    """
    if not path.is_file():
        raise ValueError(f"checkpoint {path}: no such file")
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        facts = json.loads(arrays.pop("facts").tobytes().decode())
    except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
        raise ValueError(f"checkpoint {path}: not a learned router's .npz ({error})") from None
    if facts.get("format") != FORMAT:
        raise ValueError(f"checkpoint {path}: format {facts.get('format')}, this reads {FORMAT}")
    try:
        found = weights(arrays)
    except ValueError as error:
        raise ValueError(f"checkpoint {path}: {error}") from None
    return Checkpoint(
        found,
        str(facts["scenario"]),
        dict(facts["objective"]),
        int(facts["candidates"]),
        int(facts["oldest"]),
        dict(facts["about"]),
        path,
    )
