"""The summary of one episode: what each metric is, and how it is computed from the request log.

Definitions, for the requests that arrived at or after the warm-up (the *counted* requests):

* EEL is arrival to last token, TTFT arrival to first token, start delay arrival to the start of
  the first iteration, TPOT ``(EEL - TTFT) / (o - 1)``, which does not exist for ``o = 1``.
* Means and percentiles of EEL and TTFT are over all counted requests but the rejected ones, which
  have no latency. A request that the end of the episode cut off counts at its age then, a lower
  bound: leaving it out would reward a policy that never serves its hard requests. The same over
  completed requests alone are the keys that end in ``_completed``.
* TPOT is over completed requests with ``o > 1``.
* ``slo_attainment`` is the share of all counted requests, rejected and unfinished ones included,
  that completed with EEL below ``tail_eel_s`` and start delay below ``tail_ttft_s``, both strict;
  ``goodput_qps`` is their number per second.
* Rates divide by ``horizon_s``, the seconds from the end of the warm-up to the end of the episode.
  Utilizations are averages over the same time, idle time included, of what devices held over what
  they may hold.
* ``jain_length`` is Jain's fairness index of the mean slowdown, EEL / o, of four length classes,
  the quarters of the counted requests by true length: 1 when all classes are slowed alike, 1/4
  when one class suffers alone.
* ``prefix_hit_rate`` is the share of prompt tokens that were cached when their request first joined
  a batch, over the counted requests that did; NaN where devices have no prefix caches.
* ``misrouted`` is the share of all counted requests that the device they were sent to rejected,
  because it could never hold them though another one could have.

Nothing to average: a mean, a percentile or a share of no request at all is NaN (an empty cell in
the CSV files), never 0, because 0 s would be the best latency there is. Counts, rates, waits and
utilizations of nothing are 0. No warning is raised.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from llmroute_env.cluster.state import COMPLETED, NOT_ARRIVED, REJECTED

if TYPE_CHECKING:
    from llmroute_env.cluster.log import EpisodeStats

_LENGTH_CLASSES: Final = 4


@dataclass(frozen=True, slots=True)
class Metric:
    """How a summary key is presented and compared."""

    label: str  #: for axes and table heads
    unit: str  #: "" for a pure number
    better: int  #: +1 higher is better, -1 lower is better, 0 neither


def _metrics() -> dict[str, Metric]:
    latency = {
        "eel_mean_s": "EEL, mean",
        "eel_p50_s": "EEL, P50",
        "eel_p95_s": "EEL, P95",
        "eel_p99_s": "EEL, P99",
        "ttft_mean_s": "TTFT, mean",
        "ttft_p95_s": "TTFT, P95",
        "ttft_p99_s": "TTFT, P99",
    }
    table = {"reward": Metric("Reward", "", 1)}
    table |= {key: Metric(label, "s", -1) for key, label in latency.items()}
    table |= {
        "tpot_mean_s": Metric("TPOT, mean", "s", -1),
        "throughput_tok_s": Metric("Throughput", "tokens/s", 1),
        "qps": Metric("Completions", "requests/s", 1),
        "goodput_qps": Metric("Goodput", "requests/s", 1),
        "slo_attainment": Metric("SLO attainment", "share", 1),
        "arrived": Metric("Arrived", "requests", 0),
        "completed": Metric("Completed", "requests", 1),
        "rejected": Metric("Rejected", "requests", -1),
        "unfinished": Metric("Unfinished", "requests", -1),
        "preemptions": Metric("Preemptions", "", -1),
        "recomputed_tokens": Metric("Recomputed", "tokens", -1),
        "batch_utilization": Metric("Batch utilization", "share", 0),
        "kv_utilization": Metric("KV utilization", "share", 0),
        "imbalance": Metric("KV imbalance", "(max - mean)/mean", -1),
    }
    table |= {
        f"{key}_completed": Metric(f"{label} (completed)", "s", -1)
        for key, label in latency.items()
    }
    table |= {
        "wait_max_s": Metric("Longest wait", "s", -1),
        "jain_length": Metric("Jain index over length classes", "", 1),
        "prefix_hit_rate": Metric("Prefix hits", "share of prompt tokens", 1),
        "misrouted": Metric("Misrouted", "share", -1),
        "hidden_share": Metric("Periods with a hidden queue", "share", 0),
        "horizon_s": Metric("Time covered", "s", 0),
    }
    return table


#: Every key that `summarize` returns, in its order, which is the column order of result files.
METRICS: Final[Mapping[str, Metric]] = _metrics()

#: Keys that `evaluate` adds: they depend on the machine, and compare nothing but its speed.
TIMINGS: Final[Mapping[str, Metric]] = {
    "decision_us_p50": Metric("Decision time, P50", "µs", -1),
    "decision_us_p99": Metric("Decision time, P99", "µs", -1),
    "wall_s": Metric("Episode wall time", "s", -1),
}


class Limits(Protocol):
    """The part of a scenario's objective that metrics need."""

    @property
    def tail_eel_s(self) -> float:
        """Limit of the EEL [s]."""

    @property
    def tail_ttft_s(self) -> float:
        """Limit of the start delay [s]."""


