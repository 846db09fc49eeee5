"""One clear line for whatever is wrong with a scenario."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import ValidationError

from llmroute_env.scenario import schema


class ScenarioError(ValueError):
    """A scenario that cannot run. One line: the dotted key, its value, and what is allowed."""


def nearest(word: str, known: Iterable[str]) -> str:
    """``"; did you mean 'x'?"`` with the nearest known word, else the list of known words."""
    names = sorted(known)
    close = difflib.get_close_matches(word, names, n=1, cutoff=0.5)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; known: {', '.join(names)}" if names else ""


def shown(value: Any) -> str:
    """A value as YAML would show it, cut to a length that fits a line."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def one_line(error: ValidationError, data: Any, name: str) -> ScenarioError:
    """Translate pydantic's report on ``data`` into one line about its first fault.

    Args:
        error: what pydantic raised.
        data: the mapping it validated, for values and tag resolution.
        name: name or path of the scenario, to start the line with.
    """
    faults = error.errors(include_url=False)
    # An unknown key is often a misspelt required one: name the misspelling, not the gap.
    faults.sort(key=lambda fault: fault["type"] != "extra_forbidden")
    rest = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
    return ScenarioError(f"scenario {name}: {_message(faults[0], data)}{rest}")


def _message(fault: Mapping[str, Any], data: Any) -> str:
    path = _without_tags(fault["loc"], data)
    key = ".".join(str(part) for part in path)
    context = fault.get("ctx", {})
    kind = str(fault["type"])
    value = fault.get("input")
    if kind == "extra_forbidden":
        known = schema.keys_at(path[:-1], data)
        return f"unknown key {key}{nearest(str(path[-1]), known)}"
    if kind == "missing":
        return f"{key} is missing"
    if kind in ("union_tag_not_found", "union_tag_invalid"):
        return _bad_tag(key, kind, context)
    if kind == "literal_error":
        return f"{key} = {shown(value)}: must be {context['expected']}"
    if kind == "value_error":
        text = str(context["error"])
        if text.startswith("must be"):  # a field's own check
            unit = " of seconds" if key.endswith("_s") else ""
            return f"{key} = {shown(value)}: {text}{unit}"
        return f"{key}.{text}" if key else text  # a section's check names its key itself
    comparison = {"gt": "above", "ge": "at least", "lt": "below", "le": "at most"}
    for bound, words in comparison.items():
        if bound in context:
            return f"{key} = {shown(value)}: must be {words} {context[bound]:g}"
    wanted = {
        "finite_number": "must be a finite number",
        "string_type": "must be text",
        "bool_type": "must be true or false",
        "tuple_type": "must be a list",
        "model_type": "must be a mapping of keys",
        "model_attributes_type": "must be a mapping of keys",
        "dict_type": "must be a mapping of keys",
    }
    text = wanted.get(kind) or str(fault["msg"]).lower()
    return f"{key or 'scenario'} = {shown(value)}: {text}"


def _bad_tag(key: str, kind: str, context: Mapping[str, Any]) -> str:
    if kind == "union_tag_not_found":
        return f"{key}.kind is missing"
    allowed = [tag.strip(" '") for tag in str(context["expected_tags"]).split(",")]
    tag = str(context["tag"])
    close = difflib.get_close_matches(tag, allowed, n=1, cutoff=0.5)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    return f"{key}.kind = {tag!r}: must be one of {', '.join(allowed)}{hint}"


def _without_tags(loc: Iterable[int | str], data: Any) -> list[int | str]:
    """Drop the union tags that pydantic puts between the keys of a location."""
    path: list[int | str] = []
    here = data
    for part in loc:
        if isinstance(here, Mapping) and part not in here and part == here.get("kind"):
            continue
        path.append(part)
        if isinstance(here, Mapping):
            here = here.get(part)
        elif isinstance(here, list | tuple) and isinstance(part, int):
            here = here[part]
        else:
            here = None
    return path
