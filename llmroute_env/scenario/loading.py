"""Where scenarios come from: names, files, mappings."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from pydantic import ValidationError

from llmroute_env.scenario import overrides as dotted
from llmroute_env.scenario.errors import ScenarioError, nearest, one_line
from llmroute_env.scenario.models import Scenario

_SUFFIXES = (".yaml", ".yml")


@cache
def config_directory() -> Path:
    """The directory of the project's YAML files: in a wheel, in the package; else beside it."""
    package = Path(__file__).resolve().parents[1]
    inside = package / "configs"
    return inside if inside.is_dir() else package.parent / "configs"


def list_scenarios() -> list[str]:
    """Names of the embedded scenarios, sorted."""
    return sorted(path.stem for path in (config_directory() / "scenarios").glob("*.yaml"))


def load(
    source: str | PathLike[str] | Mapping[str, Any] | Scenario,
    overrides: Mapping[str, Any] | None = None,
) -> Scenario:
    """See :meth:`Scenario.load`."""
    if isinstance(source, Scenario):
        if not overrides:
            return source
        name, data = source.name, source.to_dict()
    elif isinstance(source, Mapping):
        name, data = str(source.get("name", "(mapping)")), dict(source)
    else:
        name, data = _read(fspath(source))
    data = _plain(data)
    try:
        if overrides:
            data = dotted.apply(data, _plain(overrides))
        return Scenario.model_validate(data)
    except ValidationError as error:
        raise one_line(error, data, name) from None
    except ScenarioError as error:
        raise ScenarioError(f"scenario {name}: {error}") from None


def _read(source: str) -> tuple[str, dict[str, Any]]:
    """A YAML file's content, with the file's stem as the default name."""
    path = _find(source)
    try:
        data = dotted.read_yaml(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        where = getattr(error, "problem_mark", None)
        line = f" at line {where.line + 1}" if where is not None else ""
        problem = getattr(error, "problem", None) or "cannot be read"
        raise ScenarioError(f"scenario file {path}: not YAML{line}: {problem}") from None
    except UnicodeDecodeError:
        raise ScenarioError(f"scenario file {path}: not UTF-8 text") from None
    if not isinstance(data, dict):
        raise ScenarioError(f"scenario file {path}: must be a mapping of keys")
    data.setdefault("name", path.stem)
    _anchor_files(data, path.parent)
    return str(data["name"]), data


def _find(source: str) -> Path:
    path = Path(source)
    if path.suffix in _SUFFIXES or len(path.parts) > 1:
        if path.is_file():
            return path
        raise ScenarioError(f"scenario file {source}: no such file")
    named = config_directory() / "scenarios" / f"{source}.yaml"
    if named.is_file():
        return named
    names = list_scenarios()
    raise ScenarioError(f"scenario {source!r}: no such scenario{nearest(source, names)}")


def _anchor_files(data: dict[str, Any], directory: Path) -> None:
    """Make relative paths of traces count from the scenario's file where they exist only there."""
    workload = data.get("workload")
    for key in ("trace", "arrivals"):  # ``arrivals`` has a path with ``kind: servegen``
        section = workload.get(key) if isinstance(workload, dict) else None
        path = section.get("path") if isinstance(section, dict) else None
        if isinstance(section, dict) and isinstance(path, str) and path:
            beside = directory / path
            if not Path(path).exists() and beside.exists():
                section["path"] = str(beside)


def _plain(value: Any) -> Any:
    """Deep copy with numpy scalars and arrays, tuples and sections as plain data."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if hasattr(value, "model_dump"):
        return _plain(value.model_dump(mode="json", by_alias=True))
    if isinstance(value, PathLike):
        return fspath(value)
    return value
