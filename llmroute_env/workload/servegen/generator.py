"""Requests of ServeGen's clients, superposed."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from llmroute_env.scenario.errors import ScenarioError
from llmroute_env.scenario.workload import ServeGenArrivals
from llmroute_env.workload.blocks import Floats, Ints
from llmroute_env.workload.servegen.chunks import Client, clients_of
from llmroute_env.workload.traces.rows import TraceMissingError

_SAMPLE = 65_536  #: requests that stand for all of them


class Rows(NamedTuple):
    """R requests by arrival."""

    arrival_s: Floats  #: (R,) [s]
    prompt: Ints  #: (R,) [tokens]
    decode: Ints  #: (R,) [tokens]
    client: Ints  #: (R,) place in the list of clients


class _Part(NamedTuple):
    """What of a window lies in an episode."""

    window: int
    begin_s: float  #: since the episode started
    end_s: float


def draw(
    options: ServeGenArrivals,
    rng: np.random.Generator,
    lengths: np.random.Generator | None,
    horizon_s: float,
) -> Rows:
    """Draw the requests that arrive in ``[0, horizon_s)``.

    Within a window a client's arrivals are a stationary renewal process: gaps of the window's
    distribution and shape, with mean 1 / rate. (The file's scale is left aside: a fit of few gaps
    can be far from the rate, which is a count.) Prompt and decode lengths are independent draws.
    Each client has streams of its own, so another selection behind it leaves it as it is.

    Args:
        options: the scenario's ``workload.arrivals``.
        rng: the arrivals stream; it is only spawned from.
        lengths: the lengths stream, likewise; None leaves the lengths at 1, unread.
        horizon_s: end of arrivals, exclusive [s].

    Raises:
        TraceError: files are missing or malformed.
        ScenarioError: the recording ends before the episode does, or has no request in it.
    """
    clients = clients_of(options)
    mean_rate(options, horizon_s)  # raises where nothing would come
    gaps = rng.spawn(len(clients))
    levels = None if lengths is None else lengths.spawn(len(clients))
    times, prompts, decodes, owners = [], [], [], []
    for number, client in enumerate(clients):
        for part in _parts(options, client, horizon_s):
            rate = float(client.rate[part.window]) * options.rate_scale
            weibull, shape = bool(client.weibull[part.window]), float(client.shape[part.window])
            span_s = part.end_s - part.begin_s
            found = renewal(gaps[number], rate, span_s, weibull=weibull, shape=shape)
            times.append(part.begin_s + found)
            owners.append(np.full(len(found), number, np.int64))
            if levels is None:
                prompts.append(np.ones(len(found), np.int64))
                decodes.append(prompts[-1])
            else:
                prompt, decode = client.lengths_at(float(client.start_s[part.window]))
                level = levels[number].random((len(found), 2))
                prompts.append(prompt.draw(level[:, 0]))
                decodes.append(decode.draw(level[:, 1]))
    arrival_s = np.concatenate(times)
    order = np.argsort(arrival_s, kind="stable")
    order = order[: np.searchsorted(arrival_s[order], horizon_s, side="left")]  # rounding
    ints = [np.concatenate(parts)[order] for parts in (prompts, decodes, owners)]
    return Rows(arrival_s[order], *ints)


def renewal(
    rng: np.random.Generator, rate: float, length_s: float, *, weibull: bool, shape: float
) -> Floats:
    """A stationary renewal process in ``[0, length_s)``: the mean count is rate * length_s.

    Args:
        rng: stream.
        rate: 1 / mean gap [1/s].
        length_s: [s].
        weibull: gaps are Weibull, else gamma.
        shape: of the gaps; 1 is a Poisson process.
    """
    total = rate * length_s
    # The first gap is what is left of one that a point in time falls into: a uniform share of a
    # gap drawn in proportion to its length. For gamma that has shape + 1; the power of an
    # exponential that a Weibull gap is becomes the same power of a gamma of shape 1 + 1/shape.
    if weibull:
        mean = math.gamma(1.0 + 1.0 / shape)
        hit = rng.standard_gamma(1.0 + 1.0 / shape) ** (1.0 / shape) / mean
    else:
        mean = shape
        hit = rng.standard_gamma(shape + 1.0) / shape
    times = np.array([rng.random() * hit])
    while times[-1] < total:
        count = int(total - times[-1] + 4.0 * math.sqrt(total) + 16.0)
        gaps = rng.standard_exponential(count) if weibull else rng.standard_gamma(shape, count)
        if weibull:
            gaps **= 1.0 / shape
        times = np.concatenate((times, times[-1] + np.cumsum(gaps / mean)))
    return times[: np.searchsorted(times, total, side="left")] / rate


def _parts(options: ServeGenArrivals, client: Client, horizon_s: float) -> list[_Part]:
    """The client's windows that the episode meets and in which it sends requests.

    Raises:
        ScenarioError: the recording ends before the episode does.
    """
    begin_s, end_s = options.start_s, options.start_s + horizon_s
    if begin_s < client.start_s[0] or end_s > client.start_s[-1]:
        raise ScenarioError(
            f"workload.arrivals.start_s = {options.start_s:g}: with a horizon of {horizon_s:g} s "
            f"the episode must lie within the recording of {client.path}, "
            f"{client.start_s[0]:g} to {client.start_s[-1]:g} s"
        )
    first = int(np.searchsorted(client.start_s, begin_s, side="right")) - 1
    last = int(np.searchsorted(client.start_s, end_s, side="left"))
    return [
        _Part(
            window,
            max(0.0, float(client.start_s[window]) - begin_s),
            min(horizon_s, float(client.start_s[window + 1]) - begin_s),
        )
        for window in range(first, last)
        if client.rate[window] > 0.0
    ]


def mean_rate(options: ServeGenArrivals, horizon_s: float) -> float:
    """Expected arrivals per second over the horizon [1/s]; NaN without the files.

    Raises:
        TraceError: a file is malformed.
        ScenarioError: as :func:`draw`.
    """
    try:
        clients = clients_of(options)
    except TraceMissingError:
        return math.nan
    total = 0.0
    for client in clients:
        for part in _parts(options, client, horizon_s):
            total += float(client.rate[part.window]) * (part.end_s - part.begin_s)
    if total == 0.0:
        raise ScenarioError(
            f"workload.arrivals.start_s = {options.start_s:g}: no client of {options.path} sends "
            f"a request in the {horizon_s:g} s from there"
        )
    return total * options.rate_scale / horizon_s


def peak_rate(options: ServeGenArrivals, horizon_s: float) -> float:
    """The largest rate of all clients together in a window [1/s]; NaN without the files."""
    try:
        clients = clients_of(options)
    except TraceMissingError:
        return math.nan
    steps: dict[float, float] = {}
    for client in clients:
        for part in _parts(options, client, horizon_s):
            rate = float(client.rate[part.window]) * options.rate_scale
            steps[part.begin_s] = steps.get(part.begin_s, 0.0) + rate
            steps[part.end_s] = steps.get(part.end_s, 0.0) - rate
    levels = np.cumsum([steps[time] for time in sorted(steps)])
    return float(levels.max(initial=0.0))


def sample(options: ServeGenArrivals, horizon_s: float) -> tuple[Ints, Ints]:
    """Equally weighted prompt and decode lengths that stand for the episode's (65,536,).

    Raises:
        TraceError: files are missing or malformed.
    """
    return _sample(options, horizon_s, clients_of(options))


@lru_cache(maxsize=16)
def _sample(
    options: ServeGenArrivals, horizon_s: float, clients: tuple[Client, ...]
) -> tuple[Ints, Ints]:
    parts = [(client, part) for client in clients for part in _parts(options, client, horizon_s)]
    mean_rate(options, horizon_s)  # raises where there are none
    weight = np.array([c.rate[p.window] * (p.end_s - p.begin_s) for c, p in parts])
    edges = np.rint(np.cumsum(weight) / weight.sum() * _SAMPLE).astype(np.int64)
    counts = np.diff(edges, prepend=0)
    rng = np.random.default_rng(0)
    prompts, decodes = [], []
    for (client, part), count in zip(parts, counts, strict=True):
        prompt, decode = client.lengths_at(float(client.start_s[part.window]))
        level = (rng.permutation(int(count)) + 0.5) / max(int(count), 1)
        prompts.append(prompt.draw(level))
        level = (rng.permutation(int(count)) + 0.5) / max(int(count), 1)
        decodes.append(decode.draw(level))
    return np.concatenate(prompts), np.concatenate(decodes)
