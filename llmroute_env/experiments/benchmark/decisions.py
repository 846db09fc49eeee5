"""Time of one decision, through ``predict`` as a user calls it."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np

import policies
from llmroute_env.experiments.benchmark.backlog import Tape, record
from llmroute_env.experiments.benchmark.clock import decision_us
from llmroute_env.experiments.benchmark.model import (
    Batch,
    Derived,
    Group,
    Measure,
    Plan,
    Probe,
    Unavailable,
)

DEVICES: Final = 4
WAITING: Final = 128
#: OLP as its decision targets are stated, whatever its defaults become.
OLP: Final = "olp:lookahead=512:steps=5:batch=64"
_NAIVE_FILE: Final = Path(__file__).resolve().parents[3] / "tests" / "naive_olp.py"


def deciding(tape: Tape, policy: str, name: str, curve: str = "", x: float = 0.0) -> Probe:
    """p50 and p99 of a policy on a tape; it has lived through the part before, untimed."""
    router = policies.make(policy, tape.spec)
    measures = (
        Measure(f"{name}.p50_us", "µs", "lower", curve, x),
        Measure(f"{name}.p99_us", "µs", "lower"),
    )

    def run() -> tuple[float, ...]:
        router.reset(seed=0)
        decision_us(router.predict, tape.before)
        times = decision_us(router.predict, tape.timed)
        return tuple(np.percentile(times, (50, 99)))

    return Probe(measures, run)


def all_policies() -> list[str]:
    """Every policy that needs no oracle and no checkpoint."""
    found = policies.available().items()
    return [name for name, information in found if information != "oracle" and name != "learned"]


def _batches(plan: Plan) -> Iterator[Batch]:
    tape = record(DEVICES, WAITING, 50 if plan.quick else 1_000)
    chosen = {name: name for name in all_policies()} | {"olp": OLP}
    chosen |= {"olp:pricing=none": "olp:pricing=none"}
    probes = [deciding(tape, policy, f"decision.{name}") for name, policy in chosen.items()]
    yield Batch(f"{len(probes)} policies", probes)


def _naive_class() -> Any:
    """The plain Python rule, which lives beside the tests and is not part of the package."""
    if not _NAIVE_FILE.is_file():
        raise Unavailable(f"needs the repository's tests/{_NAIVE_FILE.name}")
    spec = importlib.util.spec_from_file_location("_benchmark_naive_olp", _NAIVE_FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # dataclasses look their module up
    importlib.import_module("sys").modules[spec.name] = module
    spec.loader.exec_module(module)
    return module.NaiveOlp


def _naive_batches(plan: Plan) -> Iterator[Batch]:
    kind = _naive_class()
    tape = record(DEVICES, WAITING, 3 if plan.quick else 8)
    router = policies.make(OLP + ":drift=false", tape.spec)

    def fast() -> tuple[float, ...]:
        router.reset(seed=0)
        decision_us(router.predict, tape.before)
        return (float(np.median(decision_us(router.predict, tape.timed))),)

    def naive() -> tuple[float, ...]:
        slow = kind(tape.spec, np.zeros(1, np.uint64), 0, lookahead=512, steps=5, batch=64)
        return (float(np.median(decision_us(slow.decide, tape.timed))),)

    beside = Measure("naive.olp.p50_us", "µs")
    plain = Measure("naive.plain_python.p50_us", "µs")
    ratio = Measure("naive.over_olp", "×", "higher")
    yield Batch(
        "plain Python OLP",
        [Probe((beside,), fast), Probe((plain,), naive, warm_up=False)],
        [Derived(ratio, lambda values: values[plain.name] / values[beside.name])],
        repeats=1 if plan.quick else 3,
    )


GROUP: Final = Group(
    "decision",
    f"one decision through predict, {DEVICES} devices, {WAITING} waiting "
    "(olp: H = 512, K = 5, mini-batch 64)",
    _batches,
)
NAIVE: Final = Group("naive", "the paper's rule in plain Python, same observations", _naive_batches)
