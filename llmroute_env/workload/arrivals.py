"""Arrival processes: sorted arrival times in ``[0, horizon)``, drawn in bulk."""

from __future__ import annotations

import math

import numpy as np

from llmroute_env.scenario.workload import (
    Arrivals,
    Gamma,
    OnOff,
    Poisson,
    RateShift,
    ServeGenArrivals,
)
from llmroute_env.workload.table import Floats


def _renewal(rng: np.random.Generator, rate: float, horizon_s: float, cv: float) -> Floats:
    """Renewal process with gamma gaps of mean 1/rate; cv = 1 is Poisson.

    The first arrival is one gap after 0. For Poisson that is exact; for other gaps the process
    starts with an arrival just before 0 rather than in equilibrium (which matters for one gap).
    """
    # Six standard deviations of the count above its mean: a second draw is all but never needed.
    mean = rate * horizon_s
    size = int(mean + 6.0 * max(cv, 1.0) * math.sqrt(mean) + 16.0)
    times = _gaps(rng, rate, cv, size)
    np.cumsum(times, out=times)
    while times[-1] < horizon_s:
        more = _gaps(rng, rate, cv, size)
        np.cumsum(more, out=more)
        times = np.concatenate((times, more + times[-1]))
    return times[: np.searchsorted(times, horizon_s, side="left")]


def _gaps(rng: np.random.Generator, rate: float, cv: float, size: int) -> Floats:
    if cv == 1.0:
        gaps = rng.standard_exponential(size)
        gaps *= 1.0 / rate
    else:
        shape = 1.0 / (cv * cv)  # gamma: variance/mean^2 = 1/shape
        gaps = rng.standard_gamma(shape, size)
        gaps *= 1.0 / (rate * shape)
    return gaps


def _unit_poisson(rng: np.random.Generator, total: float) -> Floats:
    """Poisson process of rate 1 on ``[0, total)``; mapped through the inverse of the
    cumulative rate it gives a Poisson process of any piecewise constant rate, exactly.
    """
    return _renewal(rng, 1.0, total, 1.0)


def _rate_shift(rng: np.random.Generator, process: RateShift, horizon_s: float) -> Floats:
    shift_s = process.shift_at * horizon_s
    before = process.rate * shift_s
    total = before + process.rate_after * (horizon_s - shift_s)
    marks = _unit_poisson(rng, total)
    split = np.searchsorted(marks, before, side="left")
    times = np.empty_like(marks)
    times[:split] = marks[:split] / process.rate
    times[split:] = shift_s + (marks[split:] - before) / process.rate_after
    return times[: np.searchsorted(times, horizon_s, side="left")]  # rounding at the edge


def _on_off(rng: np.random.Generator, process: OnOff, horizon_s: float) -> Floats:
    cycle_s = process.on_s + process.off_s
    on, off = process.rate_on * process.on_s, process.rate_off * process.off_s
    cycles = math.ceil(horizon_s / cycle_s)
    marks = _unit_poisson(rng, cycles * (on + off))
    cycle, within = np.divmod(marks, on + off)
    times = cycle * cycle_s
    is_on = within < on
    times[is_on] += within[is_on] / process.rate_on
    if process.rate_off > 0.0:
        times[~is_on] += process.on_s + (within[~is_on] - on) / process.rate_off
    return times[: np.searchsorted(times, horizon_s, side="left")]


def draw(process: Arrivals, rng: np.random.Generator, horizon_s: float) -> Floats:
    """Sorted arrival times of one episode.

    Args:
        process: a drawn process; a trace's arrivals are not drawn (see ``replay``).
        rng: the arrivals stream.
        horizon_s: end of arrivals, exclusive [s].

    Returns:
        (R,) float64 in ``[0, horizon_s)`` [s]; R may be 0.
    """
    match process:
        case Poisson():
            return _renewal(rng, process.rate, horizon_s, 1.0)
        case Gamma():
            return _renewal(rng, process.rate, horizon_s, process.cv)
        case RateShift():
            return _rate_shift(rng, process, horizon_s)
        case OnOff():
            return _on_off(rng, process, horizon_s)
        case ServeGenArrivals():
            from llmroute_env.workload import servegen

            return servegen.draw(process, rng, None, horizon_s).arrival_s
    raise ValueError(f"workload.arrivals.kind = {process.kind!r}: its arrivals are not drawn")


def mean_rate(process: Arrivals, horizon_s: float) -> float:
    """Expected arrivals per second over the horizon [1/s]."""
    match process:
        case Poisson() | Gamma():
            return process.rate
        case RateShift():
            share = process.shift_at
            return process.rate * share + process.rate_after * (1.0 - share)
        case OnOff():
            cycle_s = process.on_s + process.off_s
            cycles, rest_s = divmod(horizon_s, cycle_s)
            on_s = cycles * process.on_s + min(rest_s, process.on_s)
            return (process.rate_on * on_s + process.rate_off * (horizon_s - on_s)) / horizon_s
        case ServeGenArrivals():
            from llmroute_env.workload import servegen

            return servegen.mean_rate(process, horizon_s)
    raise ValueError(f"workload.arrivals.kind = {process.kind!r}: has no rate of its own")


def peak_rate(process: Arrivals, horizon_s: float) -> float:
    """The largest rate that lasts for a phase of the process [1/s]."""
    match process:
        case RateShift():
            return max(process.rate, process.rate_after)
        case OnOff():
            return max(process.rate_on, process.rate_off)
        case ServeGenArrivals():
            from llmroute_env.workload import servegen

            return servegen.peak_rate(process, horizon_s)
    return mean_rate(process, horizon_s)
