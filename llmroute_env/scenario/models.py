"""A scenario: everything that defines an episode but its seed."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from os import PathLike
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, model_validator

from llmroute_env.scenario.cluster import Cluster, Objective, Router
from llmroute_env.scenario.fields import LONGEST_S, Count, Flag, NonNegative, Positive, Section
from llmroute_env.scenario.workload import Prediction, Workload

if TYPE_CHECKING:
    from llmroute_env.scenario.saturation import OfferedLoad

_SHORTEST_S = 1e-6
_MOST_REQUESTS = 1e8


class Scenario(Section):
    """A validated, immutable scenario. See ``configs/scenarios`` for examples.

    Build one with :meth:`load`, which turns every fault into a one-line ``ScenarioError``.
    """

    name: str = "unnamed"
    description: str = ""
    period_s: Positive  #: the router's decision interval [s]
    horizon: Annotated[Count | None, Field(alias="horizon_periods")] = None
    """T as written; null takes a trace's length. Read :attr:`horizon_periods` instead."""
    drain: Flag = False  #: after T, go on without arrivals until the cluster is empty
    max_drain_periods: Count = 100_000  #: the most periods that draining may take
    warmup_s: NonNegative = 0.0  #: metrics leave out requests and time before this [s]
    cluster: Cluster
    router: Router = Router()
    workload: Workload
    prediction: Prediction
    objective: Objective

    @model_validator(mode="after")
    def _consistent(self) -> Scenario:
        arrivals = self.workload.arrivals
        if self.horizon is None and arrivals.kind != "trace":
            raise ValueError(
                "horizon_periods = null: a number is needed unless workload.arrivals.kind = 'trace'"
            )
        if self.horizon is not None and self.warmup_s >= self.horizon * self.period_s:
            raise ValueError(
                f"warmup_s = {self.warmup_s:g}: must be below the horizon, horizon_periods * "
                f"period_s = {self.horizon * self.period_s:g} s"
            )
        self._numbers_hold()
        self._requests_fit()
        self._trace_format()
        return self

    def _numbers_hold(self) -> None:
        """Refuse what overflows: the clock counts int64 nanoseconds, request ids are int32."""
        if self.period_s < _SHORTEST_S:
            raise ValueError(f"period_s = {self.period_s:g}: must be at least {_SHORTEST_S:g} s")
        for group in self.cluster.fleet:
            timing = group.timing
            if timing.kind == "constant" and not _SHORTEST_S <= timing.iteration_s <= LONGEST_S:
                raise ValueError(
                    f"cluster.timing.iteration_s = {timing.iteration_s:g}: must be from "
                    f"{_SHORTEST_S:g} to {LONGEST_S:g} s"
                )
        periods = (self.horizon or 1) + (self.max_drain_periods if self.drain else 0)
        if periods * self.period_s > LONGEST_S:
            raise ValueError(
                f"horizon_periods = {self.horizon}: with period_s and max_drain_periods an episode "
                f"lasts {periods * self.period_s:g} s, must be at most {LONGEST_S:g} s"
            )
        arrivals = self.workload.arrivals
        if arrivals.kind != "trace" and self.horizon is not None:
            from llmroute_env.workload.arrivals import mean_rate

            horizon_s = self.horizon * self.period_s
            requests = mean_rate(arrivals, horizon_s) * horizon_s
            if requests > _MOST_REQUESTS:
                raise ValueError(
                    f"workload.arrivals: {requests:.3g} requests in the horizon, must be at most "
                    f"{_MOST_REQUESTS:g}"
                )

    def _trace_format(self) -> None:
        trace = self.workload.trace
        if trace is not None:
            from llmroute_env.workload.traces import FORMATS

            names = ["auto", *FORMATS]
            if trace.format not in names:
                raise ValueError(
                    f"workload.trace.format = {trace.format!r}: must be one of {', '.join(names)}"
                )

    def _requests_fit(self) -> None:
        """Refuse limits under which not even the smallest request of the workload fits."""
        lengths, cluster = self.workload.lengths, self.cluster
        smallest = 2
        if lengths.kind == "lognormal":
            smallest = lengths.prompt.min + lengths.decode.min
        elif lengths.kind == "quantiles":
            from llmroute_env.workload.quantiles import load_table

            table = load_table(lengths.table)
            smallest = int(table.prompt.value[0] + table.decode.value[0])
        for key in ("context_limit", "kv_limit"):
            limits = [getattr(group, key) for group in cluster.fleet]
            limit = None if None in limits else max(limits)
            if limit is not None and limit < smallest:
                raise ValueError(
                    f"cluster.{key} = {limit}: must be at least {smallest}, the s + o of the "
                    "smallest request of workload.lengths"
                )
        trace = self.workload.trace
        if (
            trace is not None
            and trace.over_limit == "clip"
            and all(g.context_limit is None and g.timing.kind == "constant" for g in cluster.fleet)
        ):
            raise ValueError(
                "workload.trace.over_limit = 'clip': needs cluster.context_limit to clip to"
            )

    # --- reading ---------------------------------------------------------------------------------

    @property
    def horizon_periods(self) -> int:
        """T, periods of arrivals and of the objective; a trace's length where none is given.

        Raises:
            TraceError: T is the trace's length and the file cannot be read.
        """
        if self.horizon is not None:
            return self.horizon
        from llmroute_env.workload.replay import last_arrival_s

        # Arrivals lie in [0, T * period_s): the last one must be strictly inside.
        return max(1, math.floor(last_arrival_s(self) / self.period_s) + 1)

    @property
    def horizon_s(self) -> float:
        """T in seconds."""
        return self.horizon_periods * self.period_s

    def offered_load(self) -> OfferedLoad:
        """Load of batch slots and of KV memory, 1 is saturation; NaN without the trace file."""
        from llmroute_env.scenario.saturation import offered_load

        return offered_load(self)

    def to_dict(self) -> dict[str, Any]:
        """The scenario as plain data, in the form of its YAML file."""
        return self.model_dump(mode="json", by_alias=True)

    def digest(self) -> str:
        """Twelve hex digits that stand for everything but name and description."""
        data = self.to_dict()
        del data["name"], data["description"]
        text = json.dumps(data, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    # --- making ----------------------------------------------------------------------------------

    @classmethod
    def load(
        cls,
        source: str | PathLike[str] | Mapping[str, Any] | Scenario,
        overrides: Mapping[str, Any] | None = None,
    ) -> Scenario:
        """Load and validate a scenario.

        Args:
            source: a name under ``configs/scenarios``, a path to a YAML file, a mapping of that
                form, or a ``Scenario``.
            overrides: dotted keys to values, ``{"router.window": 32}``. Text is read as YAML.

        Raises:
            ScenarioError: one line that names the key, its value and what is allowed.
        """
        from llmroute_env.scenario.loading import load

        return load(source, overrides)

    def with_overrides(self, overrides: Mapping[str, Any]) -> Scenario:
        """A copy with dotted keys changed, validated again."""
        return self.load(self, overrides)

    def with_prediction(self, prediction: str | Mapping[str, Any]) -> Scenario:
        """A copy with another prediction model, by kind or as a mapping with its parameters."""
        data = {"kind": prediction} if isinstance(prediction, str) else dict(prediction)
        return self.load({**self.to_dict(), "prediction": data})
