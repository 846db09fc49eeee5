"""Timing discipline: warm up, no garbage collection, repeats that take turns, medians.

The machine's speed drifts (other programs, clock rates, other tenants of the host). Probes that
are compared with each other therefore run in one batch, a repeat of each in every round, and a
ratio is taken within a round: a drift hits both sides, and the median drops what hits one. See
`clock` for how a repeat itself keeps other programs out.
"""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from llmroute_env.experiments.benchmark.model import (
    Batch,
    Group,
    Measure,
    Plan,
    Summary,
    Unavailable,
)

Progress = Callable[[str], None]


@contextmanager
def quiet() -> Iterator[None]:
    """No garbage collection inside; what is alive before is not looked at afterwards either."""
    enabled = gc.isenabled()
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.unfreeze()
        if enabled:
            gc.enable()


def summarize(measure: Measure, samples: Sequence[float]) -> Summary:
    """Median and range of the repeats."""
    return Summary(measure, statistics.median(samples), min(samples), max(samples), len(samples))


def run_batch(batch: Batch, plan: Plan) -> list[Summary]:
    """Measure one batch."""
    for probe in batch.probes:
        if probe.warm_up:
            probe.run()
    samples: dict[Measure, list[float]] = {}
    with quiet():
        for _ in range(batch.repeats or plan.repeats):
            values: dict[str, float] = {}
            for probe in batch.probes:
                for measure, value in zip(probe.measures, probe.run(), strict=True):
                    values[measure.name] = value = float(value)
                    samples.setdefault(measure, []).append(value)
            for derived in batch.derived:
                samples.setdefault(derived.measure, []).append(derived.of(values))
    return [summarize(measure, repeats) for measure, repeats in samples.items()]


def run_group(group: Group, plan: Plan, progress: Progress) -> list[Summary]:
    """Measure one group.

    Raises:
        Unavailable: something that it needs is not here.
    """
    found: list[Summary] = []
    for batch in group.batches(plan):
        progress(f"{group.name}: {batch.title}")
        found += run_batch(batch, plan)
    if group.conclude is not None:
        medians = {summary.measure.name: summary.median for summary in found}
        found += [summarize(measure, [value]) for measure, value in group.conclude(medians)]
    return found


def run(
    groups: Sequence[Group], plan: Plan, progress: Progress
) -> tuple[list[Summary], dict[str, str]]:
    """Measure groups.

    Returns:
        The summaries, and why a group is missing, by its name.
    """
    found: list[Summary] = []
    missing: dict[str, str] = {}
    for group in groups:
        try:
            found += run_group(group, plan, progress)
        except Unavailable as reason:
            missing[group.name] = str(reason)
    return found, missing
