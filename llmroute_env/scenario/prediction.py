"""The prediction part of a scenario: what a router is told about decode lengths."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from llmroute_env.scenario.fields import Fraction, Number, Positive, Section
from llmroute_env.scenario.lengths import Spread


class Perfect(Section):
    """ô = o."""

    kind: Literal["perfect"] = "perfect"


class Uniform(Section):
    """ô = o · U(1 − spread, 1 + spread)."""

    kind: Literal["uniform"] = "uniform"
    spread: Fraction


class LognormalError(Section):
    """ô = o · exp(sigma·Z − sigma²/2): right on average, for each o."""

    kind: Literal["lognormal"] = "lognormal"
    sigma: Spread


class Biased(Section):
    """ô = o · factor · U(1 − spread, 1 + spread): factor < 1 under-estimates systematically."""

    kind: Literal["biased"] = "biased"
    factor: Positive
    spread: Fraction = 0.0


class Bucketed(Section):
    """ô = mean of the bucket that o falls in, as a bucket classifier would report.

    Buckets are ``[0, e1), [e1, e2), ..., [en, inf)``, given by ``edges``, or of equal ``width``.
    The mean is that of the scenario's own decode lengths within the bucket.
    """

    kind: Literal["bucketed"] = "bucketed"
    edges: tuple[Positive, ...] | None = None
    width: Annotated[Number, Field(ge=1)] | None = None

    @model_validator(mode="after")
    def _one_of(self) -> Bucketed:
        if (self.edges is None) == (self.width is None):
            raise ValueError(
                f"edges = {_shown(self.edges)} with width = {_shown(self.width)}: "
                "exactly one of them is needed"
            )
        if self.edges is not None:
            pairs = zip(self.edges, self.edges[1:], strict=False)
            if not self.edges or any(a >= b for a, b in pairs):
                raise ValueError(f"edges = {list(self.edges)}: must be one or more, ascending")
        return self


def _shown(value: object) -> str:
    return "null" if value is None else str(value)


class Mean(Section):
    """ô = mean decode length of the scenario, the same for every request."""

    kind: Literal["mean"] = "mean"


Prediction = Annotated[
    Perfect | Uniform | LognormalError | Biased | Bucketed | Mean, Field(discriminator="kind")
]
