"""The sessions part of a workload: conversations and agents whose turns share prefixes."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from llmroute_env.scenario.fields import Count, Flag, NonNegative, Number, Section
from llmroute_env.scenario.lengths import Lognormal, Spread


class Pause(Section):
    """Time between two turns beyond the service of the first: lognormal, 0 with ``mean_s: 0``."""

    mean_s: NonNegative  #: [s]
    sigma: Spread = 0.0  #: standard deviation of the logarithm


class Applications(Section):
    """Who sends requests: each application has a system prompt that all its sessions start with.

    The lengths of the system prompts are the quantiles of ``prompt`` at evenly spread levels, in a
    fixed mixed order of popularity, and so the same in every episode.
    """

    count: Annotated[Count, Field(le=100_000)] = 1
    zipf: Annotated[Number, Field(ge=0, le=10)] = 1.0
    """Application k has a share of the sessions proportional to k^-zipf; 0: all the same."""
    prompt: Lognormal  #: system prompt, tool definitions included [tokens]


class GeometricTurns(Section):
    """After each turn the session ends with probability 1 / mean."""

    kind: Literal["geometric"] = "geometric"
    mean: Annotated[Number, Field(ge=1, le=1_000)]
    max: Annotated[Count, Field(le=10_000)] = 100  #: a session has no more turns


class ExplicitTurns(Section):
    """Sessions of 1, 2, 3, ... turns in these shares."""

    kind: Literal["explicit"] = "explicit"
    shares: tuple[NonNegative, ...]

    @model_validator(mode="after")
    def _sum(self) -> ExplicitTurns:
        total = sum(self.shares)
        if abs(total - 1.0) > 1e-6:
            raise ValueError(f"shares = {list(self.shares)}: must sum to 1, they sum to {total:g}")
        return self


Turns = Annotated[GeometricTurns | ExplicitTurns, Field(discriminator="kind")]


class _Sessions(Section):
    """What chats and agents have in common."""

    applications: Applications
    turns: Turns  #: requests of a session, before ``max_context`` ends it
    max_context: Annotated[Count, Field(ge=2)]
    """A session ends before the turn whose prompt and answer would exceed it [tokens]."""
    service_base_s: NonNegative = 0.5  #: nominal service of a turn: until its first token [s]
    service_s_per_token: NonNegative = 0.03  #: nominal service of a turn: per answer token [s]
    stationary: Flag = True
    """Sessions that began before the episode are under way; false: all begin within it, and the
    request rate grows over the length of a session."""


class Chat(_Sessions):
    """Conversations of a person with an assistant.

    Turn n's prompt is the system prompt, all messages and answers before, and the new message. The
    next turn follows after the nominal service and a pause to read, think and type.
    """

    kind: Literal["chat"] = "chat"
    message: Lognormal  #: what the person writes in a turn [tokens]
    answer: Lognormal  #: decode tokens of a turn
    think: Pause


class Agent(_Sessions):
    """An agent that calls tools in a loop: a task, then tool outputs, and a growing context.

    The first prompt is the system prompt and the task; each further one adds the model's last
    output and what the tool returned. The next turn follows after the nominal service and the
    tool's run time.
    """

    kind: Literal["agent"] = "agent"
    task: Lognormal  #: the user's task, with files and documents given along [tokens]
    tool_output: Lognormal  #: what a tool returns [tokens]
    answer: Lognormal  #: decode tokens of a turn: reasoning and the next call
    tool: Pause  #: a tool's run time


Sessions = Annotated[Chat | Agent, Field(discriminator="kind")]
