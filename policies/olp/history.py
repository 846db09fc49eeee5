"""The history of action columns: a ring that the price updates sample from.

Every request enters once, in the period in which it is first seen, as the action with its largest
margin over the devices that could ever hold it; whether that device has room now does not matter,
or congestion, which prices are for, would leave no trace. (The paper's appendix B.4 enters one
best action per period, its text one per request; the authors' release enters infeasible actions
too, all charged to device 0.) Sums over the history of rewards and squared norms scale the step.

The history is the last COLUMNS rows written; WRITE is the row that comes next.
"""

from __future__ import annotations

import numpy as np

from llmroute_env.jit import compiled
from llmroute_env.spaces import Queue
from policies.olp.candidates import offer, price
from policies.olp.columns import memory_norm
from policies.olp.layout import Column
from policies.olp.state import Load, Number, OlpMemory, OlpScratch, Terms
from policies.rng import below


@compiled
def _weigh(memory: OlpMemory, row: int, sign: float, lookahead: int) -> None:
    length = min(memory.columns[row, Column.LENGTH], lookahead)
    numbers = memory.numbers
    numbers[Number.SUM_REWARD] += sign * memory.rewards[row]
    numbers[Number.SUM_BATCH] += sign * length
    numbers[Number.SUM_MEMORY] += sign * memory_norm(memory.columns[row, Column.PROMPT], length)


@compiled
def remember(
    memory: OlpMemory,
    start: int,
    length: int,
    prompt: int,
    device: int,
    reward: float,
    lookahead: int,
) -> None:
    """Enter a column, over the oldest one when the ring is full."""
    numbers = memory.numbers
    size = memory.columns.shape[0]
    row = int(numbers[Number.WRITE])
    if numbers[Number.COLUMNS] == size:
        _weigh(memory, row, -1.0, lookahead)
    elif numbers[Number.COLUMNS] == 0.0:  # sums of integers are exact, that of rewards is not
        numbers[Number.SUM_REWARD] = 0.0
    numbers[Number.COLUMNS] = min(numbers[Number.COLUMNS] + 1.0, float(size))
    memory.columns[row, Column.START] = start
    memory.columns[row, Column.LENGTH] = length
    memory.columns[row, Column.PROMPT] = prompt
    memory.columns[row, Column.DEVICE] = device
    memory.rewards[row] = reward
    _weigh(memory, row, 1.0, lookahead)
    numbers[Number.WRITE] = (row + 1) % size


@compiled
def forget_before(memory: OlpMemory, oldest_start: int, lookahead: int) -> None:
    """Discard the columns with start < ``oldest_start`` (absolute slot)."""
    numbers = memory.numbers
    size = memory.columns.shape[0]
    columns = int(numbers[Number.COLUMNS])
    oldest = int(numbers[Number.WRITE]) - columns
    for age in range(columns):
        row = (oldest + age) % size
        if memory.columns[row, Column.START] >= oldest_start:
            break
        _weigh(memory, row, -1.0, lookahead)
        numbers[Number.COLUMNS] -= 1.0


@compiled
def sample(memory: OlpMemory, picks: np.ndarray) -> int:
    """Draw every step's mini-batch, with replacement; the whole history where it is smaller.

    Args:
        picks: (K, batch) int32, filled with rows of the ring.

    Returns:
        Entries of each row of ``picks`` in use, 0 with an empty history.
    """
    columns = int(memory.numbers[Number.COLUMNS])
    newest = int(memory.numbers[Number.WRITE]) - 1
    ring = memory.columns.shape[0]
    steps = picks.shape[0]
    batch: int = picks.shape[1]
    if columns <= batch:
        for step in range(steps):
            for i in range(columns):
                picks[step, i] = (newest - i) % ring
        return columns
    for step in range(steps):
        for i in range(batch):
            row = newest - below(memory.rng, columns)
            picks[step, i] = row if row >= 0 else row + ring
    return batch


@compiled
def step_sizes(numbers: np.ndarray, step_size: float, mem_scale: float) -> tuple[float, float]:
    """Steps of the batch and memory prices, which the paper leaves open; 0 with no history.

    ``step_size`` times the mean reward of the history over the mean squared norm of its columns,
    for each resource by itself. With all columns accepted and no scarcity, one step of size 1 would
    raise a mean column's cost by its whole reward. So step_size has no unit, and neither the scale
    of the reward nor mem_scale changes the path.
    """
    step = step_size * numbers[Number.SUM_REWARD]
    step_bat = step / max(numbers[Number.SUM_BATCH], 1.0)
    step_mem = step / (max(numbers[Number.SUM_MEMORY], 1.0) * mem_scale * mem_scale)
    return step_bat, step_mem


@compiled
def enter(
    queue: np.ndarray,
    queue_id: np.ndarray,
    waiting: int,
    seen_before: float,
    terms: Terms,
    memory: OlpMemory,
    scratch: OlpScratch,
) -> None:
    """Enter the best action of every first-seen request; devices with equal margins in turn."""
    load, sums, carry, pace = scratch.load, scratch.sums, scratch.carry, scratch.pace
    devices = load.shape[0]
    now = int(np.floor(memory.numbers[Number.SLOT]))
    for row in range(waiting):
        if queue_id[row] <= seen_before:
            continue
        prompt = int(queue[row, Queue.PROMPT]) - terms.steps
        predicted = scratch.predicted[row]
        waited = np.float64(queue[row, Queue.WAITED])
        best, chosen, planned, value = -np.inf, -1, 0, 0.0
        for turn in range(devices):
            g = (memory.pointer[0] + turn) % devices
            limit = load[g, Load.PLAN_LIMIT]
            length, worth = offer(prompt, predicted, waited, limit, pace[g], terms)
            if length == 0:
                continue
            margin = worth - price(prompt, length, g, terms, load, sums, carry)
            if margin > best:
                best, chosen, planned, value = margin, g, length, worth
        if chosen >= 0:
            memory.pointer[0] = (chosen + 1) % devices
            remember(memory, now, planned, prompt, chosen, value, terms.lookahead)