def summarize(
    log: Mapping[str, NDArray[Any]], stats: EpisodeStats, objective: Limits
) -> dict[str, float]:
    """Condense an episode into the keys of `METRICS`.

    Args:
        log: the request log, columns of shape (R,); a request that has not arrived is ignored.
        stats: the cluster's counters. Tokens, busy time, KV time and imbalance start at the
            warm-up; `reward` and hidden periods are of the whole episode.
        objective: the two latency limits.

    Returns:
        Key to value; counts are Python ints. The module's docstring defines each.
    """
    arrival = log["arrival_s"]
    counted = (log["status"] != NOT_ARRIVED) & (arrival >= stats.warmup_s)
    if counted.all():
        rows: Any = slice(None)
    else:
        rows = np.flatnonzero(counted)
    arrival, status, decode = arrival[rows], log["status"][rows], log["decode"][rows]

    eel = log["finish_s"][rows] - arrival
    ttft = log["first_token_s"][rows] - arrival
    delay = log["start_s"][rows] - arrival
    done, rejected = status == COMPLETED, status == REJECTED
    met = done & (eel < objective.tail_eel_s) & (delay < objective.tail_ttft_s)

    # From here on without the rejected, and with the age at the end where an event never came.
    served = ~rejected
    age = (stats.end_s - arrival)[served]
    complete = done[served]
    lower_eel = np.where(complete, eel[served], age)
    lower_ttft = _where_missing(ttft[served], age)
    lower_delay = _where_missing(delay[served], age)

    arrived = len(arrival)
    completed = int(np.count_nonzero(done))
    good = int(np.count_nonzero(met))
    duration = max(float(stats.end_s - stats.warmup_s), 0.0)

    summary: dict[str, float] = {"reward": float(stats.reward)}
    summary |= _latencies(lower_eel, lower_ttft, "")
    summary |= {
        "tpot_mean_s": _tpot_mean(eel[done], ttft[done], decode[done]),
        "throughput_tok_s": _ratio(stats.decoded_tokens, duration),
        "qps": _ratio(completed, duration),
        "goodput_qps": _ratio(good, duration),
        "slo_attainment": good / arrived if arrived else np.nan,
        "arrived": arrived,
        "completed": completed,
        "rejected": int(np.count_nonzero(rejected)),
        "unfinished": int(np.count_nonzero(served)) - completed,
        "preemptions": int(log["preemptions"][rows].sum()),
        "recomputed_tokens": int(log["recomputed"][rows].sum()),
        "batch_utilization": _ratio(stats.busy_slot_s.sum(), duration * stats.batch_limit.sum()),
        "kv_utilization": _ratio(stats.kv_token_s.sum(), duration * stats.kv_limit.sum()),
        "imbalance": float(stats.imbalance),
    }
    summary |= _latencies(eel[done], ttft[done], "_completed")
    summary |= {
        "wait_max_s": float(lower_delay.max()) if len(lower_delay) else 0.0,
        "jain_length": _jain_over_lengths(lower_eel, decode[served]),
        "prefix_hit_rate": _hit_rate(log, rows),
        "misrouted": _share(rejected & (log["device"][rows] >= 0)),
        "hidden_share": _ratio(stats.hidden_periods, stats.periods),
        "horizon_s": duration,
    }
    return summary


