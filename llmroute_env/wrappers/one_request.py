"""One dispatch decision a step: ``Discrete(G + 1)``, for DQN and for dispatch studies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, SupportsFloat

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from llmroute_env.spaces import Device, Queue

Observation = dict[str, NDArray[Any]]

_HOLD = 0


class _Passed:
    """Reward and info of the periods that one step lets pass."""

    def __init__(self) -> None:
        self.reward = 0.0
        self.periods = 0
        self.cost = 0.0
        self.invalid_actions = 0
        self.rewards: dict[str, float] = {}
        self.info: dict[str, Any] = {}  # of the last period

    def add(self, reward: float, info: dict[str, Any]) -> None:
        self.reward += reward
        self.periods += 1
        self.cost += info["cost"]
        self.invalid_actions += info["invalid_actions"]
        for name, value in info["rewards"].items():
            self.rewards[name] = self.rewards.get(name, 0.0) + value
        self.info = info

    def summed(self) -> dict[str, Any]:
        return {
            **self.info,
            "periods": self.periods,
            "rewards": self.rewards,
            "cost": self.cost,
            "invalid_actions": self.invalid_actions,
        }


class OneRequestEnv(
    gym.Wrapper[Observation, Any, Observation, NDArray[np.int64]], gym.utils.RecordConstructorArgs
):
    """Asks about the visible requests of a period one after the other, oldest first.

    When all of them have been asked about, the period is stepped with the choices made, and the
    next period in which a request waits is presented; periods with an empty queue pass unseen.

    **Action**, ``Discrete(G + 1)``: 0 holds the request until the next period, g + 1 sends it to
    device g. An illegal choice holds, and is counted in ``info["invalid_actions"]`` when the
    period is stepped.

    **Observation**, a ``Dict``:

    ========= ================ ====================================================================
    key       shape, dtype     fields
    ========= ================ ====================================================================
    request   (4,) float32     the fields of `Queue` of the request asked about; 0 after the end
    devices   (G, 11) float32  the fields of `Device`; the FIFO's include what was sent this period
    active    (G, B_max, 2)    as in the wrapped environment
    clock     (4,) float32     as in the wrapped environment
    pending   (2,) float32     requests of this period still to ask about, this one included;
                               requests of this period held so far
    ========= ================ ====================================================================

    **Reward**: the sum over the periods that the step let pass; 0 while a period is being asked
    about. ``info["periods"]`` is their number, for a discount per period in place of per decision.

    **Info**: ``action_mask`` (G + 1,) int8; ``request_id``, -1 after the end; ``rewards``, ``cost``
    and ``invalid_actions`` summed over the periods passed; the rest is that of the last period.

    Args:
        env: an LLMRoute environment.
    """

    def __init__(self, env: gym.Env[Observation, NDArray[np.int64]]) -> None:
        gym.utils.RecordConstructorArgs.__init__(self)  # so that `env.spec` can make it again
        gym.Wrapper.__init__(self, env)
        inner: Any = env.observation_space
        if not (isinstance(inner, spaces.Dict) and "queue" in inner.spaces):
            raise TypeError(f"OneRequestEnv needs LLMRoute's Dict observations, not {inner}")
        queue, devices = inner["queue"], inner["devices"]
        assert isinstance(queue, spaces.Box)
        assert isinstance(devices, spaces.Box)
        self._window = queue.shape[0]
        pending = np.full(2, self._window, np.float32)
        space: Any = spaces.Dict(
            {
                "request": spaces.Box(queue.low[0], queue.high[0], dtype=np.float32),
                "devices": devices,
                "active": inner["active"],
                "clock": inner["clock"],
                "pending": spaces.Box(np.zeros_like(pending), pending, dtype=np.float32),
            }
        )
        self.observation_space = space
        self.action_space = spaces.Discrete(devices.shape[0] + 1)
        self._seen: Mapping[str, NDArray[Any]] = {}
        self._devices = np.zeros(devices.shape, np.float32)
        self._mask = np.zeros((self._window, devices.shape[0] + 1), np.int8)
        self._choices = np.zeros(self._window, np.int64)
        self._visible = 0
        self._asked = 0
        self._passed = _Passed()
        self._ended = (False, False)  # terminated, truncated

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Start an episode at its first period in which a request waits.

        An episode without any request ends in its first step, whatever the action is. What the
        periods before the first decision earn belongs to the first step too.
        """
        seen, info = self.env.reset(seed=seed, options=options)
        self._passed = _Passed()
        self._ended = (False, False)
        self._begin(seen, info)
        if not self._visible:
            self._let_pass()
        return self._observation(), self._info(info)

    def step(self, action: Any) -> tuple[Observation, SupportsFloat, bool, bool, dict[str, Any]]:
        """Decide on the presented request; the last decision of a period lets time pass.

        Raises:
            ValueError: the action is not one of 0 to G.
        """
        devices = len(self._devices)
        if not 0 <= int(action) <= devices:
            raise ValueError(f"action = {action}: must be 0 (hold) or 1 to {devices} (a device)")
        if not any(self._ended):
            self._decide(int(action))
            if self._asked == self._visible:
                self._let_pass()
        passed, self._passed = self._passed, _Passed()
        info = self._info(passed.summed())
        return self._observation(), passed.reward, *self._ended, info

    def action_masks(self) -> NDArray[np.bool_]:
        """(G + 1,) what may be done with the presented request, for sb3-contrib."""
        return self._current_mask().astype(np.bool_)

    def _begin(self, seen: Mapping[str, NDArray[Any]], info: Mapping[str, Any]) -> None:
        """Take up a period's observation; the wrapped environment may reuse its buffers."""
        self._seen = seen
        self._visible = int(np.count_nonzero(seen["queue_id"] >= 0))
        self._asked = 0
        self._choices[:] = _HOLD
        self._devices = np.array(seen["devices"], np.float32)
        self._mask = info["action_mask"]

    def _decide(self, action: int) -> None:
        row = self._asked
        self._choices[row] = action
        self._asked += 1
        if action == _HOLD or not self._mask[row, action]:
            return  # the wrapped environment counts the illegal ones
        request, device = self._seen["queue"][row], self._devices[action - 1]
        device[Device.FIFO_LENGTH] += 1
        device[Device.FIFO_TOKENS] += request[Queue.PROMPT]
        device[Device.FIFO_PREDICTED] += request[Queue.PREDICTED]

    def _let_pass(self) -> None:
        """Step the wrapped environment until a request waits or the episode ends."""
        while True:
            seen, reward, terminated, truncated, info = self.env.step(self._choices.copy())
            self._passed.add(float(reward), info)
            self._begin(seen, info)
            self._ended = (bool(terminated), bool(truncated))
            if self._visible or any(self._ended):
                return

    def _presented(self) -> bool:
        return self._asked < self._visible and not any(self._ended)

    def _current_mask(self) -> NDArray[np.int8]:
        if self._presented():
            return np.array(self._mask[self._asked], np.int8)
        mask = np.zeros(self._mask.shape[1], np.int8)
        mask[_HOLD] = 1
        return mask

    def _observation(self) -> Observation:
        request = np.zeros(len(Queue), np.float32)
        if self._presented():
            request[:] = self._seen["queue"][self._asked]
        held = np.count_nonzero(self._choices[: self._asked] == _HOLD)
        return {
            "request": request,
            "devices": self._devices.copy(),
            "active": np.array(self._seen["active"], np.float32),
            "clock": np.array(self._seen["clock"], np.float32),
            "pending": np.array([self._visible - self._asked, held], np.float32),
        }

    def _info(self, info: Mapping[str, Any]) -> dict[str, Any]:
        request = int(self._seen["queue_id"][self._asked]) if self._presented() else -1
        return {**info, "action_mask": self._current_mask(), "request_id": request}
