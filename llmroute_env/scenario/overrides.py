"""Dotted-key overrides: ``--set cluster.devices=8``, ``overrides={"router.window": 32}``."""

from __future__ import annotations

import copy
import difflib
import re
from collections.abc import Iterable, Mapping
from typing import Any

import yaml

from llmroute_env.scenario import schema
from llmroute_env.scenario.errors import ScenarioError


class _Loader(yaml.SafeLoader):
    """YAML whose numbers are those of YAML 1.2: PyYAML alone reads ``1e-3`` as text."""


_Loader.yaml_implicit_resolvers = copy.deepcopy(yaml.SafeLoader.yaml_implicit_resolvers)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\d+(\.\d*)?|\.\d+)([eE][-+]?\d+)$"),
    list("-+.0123456789"),
)


def read_yaml(text: str) -> Any:
    """Parse YAML text.

    Raises:
        yaml.YAMLError: the text is not YAML.
    """
    return yaml.load(text, Loader=_Loader)


def parse_assignments(items: Iterable[str]) -> dict[str, Any]:
    """Turn ``["router.window=32"]`` into overrides; the values stay text, read as YAML later.

    Raises:
        ScenarioError: an item has no ``=``.
    """
    overrides: dict[str, Any] = {}
    for item in items:
        key, equals, value = item.partition("=")
        if not equals or not key.strip():
            raise ScenarioError(f"override {item!r}: must have the form key=value")
        overrides[key.strip()] = value.strip()
    return overrides


def apply(data: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of ``data`` with the overrides applied, kinds first.

    Setting ``workload.arrivals.kind`` drops the keys of the old kind that the new one lacks, so
    that one override is enough where the new kind has defaults for the rest.

    Raises:
        ScenarioError: a key is not known; names the nearest.
    """
    result = copy.deepcopy(dict(data))
    ordered = sorted(overrides, key=lambda key: (not key.endswith(".kind"), key.count(".")))
    for key in ordered:
        value = overrides[key]
        if isinstance(value, str):
            try:
                value = read_yaml(value) if value else value
            except yaml.YAMLError:
                raise ScenarioError(
                    f"override {key} = {overrides[key]!r}: is not a YAML value"
                ) from None
        _set(result, key, value)
    return result


def _set(data: dict[str, Any], key: str, value: Any) -> None:
    parts = key.split(".")
    here: Any = data
    for depth, part in enumerate(parts):
        if isinstance(here, list):
            here = _item(here, key, part)
            if depth == len(parts) - 1:
                raise ScenarioError(f"override {key}: must name a key of that entry")
            continue
        known = schema.keys_at(parts[:depth], data)
        if part not in known:
            raise ScenarioError(f"override {key}: unknown key{_suggestion(parts, depth, data)}")
        if depth == len(parts) - 1:
            break
        child = here.get(part)
        if not isinstance(child, dict | list):  # a section that is null or absent so far
            child = {}
            here[part] = child
        here = child
    if isinstance(value, str) and schema.is_union(parts, data):  # prediction=perfect
        here.setdefault(parts[-1], {})
        parts, here = [*parts, "kind"], here[parts[-1]]
    if parts[-1] == "kind" and here.get("kind") != value:
        _change_kind(data, parts, value)
    else:
        here[parts[-1]] = copy.deepcopy(value)


def _item(items: list[Any], key: str, part: str) -> dict[str, Any]:
    """Entry ``part`` of a list, ``cluster.groups.0.devices``."""
    if not part.isdigit() or int(part) >= len(items) or not isinstance(items[int(part)], dict):
        raise ScenarioError(
            f"override {key}: {part!r} must be a number from 0 to {len(items) - 1}, which entry"
        )
    return items[int(part)]  # type: ignore[no-any-return]


def _change_kind(data: dict[str, Any], parts: list[str], kind: Any) -> None:
    here: Any = data
    for part in parts[:-1]:
        here = here[int(part)] if isinstance(here, list) else here[part]
    here["kind"] = kind
    # An unknown kind is left to validation, which lists what is allowed.
    known = schema.keys_at(parts[:-1], data)
    for key in [key for key in here if key not in known]:
        del here[key]


def _suggestion(parts: list[str], depth: int, data: Mapping[str, Any]) -> str:
    """The nearest known key: the same word elsewhere, then a similar one here, then anywhere."""
    word, prefix = parts[-1], ".".join(parts[:depth])
    everywhere = _all_keys((), data)
    by_word: dict[str, str] = {}
    for path in everywhere:
        by_word.setdefault(path.rsplit(".", 1)[-1], path)
    here = {
        key: f"{prefix}.{key}" if prefix else key for key in schema.keys_at(parts[:depth], data)
    }
    if word in by_word:
        return f"; did you mean {by_word[word]}?"
    for known, name in ((here, parts[depth]), (by_word, word)):
        close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
        if close:
            return f"; did you mean {known[close[0]]}?"
    return f"; known{' in ' + prefix if prefix else ''}: {', '.join(sorted(here))}"


def _all_keys(path: tuple[str, ...], data: Mapping[str, Any]) -> list[str]:
    found: list[str] = []
    if path and path[-1] == "groups":  # whose keys follow a number
        return found
    for key in sorted(schema.keys_at(path, data)):
        found.append(".".join((*path, key)))
        found += _all_keys((*path, key), data)
    return found
