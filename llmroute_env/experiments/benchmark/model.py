"""What a benchmark is made of: measures, the probes that take them, and batches of probes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

Better = Literal["higher", "lower", ""]
Values = Mapping[str, float]


class Measure(NamedTuple):
    """One number of the benchmark.

    Attributes:
        name: dotted; what is before the first dot is its group.
        unit: unit of the value.
        better: which side is better, empty where neither is.
        curve: the plot's curve that it is a point of, empty for none.
        x: where on the curve.
    """

    name: str
    unit: str
    better: Better = "lower"
    curve: str = ""
    x: float = 0.0

    @property
    def group(self) -> str:
        """Name of the group."""
        return self.name.partition(".")[0]


@dataclass(frozen=True)
class Probe:
    """Takes one repeat of its measures at each call.

    Attributes:
        measures: what ``run`` returns, in order.
        run: one repeat.
        warm_up: call once before, without keeping the values; compiling happens there.
    """

    measures: tuple[Measure, ...]
    run: Callable[[], tuple[float, ...]]
    warm_up: bool = True


@dataclass(frozen=True)
class Derived:
    """A measure computed from those of the same round, so that ratios are paired in time.

    Attributes:
        measure: the measure.
        of: from name to value of everything measured in the round.
    """

    measure: Measure
    of: Callable[[Values], float]


@dataclass(frozen=True)
class Batch:
    """Probes whose repeats take turns.

    Attributes:
        title: for the progress line.
        probes: in the order of their turns.
        derived: computed after each round.
        repeats: rounds; None for the plan's.
    """

    title: str
    probes: list[Probe]
    derived: list[Derived] = field(default_factory=list)
    repeats: int | None = None


@dataclass(frozen=True)
class Plan:
    """How much to measure.

    Attributes:
        repeats: rounds of a batch.
        quick: fewer points and shorter repeats: shows that everything runs, and no more.
    """

    repeats: int = 7
    quick: bool = False


class Unavailable(Exception):  # noqa: N818  (not a fault: something to say in the table)
    """A group that cannot be measured here; the message says why."""


@dataclass
class Group:
    """A named part of the benchmark.

    Attributes:
        name: as for ``--only``; first part of its measures' names.
        title: heading in the table.
        batches: yields batches, and frees what a batch used when resumed.
        conclude: measures that follow from the medians of the whole group.
    """

    name: str
    title: str
    batches: Callable[[Plan], Iterator[Batch]]
    conclude: Callable[[Values], list[tuple[Measure, float]]] | None = None


class Summary(NamedTuple):
    """Repeats of one measure."""

    measure: Measure
    median: float
    low: float
    high: float
    repeats: int
