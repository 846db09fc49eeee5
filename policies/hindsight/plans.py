"""A clairvoyant schedule that the cluster can carry out: a lower bound on the best reward.

Requests are placed one after another, each on the device where it can run without a pause soonest:
in the order in which the LP starts them, and in that of their KV token-slots, and the better of the
two is kept. Bound and plan bracket the optimum, so they show how much of a policy's distance to the
bound may be the bound's own looseness.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from llmroute_env.jit import compiled
from policies.hindsight.instance import LOCK_STEP, HindsightError, Instance, Ints
from policies.hindsight.schedules import from_runs, rewards

if TYPE_CHECKING:
    from llmroute_env.workload import RequestTable


@dataclass(frozen=True, eq=False)
class Plan:
    """When and where each request of a table starts.

    Attributes:
        reward: what the plan earns.
        start: (R,) slot of the start, -1 for never; a lock-step slot is ``slot_s`` long.
        device: (R,) device, -1 for never.
        slot_s: length of a slot [s].
    """

    reward: float
    start: Ints
    device: Ints
    slot_s: float


def plan(one: Instance, order: Ints, requests: RequestTable) -> Plan:
    """The better of two schedules, by ``order`` and by size.

    Args:
        one: a lock-step instance.
        order: (R,) its requests, each once, as the search orders them.
        requests: the table that the instance was built from.

    Raises:
        HindsightError: iterations are not slots.
    """
    if not one.exact:
        raise HindsightError(f"a plan needs lock-step: {LOCK_STEP}")
    work = one.work
    size = work.decode * (2 * work.prompt + work.decode)  # twice the KV token-slots of a stay
    placed = [_placed(one, each) for each in (order, np.argsort(size, kind="stable"))]
    reward, begin, device = max(placed, key=lambda found: found[0])
    starts, devices = np.full(len(requests), -1), np.full(len(requests), -1)
    starts[one.rows], devices[one.rows] = begin, device
    return Plan(reward, starts, devices, one.slot_ns * 1e-9)


def _placed(one: Instance, order: Ints) -> tuple[float, Ints, Ints]:
    """Reward of placing in this order, and (R,) slots and devices."""
    begin, device = np.full(one.requests, -1), np.full(one.requests, -1)
    batch = np.zeros((one.devices, one.slots), np.int64)
    room = (one.kv_limit - one.reserve) // one.kv_block
    stay = (one.work.first, one.work.prompt, one.work.decode)
    place(
        order, *stay, one.batch_limit, room, one.kv_block, batch, batch.copy(), begin, device
    )  # fmt: skip
    schedules = from_runs(one, begin, np.where(begin >= 0, begin + 1, one.slots))
    return float(rewards(one, schedules).sum()), begin, device


@compiled
def place(
    order: Ints,
    first: Ints,
    prompt: Ints,
    decode: Ints,
    batch_limit: Ints,
    room: Ints,
    block: int,
    batch: Ints,
    blocks: Ints,
    begin: Ints,
    device: Ints,
) -> None:
    """Start each request in turn as early as slots and KV blocks allow.

    Args:
        order: (R,) requests.
        first, prompt, decode: (R,) of each request.
        batch_limit, room: (G,) requests and KV blocks that a device holds.
        block: tokens of a KV block.
        batch, blocks: (G, N) in and out, what is taken.
        begin, device: (R,) out; -1 stays where nothing is free before the end.
    """
    slots = batch.shape[1]
    for j in order:
        s, o = prompt[j], decode[j]
        soonest, where = slots, -1
        for g in range(len(batch_limit)):
            k = first[j]
            while k < soonest:
                # From the last slot back: a conflict moves the start past it at once.
                clash = -1
                for h in range(min(k + o, slots) - 1, k - 1, -1):
                    need = (s + h - k + block) // block
                    if batch[g, h] >= batch_limit[g] or blocks[g, h] + need > room[g]:
                        clash = h
                        break
                if clash < 0:
                    soonest, where = k, g
                else:
                    k = clash + 1
        if where < 0:
            continue
        begin[j], device[j] = soonest, where
        for h in range(soonest, min(soonest + o, slots)):
            batch[where, h] += 1
            blocks[where, h] += (s + h - soonest + block) // block
