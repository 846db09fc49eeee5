"""The lengths part of a workload: prompt and decode tokens."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from llmroute_env.scenario.fields import Count, Number, Positive, Section

Spread = Annotated[Number, Field(ge=0, le=10)]  #: of a logarithm; 10 is a factor of 22,000


class Lognormal(Section):
    """One token count: lognormal, rounded to an integer, clipped to ``[min, max]``."""

    mean: Positive  #: mean *before* clipping and rounding [tokens]: mu = ln(mean) - sigma^2 / 2
    sigma: Spread  #: standard deviation of the logarithm
    min: Count = 1  #: smallest value [tokens]
    max: Count | None = None  #: largest value [tokens]; null: no clipping from above

    @model_validator(mode="after")
    def _order(self) -> Lognormal:
        if self.max is not None and self.max < self.min:
            raise ValueError(f"max = {self.max}: must be at least min = {self.min}")
        return self


class LognormalLengths(Section):
    """Independent lognormal prompt and decode lengths."""

    kind: Literal["lognormal"] = "lognormal"
    prompt: Lognormal
    decode: Lognormal


class QuantileLengths(Section):
    """Prompt and decode lengths from an embedded quantile table, joined by a Gaussian copula."""

    kind: Literal["quantiles"] = "quantiles"
    table: str  #: a name under ``configs/lengths``, or a path to a YAML file of that form
    correlation: Annotated[Number, Field(gt=-1, lt=1)] | None = None
    """Spearman's rank correlation of prompt and decode length; null: the table's own."""


class TraceLengths(Section):
    """Lengths of the trace file: row by row with trace arrivals, else rows drawn at random."""

    kind: Literal["trace"] = "trace"


class SessionLengths(Section):
    """Lengths, and prefix blocks, of the turns of sessions (``workload.sessions``)."""

    kind: Literal["sessions"] = "sessions"


class ServeGenLengths(Section):
    """Lengths of ServeGen's clients: prompt and decode drawn from the client's tables."""

    kind: Literal["servegen"] = "servegen"


Lengths = Annotated[
    LognormalLengths | QuantileLengths | SessionLengths | ServeGenLengths | TraceLengths,
    Field(discriminator="kind"),
]
