"""The single environment."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from gymnasium.error import ResetNeeded
from numpy.typing import ArrayLike, NDArray

from llmroute_env import metrics, spaces
from llmroute_env.cluster.log import EpisodeStats
from llmroute_env.cluster.simulator import Simulator
from llmroute_env.cluster.spec import ClusterSpec
from llmroute_env.cluster.state import Handle, Outcome
from llmroute_env.outcome import step_info
from llmroute_env.rendering import FrameView, render_ansi, render_rgb
from llmroute_env.scenario import Scenario
from llmroute_env.spaces import OBSERVATION_KEYS
from llmroute_env.workload import RequestTable, prepare

Observation = dict[str, NDArray[Any]]
Source = str | PathLike[str] | Mapping[str, Any] | Scenario

DEFAULT_SCENARIO = "azure-conv-a100"
RENDER_FPS = 20

_NOT_SKIPPED = np.zeros(1, np.bool_)


class LLMRouteEnv(gym.Env[Any, Any]):
    """Route requests to LLM decode devices.

    ## Description

    A cluster of G devices decodes requests whose prefill is done. Every `period_s` seconds a router
    sees the W oldest waiting requests and the telemetry of the devices, and decides which request
    goes to which device and which one waits. A device runs its batch by continuous batching: each
    iteration gives every active request one token, takes the longer the more requests and KV tokens
    it holds, and is followed by admissions from the device's own FIFO queue. A batch holds at most
    B requests and M KV tokens; a request holds s + (emitted tokens), so its share of M grows until
    it ends. When growth breaks M, the last admitted request is preempted and recomputed later.
    The true decode length is never observed, only a prediction.

    A scenario can have more: groups of unlike devices (`cluster.groups`), where a device rejects
    what is larger than it can ever hold; devices that prefill what they decode, whole or in chunks
    (`cluster.prefill`), with caches of prompt prefixes (`cluster.prefix_cache`); or the time that
    prefill and the KV transfer take where prefill happens elsewhere (`cluster.handoff`).

    ## Action Space

    `MultiDiscrete([G + 1] * W)`, one choice per row of the visible queue:

    | Value | Meaning |
    |-------|---------|
    | 0     | hold the request at the router |
    | g + 1 | send it to the tail of device g's FIFO, in queue order |

    `info["action_mask"]`, int8 (W, G + 1), has 1 for every legal choice: holding always, and for a
    visible request every device that is up, full or not, unless its limits are below the prompt. An illegal choice holds and is counted in
    `info["invalid_actions"]`. A sent request joins the batch at the next iteration boundary at
    which everything before it has joined and it fits; at once on an idle device with an empty FIFO.

    ## Observation Space

    A `Dict` of finite `Box`es, float32 but for `queue_id`; rows that stand for nothing are 0.

    | Key        | Shape           | Fields |
    |------------|-----------------|--------|
    | `queue`    | (W, 4)          | of the W oldest waiting requests: prompt tokens s, predicted decode tokens ô, time waited [s], tier |
    | `queue_id` | (W,) int64      | request id, -1 where empty; for bookkeeping, not a feature |
    | `devices`  | (G, 11)         | active requests, B, KV tokens used, M, FIFO length, FIFO KV tokens, last iteration time [s], time to iteration end [s], up, predicted tokens in the FIFO, prompt tokens still to prefill |
    | `active`   | (G, B_max, 2)   | per batch slot, in admission order: KV tokens now, predicted remaining tokens |
    | `clock`    | (4,)            | now [s], period index, periods left until T, waiting requests beyond W |
    | `text`     | (W, 2)          | only with texts (`workload.text`): size of the prompt [bytes], category |
    | `prefix`   | (W, G)          | only with prefix caches (`cluster.prefix_cache`): prompt tokens that each device has cached |

    `llmroute_env.spaces` names the fields. Arrays are fresh at each call.

    ## Rewards

    The paper's multi-SLO reward, realized, with the horizon T and true lengths; weights and limits
    are `objective` of the scenario, and nothing is earned after T:

    | Component | When | Value |
    |-----------|------|-------|
    | `alpha`   | per token decoded | 1 |
    | `beta`    | at completion     | periods left until T |
    | `zeta1`   | at completion     | 1 if arrival to completion is below `tail_eel_s` |
    | `gamma`   | at first start    | periods left until T |
    | `sigma`   | at first start    | 1 |
    | `zeta2`   | at first start    | 1 if arrival to start is below `tail_ttft_s` |

    `info["rewards"]` has the weighted components, `info["cost"]` the requests of which it became
    certain in this step that they miss a limit (each counted once), for constrained learning.

    ## Starting State

    An empty cluster. `reset(seed=...)` draws the episode's arrivals, lengths and prediction errors
    from separate child streams, so that the workload of the k-th episode after a seed does not
    depend on actions. `reset(options=...)` takes `prediction` (`"perfect"`, or any prediction of a
    scenario), which replaces the prediction on the same sample path, and `requests`, a
    `RequestTable` to play in place of a drawn one.

    ## Episode End

    *Truncation*: at period T; with `drain: true`, `max_drain_periods` after it.
    *Termination*: with `drain: true`, when all requests have left after T.
    The last step's `info["metrics"]` is the summary of the episode.

    ## Arguments

    | Argument        | Default             | Meaning |
    |-----------------|---------------------|---------|
    | `scenario`      | `"azure-conv-a100"` | a name under `configs/scenarios`, a path, a mapping, or a `Scenario` |
    | `overrides`     | `None`              | dotted keys to values, `{"router.window": 32}` |
    | `copy`          | `True`              | `False` shares observation and mask buffers between calls; needs `disable_env_checker=True` |
    | `series_stride` | `None`              | periods between two samples of the time series; 0 for none, `None` for about 1,000 samples |
    | `render_mode`   | `None`              | `"ansi"` or `"rgb_array"` |

    ## Version History

    * v0: initial version
    """  # noqa: E501  (tables)

    metadata: ClassVar[dict[str, Any]] = {  # type: ignore[misc]
        "render_modes": ["ansi", "rgb_array"],
        "render_fps": RENDER_FPS,
    }

    def __init__(
        self,
        scenario: Source = DEFAULT_SCENARIO,
        overrides: Mapping[str, Any] | None = None,
        *,
        copy: bool = True,
        series_stride: int | None = None,
        render_mode: str | None = None,
    ) -> None:
        if render_mode is not None and render_mode not in self.metadata["render_modes"]:
            raise ValueError(f"render_mode {render_mode!r}: must be None, 'ansi' or 'rgb_array'")
        self.scenario = Scenario.load(scenario, overrides)
        prepare(self.scenario)
        self.render_mode = render_mode
        self._copy = bool(copy)
        self._sim = Simulator(self.scenario, 1, series_stride)
        spec, window = self._sim.spec, self.scenario.router.window
        self.observation_space = spaces.observation_space(
            window,
            spec.batch_limit,
            spec.kv_limit,
            int(self.scenario.horizon_periods),
            self._sim.keys[len(OBSERVATION_KEYS) :],
        )
        self.action_space = spaces.action_space(window, len(spec.batch_limit))
        self._actions = np.zeros((1, window), np.int64)
        self._over = True
        self._bind()

    def _bind(self) -> None:
        """Keep views of lane 0; the simulator never replaces these arrays."""
        observed = self._sim.state.observed
        self._buffers: Observation = {key: getattr(observed, key)[0] for key in self._sim.keys}
        self._mask: NDArray[np.int8] = observed.mask[0]
        self._lane: Any = self._sim.state.lanes[0]
        self._outcome: NDArray[np.float64] = self._sim.state.outcome[0]

    # -- the Gymnasium interface ------------------------------------------------------------

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Start an episode; see the class for ``options``.

        Raises:
            ValueError: an unknown option, or one of the wrong form.
        """
        super().reset(seed=seed)
        table, self._streams = self._sim.draw(self.np_random, options)
        self._sim.reset([0], [table])
        self._over = False
        return self._observation(), {"action_mask": self._action_mask()}

    def step(self, action: ArrayLike) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Play one period.

        Raises:
            ResetNeeded: before the first reset and after the end of an episode.
            ValueError: an action that is not W whole numbers.
        """
        if self._over:
            raise ResetNeeded("step: the episode is over, call reset first")
        choices = np.asarray(action)
        if choices.shape != self._actions.shape[1:] or choices.dtype.kind not in "iu":
            raise ValueError(
                f"action: must be {self._actions.shape[1]} whole numbers, one per row of the "
                f"queue, got {choices.dtype} of shape {choices.shape}"
            )
        self._actions[0] = choices
        self._sim.step(self._actions, _NOT_SKIPPED)
        outcome = self._outcome
        terminated, truncated = outcome[Outcome.TERMINATED] > 0, outcome[Outcome.TRUNCATED] > 0
        info = {"action_mask": self._action_mask(), **step_info(outcome)}
        if terminated or truncated:
            self._over = True
            info["metrics"] = self._summary()
        reward = float(outcome[Outcome.REWARD])
        return self._observation(), reward, bool(terminated), bool(truncated), info

    def render(self) -> str | NDArray[np.uint8] | None:  # type: ignore[override,unused-ignore]
        """Draw the cluster as text (``ansi``) or as a picture (``rgb_array``)."""
        if self.render_mode is None:
            gym.logger.warn(
                "render() without a render mode: pass render_mode='ansi' or 'rgb_array' to make"
            )
            return None
        view = self._frame()
        return render_ansi(view) if self.render_mode == "ansi" else render_rgb(view)

    # -- beyond Gymnasium -------------------------------------------------------------------

    def action_masks(self) -> NDArray[np.bool_]:
        """(W * (G + 1),) legal choices, flat, as sb3-contrib wants them."""
        return self._mask.astype(np.bool_).reshape(-1)

    @property
    def spec_cluster(self) -> ClusterSpec:
        """Limits and iteration times of the devices."""
        return self._sim.spec

    @property
    def handle(self) -> Handle:
        """The kernel's state, for compiled code that plays whole episodes on lane 0."""
        return self._sim.handle

    def finish(self) -> None:
        """Say that compiled code has played the episode to its end."""
        self._over = bool(self._lane["terminated"]) or bool(self._lane["truncated"])

    @property
    def requests(self) -> RequestTable:
        """The episode's requests, true lengths included; a policy must not look at it."""
        table = self._sim.tables[0]
        if table is None:
            raise ResetNeeded("requests: no episode yet, call reset first")
        return table

    def request_log(self) -> dict[str, NDArray[Any]]:
        """What has happened to each request; see `llmroute_env.cluster.log.request_log`."""
        return self._sim.request_log(0)

    def episode_stats(self) -> EpisodeStats:
        """Counters of the episode so far."""
        return self._sim.episode_stats(0)

    # -- internals --------------------------------------------------------------------------

    def _observation(self) -> Observation:
        if not self._copy:
            return self._buffers
        return {key: buffer.copy() for key, buffer in self._buffers.items()}

    def _action_mask(self) -> NDArray[np.int8]:
        return self._mask.copy() if self._copy else self._mask

    def _summary(self) -> dict[str, float]:
        return metrics.summarize(self.request_log(), self.episode_stats(), self.scenario.objective)

    def _frame(self) -> FrameView:
        log, lane = self.request_log(), self._lane
        done = np.flatnonzero(~np.isnan(log["finish_s"]))
        done = done[np.argsort(log["finish_s"][done], kind="stable")]
        objective = self.scenario.objective
        return FrameView.from_observation(
            self._buffers,
            title=self.scenario.name,
            reward=float(lane["reward_total"]),
            completed=int(lane["completed"]),
            rejected=int(lane["rejected"]),
            eel_s=(log["finish_s"] - log["arrival_s"])[done],
            ttft_s=(log["first_token_s"] - log["arrival_s"])[done],
            eel_limit_s=objective.tail_eel_s,
            ttft_limit_s=objective.tail_ttft_s,
        )

    # Views would arrive as copies: drop them, and take them again from the simulator's arrays.
    def __getstate__(self) -> dict[str, Any]:
        left_out = ("_buffers", "_mask", "_lane", "_outcome")
        return {key: value for key, value in self.__dict__.items() if key not in left_out}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._bind()
