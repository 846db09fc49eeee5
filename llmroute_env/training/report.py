"""How a learned router stands: against every rival, on scenarios it saw and on others, paired.

All policies play the same seeds, none of which is used in training (whose episodes begin at the
run's seed) or to choose a checkpoint (the run's ``evaluation.first_seed``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import gymnasium as gym
import numpy as np
import pandas as pd

from llmroute_env.evaluation import evaluate
from llmroute_env.experiments.statistics import Interval, mean_interval, paired_improvement
from llmroute_env.scenario import Scenario
from llmroute_env.training.config import TrainingScenario
from policies.registry import make

#: what it is compared with, by information
RIVALS = (
    "random",
    "round_robin",
    "lor",
    "power_of_d",
    "vllm_dp",
    "central_fifo",
    "sjf",
    "mc_sf",
    "mc_sf:fit=attention",
    "olp:pricing=paper",
    "olp:pricing=fluid",
)

#: the training scenario, other loads, other fleets at the same load, and other clusters
CASES = tuple(
    TrainingScenario(scenario=scenario, overrides=overrides)
    for scenario, overrides in (
        ("paper-overload", {}),
        ("paper-overload", {"workload.arrivals.rate": 0.45}),
        ("paper-overload", {"workload.arrivals.rate": 0.6}),
        ("paper-rate-shift", {}),
        ("paper-stable", {}),
        ("paper-overload", {"cluster.devices": 2, "workload.arrivals.rate": 0.25}),
        ("paper-overload", {"cluster.devices": 8, "workload.arrivals.rate": 1.0}),
        ("paper-overload", {"cluster.devices": 16, "workload.arrivals.rate": 2.0}),
        ("azure-conv-a100", {}),
        ("azure-code-a100", {}),
        ("memory-bound-a100", {}),
    )
)


@dataclass(frozen=True)
class Case:
    """Objectives on one scenario.

    Attributes:
        label: of the scenario.
        rewards: per policy, (seeds,); the learned router is the first.
        information: per policy.
        share: of the hindsight bound per policy [%], where it was asked for.
    """

    label: str
    rewards: dict[str, np.ndarray]
    information: dict[str, str]
    share: dict[str, Interval]

    @property
    def learned(self) -> str:
        """The learned router's command-line string."""
        return next(iter(self.rewards))

    def gain(self, rival: str) -> Interval:
        """By how much the learned router's mean objective is above a rival's [%]."""
        return paired_improvement("reward", self.rewards[rival], self.rewards[self.learned])


def play(
    entry: TrainingScenario,
    learned: str,
    rivals: Sequence[str],
    seeds: range,
    *,
    bounds: int = 0,
    known: pd.DataFrame | None = None,
) -> Case:
    """Play all policies on the seeds, and bound the first ``bounds`` episodes.

    Rivals whose episodes are all ``known`` are not played again.
    """
    scenario = entry.load()
    env = gym.make("llmroute_env:LLMRoute-v0", scenario=scenario, series_stride=0)
    rewards, information = {}, {}
    for policy in (learned, *rivals):
        router = make(policy, env)
        information[policy] = router.information
        found = None if policy == learned else _found(known, entry.label, policy, seeds)
        if found is None:
            found = np.array([evaluate(env, router, seed=seed).summary["reward"] for seed in seeds])
        rewards[policy] = found
    return Case(entry.label, rewards, information, _shares(scenario, rewards, seeds[:bounds]))


def _found(
    known: pd.DataFrame | None, scenario: str, policy: str, seeds: range
) -> np.ndarray | None:
    if known is None:
        return None
    rows = known[(known["scenario"] == scenario) & (known["policy"] == policy)]
    by_seed = rows.set_index("seed")["reward"]
    return by_seed.loc[list(seeds)].to_numpy() if set(seeds) <= set(by_seed.index) else None


def _shares(
    scenario: Scenario, rewards: dict[str, np.ndarray], seeds: range
) -> dict[str, Interval]:
    if not seeds:
        return {}
    from policies import hindsight

    env = gym.make("llmroute_env:LLMRoute-v0", scenario=scenario, series_stride=0).unwrapped
    found: dict[str, list[float]] = {name: [] for name in rewards}
    for at, seed in enumerate(seeds):
        env.reset(seed=seed)
        bound = hindsight.bound(env.scenario, env.requests)  # type: ignore[attr-defined]
        for name, values in rewards.items():
            found[name].append(100.0 * bound.share(float(values[at])))
    return {name: mean_interval(values) for name, values in found.items()}


def table(cases: Sequence[Case]) -> str:
    """The comparison as Markdown: a row per rival, a column per scenario, with intervals."""
    names = [name for name in cases[0].rewards if name != cases[0].learned]
    lines = [
        "| learned against | information | " + " | ".join(c.label for c in cases) + " |",
        "|---|---|" + "---|" * len(cases),
    ]
    for name in names:
        cells = [_cell(case.gain(name)) for case in cases]
        lines.append(f"| {name} | {cases[0].information[name]} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def share_table(case: Case) -> str:
    """Shares of the hindsight bound as Markdown."""
    lines = ["| policy | share of the hindsight bound [%] |", "|---|---|"]
    for name, share in sorted(case.share.items(), key=lambda item: -item[1].estimate):
        lines.append(f"| {name} | {share.estimate:.2f} [{share.low:.2f}, {share.high:.2f}] |")
    return "\n".join(lines)


def frame(cases: Sequence[Case], seeds: range) -> pd.DataFrame:
    """One row per scenario, policy and seed."""
    rows = [
        {"scenario": case.label, "policy": name, "seed": seed, "reward": reward}
        for case in cases
        for name, rewards in case.rewards.items()
        for seed, reward in zip(seeds, rewards, strict=True)
    ]
    return pd.DataFrame(rows)


def report(
    path: Path | None,
    *,
    seeds: int,
    first_seed: int,
    bounds: int,
    out: Path | None = None,
    say: Callable[[str], None] = print,
) -> list[Case]:
    """Print how a checkpoint (None: the shipped one) stands.

    Episodes go to ``out``, a CSV; rivals' episodes that it has already are not played again.

    Raises:
        ValueError: there is no checkpoint.
    """
    known = pd.read_csv(out) if out is not None and out.is_file() else None
    learned = "learned" if path is None else f"learned:path={path}"
    chosen = range(first_seed, first_seed + seeds)
    cases: list[Case] = []
    for entry in CASES:
        asked = 0 if cases else bounds  # of the training scenario alone
        cases.append(play(entry, learned, RIVALS, chosen, bounds=asked, known=known))
        if out is not None:
            fresh = frame(cases, chosen)
            if known is not None:
                fresh = pd.concat([fresh, known[~known["scenario"].isin(fresh["scenario"])]])
            fresh.to_csv(out, index=False)
    say(
        f"Objective of {learned} over the rival's, {seeds} seeds from {first_seed} on, paired, "
        "bootstrap 95% interval [%]; bold where it is behind.\n"
    )
    for some in filter(None, (cases[:5], cases[5:8], cases[8:])):
        say(table(some) + "\n")
    if cases[0].share:
        say(f"{cases[0].label}, {bounds} seeds:\n\n{share_table(cases[0])}")
    return cases


def _cell(gain: Interval) -> str:
    text = f"{gain.estimate:+.3f} [{gain.low:.3f}, {gain.high:.3f}]"
    if gain.high < 0.0:
        return f"**{text}**"
    return text if gain.low > 0.0 else f"{text} tie"
