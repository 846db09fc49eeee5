"""What one family of policies consists of, besides its class: functions, arrays, parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict


class PolicyParameters(BaseModel):
    """Parameters of a policy, as a command line gives them: typed, checked, none unknown."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Kernels(NamedTuple):
    """The compiled functions of a family.

    ``decide(queue, queue_id, devices, active, clock, params, memory, scratch, action)`` decides
    one lane for one period: queue (W, 4) f4, queue_id (W,) i8, devices (G, 11) f4, active
    (G, B_max, 2) f4, clock (4,) f4, all C-contiguous and read only; memory and scratch are changed
    in place; all of action (W,) i8 is written, 0 to hold and g + 1 to send. A family with ``extra``
    takes those observations after clock: text (W, 2) f4, prefix (W, G) f4.

    ``decide_lanes`` takes the same with a leading lane axis on observation, memory and action.

    ``run(handle, params, memory, scratch, action, times)`` plays lane 0 of an environment's kernel
    to the end of its episode, a few lines: while the episode is not over, ``decide`` on the views
    of the observation, ``step_lane``, ``observe``. It writes the time of each decision [ns] to
    ``times`` (int64, as far as it reaches; empty for none) and returns the number of periods.
    """

    decide: Callable[..., None]
    decide_lanes: Callable[..., None]
    run: Callable[..., int] | None = None


class Build(NamedTuple):
    """What a policy hands to the compiled code: constants, one fresh lane, working space."""

    params: Any
    memory: Any
    scratch: Any
