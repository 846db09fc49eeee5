"""Evaluate one policy on one sample path: an episode, its summary and its request log."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Literal

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from llmroute_env import metrics
from llmroute_env.cluster.state import RejectReason, Series, Status
from policies.base import Policy
from policies.registry import make

if TYPE_CHECKING:
    import pandas as pd  # imported where a table is made: it costs as much as all the rest

Path = Literal["auto", "compiled", "stepped"]

#: Words for the numbers of the request log, in their order.
STATUS_NAMES: Final = tuple(status.name.lower() for status in Status)
REJECT_REASONS: Final = tuple(reason.name.lower() for reason in RejectReason)


@dataclass(frozen=True)
class EpisodeResult:
    """What one episode showed.

    Attributes:
        summary: keys of `metrics.METRICS`, then `decision_us_p50`, `decision_us_p99`, `wall_s`.
        log: the request log, columns of shape (R,).
        stats: the cluster's counters (`EpisodeStats`), with the reward by component.
        diagnostics: arrays that the policy recorded over the episode; empty if it records none.
        scenario: name of the scenario.
        policy: command-line string of the policy, or the name of its class.
        information: what it used of the decode length.
        seed: seed of the episode.
    """

    summary: dict[str, float]
    log: dict[str, NDArray[Any]]
    stats: Any
    diagnostics: dict[str, NDArray[Any]] = field(default_factory=dict)
    scenario: str = ""
    policy: str = ""
    information: str = "unknown"
    seed: int = 0

    @cached_property
    def requests(self) -> pd.DataFrame:
        """One row per request of the episode, all statuses; latencies are NaN where not reached.

        Columns: those of the log, with `status` and `reject_reason` as words, and `wait_s` (start
        delay), `ttft_s`, `eel_s`, `tpot_s`; the index is the request id.
        """
        import pandas as pd

        table = pd.DataFrame(self.log)
        table.index.name = "request"
        for name, words in (("status", STATUS_NAMES), ("reject_reason", REJECT_REASONS)):
            codes = self.log[name].tolist()
            table[name] = pd.Categorical.from_codes(codes, pd.Index(words))
        for name, event in (
            ("wait_s", "start_s"),
            ("ttft_s", "first_token_s"),
            ("eel_s", "finish_s"),
        ):
            table[name] = table[event] - table["arrival_s"]
        gaps = (table["decode"] - 1).where(table["decode"] > 1)
        table["tpot_s"] = (table["eel_s"] - table["ttft_s"]) / gaps
        return table

    @cached_property
    def series(self) -> pd.DataFrame:
        """Sampled time series of the cluster, one column per `Series`; empty if not recorded."""
        import pandas as pd

        return pd.DataFrame(series_columns(self.stats))

    @property
    def rewards(self) -> dict[str, float]:
        """Reward of the episode by component."""
        return {name: float(value) for name, value in self.stats.rewards.items()}


def evaluate(
    env: gym.Env[Any, Any],
    policy: Any,
    seed: int,
    *,
    path: Path = "auto",
    deterministic: bool = True,
) -> EpisodeResult:
    """Run one episode of `policy` on the sample path of `seed`.

    The environment is reset with `seed`; a policy that can be seeded (it has `reset(seed=...)`)
    gets a stream of its own, so that no policy's draws touch the workload and all policies see
    the same requests. An oracle twin is given perfect predictions on the same sample path.

    Args:
        env: a single LLMRoute environment. Wrappers are stepped as they are, unless the policy
            reads the plain observation and they change it: then the plain environment is.
        policy: an object with Stable-Baselines3's `predict`, or a string for `policies.make`.
        seed: of the episode.
        path: `compiled` runs the whole episode in compiled code, for policies that offer it;
            `stepped` calls `predict` each period; `auto` takes the first where it can. Results
            are identical but for the decision times.
        deterministic: handed to `predict`, for learned policies.

    Returns:
        The result; `decision_us_*` are percentiles over the periods of the episode, of `predict`
        as called from Python when stepped, of the decision alone when compiled.

    Raises:
        ValueError: unknown path or policy, `compiled` without a compiled episode, an environment
            that is not a single LLMRoute environment, or a `predict` that returns no pair.
    """
    if path not in ("auto", "compiled", "stepped"):
        raise ValueError(f"path {path!r}: auto, compiled or stepped")
    if not hasattr(env.unwrapped, "request_log"):
        raise ValueError(
            f"{type(env.unwrapped).__name__} is not a single LLMRoute environment; make one with "
            'gymnasium.make("llmroute_env:LLMRoute-v0", scenario=...)'
        )
    policy_seed = _policy_seed(seed)
    if isinstance(policy, str):
        policy = make(policy, env, seed=policy_seed)
    _seed_policy(policy, policy_seed)
    options = _reset_options(policy)

    start = time.perf_counter()
    compiled = path != "stepped" and _has_compiled_episode(policy)
    if path == "compiled" and not compiled:
        raise ValueError(f"policy {policy_name(policy)} has no compiled episode for this env")
    if compiled:
        decision_ns = _run_compiled(env, policy, seed, options)
    else:
        decision_ns = _run_stepped(env, policy, seed, options, deterministic)
    wall_s = time.perf_counter() - start

    inner: Any = env.unwrapped
    log, stats = inner.request_log(), inner.episode_stats()
    summary = metrics.summarize(log, stats, inner.scenario.objective)
    samples = np.sort(decision_ns) / 1e3
    summary |= {
        "decision_us_p50": metrics.quantile(samples, 0.50),
        "decision_us_p99": metrics.quantile(samples, 0.99),
        "wall_s": wall_s,
    }
    return EpisodeResult(
        summary=summary,
        log=log,
        stats=stats,
        diagnostics=recorded_series(policy),
        scenario=str(inner.scenario.name),
        policy=policy_name(policy),
        information=str(getattr(policy, "information", "unknown")),
        seed=seed,
    )


def policy_name(policy: Any) -> str:
    """The command-line string of a policy, or its class's name."""
    return str(getattr(policy, "label", "") or type(policy).__name__)


