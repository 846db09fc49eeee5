"""What is asked of the measures, and what others have published."""

from __future__ import annotations

from typing import Final, NamedTuple


class Target(NamedTuple):
    """A limit on a measure's median.

    Attributes:
        at_least: the limit is a lower one.
        value: in the measure's unit.
        stage: ``first`` for the floors of the first version, ``speed`` for what fast means here.
    """

    at_least: bool
    value: float
    stage: str

    def met(self, median: float) -> bool:
        """Whether a median meets it."""
        return median >= self.value if self.at_least else median <= self.value

    def __str__(self) -> str:
        """``≥ 60,000``."""
        return f"{'≥' if self.at_least else '≤'} {self.value:,.10g}"


def _first(at_least: bool, value: float) -> Target:
    return Target(at_least, value, "first")


def _speed(at_least: bool, value: float) -> Target:
    return Target(at_least, value, "speed")


#: By measure; medians on two shared cores.
TARGETS: Final[dict[str, tuple[Target, ...]]] = {
    "single.holding": (_first(True, 25_000), _speed(True, 60_000)),
    "vector.256.default": (_first(True, 300_000), _speed(True, 1_000_000)),
    "vector.256.over_sync": (_speed(True, 20),),
    "vector.reset_steps": (_speed(False, 10),),
    "episode.round_robin.iterations_per_s": (_speed(True, 5_000_000),),
    "episode.olp.periods_per_s": (_speed(True, 20_000),),
    "decision.olp.p50_us": (_first(False, 200), _speed(False, 50)),
    "decision.olp.p99_us": (_speed(False, 150),),
    "naive.over_olp": (_speed(True, 100),),
    "devices.64.p50_us": (_speed(False, 1_000),),
    "devices.256.p50_us": (_speed(False, 4_000),),
    "devices.over_linear": (_speed(False, 1.15),),
    "lookahead.over_linear": (_speed(False, 1.15),),
    "lengths.longest_over_shortest": (_speed(False, 1.15),),
    "scale.256.memory_over_linear": (_speed(False, 1.15),),
    "scale.1000.memory_over_linear": (_speed(False, 1.15),),
    "start.cached_s": (_first(False, 3), _speed(False, 1.5)),
    "start.first_compile_s": (_speed(False, 30),),
}


class Anchor(NamedTuple):
    """A published or earlier measured number: quoted here, not measured by this program."""

    what: str
    value: str
    compare_with: tuple[str, ...]  #: measures of ours
    against: float  #: the value most favourable to the other side, for the ratio


QUOTED: Final = (
    Anchor(
        "Vidur, simulated device iterations/s",
        "3,600–5,200",
        ("episode.round_robin.iterations_per_s", "episode.olp.iterations_per_s"),
        5_200,
    ),
    Anchor(
        "Vidur, simulated requests/s",
        "300–430",
        ("episode.round_robin.requests_per_s", "episode.olp.requests_per_s"),
        430,
    ),
    Anchor(
        "the OLP paper's released scheduler, ms a decision at 4 replicas, no backlog",
        "12–13",
        ("decision.olp.p50_us",),
        12_000,
    ),
    Anchor("the same with a backlog", "20–40", ("decision.olp.p50_us",), 20_000),
    Anchor("the same at 64 replicas", "170", ("devices.64.p50_us",), 170_000),
    Anchor("the same as its text claims it", "1–2", ("decision.olp.p50_us",), 1_000),
)
