"""The compiled kernel against the plain-Python reference, on random episodes."""

from __future__ import annotations

from typing import Any

import pytest

hypothesis = pytest.importorskip("hypothesis")

from comparison import make, play  # noqa: E402
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from strategies import STYLES, Episode, Row, episodes, tables, workload  # noqa: E402


@settings(max_examples=200)
@given(episodes())
def test_kernel_equals_reference(episode: Episode) -> None:
    play(make(episode.scenario), episode)


def fixed(**changes: Any) -> dict[str, Any]:
    scenario: dict[str, Any] = {
        "name": "fixed",
        "period_s": 1.0,
        "horizon_periods": 30,
        "drain": True,
        "max_drain_periods": 10_000,
        "cluster": {
            "devices": 2,
            "batch_limit": 4,
            "kv_limit": 40,
            "context_limit": None,
            "kv_block": 1,
            "kv_watermark": 0.0,
            "head_of_line_skip": False,
            "timing": {"kind": "constant", "iteration_s": 1.0},
        },
        "router": {"window": 8},
        "workload": workload(),
        "prediction": {"kind": "perfect"},
        "objective": {
            "alpha": 1.0,
            "beta": 1.0,
            "gamma": 1.0,
            "sigma": 1.0,
            "zeta1": 1.0,
            "zeta2": 1.0,
            "tail_eel_s": 20.0,
            "tail_ttft_s": 10.0,
        },
    }
    for key, value in changes.items():
        if key in scenario:
            scenario[key] = value
        else:
            scenario["cluster"][key] = value
    return scenario


@pytest.fixture(scope="module")
def used() -> dict[str, Any]:
    """Environments that the examples of one test share."""
    return {}


@settings(max_examples=30)
@given(tables(fixed()), st.sampled_from(STYLES), st.integers(0, 99))
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"kv_block": 4, "kv_watermark": 0.1, "head_of_line_skip": True},
        {"timing": {"kind": "constant", "iteration_s": 0.37}},
        {"kv_block": 4, "drain": False, "horizon_periods": 15},  # cut off with full devices
    ],
    ids=["lock-step", "blocks", "own-clock", "cut"],
)
def test_one_environment_over_many_episodes(
    used: dict[str, Any], changes: dict[str, Any], rows: tuple[Row, ...], style: str, seed: int
) -> None:
    """State that a reset forgets to clear would show: the environment is used again."""
    key = repr(changes)
    if key not in used:
        used[key] = make(fixed(**changes))
    play(used[key], Episode(fixed(**changes), rows, style, seed))


def test_both_reasons_of_rejection_at_reset_and_later() -> None:
    rows = tuple((at, s, o, float(o), 0) for at in (0.0, 0.5, 3.0) for s, o in ((30, 11), (5, 16)))
    scenario = fixed(context_limit=20)
    reference = play(make(scenario), Episode(scenario, rows, "flood", 1))
    assert [r.reason for r in reference.requests] == [1, 2] * 3


def test_what_arrives_after_the_horizon_never_does() -> None:
    """A drain goes on without arrivals: only the one at T itself is still let in."""
    scenario = fixed(horizon_periods=5)
    rows = tuple((at, 3, 4, 4.0, 0) for at in (0.0, 4.9, 5.0, 5.1, 9.0))
    reference = play(make(scenario), Episode(scenario, rows, "flood", 1))
    assert [r.status for r in reference.requests] == [3, 3, 3, 5, 5]


def test_an_empty_table_and_no_request_at_all() -> None:
    scenario = fixed()
    play(make(scenario), Episode(scenario, (), "illegal", 3))


#: Embedded scenarios, with memory or batches tight enough that every rule fires.
REAL: dict[str, dict[str, Any]] = {
    "paper-overload": {"cluster.batch_limit": 12, "cluster.kv_limit": 4_100},
    "paper-rate-shift": {"workload.arrivals.rate": 2.0, "cluster.kv_limit": 6_000},
    "azure-conv-a100": {"cluster.kv_limit": 9_000, "workload.arrivals.rate": 30.0},
    "azure-code-a100": {
        "cluster.kv_limit": 12_000,
        "cluster.kv_watermark": 0.02,
        "workload.arrivals.rate": 30.0,
    },
    "memory-bound-a100": {"cluster.head_of_line_skip": True, "cluster.kv_limit": 8_000},
}


@pytest.mark.parametrize("style", ["spread", "late", "trickle"])
@pytest.mark.parametrize("name", list(REAL))
def test_kernel_equals_reference_on_embedded_scenarios(name: str, style: str) -> None:
    """Hundreds of requests of real sizes, over episodes long enough for thousands of tokens."""
    size = {"horizon_periods": 300, "router.window": 24, "drain": True, "max_drain_periods": 100}
    env = make(name, overrides={**size, **REAL[name]})
    env.reset(seed=8)
    requests = env.requests
    rows = tuple(
        zip(
            requests.arrival_s.tolist(),
            requests.prompt.tolist(),
            requests.decode.tolist(),
            requests.predicted.tolist(),
            requests.tier.tolist(),
            strict=True,
        )
    )
    scenario = env.scenario.to_dict()
    scenario["cluster"]["batch_limit"] = int(env.spec_cluster.batch_limit[0])
    scenario["cluster"]["context_limit"] = int(env.spec_cluster.context_limit[0])
    play(env, Episode(scenario, rows, style, 5), stride=20)
