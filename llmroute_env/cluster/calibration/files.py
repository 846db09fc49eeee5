"""The YAML files that a calibration consists of."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from llmroute_env.cluster.calibration.build import Calibration
from llmroute_env.cluster.profiles import DeviceProfile, ModelProfile

_HEADER = (
    "# Written by scripts/calibrate_timing.py. Do not edit: change the calibration, then run it\n"
    "# with --force.\n"
)
#: What a rounding of the last digit may change between library versions.
_TOLERANCE = 2e-3


def targets(calibration: Calibration, configs: Path) -> dict[Path, DeviceProfile | ModelProfile]:
    """Path of each file under ``configs``, and what belongs into it."""
    files: dict[Path, DeviceProfile | ModelProfile] = {
        configs / "devices" / f"{calibration.device.name}.yaml": calibration.device
    }
    for model in calibration.models:
        files[configs / "models" / f"{model.name}.yaml"] = model
    return files


def existing(device: str, models: list[str], configs: Path) -> list[Path]:
    """Those of the files that are already there."""
    paths = [configs / "devices" / f"{device}.yaml"]
    paths += [configs / "models" / f"{model}.yaml" for model in models]
    return [path for path in paths if path.exists()]


def write(calibration: Calibration, configs: Path) -> list[Path]:
    """Write the files, replacing what is there; the caller has asked."""
    for path, profile in targets(calibration, configs).items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(_HEADER + _dump(_content(profile)), encoding="utf-8")
    return list(targets(calibration, configs))


def differences(calibration: Calibration, configs: Path) -> list[str]:
    """One line per value in which the files differ from the calibration."""
    lines: list[str] = []
    for path, profile in targets(calibration, configs).items():
        if not path.is_file():
            lines.append(f"{path}: missing")
            continue
        try:
            there = yaml.safe_load(path.read_text(encoding="utf-8"))
        except yaml.YAMLError as error:
            lines.append(f"{path}: not YAML: {str(error).splitlines()[0]}")
            continue
        lines.extend(f"{path}: {line}" for line in _compare(_content(profile), there, ()))
    return lines


def _content(profile: DeviceProfile | ModelProfile) -> dict[str, Any]:
    return {key: _plain(value) for key, value in profile.model_dump().items()}


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return int(value)
    return value


class _Dumper(yaml.SafeDumper):
    """Lists of numbers on one line, everything else a key a line."""


def _sequence(dumper: yaml.SafeDumper, value: list[Any]) -> yaml.Node:
    return dumper.represent_sequence("tag:yaml.org,2002:seq", value, flow_style=True)


_Dumper.add_representer(list, _sequence)


def _dump(content: dict[str, Any]) -> str:
    return str(
        yaml.dump(content, Dumper=_Dumper, sort_keys=False, default_flow_style=False, width=98)
    )


def _compare(fitted: Any, there: Any, key: tuple[str, ...]) -> Iterator[str]:
    name = ".".join(key) or "file"
    if isinstance(fitted, dict) and isinstance(there, dict):
        for part in [*fitted, *(extra for extra in there if extra not in fitted)]:
            where = (*key, str(part))
            if part not in there:
                yield f"{'.'.join(where)} is missing"
            elif part not in fitted:
                yield f"{'.'.join(where)} is not part of the calibration"
            else:
                yield from _compare(fitted[part], there[part], where)
    elif isinstance(fitted, list) and isinstance(there, list) and len(fitted) == len(there):
        for index, (left, right) in enumerate(zip(fitted, there, strict=True)):
            yield from _compare(left, right, (*key, str(index)))
    elif isinstance(fitted, int | float) and isinstance(there, int | float):
        if not math.isclose(fitted, there, rel_tol=_TOLERANCE):
            yield f"{name} = {there}, fitted {fitted}"
    elif fitted != there:
        yield f"{name} differs"
