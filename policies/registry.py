"""Names of policies: what there is, and how a name or a command-line string becomes a policy.

An entry is an import path, resolved when the policy is made, so that a policy with an optional
dependency never breaks the import of the others.
"""

from __future__ import annotations

import ast
import contextlib
import difflib
import importlib
import inspect
import os
import re
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

from pydantic import ValidationError

from policies.base import Policy
from policies.spec import RouterSpec


class Entry(NamedTuple):
    """A registered policy: ``module:Class``, and what it uses of the decode length."""

    target: str
    information: str


_REGISTRY: dict[str, Entry] = {
    "random": Entry("policies.load_balancing:Random", "none"),
    "round_robin": Entry("policies.load_balancing:RoundRobin", "none"),
    "lor": Entry("policies.load_balancing:LeastOutstandingRequests", "none"),
    "power_of_d": Entry("policies.load_balancing:PowerOfD", "none"),
    "vllm_dp": Entry("policies.load_balancing:VllmDataParallel", "none"),
    "least_predicted_work": Entry("policies.load_balancing:LeastPredictedWork", "predicted"),
    "central_fifo": Entry("policies.central:CentralFifo", "none"),
    "sjf": Entry("policies.central:ShortestFirst", "predicted"),
    "mc_sf": Entry("policies.mc_sf:McSf", "predicted"),
    "olp": Entry("policies.olp.router:OnlineLp", "predicted"),
    "lmetric": Entry("policies.cache_aware.lmetric:Lmetric", "none"),
    "llmd": Entry("policies.cache_aware.routers:LlmdScorers", "none"),
    "dynamo_kv": Entry("policies.cache_aware.routers:DynamoKv", "none"),
    "sglang_cache": Entry("policies.cache_aware.routers:SglangCacheAware", "none"),
    "linear_cache": Entry("policies.cache_aware.routers:LinearCache", "none"),
    "prefix_priced": Entry("policies.cache_aware.lmetric:PrefixPriced", "none"),
    "dual_pool": Entry("policies.dual_pool.router:DualPool", "predicted"),
    "learned": Entry("policies.learned.policy:Learned", "predicted"),
}

_ORACLE = "_oracle"
_NEXT_OPTION = re.compile(r":(?=[A-Za-z_]\w*=)")


def available() -> dict[str, str]:
    """Return every name that ``make`` takes, with its information class.

    A policy that uses predictions has an oracle twin ``<name>_oracle``: the same code, to be run
    with perfect predictions on the same sample path.
    """
    names = {name: entry.information for name, entry in _REGISTRY.items()}
    twins = [name for name, information in names.items() if information == "predicted"]
    return names | {name + _ORACLE: "oracle" for name in twins}


def register(name: str, target: str, information: str) -> None:
    """Add a policy under a name.

    Args:
        name: letters, digits and underscores.
        target: ``module:Class``, imported when the policy is made.
        information: ``none``, ``predicted`` or ``oracle``.

    Raises:
        ValueError: for a name that exists or does not fit, or another information class.
    """
    if name in available() or not name.isidentifier():
        raise ValueError(f"policy name {name!r} is taken or not an identifier")
    if information not in ("none", "predicted", "oracle"):
        raise ValueError(f"information {information!r}: none, predicted or oracle")
    _REGISTRY[name] = Entry(target, information)


def make(policy: str, env: Any, seed: int = 0, **params: Any) -> Any:
    """Make a policy for an environment.

    Args:
        policy: ``name``, ``name:key=value:key=value``, or ``module:Class`` of one's own (anything
            with a ``predict`` method, found on the import path or in the working directory).
        env: an LLMRoute environment, wrapped or not, single or vector; or its ``RouterSpec``.
        seed: seed of ties and draws.
        params: parameters, as after the name.

    Returns:
        A ``Policy``, or an object of the user's class.

    Raises:
        ValueError: one line that names the policy or the parameter, and what is allowed.
    """
    name, options = parse(policy)
    for key in params.keys() & options.keys():
        raise ValueError(f"policy {policy!r}: {key} is given twice")
    values = options | params
    if ":" in name:
        made = _make_foreign(name, env, seed, values)
    else:
        if name not in available():
            raise ValueError(_unknown(name))
        oracle = name not in _REGISTRY
        entry = _REGISTRY[name.removesuffix(_ORACLE) if oracle else name]
        extra = {"oracle": True} if oracle else {}
        made = _construct(name, _load(entry.target), env, seed, values, extra)
    if isinstance(made, Policy):
        made.label = policy + "".join(f":{key}={value}" for key, value in params.items())
    return made