def improvement(key: str, baseline: float, value: float) -> float:
    """Percent by which `value` is better than `baseline`, negative where it is worse.

    NaN for a metric that has no better side, for a baseline of 0, and where a value is missing.
    """
    metric = METRICS.get(key) or TIMINGS[key]
    if metric.better == 0 or baseline == 0 or np.isnan(baseline) or np.isnan(value):
        return float("nan")
    return 100.0 * metric.better * (value - baseline) / abs(baseline)


def quantile(ordered: NDArray[Any], share: float) -> float:
    """Quantile of a sorted array with linear interpolation; NaN when it is empty."""
    if not len(ordered):
        return float("nan")
    position = share * (len(ordered) - 1)
    below = int(position)
    above = min(below + 1, len(ordered) - 1)
    low, high = float(ordered[below]), float(ordered[above])
    return low + (position - below) * (high - low)


def mean(values: NDArray[Any] | Sequence[float]) -> float:
    """Mean, NaN without a warning when there is nothing."""
    return float(np.mean(values)) if len(values) else float("nan")


def _latencies(
    eel: NDArray[np.float64], ttft: NDArray[np.float64], suffix: str
) -> dict[str, float]:
    eel_sorted, ttft_sorted = np.sort(eel), np.sort(ttft)
    values = {
        "eel_mean_s": mean(eel_sorted),
        "eel_p50_s": quantile(eel_sorted, 0.50),
        "eel_p95_s": quantile(eel_sorted, 0.95),
        "eel_p99_s": quantile(eel_sorted, 0.99),
        "ttft_mean_s": mean(ttft_sorted),
        "ttft_p95_s": quantile(ttft_sorted, 0.95),
        "ttft_p99_s": quantile(ttft_sorted, 0.99),
    }
    return {f"{key}{suffix}": value for key, value in values.items()}


def _tpot_mean(
    eel: NDArray[np.float64], ttft: NDArray[np.float64], decode: NDArray[np.int64]
) -> float:
    many = decode > 1
    return mean((eel[many] - ttft[many]) / (decode[many] - 1))


def _jain_over_lengths(eel: NDArray[np.float64], decode: NDArray[np.int64]) -> float:
    if not len(eel):
        return float("nan")
    ordered = np.sort(decode)
    edges = [quantile(ordered, part / _LENGTH_CLASSES) for part in range(1, _LENGTH_CLASSES)]
    # Equal lengths share a class, so with few distinct lengths some classes are empty.
    classes = np.searchsorted(edges, decode, side="left")
    size = np.bincount(classes, minlength=_LENGTH_CLASSES)
    total = np.bincount(classes, weights=eel / decode, minlength=_LENGTH_CLASSES)
    slowdown = total[size > 0] / size[size > 0]
    square_sum = float(np.square(slowdown).sum())
    if square_sum == 0.0:  # everybody waits 0 s: nobody is treated worse
        return 1.0
    return float(slowdown.sum()) ** 2 / (len(slowdown) * square_sum)


def _hit_rate(log: Mapping[str, NDArray[Any]], rows: Any) -> float:
    if "cached" not in log:
        return math.nan  # one object, so that two summaries of the same episode compare equal
    joined = ~np.isnan(log["start_s"][rows])
    prompt = log["prompt"][rows][joined]
    return float(log["cached"][rows][joined].sum() / prompt.sum()) if len(prompt) else float("nan")


def _share(found: NDArray[np.bool_]) -> float:
    return float(np.count_nonzero(found)) / len(found) if len(found) else float("nan")


def _where_missing(
    values: NDArray[np.float64], instead: NDArray[np.float64]
) -> NDArray[np.float64]:
    return np.where(np.isnan(values), instead, values)


def _ratio(numerator: float, denominator: float) -> float:
    return float(numerator) / float(denominator) if denominator > 0 else 0.0
