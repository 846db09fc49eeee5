"""Service-level objectives on summary keys, and when a sample of seeds shows that one is met.

An objective is about the mean over sample paths of a summary key (of the P99 TTFT of an episode,
say). It is met when the one-sided confidence bound of that mean, by Student's t, lies within the
limit: a fleet that meets it on average but not beyond doubt does not pass.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

import numpy as np
from scipy import special

from llmroute_env.metrics import METRICS

#: Keys that capacity adds to the summary: counts as shares of the requests that arrived.
SHARES: Final[Mapping[str, str]] = {
    "rejected_share": "rejected",
    "unfinished_share": "unfinished",
    "preemptions_per_request": "preemptions",
}
#: Keys that cannot exceed 1.
_AT_MOST_ONE: Final = frozenset(
    {"slo_attainment", "batch_utilization", "kv_utilization", "hidden_share", "jain_length"}
    | {"rejected_share", "unfinished_share"}
)
_FORM: Final = re.compile(r"^\s*(\w+)\s*(<=|>=)\s*(\S+)\s*$")


@dataclass(frozen=True)
class Slo:
    """``key <= limit`` or ``key >= limit`` for the mean over seeds."""

    key: str  #: of `METRICS`, or one of `SHARES`
    sense: Literal["<=", ">="]
    limit: float

    def __str__(self) -> str:
        return f"{self.key}{self.sense}{self.limit:g}"

    @property
    def direction(self) -> int:
        """+1 where more is worse, -1 where less is worse."""
        return 1 if self.sense == "<=" else -1

    def within(self, value: float) -> bool:
        """Whether a value keeps the limit; NaN does not."""
        return self.direction * value <= self.direction * self.limit


class Verdict(NamedTuple):
    """What the seeds say of one objective."""

    mean: float
    bound: float  #: one-sided confidence bound of the mean, on the side of the limit
    met: bool | None  #: the bound keeps the limit; None: another objective ended the trial before
    mean_met: bool | None  #: the mean does


def parse(text: str) -> Slo:
    """Read ``ttft_p99_s<=0.5``.

    Raises:
        ValueError: another form, an unknown key, or no finite number; one line.
    """
    found = _FORM.match(text)
    if found is None:
        raise ValueError(f"--slo {text!r}: must have the form key<=number or key>=number")
    key, sense, number = found.groups()
    known = (*METRICS, *SHARES)
    if key not in known:
        near = difflib.get_close_matches(key, known, n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(known)}"
        raise ValueError(f"--slo {text!r}: unknown key {key!r}; {hint}")
    try:
        limit = float(number)
    except ValueError:
        limit = math.nan
    if not math.isfinite(limit):
        raise ValueError(f"--slo {text!r}: {number!r} is not a finite number")
    return Slo(key, "<=" if sense == "<=" else ">=", limit)


def with_shares(summary: Mapping[str, float]) -> dict[str, float]:
    """A summary with the keys of `SHARES` added; NaN when nothing arrived."""
    arrived = summary["arrived"]
    return dict(summary) | {
        share: summary[count] / arrived if arrived else math.nan for share, count in SHARES.items()
    }


def judge(slo: Slo, values: Sequence[float], confidence: float) -> Verdict:
    """Judge one objective.

    Args:
        slo: the objective.
        values: (n,) one value per seed, n >= 2. A NaN (no request to measure) fails.
        confidence: of the one-sided bound, in (0, 1).
    """
    sample = np.asarray(values, np.float64)
    if len(sample) < 2:
        raise ValueError(f"{slo}: {len(sample)} seed(s), a confidence bound needs at least 2")
    if np.isnan(sample).any():
        return Verdict(math.nan, math.nan, met=False, mean_met=False)
    mean, spread = float(sample.mean()), float(sample.std(ddof=1))
    if np.ptp(sample) == 0.0:  # equal values: their mean is exact, which the sum may miss by an ulp
        mean, spread = float(sample[0]), 0.0
    t = float(special.stdtrit(len(sample) - 1, confidence))
    bound = mean + slo.direction * t * spread / math.sqrt(len(sample))
    return Verdict(mean, bound, slo.within(bound), slo.within(mean))


def hopeless(slo: Slo, values: Sequence[float], seeds: int) -> bool:
    """Whether no outcome of the seeds still to come can meet the objective.

    Exact: the mean must keep the limit for its bound to, and no key is below 0 or, for a share,
    above 1. It saves most of the seeds of a fleet that is far too small.

    Args:
        slo: the objective.
        values: of the seeds so far.
        seeds: how many there will be.
    """
    if any(math.isnan(value) for value in values):
        return True
    left = seeds - len(values)
    if slo.sense == "<=":
        return math.fsum(values) > slo.limit * seeds * (1.0 + 1e-12)
    if slo.key not in _AT_MOST_ONE:
        return False
    return math.fsum(values) + left < slo.limit * seeds * (1.0 - 1e-12)


def parse_all(texts: Iterable[str]) -> tuple[Slo, ...]:
    """Read several objectives, each key and sense once.

    Raises:
        ValueError: as `parse`, or the same key and sense twice.
    """
    slos: dict[tuple[str, str], Slo] = {}
    for text in texts:
        slo = parse(text)
        if (slo.key, slo.sense) in slos:
            raise ValueError(f"--slo {text!r}: {slo.key}{slo.sense} is given twice")
        slos[slo.key, slo.sense] = slo
    return tuple(slos.values())
