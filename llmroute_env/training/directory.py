"""The directory of a training run: what is in it, and that nothing in it is overwritten."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import yaml

from llmroute_env.training.config import TrainingConfig, dump_config, load_config

_PACKAGES = ("llmroute-env", "gymnasium", "numpy", "torch", "stable-baselines3", "sb3-contrib")


class RunExistsError(ValueError):
    """The directory has a run, and neither resuming nor another directory was asked for."""


@dataclass(frozen=True)
class RunDirectory:
    """Files of one run.

    ``config.yaml`` and ``scenarios.yaml`` say what was asked, in full; ``run.json`` the command,
    git revision and versions, and where it was resumed; ``tb/`` has all curves, and as tables in
    ``progress*.csv``; ``last.zip`` and ``last.npz`` the newest checkpoint, ``best.*`` the best on
    the held-out seeds; ``state.json`` where to go on.
    """

    path: Path

    @classmethod
    def create(cls, path: Path, config: TrainingConfig, command: str) -> RunDirectory:
        """Start a run in an absent or empty directory.

        Raises:
            RunExistsError: something is there already.
        """
        if path.exists() and any(path.iterdir()):
            raise RunExistsError(
                f"{path} is not empty: pass --resume to go on with the run in it, or another --out"
            )
        path.mkdir(parents=True, exist_ok=True)
        made = cls(path)
        scenarios = [entry.load().to_dict() for entry in config.scenarios]
        _write(path / "scenarios.yaml", yaml.safe_dump(scenarios, sort_keys=False))
        facts = {"command": command, "git": git_revision(), **versions()}
        _write(path / "run.json", json.dumps(facts, indent=2) + "\n")
        _write(path / "config.yaml", dump_config(config))
        return made

    @classmethod
    def resume(cls, path: Path) -> tuple[RunDirectory, TrainingConfig]:
        """Open the directory of a run.

        Raises:
            ValueError: there is none.
        """
        if not (path / "config.yaml").is_file():
            raise ValueError(f"{path}: no run to resume, config.yaml is absent")
        found = cls(path)
        facts = found.facts
        resumed = {"steps": found.state().get("steps", 0), "git": git_revision()}
        facts["resumed"] = [*facts.get("resumed", []), resumed]
        _write(path / "run.json", json.dumps(facts, indent=2) + "\n")
        return found, load_config(path / "config.yaml")

    @property
    def tensorboard(self) -> Path:
        """Directory of the event files."""
        return self.path / "tb"

    @property
    def facts(self) -> dict[str, Any]:
        """What ``run.json`` says."""
        found: dict[str, Any] = json.loads((self.path / "run.json").read_text())
        return found

    def state(self) -> dict[str, Any]:
        """Where the run stands; empty before its first checkpoint."""
        file = self.path / "state.json"
        return json.loads(file.read_text()) if file.is_file() else {}

    def write_state(self, state: dict[str, Any]) -> None:
        """Note where the run stands, whole or not at all."""
        _write(self.path / "state.json", json.dumps(state, indent=2) + "\n")


def versions() -> dict[str, str]:
    """Versions of what a run depends on."""
    found = {"python": platform.python_version(), "machine": platform.machine()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found


def git_revision() -> str:
    """Commit of the source tree, with ``-dirty`` where it has changes; ``unknown`` without git."""
    here = Path(__file__).resolve().parent

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(here), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    try:
        revision = git("rev-parse", "HEAD")
        changed = git("status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return revision + ("-dirty" if changed else "")


def command_line() -> str:
    """The command that runs now."""
    return " ".join([Path(sys.argv[0]).name, *sys.argv[1:]])


def _write(path: Path, text: str) -> None:
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)
