"""The arena: scenarios x weights x policies from one YAML, all on the same seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pandas as pd
import yaml

from llmroute_env.env import LLMRouteEnv
from llmroute_env.experiments import runner
from llmroute_env.experiments.load import at_load
from llmroute_env.experiments.science.episodes import Cell, Episodes, weights
from llmroute_env.experiments.science.verdicts import mean_of
from llmroute_env.scenario import Scenario
from llmroute_env.scenario.overrides import read_yaml
from policies.registry import make, parse

SHOWN: Final = (
    *("reward", "eel_mean_s", "eel_p95_s", "eel_p99_s", "ttft_mean_s", "ttft_p99_s"),
    *("slo_attainment", "throughput_tok_s", "wait_max_s", "jain_length", "unfinished"),
    *("preemptions", "hidden_share"),
)
ORIGIN: Final = "round_robin"
_KEYS: Final = frozenset(
    [
        *("description", "first_seed", "seeds", "family", "designated"),
        *("policies", "if_available", "weights", "scenarios", "bound_seeds"),
    ]
)
_SCENARIO_KEYS: Final = frozenset({"name", "base", "load", "set"})


@dataclass(frozen=True)
class Arena:
    """What is played."""

    cells: dict[tuple[str, str], Cell]  #: by (scenario, weights)
    policies: tuple[str, ...]
    family: str  #: name of the policies that rivals are tested against
    designated: str  #: the family's member that stands for it without hindsight
    first_seed: int
    seeds: int
    bound_seeds: int = 0  #: of them, seeds for which a hindsight bound is made
    skipped: dict[str, str] = field(default_factory=dict)  #: policies that cannot run, and why

    @property
    def scenarios(self) -> list[str]:
        """Names of the scenarios in order."""
        return list(dict.fromkeys(name for name, _ in self.cells))

    @property
    def settings(self) -> list[str]:
        """Names of the weight settings in order."""
        return list(dict.fromkeys(weighting for _, weighting in self.cells))

    def of_family(self, policy: str) -> bool:
        """Whether a policy belongs to the family."""
        return parse(policy)[0] == self.family

    def wanted(self) -> list[tuple[Cell, str]]:
        """Every (cell, policy)."""
        return [(cell, policy) for cell in self.cells.values() for policy in self.policies]


def load(path: Path, extra: Sequence[str] = ()) -> Arena:
    """Read an arena file and add policies.

    Raises:
        ValueError: an unknown key, a policy or scenario that cannot be made; one line.
    """
    content = _read(path)
    settings = {name: weights(values) for name, values in content["weights"].items()}
    cells: dict[tuple[str, str], Cell] = {}
    scenarios: dict[str, Scenario] = {}
    for entry in content["scenarios"]:
        _only(path, entry, _SCENARIO_KEYS)
        name = entry.get("name", entry["base"])
        if name in scenarios:
            raise ValueError(f"{path}: scenario {name} is there twice")
        scenario = Scenario.load(entry["base"], entry.get("set"))
        if "load" in entry:
            scenario = at_load(scenario, _load(path, name, entry["load"]))
        scenarios[name] = scenario.with_overrides({"name": name})
        for weighting, values in settings.items():
            cells[name, weighting] = Cell(f"{name} [{weighting}]", scenarios[name], values)
    policies, skipped = [*content["policies"], *extra], {}
    first = next(iter(scenarios.values()))
    runner.check(first, policies)
    env = LLMRouteEnv(first)
    for policy in content.get("if_available", ()):
        try:
            make(policy, env)
        except Exception as error:  # noqa: BLE001  (an optional dependency may be missing)
            skipped[policy] = str(error).splitlines()[0]
        else:
            policies.append(policy)
    family = content.get("family", "olp")
    members = [policy for policy in policies if parse(policy)[0] == family]
    designated = [p for p in content.get("designated", ()) if p in members] or members
    if not designated or ORIGIN not in policies:
        raise ValueError(f"{path}: policies must hold {ORIGIN} and one of the family {family}")
    return Arena(
        cells,
        tuple(dict.fromkeys(policies)),
        family,
        designated[0],
        int(content.get("first_seed", 1000)),
        int(content.get("seeds", 20)),
        int(content.get("bound_seeds", 0)),
        skipped,
    )


def summary(arena: Arena, episodes: Episodes) -> pd.DataFrame:
    """One row per scenario, weights, policy, metric: mean over seeds, interval, n."""
    rows = []
    for (name, weighting), cell in arena.cells.items():
        for policy in arena.policies:
            for key in SHOWN:
                values = episodes.values(cell, policy, key)
                level = mean_of(values)
                head = {"scenario": name, "weights": weighting, "policy": policy, "metric": key}
                rows.append(
                    head
                    | {"n": len(values), "mean": level.estimate}
                    | {"low": level.low, "high": level.high}
                )
    return pd.DataFrame(rows)


def _read(path: Path) -> dict[str, Any]:
    """The keys of an arena file, those that every arena has among them."""
    try:
        content = read_yaml(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path}: must be a mapping of keys")  # noqa: TRY004
    _only(path, content, _KEYS)
    for key in ("policies", "weights", "scenarios"):
        if not content.get(key):
            raise ValueError(f"{path}: {key} is missing or empty")
    return content


def _load(path: Path, scenario: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise ValueError(f"{path}: scenario {scenario}: load {value!r} must be a number above 0")
    return float(value)


def _only(path: Path, content: Mapping[str, Any], allowed: frozenset[str]) -> None:
    for key in content:
        if key not in allowed:
            raise ValueError(f"{path}: unknown key {key!r}; allowed: {', '.join(sorted(allowed))}")
