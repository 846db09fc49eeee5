"""What keys a scenario has: a walk over the models along a dotted key.

The data decide which member of a union (``kind: poisson`` or ``kind: gamma``) is meant.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, get_args

from pydantic import BaseModel


@cache
def keys(model: type[BaseModel]) -> dict[str, str]:
    """Key in the YAML -> field name, of one section."""
    return {info.alias or name: name for name, info in model.model_fields.items()}


@cache
def _sections(model: type[BaseModel], field: str) -> tuple[type[BaseModel], ...]:
    """The section classes that a field's annotation allows."""

    def found(annotation: Any) -> list[type[BaseModel]]:
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            return [annotation]
        return [section for part in get_args(annotation) for section in found(part)]

    return tuple(found(model.model_fields[field].annotation))


def tag_of(model: type[BaseModel]) -> str | None:
    """The ``kind`` of a member of a union, None for a plain section."""
    info = model.model_fields.get("kind")
    return None if info is None else str(info.default)


def choose(options: Sequence[type[BaseModel]], data: Any) -> list[type[BaseModel]]:
    """The options that fit ``data``'s kind, or all of them when it says nothing."""
    kind = data.get("kind") if isinstance(data, Mapping) else None
    return [option for option in options if tag_of(option) == kind] or list(options)


def sections_at(path: Sequence[int | str], data: Any) -> list[type[BaseModel]]:
    """The possible section classes at ``path``; empty where a plain value lives."""
    from llmroute_env.scenario.models import Scenario

    options: list[type[BaseModel]] = [Scenario]
    here = data
    for part in path:
        if isinstance(here, Sequence) and not isinstance(here, str) and str(part).isdigit():
            here = here[int(part)] if int(part) < len(here) else None
            options = choose(options, here)
            continue
        nested = [
            section
            for option in options
            if str(part) in keys(option)
            for section in _sections(option, keys(option)[str(part)])
        ]
        here = here.get(part) if isinstance(here, Mapping) else None
        options = choose(nested, here)
    return options


def keys_at(path: Sequence[int | str], data: Any) -> set[str]:
    """The keys that are known below ``path``."""
    return {key for option in sections_at(path, data) for key in keys(option)}


def is_union(path: Sequence[str], data: Any) -> bool:
    """Whether a section with a ``kind`` lives at ``path``."""
    return any(tag_of(option) is not None for option in sections_at(path, data))
