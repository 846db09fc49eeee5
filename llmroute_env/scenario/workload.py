"""The workload part of a scenario: arrivals, lengths, trace and prediction."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from llmroute_env.scenario.fields import (
    Count,
    Inside,
    Integer,
    NonNegative,
    Positive,
    Section,
)
from llmroute_env.scenario.lengths import (
    Lengths,
    Lognormal,
    LognormalLengths,
    QuantileLengths,
    ServeGenLengths,
    SessionLengths,
    TraceLengths,
)
from llmroute_env.scenario.prediction import (
    Biased,
    Bucketed,
    LognormalError,
    Mean,
    Perfect,
    Prediction,
    Uniform,
)
from llmroute_env.scenario.sessions import Sessions
from llmroute_env.scenario.text import Text

__all__ = [
    "Arrivals",
    "Biased",
    "Bucketed",
    "Columns",
    "Gamma",
    "Lengths",
    "Lognormal",
    "LognormalError",
    "LognormalLengths",
    "Mean",
    "OnOff",
    "Perfect",
    "Poisson",
    "Prediction",
    "QuantileLengths",
    "RateShift",
    "ServeGenArrivals",
    "ServeGenLengths",
    "SessionLengths",
    "Sessions",
    "Text",
    "Trace",
    "TraceArrivals",
    "TraceLengths",
    "Uniform",
    "Workload",
]

NonNegativeInteger = Annotated[Integer, Field(ge=0, le=2**31 - 1)]

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


class ServeGenArrivals(Section):
    """Requests of several clients, drawn from ServeGen's chunks (``chunk-N-trace.csv``).

    Each client has a rate and a distribution of gaps for every ten minutes of two weeks.
    """

    kind: Literal["servegen"] = "servegen"
    path: str  #: folder of chunks, or one ``chunk-N-trace.csv``; relative as ``trace.path`` is
    clients: tuple[NonNegativeInteger, ...] | None = None  #: numbers N; null: all in the folder
    start_s: NonNegative = 0.0  #: where in the recording the episode begins [s]
    rate_scale: Positive = 1.0  #: each client's rate is multiplied by it
    source: str | None = None  #: public address of the files, shown when they are missing

    @model_validator(mode="after")
    def _named(self) -> ServeGenArrivals:
        if not self.path:
            raise ValueError("path = '': must name a folder of chunks")
        if self.clients is not None and (
            not self.clients or len(set(self.clients)) < len(self.clients)
        ):
            raise ValueError(f"clients = {list(self.clients)}: must be one or more, each once")
        return self


class TraceArrivals(Section):
    """Arrival times of the trace file (``workload.trace``)."""

    kind: Literal["trace"] = "trace"


Arrivals = Annotated[
    Poisson | Gamma | RateShift | OnOff | ServeGenArrivals | TraceArrivals,
    Field(discriminator="kind"),
]

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
    block: Count | None = None
    """Tokens per prefix block of a JSON format; null: the format's own, 512 or 16."""
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
        if self.block is not None and self.format not in ("auto", "mooncake", "qwen"):
            raise ValueError(
                f"block = {self.block}: only with format = 'mooncake', 'qwen' or 'auto'"
            )
        return self


class Workload(Section):
    """What arrives."""

    arrivals: Arrivals
    lengths: Lengths
    trace: Trace | None = None
    sessions: Sessions | None = None  #: with ``lengths.kind: sessions``
    text: Text | None = None  #: sizes and categories of the requests' text; null: none

    @model_validator(mode="after")
    def _parts_are_there(self) -> Workload:
        wanted = [key for key in ("arrivals", "lengths") if getattr(self, key).kind == "trace"]
        if wanted and self.trace is None:
            raise ValueError(f"trace = null: {wanted[0]}.kind = 'trace' needs trace.path")
        kind = self.lengths.kind
        if kind == "sessions":
            if self.sessions is None:
                raise ValueError("sessions = null: lengths.kind = 'sessions' needs it")
            if self.arrivals.kind in ("trace", "servegen"):
                raise ValueError(
                    f"arrivals.kind = {self.arrivals.kind!r}: must be a drawn process with "
                    "lengths.kind = 'sessions'"
                )
        elif self.sessions is not None:
            raise ValueError(f"sessions: only with lengths.kind = 'sessions', not {kind!r}")
        if kind == "servegen" and self.arrivals.kind != "servegen":
            raise ValueError(
                f"arrivals.kind = {self.arrivals.kind!r}: must be 'servegen' with lengths.kind = "
                "'servegen', since lengths are those of the client and the hour"
            )
        return self
