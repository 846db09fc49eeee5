"""The policy ``olp``: online linear programming with bid prices."""

from __future__ import annotations

from statistics import NormalDist
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from policies.base import Build, Kernels, Policy
from policies.olp.decision import decide
from policies.olp.drift import arrival_rate
from policies.olp.drivers import decide_lanes, run
from policies.olp.errors import correction
from policies.olp.layout import make_grid, to_devices
from policies.olp.requirements import (
    TargetParameters,
    deadline_s,
    fresh_goals,
    report,
    target_rows,
)
from policies.olp.slowdown import kv_time
from policies.olp.state import Load, Number, OlpMemory, OlpParams, OlpScratch, Slow, Trend
from policies.olp.tracking import Sent, end_row

_WEIGHTS = ("alpha", "beta", "gamma", "sigma", "zeta1", "zeta2", "tail_eel_s", "tail_ttft_s")

Weight = Annotated[float, Field(ge=0)]
Size = Annotated[int, Field(ge=1)]


class OnlineLp(Policy):
    """OLP, the online-LP bid-price router. Information: predicted.

    Every device has a price per batch slot and per KV token for each of the next H iterations,
    learned from a history of requests by a warm-started projected subgradient of the dual of the
    routing LP. A request's margin is its reward (``objective``) less the price of what it would
    occupy. Requests are started by descending margin where they can start now and fit over their
    planned stay.

    Source: arXiv 2607.03948. Choices where the paper is silent or contradicts itself:

    * Scarcity d: remaining capacity over the arrivals expected in the look-ahead, max(rate * H, 1)
      with the rate of the drift module; so d.p and the mean over the history are per arrival.
    * Columns keep the absolute slot of their request's arrival; what lies before now is dropped,
      and prices move one slot a period with the clock. Most of the history is then in the past.
    * Step size: relative to the squared norm of the columns, per resource (``history.py``).
    * Reward and plan: n = clip(round(ô), 1, min(M, context) - s), 0-based boundaries
      (``columns.py``). History: every request once, feasible devices only (``history.py``).
    * Rolling horizon: T - k is a constant R, by default the longest stay that fits a device.
      gamma's term is then a constant and beta's depends on ô alone, so waiting never raises a
      margin: starvation is built in, and OLP resembles shortest-first on latency weights.
    * Iterations that differ from the period: slots are iterations, rewards are in periods, each
      group of devices at its own pace. Prefill on the device: ``modes.py``. What a request costs by
      making iterations longer is left out, as in the paper, but for fluid prices: ``slowdown.py``.
    * Drift: a one-sided Poisson test of a sliding window (``drift.py``).
    """

    name = "olp"
    information = "predicted"
    kernels: ClassVar[Kernels] = Kernels(decide, decide_lanes, run)

    class Parameters(TargetParameters):
        """Parameters of ``olp``. Weights and limits default to the scenario's objective."""

        #: paper: as published; fluid: our own, ``fluid.py``; none: prices stay 0
        pricing: Literal["paper", "fluid", "none"] = "paper"
        #: default: index with fluid prices or a target, margin otherwise
        rank: Literal["margin", "index"] | None = None
        #: D of the index, as a multiple of the start-delay limit (of 0.1 of the EEL target's alone)
        patience: Annotated[float, Field(gt=0)] = 1.0
        #: a of the index: after a wait w, latency is lost 1 + (a w / D)^2 times as fast
        aging: Annotated[float, Field(ge=0)] = 0.0
        lookahead: Size = 512  #: H [iterations]
        steps: Annotated[int, Field(ge=0)] = 5  #: K, subgradient steps per period
        batch: Size = 64  #: columns per step
        step_size: Annotated[float, Field(gt=0)] = 0.1  #: relative, see ``history.py``
        history: Size = 1024  #: columns kept
        mem_scale: Annotated[float, Field(gt=0)] | None = None  #: default 1 / M
        horizon: Literal["rolling", "fixed"] = "rolling"
        #: R [periods]; raised to the longest stay seen. Default: the longest that fits a device
        window_periods: Annotated[float, Field(ge=1)] | None = None
        #: correct predicted lengths by their errors, ``errors.py``; default: with fluid prices,
        #: unless devices prefill (rows of the batch cannot be told apart then)
        correct: bool | None = None
        #: count the time that a request adds to iterations, ``slowdown.py``; default: with fluid
        #: prices, unless devices prefill (the prompts in them lengthen iterations as well)
        slowdown: bool | None = None
        #: fill idle capacity at margins <= 0, too; default: not with fluid prices and no target
        work_conserving: bool | None = None
        reward_normalizer: Annotated[float, Field(gt=0)] | None = None  #: default: largest reward
        alpha: Weight | None = None
        beta: Weight | None = None
        gamma: Weight | None = None
        sigma: Weight | None = None
        zeta1: Weight | None = None
        zeta2: Weight | None = None
        tail_eel_s: Weight | None = None  #: [s]
        tail_ttft_s: Weight | None = None  #: [s]
        drift: bool = True  #: restart history and rate on a significant increase
        drift_window: Size = 400  #: [periods]
        drift_significance: Annotated[float, Field(gt=0, lt=0.5)] = 1e-4  #: of one test
        smoothing: Annotated[float, Field(gt=0, le=1)] = 0.05  #: of the iteration time
        record: Annotated[int, Field(ge=0)] = 512  #: samples of ``diagnostics()["series"]``

    parameters: Parameters

    def build(self) -> Build:
        """Return params, the memory of one fresh lane, and scratch."""
        given = self.parameters
        priced = given.pricing != "none"
        fluid = given.pricing == "fluid"
        if given.correct and self.spec.prefill:
            raise ValueError(
                "olp: correct=true: errors are seen where devices only decode, these prefill, too"
            )
        if given.slowdown and self.spec.prefill:
            raise ValueError(
                "olp: slowdown=true: it is learned where devices only decode, these prefill, too"
            )
        if given.slowdown and not priced:
            raise ValueError("olp: slowdown=true: time has no price with pricing=none")
        slowdown = fluid and not self.spec.prefill if given.slowdown is None else given.slowdown
        corrected = fluid and not self.spec.prefill if given.correct is None else given.correct
        drift = given.drift_window if given.drift and priced else 0
        self.weights = {
            key: float(getattr(self.spec.objective, key) if value is None else value)
            for key, value in ((key, getattr(given, key)) for key in _WEIGHTS)
        }
        patience_s = given.patience * deadline_s(given, self.weights["tail_ttft_s"])
        patience_s = max(patience_s, self.spec.period_s)
        self.targets = target_rows(given, self.weights, patience_s / self.spec.period_s)
        indexed = fluid or len(self.targets) > 0
        # Prices lag behind a multiplier that moves, so margins say little with a target.
        conserving = not fluid or len(self.targets) > 0
        if given.work_conserving is not None:
            conserving = given.work_conserving
        pool = self.spec.pool or ("",) * self.spec.devices
        pools = list(dict.fromkeys(pool))
        group = np.array([pools.index(name) for name in pool], np.int64)
        g, w, h = self.spec.devices, self.spec.window, given.lookahead
        grid = make_grid(g, h)
        params = OlpParams(
            grid=grid,
            priced=int(priced),
            fluid=int(fluid),
            indexed=int((given.rank or ("index" if indexed else "margin")) == "index"),
            patience_s=patience_s,
            step_size=given.step_size,
            mem_scale=given.mem_scale or 0.0,
            rolling=int(given.horizon == "rolling"),
            window_periods=given.window_periods or 0.0,
            horizon_periods=float(self.spec.horizon_periods),
            aging=given.aging,
            work_conserving=int(conserving),
            normalizer=given.reward_normalizer or 0.0,
            forget=1.0 / given.history if corrected else 0.0,
            period_s=self.spec.period_s,
            smoothing=given.smoothing,
            drift_periods=drift,
            record_stride=-(-self.spec.horizon_periods // max(given.record, 1)),
            drift_z=NormalDist().inv_cdf(1.0 - given.drift_significance),
            weights=np.array([self.weights[key] for key in _WEIGHTS]),
            context_limit=np.array(self.spec.context_limit, np.int64),
            targets=self.targets,
            prefill=int(self.spec.prefill),
            steps=int(self.spec.prefill and not self.spec.emits_token),
            shared=int(self.spec.prefix_block > 0),
            chunk_tokens=self.spec.chunk_tokens,
            group=group,
            slowdown=int(slowdown),
        )
        lanes = (grid.rows, grid.lanes)
        numbers = np.zeros(len(Number))
        numbers[[Number.PERIOD, Number.LAST_ID, Number.LAST_DRIFT]] = -1.0
        kept = given.history if priced else 1
        demand = grid.blocks if fluid else 0
        tracked = g if end_row(self.targets) >= 0 else 0
        memory = OlpMemory(
            rng=np.zeros(1, np.uint64),
            pointer=np.zeros(1, np.int64),
            numbers=numbers,
            prices=np.zeros((grid.blocks if priced else 0, 2, *lanes)),
            columns=np.zeros((kept, 4), np.int32),
            rewards=np.zeros(kept),
            arrivals=np.zeros(drift, np.int32),
            margins=np.full(w, np.nan, np.float32),
            series=np.full(
                (given.record if priced else 0, 4 + 2 * len(self.targets)), np.nan, np.float32
            ),
            goals=fresh_goals(given, self.targets),
            sent=np.zeros((tracked, self.spec.slots, len(Sent))),
            held=np.zeros(tracked, np.int64),
            seen=np.zeros((g, self.spec.slots if corrected else 0, 4), np.float32),
            seen_count=np.zeros((g, 2), np.int64),
            pace=np.zeros(len(pools)),
            trend=np.zeros((len(pools), len(Trend))),
        )
        scratch = OlpScratch(
            scarcity=np.zeros((2, *lanes)),
            events=np.zeros((2, *lanes)),
            sums=np.zeros((grid.blocks, 2, *lanes)),
            carry=np.zeros((grid.blocks, 2, grid.lanes)),
            running=np.zeros((4, grid.lanes)),
            limits=np.zeros((3, grid.lanes)),
            picks=np.zeros((given.steps, given.batch), np.int32),
            demand_scarcity=np.zeros((demand, 2, *lanes)),
            demand_events=np.zeros((demand, 2, *lanes)),
            demand_running=np.zeros((demand, 4, grid.lanes)),
            load=np.zeros((g, len(Load)), np.int64),
            leaving=np.zeros((g, 2, h), np.int64),
            peaks=np.zeros((g, h + 1), np.int64),
            predicted=np.zeros(w),
            active=np.zeros((g, self.spec.slots, 2), np.float32),
            keys=np.zeros(w),
            heap=np.zeros(w, np.int64),
            pace=np.zeros(g),
            share=np.ones(g),
            slow=np.zeros((g, Slow.COMPANY + 2 * (h + 1))),
        )
        return Build(params, memory, scratch)

    def diagnostics(self) -> dict[str, Any]:
        """Return the state of lane 0 after its last decision.

        Keys:
            price_batch, price_memory: (G, H) prices of the next H slots, per batch slot and per
                1 / mem_scale tokens (by default: the KV of a whole device), in shares of the
                largest reward.
            mean_price_batch, mean_price_memory: their means.
            margins: (W,) of the last ranking, NaN where a row was empty or fitted nowhere.
            ranked, positive, started, started_positive: counts over the episode of candidates
                ranked, those with a positive margin, and requests sent.
            acceptance: started / ranked; 0 before the first ranking.
            rate: arrivals per period since the estimate started anew.
            iteration_periods: smoothed iteration time [periods], 0 before telemetry shows one.
            kv_time_s: (pools,) time that a KV token adds to an iteration, as learned [s].
            correction: factor of the predicted lengths, 1 without correction.
            columns: columns in the history.
            drifts, last_drift: rate increases detected, and the period of the last (-1: none).
            series: dict of (n,) arrays ``period``, ``price_batch``, ``price_memory``, ``rate``,
                about ``record`` samples over the horizon; of a longer run the last ones. With
                targets also ``multiplier_<target>`` and ``inside_<target>``, the moving share.
            infeasible: whether some target cannot be met at present.
            targets: by name a dict with ``share`` (asked for), ``attained`` (of all settled),
                ``recent`` (moving average over 20 expected misses), ``settled``, ``multiplier``,
                ``infeasible``; then ``attainable``, the best share that any level of the
                multiplier attained in a window, and ``shortfall``, how far that is; else NaN.
        """
        memory, numbers = self.memory, self.memory.numbers
        shape = (2, self.spec.devices, self.parameters.lookahead)
        prices = np.zeros(shape)
        if memory.prices.size:
            prices = to_devices(self.params.grid, memory.prices)
        ranked = numbers[Number.RANKED]
        found: dict[str, Any] = {
            "price_batch": prices[0],
            "price_memory": prices[1],
            "mean_price_batch": float(prices[0].mean()),
            "mean_price_memory": float(prices[1].mean()),
            "margins": memory.margins.copy(),
            "ranked": int(ranked),
            "positive": int(numbers[Number.POSITIVE]),
            "started": int(numbers[Number.STARTED]),
            "started_positive": int(numbers[Number.STARTED_POSITIVE]),
            "acceptance": float(numbers[Number.STARTED] / ranked) if ranked else 0.0,
            "rate": float(arrival_rate(numbers)),
            "iteration_periods": float(numbers[Number.ITERATION]),
            "kv_time_s": np.array([kv_time(row) for row in memory.trend]) * self.spec.period_s,
            "correction": correction(numbers),
            "columns": int(numbers[Number.COLUMNS]),
            "drifts": int(numbers[Number.DRIFTS]),
            "last_drift": int(numbers[Number.LAST_DRIFT]),
        }
        found |= report(self.targets, memory.goals)
        if memory.series.shape[0]:
            rows = memory.series[~np.isnan(memory.series[:, 0])]
            rows = rows[np.argsort(rows[:, 0], kind="stable")]
            keys = ["period", "price_batch", "price_memory", "rate"]
            keys += [f"multiplier_{name}" for name in found["targets"]]
            keys += [f"inside_{name}" for name in found["targets"]]
            found["series"] = {key: rows[:, i].copy() for i, key in enumerate(keys)}
        return found