def series_columns(stats: Any) -> dict[str, NDArray[Any]]:
    """Time series of an episode as name to (n,) array; empty when none was recorded."""
    if stats.series is None:
        return {}
    return {column.name.lower(): stats.series[:, column] for column in Series}


def recorded_series(policy: Any) -> dict[str, NDArray[Any]]:
    """Arrays over time that a policy recorded (``diagnostics()["series"]``); may be empty."""
    diagnostics = getattr(policy, "diagnostics", None)
    found = diagnostics().get("series") if callable(diagnostics) else None
    return dict(found) if found else {}


def _policy_seed(seed: int) -> int:
    stream = np.random.SeedSequence(seed, spawn_key=(1,))
    return int(stream.generate_state(1, np.uint64)[0] >> np.uint64(1))


def _seed_policy(policy: Any, seed: int) -> None:
    reset = getattr(policy, "reset", None)
    if callable(reset) and "seed" in _parameters(reset):
        reset(seed=seed)


def _reset_options(policy: Any) -> dict[str, Any] | None:
    prediction = getattr(policy, "prediction", None)
    return {"prediction": prediction} if isinstance(prediction, str) else None


def _has_compiled_episode(policy: Any) -> bool:
    return isinstance(policy, Policy) and policy.kernels.run is not None


def _run_compiled(
    env: gym.Env[Any, Any], policy: Policy, seed: int, options: dict[str, Any] | None
) -> NDArray[np.int64]:
    """Play an episode in compiled code; returns (periods,) nanoseconds of each decision."""
    inner: Any = env.unwrapped
    inner.reset(seed=seed, options=options)
    return policy.run_episode(inner)


def _run_stepped(
    env: gym.Env[Any, Any],
    policy: Any,
    seed: int,
    options: dict[str, Any] | None,
    deterministic: bool,
) -> NDArray[np.int64]:
    """Step an episode; returns (periods,) nanoseconds spent in each call of `predict`."""
    ours = isinstance(policy, Policy)
    if ours and env.observation_space != env.unwrapped.observation_space:
        env = env.unwrapped
    predict, extra = policy.predict, _predict_arguments(policy, deterministic)
    masks = _mask_source(env) if "action_masks" in _parameters(predict) else None
    # Ours keep their state per lane, and need no copy of it handed back and forth.
    carries_state = not ours and {"state", "episode_start"} <= _parameters(predict).keys()
    clock = time.perf_counter_ns
    samples: list[int] = []
    state: Any = None
    first = np.ones(1, dtype=bool)
    observation, _ = env.reset(seed=seed, options=options)
    over = False
    while not over:
        if masks is not None:
            extra["action_masks"] = masks()
        if carries_state:
            extra["state"], extra["episode_start"] = state, first
        before = clock()
        decision = predict(observation, **extra)
        samples.append(clock() - before)
        if not (isinstance(decision, tuple) and len(decision) == 2):
            raise ValueError(f"policy {policy_name(policy)}: predict must return (action, state)")
        action, state = decision
        first = np.zeros(1, dtype=bool)
        observation, _, terminated, truncated, _ = env.step(action)
        over = terminated or truncated
    return np.array(samples, dtype=np.int64)


def _predict_arguments(policy: Any, deterministic: bool) -> dict[str, Any]:
    accepts = "deterministic" in _parameters(policy.predict)
    return {"deterministic": deterministic} if accepts else {}


def _mask_source(env: gym.Env[Any, Any]) -> Callable[[], Any]:
    source: Callable[[], Any] = env.get_wrapper_attr("action_masks")
    return source


def _parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):  # a builtin without a signature
        return {}