def parse(policy: str) -> tuple[str, dict[str, str]]:
    """Split ``name:key=value:key=value`` into the name and its options (text)."""
    name, *pairs = _NEXT_OPTION.split(policy)
    options: dict[str, str] = {}
    for pair in pairs:
        key, _, value = pair.partition("=")
        if key in options:
            raise ValueError(f"policy {policy!r}: {key} is given twice")
        options[key] = value
    return name, options


def _unknown(name: str) -> str:
    names = list(available())
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else f"available: {', '.join(names)}"
    return f"unknown policy {name!r}; {hint}"


def _construct(
    name: str,
    kind: type[Policy],
    env: Any,
    seed: int,
    values: dict[str, Any],
    extra: dict[str, Any],
) -> Policy:
    fields = kind.Parameters.model_fields
    for key in values:
        if key not in fields:
            near = difflib.get_close_matches(key, list(fields), n=1)
            hint = f"did you mean {near[0]}? " if near else ""
            allowed = ", ".join(fields) if fields else "none"
            raise ValueError(f"policy {name}: unknown parameter {key!r}; {hint}allowed: {allowed}")
    spec = RouterSpec.from_env(env)
    try:
        return kind(spec, seed, **extra, **values)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        reason = first["msg"].removeprefix("Value error, ")
        reason = reason[:1].lower() + reason[1:]
        where = f"{key}={first['input']}: " if key else ""
        raise ValueError(f"policy {name}: {where}{reason}") from None


def _load(target: str) -> Any:
    module, _, attribute = target.partition(":")
    found = importlib.import_module(module)
    for part in attribute.split("."):
        found = getattr(found, part)
    return found


def _make_foreign(name: str, env: Any, seed: int, values: dict[str, Any]) -> Any:
    try:
        with _working_directory_importable():
            kind = _load(name)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"policy {name!r}: {error}") from error
    if isinstance(kind, type) and issubclass(kind, Policy):
        return _construct(name, kind, env, seed, values, {})
    made = kind
    if isinstance(kind, type) or not hasattr(kind, "predict"):
        if not callable(kind):
            raise ValueError(f"policy {name!r}: neither a class nor an object with predict")
        made = kind(**_arguments(name, kind, env, seed, values))
    elif values:
        raise ValueError(f"policy {name!r} is an object, it takes no parameters")
    if not callable(getattr(made, "predict", None)):
        made_of = type(made).__name__
        raise ValueError(f"policy {name!r}: {made_of} has no predict method")  # noqa: TRY004
    return made


def _arguments(name: str, kind: Any, env: Any, seed: int, values: dict[str, Any]) -> dict[str, Any]:
    """Fill ``env``, ``spec`` and ``seed`` where a user's class asks for them, then its own."""
    signature = inspect.signature(kind).parameters
    own = {"env": env, "seed": seed}
    given = {key: value for key, value in own.items() if key in signature}
    if "spec" in signature:
        given["spec"] = RouterSpec.from_env(env)
    anything = any(p.kind is p.VAR_KEYWORD for p in signature.values())
    allowed = [key for key in signature if key not in ("env", "seed", "spec")]
    for key, value in values.items():
        if not anything and key not in allowed:
            listed = ", ".join(allowed) or "none"
            raise ValueError(f"policy {name}: unknown parameter {key!r}; allowed: {listed}")
        given[key] = _literal(value)
    missing = [
        key
        for key, p in signature.items()
        if p.default is p.empty
        and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)
        and key not in given
    ]
    if missing:
        raise ValueError(f"policy {name}: parameter {missing[0]} is missing")
    return given


def _literal(value: Any) -> Any:
    """Read a number, a truth value or None from text; anything else stays text."""
    if not isinstance(value, str):
        return value
    words = {"true": True, "false": False, "none": None}
    if value.lower() in words:
        return words[value.lower()]
    try:
        return ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return value


@contextlib.contextmanager
def _working_directory_importable() -> Iterator[None]:
    here = os.getcwd()  # noqa: PTH109  (sys.path holds text)
    if here in sys.path:
        yield
        return
    sys.path.insert(0, here)
    try:
        yield
    finally:
        sys.path.remove(here)
