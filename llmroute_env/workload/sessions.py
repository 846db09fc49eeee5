"""Sessions: requests that come in turns, each prompt holding everything said before.

The loop is open: turn n + 1 arrives after turn n's *nominal* service and a pause, whatever the
cluster did. So no action changes the workload, and policies are compared on the same requests.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from llmroute_env.scenario.errors import ScenarioError
from llmroute_env.scenario.sessions import (
    Agent,
    Applications,
    Chat,
    GeometricTurns,
    Pause,
    Sessions,
    Turns,
)
from llmroute_env.scenario.workload import Arrivals, OnOff, RateShift
from llmroute_env.workload import arrivals
from llmroute_env.workload.blocks import Chains, Floats, Ints
from llmroute_env.workload.lengths import marginal

_SAMPLE = 16_384  #: sessions that stand for all of them
_MISSED = 1e-3  #: share of the turns that may begin later after their session's start than counted


class Rows(NamedTuple):
    """Turns of sessions, R of them, by arrival."""

    arrival_s: Floats  #: (R,) [s]
    prompt: Ints  #: (R,) [tokens]
    decode: Ints  #: (R,) [tokens]
    session: Ints  #: (R,) number of the session, from 0 without gaps
    application: Ints  #: (R,) number of the application


class _Turns(NamedTuple):
    """All turns of S sessions, session by session, N of them; those over the context left out."""

    session: Ints  #: (N,)
    application: Ints  #: (N,)
    prompt: Ints  #: (N,) [tokens]
    decode: Ints  #: (N,) [tokens]
    offset_s: Floats  #: (N,) after the session's first turn [s]


class _Profile(NamedTuple):
    """Sessions at large, from a fixed sample."""

    turns: float  #: mean turns of a session
    lead_s: float  #: nearly all turns begin no later after their session's start [s]
    offset_s: Floats  #: (N,) of all turns of the sample [s]
    prompt: Ints  #: (N,)
    decode: Ints  #: (N,)


def draw(
    spec: Sessions,
    process: Arrivals,
    rng: np.random.Generator,
    contents: np.random.Generator,
    horizon_s: float,
) -> Rows:
    """Draw the turns that arrive in ``[0, horizon_s)``.

    Sessions start by ``process``, slowed down by the mean number of turns, so that its rate is
    that of requests. The i-th session is the same at any rate.

    Args:
        spec: the scenario's ``workload.sessions``.
        process: a drawn arrival process.
        rng: the arrivals stream, for the sessions' starts.
        contents: the lengths stream, for what they contain; it is only spawned from.
        horizon_s: end of arrivals, exclusive [s].
    """
    profile = profile_of(spec)
    lead_s = profile.lead_s if spec.stationary else 0.0
    start_s = _starts(process, rng, 1.0 / profile.turns, lead_s, horizon_s)
    turns = _contents(spec, contents, len(start_s))
    arrival_s = start_s[turns.session] + turns.offset_s
    kept = np.flatnonzero((arrival_s >= 0.0) & (arrival_s < horizon_s))
    kept = kept[np.argsort(arrival_s[kept], kind="stable")]
    session = np.unique(turns.session[kept], return_inverse=True)[1].astype(np.int64)
    return Rows(
        arrival_s[kept],
        turns.prompt[kept],
        turns.decode[kept],
        session,
        turns.application[kept],
    )


def chains(spec: Sessions, rows: Rows, block: int) -> Chains:
    """Prefix blocks of drawn turns, answers included: floor((s + o) / block) for each.

    The whole blocks of an application's system prompt are those of all its sessions. What follows
    belongs to the session, whose later turns have the earlier ones' blocks, and more.
    """
    shared = system_prompts(spec.applications) // block
    used = np.zeros(len(shared), np.int64)
    used[rows.application] = 1
    first_shared = np.cumsum(used * shared) - shared  # only looked at where used
    length = (rows.prompt + rows.decode) // block
    start = np.concatenate(([0], np.cumsum(length)))
    common = shared[rows.application]
    sessions = int(rows.session.max(initial=-1)) + 1
    own = np.zeros(sessions, np.int64)
    np.maximum.at(own, rows.session, length - common)
    first_own = int((used * shared).sum()) + np.cumsum(own) - own
    # A chain is two runs of consecutive ids: sum up steps of 1, with jumps where a run begins.
    run = np.stack((common, length - common), axis=1).ravel()
    first = np.stack((first_shared[rows.application], first_own[rows.session]), axis=1).ravel()
    some = run > 0
    run, first = run[some], first[some]
    ids = np.ones(start[-1], np.int64)
    ids[np.cumsum(run) - run] = np.diff(first, prepend=0) - np.append(0, run[:-1] - 1)
    return Chains(block, np.cumsum(ids, out=ids), start)


@lru_cache(maxsize=64)
def system_prompts(applications: Applications) -> Ints:
    """Lengths of the system prompts, most popular application first (A,) [tokens]."""
    from scipy.special import ndtri

    # Multiples of the golden ratio, modulo 1: any first few are spread evenly.
    level = np.arange(1, applications.count + 1) * (0.5 * (math.sqrt(5.0) - 1.0)) % 1.0
    return marginal(applications.prompt).tokens(np.asarray(ndtri(level), np.float64))


@lru_cache(maxsize=64)
def profile_of(spec: Sessions) -> _Profile:
    """The sessions at large.

    Raises:
        ScenarioError: no session fits into ``max_context``.
    """
    turns = _contents(spec, np.random.default_rng(0), _SAMPLE)
    if not len(turns.session):
        raise ScenarioError(
            f"workload.sessions.max_context = {spec.max_context}: no first turn of a session fits"
        )
    lead_s = float(np.quantile(turns.offset_s, 1.0 - _MISSED))
    return _Profile(
        len(turns.session) / _SAMPLE, lead_s, turns.offset_s, turns.prompt, turns.decode
    )


def expected_requests(spec: Sessions, process: Arrivals, horizon_s: float) -> float:
    """Turns expected to arrive in ``[0, horizon_s)``."""
    profile = profile_of(spec)
    lead_s = profile.lead_s if spec.stationary else 0.0
    # A turn at offset d arrives in time when its session starts in [-d, horizon - d), of which
    # [-lead, horizon) is drawn.
    spans = np.clip(horizon_s - np.maximum(profile.offset_s - lead_s, 0.0), 0.0, horizon_s)
    rate = arrivals.mean_rate(process, horizon_s)
    return float(rate * spans.sum() / len(spans))


def _starts(
    process: Arrivals, rng: np.random.Generator, slowed: float, lead_s: float, horizon_s: float
) -> Floats:
    """Sorted starts of sessions in ``[-lead_s, horizon_s)`` [s]."""
    changes: dict[str, float] = {
        key: getattr(process, key) * slowed
        for key in ("rate", "rate_after", "rate_on", "rate_off")
        if hasattr(process, key)
    }
    if isinstance(process, OnOff):  # whole cycles, so that the episode begins as it should
        cycle_s = process.on_s + process.off_s
        lead_s = math.ceil(lead_s / cycle_s) * cycle_s
    elif isinstance(process, RateShift):
        changes["shift_at"] = (lead_s + process.shift_at * horizon_s) / (lead_s + horizon_s)
    return arrivals.draw(process.model_copy(update=changes), rng, lead_s + horizon_s) - lead_s


def _contents(spec: Sessions, rng: np.random.Generator, sessions: int) -> _Turns:
    """Draw what ``sessions`` sessions contain; the i-th is the same however many there are."""
    pick, texts = rng.spawn(2)
    picked = pick.random((sessions, 2))
    count = _turn_counts(spec.turns, picked[:, 0])
    applications = spec.applications
    weight = np.arange(1, applications.count + 1) ** -applications.zipf
    share = np.cumsum(weight) / weight.sum()
    application = np.searchsorted(share[:-1], picked[:, 1], side="right")

    first = np.concatenate(([0], np.cumsum(count)))
    total = int(first[-1])
    session = np.repeat(np.arange(sessions), count)
    begins = first[:-1]  # every session has a turn
    normal = texts.standard_normal((total, 3))
    added = _added(spec, normal[:, 0], begins)
    answer = marginal(spec.answer).tokens(normal[:, 1].copy())
    gap_s = spec.service_base_s + spec.service_s_per_token * answer
    gap_s += _pauses(spec.tool if isinstance(spec, Agent) else spec.think, normal[:, 2])

    spoken = added + answer
    before = np.cumsum(spoken) - spoken  # in all sessions until this turn
    prompt = before - np.repeat(before[begins], count) + added
    prompt += np.repeat(system_prompts(applications)[application], count)
    elapsed_s = np.cumsum(gap_s) - gap_s
    offset_s = elapsed_s - np.repeat(elapsed_s[begins], count)

    over = np.cumsum(prompt + answer > spec.max_context)
    earlier = over[begins] - (prompt + answer > spec.max_context)[begins]
    kept = np.flatnonzero(over == np.repeat(earlier, count))
    return _Turns(
        session[kept],
        application[session[kept]],
        prompt[kept],
        answer[kept],
        np.maximum(offset_s[kept], 0.0),
    )


def _turn_counts(turns: Turns, level: Floats) -> Ints:
    if isinstance(turns, GeometricTurns):
        if turns.mean == 1.0:
            return np.ones(len(level), np.int64)
        drawn = 1.0 + np.floor(np.log1p(-level) / math.log1p(-1.0 / turns.mean))
        return np.minimum(drawn, float(turns.max)).astype(np.int64)
    share = np.cumsum(turns.shares)
    return 1 + np.searchsorted(share[:-1], level, side="right").astype(np.int64)


def _added(spec: Chat | Agent, normal: Floats, begins: Ints) -> Ints:
    """Tokens that each turn adds to the prompt beside the answer before it (N,)."""
    if isinstance(spec, Chat):
        return marginal(spec.message).tokens(normal.copy())
    added = marginal(spec.tool_output).tokens(normal.copy())
    added[begins] = marginal(spec.task).tokens(normal[begins])
    return added


def _pauses(pause: Pause, normal: Floats) -> Floats:
    if pause.mean_s == 0.0:
        return np.zeros(len(normal))
    mu = math.log(pause.mean_s) - 0.5 * pause.sigma**2
    return np.exp(mu + pause.sigma * normal)
