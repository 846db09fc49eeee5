"""Sizes and categories of texts, and that asking for them changes nothing else."""

from __future__ import annotations

import hashlib
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from scipy import stats

from llmroute_env.scenario import Scenario, ScenarioError
from llmroute_env.scenario.text import Text
from llmroute_env.workload import Category, RequestTable, Streams, generate, text

MIX = {"prose": 0.6, "code": 0.3, "cjk": 0.1}

# Tables of seed 11 as they were before requests had texts, prefixes or sessions.
BEFORE = {
    "azure-code-a100": "e0dcfdcbd166f906",
    "azure-conv-a100": "ecb46d84d3039d42",
    "memory-bound-a100": "bd19c55330d87e24",
    "paper-overload": "c4389a41016b9db7",
    "paper-rate-shift": "f8d5a5894082bb6f",
    "paper-stable": "b6b586d0ace93049",
    "pd-1-4": "677a1c0ef1f3aa3f",
    "pd-4-1": "58667bf361130058",
}


def streams(seed: int = 0) -> Streams:
    return Streams.spawn(np.random.default_rng(seed))


@pytest.mark.parametrize("name", BEFORE)
def test_older_scenarios_draw_what_they_drew(name: str) -> None:
    table = generate(Scenario.load(name), streams(11))
    digest = hashlib.sha256()
    for column in (table.arrival_s, table.prompt, table.decode, table.predicted, table.tier):
        digest.update(column.tobytes())
    assert digest.hexdigest()[:16] == BEFORE[name]


@pytest.mark.parametrize("name", ["paper-overload", "azure-conv-a100"])
def test_texts_change_nothing_else(name: str) -> None:
    plain = generate(Scenario.load(name), streams())
    told = generate(Scenario.load(name, {"workload.text": {"mix": MIX}}), streams()).validate()
    for field in fields(RequestTable):
        if field.name in ("size_bytes", "category"):
            assert getattr(plain, field.name) is None
            assert getattr(told, field.name) is not None
        elif getattr(plain, field.name) is not None:
            assert np.array_equal(getattr(told, field.name), getattr(plain, field.name))
    again = generate(Scenario.load(name, {"workload.text": {"mix": MIX}}), streams())
    assert np.array_equal(again.size_bytes, told.size_bytes)  # type: ignore[arg-type]


def test_another_prediction_leaves_the_texts() -> None:
    scenario = Scenario.load("paper-overload", {"workload.text": {"mix": MIX}})
    table = generate(scenario, streams())
    for other in ("perfect", "mean", {"kind": "lognormal", "sigma": 1.0}):
        twin = generate(scenario.with_prediction(other), streams())
        assert np.array_equal(twin.size_bytes, table.size_bytes)  # type: ignore[arg-type]
        assert np.array_equal(twin.category, table.category)  # type: ignore[arg-type]


def test_categories_have_their_shares_and_bytes() -> None:
    count = 60_000
    spec = Text(mix=MIX)  # type: ignore[arg-type]
    prompt = np.full(count, 1_000)
    size, category = text.draw(spec, np.random.default_rng(0), prompt)
    shares = [MIX[entry.name.lower()] for entry in Category]
    expected = count * np.array(shares)
    assert stats.chisquare(np.bincount(category), expected).pvalue > 1e-3
    for entry in Category:
        ratio = getattr(spec.bytes_per_token, entry.name.lower())
        found = size[category == entry] / 1_000.0
        assert found.mean() == pytest.approx(ratio.mean, rel=0.01)
        assert np.log(found).std() == pytest.approx(ratio.spread, rel=0.03)
        assert stats.kstest(np.log(found), "norm", args=(
            np.log(ratio.mean) - 0.5 * ratio.spread**2, ratio.spread)).pvalue > 1e-3  # fmt: skip


def test_one_category_alone_and_bytes_of_ones_own() -> None:
    spec = Text.model_validate(
        {"mix": {"code": 1.0}, "bytes_per_token": {"code": {"mean": 2.5, "spread": 0.0}}}
    )
    size, category = text.draw(spec, np.random.default_rng(0), np.array([1, 10, 1_000]))
    assert category.tolist() == [Category.CODE] * 3
    assert size.tolist() == [2, 25, 2_500]
    tiny = Text.model_validate(
        {"mix": {"code": 1.0}, "bytes_per_token": {"code": {"mean": 0.1, "spread": 0.0}}}
    )
    assert text.draw(tiny, np.random.default_rng(0), np.array([1]))[0].tolist() == [1]


def test_a_text_is_the_same_however_many_follow() -> None:
    spec = Text(mix=MIX)  # type: ignore[arg-type]
    prompt = np.arange(1, 101)
    few = text.draw(spec, np.random.default_rng(3), prompt[:10])
    many = text.draw(spec, np.random.default_rng(3), prompt)
    assert few[0].tolist() == many[0][:10].tolist()
    assert few[1].tolist() == many[1][:10].tolist()


def test_a_session_is_one_text() -> None:
    spec = Text(mix=MIX)  # type: ignore[arg-type]
    session = np.array([0, 1, 0, 2, 1])
    prompt = np.array([100_000] * 5)
    size, category = text.draw(spec, np.random.default_rng(0), prompt, session)
    assert size[0] == size[2]
    assert size[1] == size[4]
    assert len({size[0], size[1], size[3]}) == 3
    assert category[0] == category[2]
    none = text.draw(spec, np.random.default_rng(0), prompt[:0], session[:0])
    assert [len(column) for column in none] == [0, 0]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"mix": {"prose": 0.5}}, "text.mix.prose = 0.5, code = 0, cjk = 0: must sum to 1"),
        ({"mix": {"prose": 1.5, "code": -0.5}}, "workload.text.mix.code = -0.5: must be at least"),
        ({"mix": {"poetry": 1.0}}, "unknown key workload.text.mix.poetry"),
        ({}, "workload.text.mix is missing"),
        ({"mix": {"code": 1}, "bytes_per_token": {"code": {"mean": 0, "spread": 0}}},
         "workload.text.bytes_per_token.code.mean = 0: must be above 0"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        Scenario.load("paper-stable", {"workload.text": changes})
    assert says in str(caught.value)
