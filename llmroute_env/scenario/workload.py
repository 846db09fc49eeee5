"""The workload part of a scenario: arrivals, lengths, trace and prediction."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from llmroute_env.scenario.fields import (
    Count,
    Fraction,
    Inside,
    NonNegative,
    Number,
    Positive,
    Section,
)

Spread = Annotated[Number, Field(ge=0, le=10)]  #: of a logarithm; 10 is a factor of 22,000

# --- arrivals ------------------------------------------------------------------------------------


class Poisson(Section):
    """Poisson arrivals."""

    kind: Literal["poisson"] = "poisson"
    rate: Positive  #: requests per second


class Gamma(Section):
    """Renewal arrivals with gamma gaps: ``cv`` > 1 is burstier than Poisson, < 1 smoother."""

    kind: Literal["gamma"] = "gamma"
    rate: Positive  #: requests per second
    cv: Positive  #: coefficient of variation of the gaps, 1 is Poisson


class RateShift(Section):
    """Poisson arrivals whose rate changes once."""

    kind: Literal["rate_shift"] = "rate_shift"
    rate: Positive  #: requests per second before the shift
    rate_after: Positive  #: requests per second after it
    shift_at: Inside = 0.5  #: where the shift lies, as a share of the horizon


class OnOff(Section):
    """Poisson arrivals that alternate between two rates, the first period is on."""

    kind: Literal["on_off"] = "on_off"
    rate_on: Positive  #: requests per second while on
    rate_off: NonNegative = 0.0  #: requests per second while off
    on_s: Positive  #: seconds on
    off_s: Positive  #: seconds off


class TraceArrivals(Section):
    """Arrival times of the trace file (``workload.trace``)."""

    kind: Literal["trace"] = "trace"


Arrivals = Annotated[
    Poisson | Gamma | RateShift | OnOff | TraceArrivals, Field(discriminator="kind")
]

# --- lengths -------------------------------------------------------------------------------------


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


Lengths = Annotated[LognormalLengths | QuantileLengths | TraceLengths, Field(discriminator="kind")]

# --- trace ---------------------------------------------------------------------------------------


class Columns(Section):
    """Header names of a plain CSV file."""

    arrival: str = "arrival_s"
    prompt: str = "prompt"
    decode: str = "decode"


class Trace(Section):
    """A trace file and what to do with its irregular rows."""

    path: str  #: relative paths count from the working directory, then from the scenario's file
    format: str = "auto"  #: ``auto`` looks at the content; else a name of ``traces.FORMATS``
    columns: Columns | None = None  #: for ``format: csv``
    time_unit: Literal["s", "ms", "us", "ns"] = "s"  #: of numeric arrivals in ``format: csv``
    zero_output: Literal["error", "skip"] = "error"  #: rows without output tokens
    over_limit: Literal["reject", "clip"] = "reject"
    """Rows with s + o over the context limit: reject at arrival, or clip to the limit."""
    rate_scale: Positive = 1.0  #: 2.0 replays twice as fast: arrival times are divided by it
    max_requests: Count | None = None  #: the first so many rows only
    source: str | None = None  #: public address of the file, shown when it is missing

    @model_validator(mode="after")
    def _path(self) -> Trace:
        if not self.path:
            raise ValueError("path = '': must name a trace file")
        if self.format not in ("auto", "csv"):
            for key in ("columns", "time_unit"):
                if getattr(self, key) != type(self).model_fields[key].default:
                    raise ValueError(f"{key}: only with format = 'csv' or 'auto'")
        return self


class Workload(Section):
    """What arrives."""

    arrivals: Arrivals
    lengths: Lengths
    trace: Trace | None = None

    @model_validator(mode="after")
    def _trace_is_there(self) -> Workload:
        wanted = [key for key in ("arrivals", "lengths") if getattr(self, key).kind == "trace"]
        if wanted and self.trace is None:
            raise ValueError(f"trace = null: {wanted[0]}.kind = 'trace' needs trace.path")
        return self


# --- prediction of the decode length -------------------------------------------------------------


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
