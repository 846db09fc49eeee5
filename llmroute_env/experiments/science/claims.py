"""What the paper says, as data: published figures, its settings, and its claims in words.

Source: Chen, Ye, Zhou, "Online Linear Programming for Multi-Objective Routing in LLM Serving",
arXiv 2607.03948, section 4 and appendix C. The paper gives neither B, M, T and the model, nor the
weights of its two tables, nor how unfinished requests count; those are swept (`sweeps`).
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final

from llmroute_env.experiments.science.episodes import Cell, weights
from llmroute_env.scenario import Scenario

#: Improvement over round robin in percent, by table, method and figure.
FIGURES: Final = ("avg EEL", "P95 EEL", "P99 EEL", "throughput", "SLO violation")
PUBLISHED: Final[dict[str, dict[str, tuple[float, ...]]]] = {
    "Table 1": {
        "LOR": (0.67, 4.01, 6.19, 0.53, 0.98),
        "Power-of-2": (1.30, 3.84, 6.06, 0.73, 1.84),
        "OLP": (45.75, 42.49, 25.85, 0.90, 11.10),
    },
    "Table 2": {
        "LOR": (1.47, 6.72, 9.67, 1.48, 3.92),
        "Power-of-2": (1.80, 6.35, 8.28, 1.39, 3.28),
        "OLP": (44.81, 45.69, 31.15, 1.93, 14.57),
    },
}

#: The summary key behind each figure, by how unfinished requests count.
KEYS: Final = {
    "all arrived": ("eel_mean_s", "eel_p95_s", "eel_p99_s", "throughput_tok_s", "violation"),
    "completed only": (
        "eel_mean_s_completed",
        "eel_p95_s_completed",
        "eel_p99_s_completed",
        "throughput_tok_s",
        "violation",
    ),
}

BASELINE: Final = "round_robin"
BASELINES: Final = {
    "round_robin": "round robin",
    "lor": "LOR",
    "random": "random",
    "power_of_d": "Power-of-2",
}
#: The published router on the default rolling horizon, and with the text's fixed horizon and
#: its rule that a request with margin <= 0 waits even while capacity is idle.
OLP: Final = "olp:pricing=paper"
OLP_TEXT: Final = "olp:pricing=paper:horizon=fixed:work_conserving=false"
OLP_FLUID: Final = "olp:pricing=fluid"
OLP_FLUID_MARGIN: Final = "olp:pricing=fluid:rank=margin"
SJF: Final = "sjf"

#: The paper's extreme settings of figure 3, its throughput emphasis, and figure 2's mixture
#: ("a relatively large sigma, zeta1 and zeta2 large"; its numbers are ours).
WEIGHT_SETTINGS: Final = {
    "average": weights({"beta": 1, "gamma": 1}),
    "tail": weights({"zeta1": 1, "zeta2": 1}),
    "throughput": weights({"alpha": 1, "sigma": 1}),
    "mixed": weights({"beta": 1, "gamma": 1, "sigma": 1000, "zeta1": 1000, "zeta2": 1000}),
}
#: Metrics that a weight setting targets.
TARGETS: Final = {
    "average": ("eel_mean_s", "ttft_mean_s"),
    "tail": ("eel_p99_s", "ttft_p99_s"),
    "throughput": ("throughput_tok_s",),
}
ZETA2: Final = (1e-9, 1e2, 3e2, 1e3, 3e3, 1e4, 1e5)

_NOISY: Final[dict[str, Any]] = {"kind": "uniform", "spread": 0.2}


@cache
def paper_cell(
    load: str = "overload",
    weighting: str = "average",
    prediction: str = "±20%",
    lengths: str = "LMSYS",
    **overrides: Any,
) -> Cell:
    """A cell of the paper's model.

    Args:
        load: ``stable`` (lambda 0.4), ``overload`` (0.5), ``shift`` (0.4 to 0.6 at T/2), or
            ``light`` (0.2).
        weighting: key of `WEIGHT_SETTINGS`, or ``zeta2=<value>`` on top of ``average``.
        prediction: ``±20%`` or ``perfect``.
        lengths: ``LMSYS``, ``1:4`` or ``4:1`` (prompt to decode).
        overrides: scenario keys with ``__`` for the dot.
    """
    base = {"LMSYS": "paper-stable", "1:4": "pd-1-4", "4:1": "pd-4-1"}[lengths]
    if load == "shift":
        base = "paper-rate-shift"
    scenario = Scenario.load(base)
    changes: dict[str, Any] = {
        "prediction": {"kind": "perfect"} if prediction == "perfect" else _NOISY
    }
    if load in ("overload", "light"):
        rate = getattr(scenario.workload.arrivals, "rate")  # noqa: B009  (all three are Poisson)
        changes["workload.arrivals.rate"] = rate * (1.25 if load == "overload" else 0.5)
    changes |= {key.replace("__", "."): value for key, value in overrides.items()}
    if weighting.startswith("zeta2="):
        zeta2 = float(weighting.partition("=")[2])
        chosen = weights({"beta": 1, "gamma": 1, "zeta2": zeta2})
    else:
        chosen = WEIGHT_SETTINGS[weighting]
    extra = "".join(f", {key.rpartition('__')[2]} {value}" for key, value in overrides.items())
    name = f"{lengths} {load} {prediction}{extra} [{weighting}]"
    return Cell(name, scenario.with_overrides(changes), chosen)
