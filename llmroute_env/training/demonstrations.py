"""Demonstrations: what a policy chose, told as the decisions that a learned router is asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmroute_env.jit import compiled
from llmroute_env.scenario import Scenario
from llmroute_env.spaces import Clock, Queue
from llmroute_env.training.layout import Layout
from llmroute_env.vector import LLMRouteVectorEnv
from policies.learned.answer import answer
from policies.learned.features import ask, begin
from policies.learned.question import (
    FeatureParams,
    FeatureScratch,
    Question,
    Request,
    feature_scratch,
)
from policies.learned.rates import RateMemory, rate_memory, watch
from policies.registry import make
from policies.spec import RouterSpec
from policies.startable import measure

Array = NDArray[Any]

#: decisions of one period and lane that are kept, at most
_PER_PERIOD = 64


@dataclass(frozen=True)
class Demonstrations:
    """Questions and answers.

    Attributes:
        observations: (n, layout.size) float32.
        masks: (n, layout.actions) bool.
        choices: (n,) int64.
        layout: of the observations.
        teacher: the policy's command-line string.
        dropped: sent requests that were no legal candidate, and so are not among the answers.
    """

    observations: NDArray[np.float32]
    masks: NDArray[np.bool_]
    choices: NDArray[np.int64]
    layout: Layout
    teacher: str
    dropped: int


@compiled
def _pick(queue: Array, question: Question, wanted: Array) -> tuple[int, int]:
    """The shortest candidate that the teacher sends and that may be sent; (-1, -1) if none."""
    chosen, machine, shortest = -1, -1, np.inf
    for c in range(question.rows.shape[0]):
        i = question.rows[c]
        if i < 0 or wanted[i] == 0:
            continue
        g = wanted[i] - 1
        if question.legal[c, g] and queue[i, Queue.PREDICTED] < shortest:
            chosen, machine, shortest = c, g, queue[i, Queue.PREDICTED]
    return chosen, machine


@compiled
def explain(
    queue: Array,
    queue_id: Array,
    devices: Array,
    active: Array,
    clock: Array,
    wanted: Array,
    params: FeatureParams,
    memory: RateMemory,
    scratch: FeatureScratch,
    question: Question,
    action: Array,
    flat: Array,
    records: Array,
    masks: Array,
    choices: Array,
) -> int:
    """Write one lane's decisions of a period into the records; return their number.

    ``wanted`` (W,) is the teacher's action. ``question`` consists of views of ``flat`` (1, size),
    which is copied to a row of ``records`` for each decision.
    """
    action[:] = 0
    watch(queue, queue_id, devices, memory)
    if queue_id[0] < 0 or measure(devices, scratch.room) == 0:
        return 0
    begin(devices, active, params, scratch)
    machines, n = question.legal.shape[1], 0
    while n < records.shape[0]:
        if ask(queue, queue_id, devices, clock, params, memory, scratch, action, question) == 0:
            break
        c, g = _pick(queue, question, wanted)
        records[n] = flat[0]
        masks[n, 0] = True
        for i in range(question.rows.shape[0]):
            for j in range(machines):
                masks[n, 1 + i * machines + j] = question.legal[i, j]
        choices[n] = 0 if c < 0 else 1 + c * machines + g
        n += 1
        if c < 0:
            break
        row = question.rows[c]
        answer(queue, row, g, params, scratch, action)
        wanted[row] = 0
    return n


def demonstrate(
    scenario: Scenario,
    teacher: str,
    layout: Layout,
    *,
    oldest: int,
    decisions: int,
    seed: int,
    lanes: int = 8,
) -> Demonstrations:
    """Let ``teacher`` play until it has made ``decisions`` decisions.

    Raises:
        ValueError: the fleet of the scenario is not the layout's.
    """
    env = LLMRouteVectorEnv(lanes, scenario)
    spec = RouterSpec.from_env(env)
    if spec.devices > layout.devices:
        raise ValueError(
            f"teacher {teacher}: scenario {scenario.name} has {spec.devices} devices, the layout "
            f"{layout.devices}"
        )
    from llmroute_env.training.vec_env import feature_params

    policy = make(teacher, env, seed=seed)
    params = feature_params(spec, oldest)
    scratch = feature_scratch(
        layout.candidates, spec.devices, spec.slots, spec.largest, spec.chunk_tokens
    )
    memories = [rate_memory() for _ in range(lanes)]
    flat = layout.buffer(1)
    blocks = layout.blocks(flat)
    blocks["up"][:, : spec.devices] = 1.0
    question = Question(
        blocks["context"][0],
        blocks["requests"][0],
        blocks["devices"][0],
        blocks["pairs"][0],
        np.full(layout.candidates, -1, np.int64),
        np.zeros((layout.candidates, layout.devices), np.bool_),
    )
    records = layout.buffer(decisions + _PER_PERIOD)
    masks = np.zeros((len(records), layout.actions), np.bool_)
    choices = np.zeros(len(records), np.int64)
    action = np.zeros(spec.window, np.int64)
    n, dropped = 0, 0
    seen, _ = env.reset(seed=seed)
    while n < decisions:
        wanted, _ = policy.predict(seen)
        play = wanted.copy()
        for lane in range(lanes):
            if n >= decisions:
                break
            here = slice(n, n + _PER_PERIOD)
            if seen["clock"][lane, Clock.PERIOD] == 0:
                memories[lane] = rate_memory()
            n += explain(
                seen["queue"][lane],
                seen["queue_id"][lane],
                seen["devices"][lane],
                seen["active"][lane],
                seen["clock"][lane],
                wanted[lane],
                params,
                memories[lane],
                scratch,
                question,
                action,
                flat,
                records[here],
                masks[here],
                choices[here],
            )
            dropped += int(np.count_nonzero(wanted[lane]))  # it took out what it explained
        seen, *_ = env.step(play)
    # What is present and legal are blocks of their own, which only the vector environment writes.
    (there, stop), (startable, end) = layout.spans["present"], layout.spans["legal"]
    requests = layout.blocks(records)["requests"]
    records[:, there:stop] = requests[:, :, Request.PROMPT] > 0  # every prompt has a token
    records[:, startable:end] = masks[:, 1:]
    return Demonstrations(records[:n], masks[:n], choices[:n], layout, teacher, dropped)


def joined(parts: Sequence[Demonstrations]) -> Demonstrations:
    """All of them as one; the layout is the same."""
    return replace(
        parts[0],
        observations=np.concatenate([part.observations for part in parts]),
        masks=np.concatenate([part.masks for part in parts]),
        choices=np.concatenate([part.choices for part in parts]),
        dropped=sum(part.dropped for part in parts),
    )
