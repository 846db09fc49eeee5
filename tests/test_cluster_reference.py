"""The compiled kernel against the plain-Python reference, on random episodes."""

from __future__ import annotations

from typing import Any

import pytest

hypothesis = pytest.importorskip("hypothesis")

from comparison import make, play  # noqa: E402
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from strategies import STYLES, Episode, episodes, tables, workload  # noqa: E402


@settings(max_examples=250)
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


@settings(max_examples=40)
@given(tables(fixed()), st.sampled_from(STYLES), st.integers(0, 99))
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"kv_block": 4, "kv_watermark": 0.1, "head_of_line_skip": True},
        {"timing": {"kind": "constant", "iteration_s": 0.37}},
    ],
    ids=["lock-step", "blocks", "own-clock"],
)
def test_one_environment_over_many_episodes(
    changes: dict[str, Any], rows: tuple[Any, ...], style: str, seed: int
) -> None:
    """State that a reset forgets to clear would show: the environment is used again."""
    key = repr(changes)
    if key not in ENVS:
        ENVS[key] = make(fixed(**changes))
    play(ENVS[key], Episode(fixed(**changes), rows, style, seed))


ENVS: dict[str, Any] = {}


def test_both_reasons_of_rejection_at_reset_and_later() -> None:
    rows = tuple((at, s, o, float(o), 0) for at in (0.0, 0.5, 3.0) for s, o in ((30, 11), (5, 16)))
    scenario = fixed(context_limit=20)
    reference = play(make(scenario), Episode(scenario, rows, "flood", 1))
    assert [r.reason for r in reference.requests] == [1, 2] * 3


def test_an_empty_table_and_no_request_at_all() -> None:
    scenario = fixed()
    play(make(scenario), Episode(scenario, (), "illegal", 3))
