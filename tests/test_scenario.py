"""Scenarios: what is embedded, what is refused and how, overrides, load, digests."""

from __future__ import annotations

import copy
import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from llmroute_env.scenario import (
    Scenario,
    ScenarioError,
    config_directory,
    list_scenarios,
    parse_assignments,
)
from llmroute_env.scenario.saturation import limits
from llmroute_env.scenario.workload import Gamma, OnOff, Perfect, Poisson, RateShift

PAPER = ("paper-stable", "paper-overload", "paper-rate-shift")
LOCK_STEP = (*PAPER, "pd-1-4", "pd-4-1")
A100 = ("azure-conv-a100", "azure-code-a100", "memory-bound-a100")
POOLS = tuple(
    f"{fleet}-azure-{work}" for fleet in ("dual-pool", "homogeneous") for work in ("conv", "code")
)
PREFIXES = ("chat-prefix", "agent-prefix", "mooncake-conversation")


def data(name: str = "paper-overload") -> dict[str, Any]:
    text = (config_directory() / "scenarios" / f"{name}.yaml").read_text(encoding="utf-8")
    loaded = yaml.safe_load(text)
    assert isinstance(loaded, dict)
    return loaded


def message(source: Any, overrides: dict[str, Any] | None = None) -> str:
    """The one line that loading ends with."""
    with pytest.raises(ScenarioError) as caught:
        Scenario.load(source, overrides)
    text = str(caught.value)
    assert "\n" not in text
    assert "pydantic" not in text
    return text


# --- what is embedded ------------------------------------------------------------------------


def test_every_embedded_scenario_loads_and_survives_a_round_trip() -> None:
    names = list_scenarios()
    assert set(names) == {*LOCK_STEP, *A100, *PREFIXES, *POOLS, "trace"}
    for name in names:
        scenario = Scenario.load(name)
        assert scenario.name == name
        assert scenario.description
        assert Scenario.load(scenario.to_dict()) == scenario
        assert Scenario.load(yaml.safe_load(yaml.safe_dump(scenario.to_dict()))) == scenario
        assert pickle.loads(pickle.dumps(scenario)) == scenario
        assert hash(copy.deepcopy(scenario)) == hash(scenario)


@pytest.mark.parametrize("name", LOCK_STEP)
def test_the_papers_constants(name: str) -> None:
    scenario = Scenario.load(name)
    cluster, objective = scenario.cluster, scenario.objective
    assert (cluster.devices, cluster.batch_limit, cluster.kv_limit) == (4, 24, 16_000)
    assert (scenario.horizon_periods, scenario.period_s, scenario.router.window) == (4000, 1.0, 512)
    assert cluster.timing.kind == "constant"
    assert cluster.timing.iteration_s == scenario.period_s
    weights = [getattr(objective, key) for key in ("alpha", "beta", "gamma", "sigma")]
    assert weights == [0.0, 1.0, 1.0, 0.0]
    assert (objective.zeta1, objective.zeta2) == (0.0, 0.0)
    assert (objective.tail_eel_s, objective.tail_ttft_s) == (400.0, 49.0)
    assert scenario.prediction.kind == "uniform"
    assert scenario.prediction.spread == 0.2
    lengths = scenario.workload.lengths
    assert lengths.kind == "lognormal"
    assert (lengths.prompt.sigma, lengths.prompt.min, lengths.prompt.max) == (1.2, 1, 4000)
    assert (lengths.decode.sigma, lengths.decode.min, lengths.decode.max) == (0.9, 1, 2000)
    if name in PAPER:
        assert (lengths.prompt.mean, lengths.decode.mean) == (69.5, 214.5)


def test_the_papers_arrivals() -> None:
    assert Scenario.load("paper-stable").workload.arrivals == Poisson(rate=0.4)
    assert Scenario.load("paper-overload").workload.arrivals == Poisson(rate=0.5)
    shift = Scenario.load("paper-rate-shift").workload.arrivals
    assert shift == RateShift(rate=0.4, rate_after=0.6, shift_at=0.5)


@pytest.mark.parametrize(("name", "ratio"), [("pd-1-4", 1 / 4), ("pd-4-1", 4.0)])
def test_pd_scenarios_keep_the_load(name: str, ratio: float) -> None:
    workload = Scenario.load(name).workload
    assert workload.lengths.kind == "lognormal"
    assert workload.arrivals.kind == "poisson"
    prompt, decode = workload.lengths.prompt.mean, workload.lengths.decode.mean
    assert prompt / decode == pytest.approx(ratio)
    assert workload.arrivals.rate * decode == pytest.approx(0.4 * 214.5, rel=1e-5)


# --- offered load ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [
        ("paper-stable", 0.88, 0.90),
        ("paper-overload", 1.10, 1.12),
        ("pd-1-4", 0.88, 0.90),
        ("pd-4-1", 0.88, 0.90),
        ("azure-conv-a100", 0.90, 0.95),
        ("azure-code-a100", 0.90, 0.95),
        ("memory-bound-a100", 0.90, 0.95),
    ],
)
def test_offered_load(name: str, low: float, high: float) -> None:
    load = Scenario.load(name).offered_load()
    assert low <= load.rho <= high
    assert load.binding == ("kv" if name == "memory-bound-a100" else "batch")
    assert min(load.batch, load.kv) < 0.9


def test_offered_load_of_a_rate_shift_has_a_peak() -> None:
    load = Scenario.load("paper-rate-shift").offered_load()
    stable = Scenario.load("paper-stable").offered_load()
    assert load.peak == pytest.approx(1.5 * stable.rho)
    assert load.rho == pytest.approx(1.25 * stable.rho)


def test_offered_load_in_closed_form() -> None:
    # s = 10 and o = 3 always: a request holds 11 + 12 + 13 = 36 token-iterations.
    one = {"mean": 1.0, "sigma": 0.0}
    changed = {
        "workload.lengths.prompt": {**one, "min": 10, "max": 10},
        "workload.lengths.decode": {**one, "min": 3, "max": 3},
        "cluster.timing.iteration_s": 0.5,
    }
    load = Scenario.load("paper-stable", changed).offered_load()
    assert load.batch == pytest.approx(0.4 * 3 * 0.5 / (4 * 24))
    assert load.kv == pytest.approx(0.4 * 36 * 0.5 / (4 * 16_000))
    assert load.rejected_share == 0.0
    assert load.requests == pytest.approx(1600)


def test_a_missing_trace_leaves_the_load_open_and_says_where_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    scenario = Scenario.load("trace")
    load = scenario.offered_load()
    assert math.isnan(load.rho)
    with pytest.raises(ScenarioError, match=r"AzurePublicDataset.*workload\.trace\.path"):
        _ = scenario.horizon_periods


@pytest.mark.parametrize("name", A100)
def test_a100_limits_come_from_the_planner(name: str) -> None:
    scenario = Scenario.load(name)
    (device,) = limits(scenario)
    assert scenario.cluster.memory is not None
    assert device.batch_limit == scenario.cluster.memory.max_num_seqs
    assert 105_000 < device.kv_limit < 120_000  # about 112k tokens of Llama-2-7B
    assert device.context_limit == 4_096
    full = scenario.offered_load().iteration_s
    assert 0.5 * scenario.period_s < full < 2.5 * scenario.period_s
    assert scenario.offered_load().requests < 7_000


def test_a_model_that_does_not_fit_ends_in_one_line() -> None:
    scenario = Scenario.load("azure-conv-a100", {"cluster.timing.model": "llama-2-70b"})
    with pytest.raises(ScenarioError, match="does not fit") as caught:
        limits(scenario)
    assert "\n" not in str(caught.value)


# --- what is refused -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("cluster.devices", -1, "cluster.devices = -1: must be at least 1"),
        ("cluster.devices", 2.5, "cluster.devices = 2.5: must be an integer"),
        ("cluster.devices", True, "cluster.devices = true: must be an integer"),
        ("cluster.devices", [4], "cluster.devices = [4]: must be an integer"),
        ("period_s", "25ms", "period_s = '25ms': must be a number of seconds"),
        ("period_s", 0, "period_s = 0: must be above 0"),
        ("period_s", ".nan", "period_s = nan: must be a finite number"),
        ("workload.arrivals.rate", ".inf", "workload.arrivals.rate = inf: must be a finite"),
        ("workload.arrivals.rate", -0.5, "workload.arrivals.rate = -0.5: must be above 0"),
        ("workload.arrivals.rate", None, "workload.arrivals.rate = null: must be a number"),
        ("workload.arrivals.rate", 1e9, "requests in the horizon"),
        ("objective.beta", -1, "objective.beta = -1: must be at least 0"),
        ("router.window", 0, "router.window = 0: must be at least 1"),
        ("drain", "perhaps", "drain = 'perhaps': must be true or false"),
        ("name", 3, "name = 3: must be text"),
        ("cluster", 4, "cluster = 4: must be a mapping"),
        ("cluster.kv_watermark", 1, "cluster.kv_watermark = 1: must be below 1"),
        ("prediction.spread", 1.0, "prediction.spread = 1.0: must be below 1"),
        ("prediction.kind", "perfekt", "did you mean 'perfect'?"),
        ("workload.lengths.decode.min", 3000, "workload.lengths.decode.max = 2000: must be at"),
        ("cluster.context_limit", 1, "cluster.context_limit = 1: must be at least 2"),
        ("cluster.batch_limit", None, "cluster.batch_limit = null: a number is needed"),
        ("cluster.kv_limit", None, "cluster.kv_limit = null: a number is needed"),
        ("cluster.kv_block", 20_000, "cluster.kv_block = 20000: must be at most kv_limit"),
        ("cluster.memory", {"utilization": 0.9}, "cluster.memory: only allowed with"),
        ("warmup_s", 4000, "warmup_s = 4000: must be below the horizon"),
        ("horizon_periods", None, "horizon_periods = null: a number is needed"),
        ("period_s", 1e7, "must be at most 4e+09 s"),
        ("period_s", 1e-9, "period_s = 1e-09: must be at least 1e-06"),
        (
            "cluster.timing.iteration_s",
            1e10,
            "cluster.timing.iteration_s = 1e+10: must be from 1e-06 to 4e+09",
        ),
        ("workload.arrivals.kind", "trace", "workload.trace = null: arrivals.kind = 'trace'"),
        ("workload.arrivals.kind", "gamma", "workload.arrivals.cv is missing"),
    ],
)
def test_a_bad_value_ends_in_one_line_that_names_it(key: str, value: Any, says: str) -> None:
    text = message("paper-overload", {key: value})
    assert text.startswith("scenario paper-overload: ")
    assert says in text


@pytest.mark.parametrize("share", [0, 1, -0.1, 1.5])
def test_a_shift_lies_inside_the_horizon(share: float) -> None:
    text = message("paper-rate-shift", {"workload.arrivals.shift_at": share})
    assert f"workload.arrivals.shift_at = {share}: must be" in text


def test_no_request_fits() -> None:
    text = message(
        "paper-overload",
        {"workload.lengths.prompt.min": 300, "cluster.context_limit": 300},
    )
    assert "cluster.context_limit = 300: must be at least 301" in text
    text = message("azure-conv-a100", {"cluster.context_limit": 8})  # the table begins at 2 + 7
    assert "cluster.context_limit = 8: must be at least 9" in text


def test_clipping_needs_a_limit() -> None:
    trace = {"path": "x.csv", "over_limit": "clip"}
    text = message("paper-overload", {"workload.trace": trace})
    assert "workload.trace.over_limit = 'clip': needs cluster.context_limit" in text


@pytest.mark.parametrize(
    ("trace", "says"),
    [
        ({"path": ""}, "workload.trace.path = ''"),
        ({"path": "x.csv", "format": "azur"}, "workload.trace.format = 'azur': must be one of"),
        ({"path": "x.csv", "zero_output": "drop"}, "must be 'error' or 'skip'"),
        ({"path": "x.csv", "rate_scale": 0}, "workload.trace.rate_scale = 0: must be above 0"),
        ({"path": "x.csv", "max_requests": 0}, "workload.trace.max_requests = 0"),
        ({"path": "x.csv", "format": "vidur", "time_unit": "ms"}, "time_unit: only with format"),
        ({"path": "x.csv", "colums": {}}, "unknown key workload.trace.colums; did you mean"),
    ],
)
def test_trace_options(trace: dict[str, Any], says: str) -> None:
    assert says in message("paper-overload", {"workload.trace": trace})


@pytest.mark.parametrize(
    ("prediction", "says"),
    [
        ({"kind": "bucketed"}, "exactly one of them is needed"),
        ({"kind": "bucketed", "edges": [10.0], "width": 5.0}, "exactly one of them is needed"),
        ({"kind": "bucketed", "edges": [10.0, 5.0]}, "ascending"),
        ({"kind": "bucketed", "edges": []}, "one or more"),
        ({"kind": "bucketed", "edges": 7}, "must be a list"),
        ({"kind": "bucketed", "edges": [10, -5]}, "prediction.edges.1 = -5: must be above 0"),
        ({"kind": "lognormal", "sigma": 50}, "prediction.sigma = 50: must be at most 10"),
        ({"kind": "biased"}, "prediction.factor is missing"),
        ({"spread": 0.2}, "prediction.kind is missing"),
    ],
)
def test_prediction_options(prediction: dict[str, Any], says: str) -> None:
    assert says in message({**data(), "prediction": prediction})


def test_unknown_keys_name_the_nearest() -> None:
    bad = data()
    bad["cluster"]["devises"] = bad["cluster"].pop("devices")
    assert "unknown key cluster.devises; did you mean 'devices'?" in message(bad)
    bad = data()
    bad["workload"]["arrivals"]["cv"] = 2.0  # a key of another kind
    assert "unknown key workload.arrivals.cv" in message(bad)


def test_a_section_that_is_missing_is_named() -> None:
    bad = data()
    del bad["objective"]
    assert message(bad).endswith("objective is missing")
    bad = data()
    del bad["cluster"]["timing"]["iteration_s"]
    assert "cluster.timing.iteration_s is missing" in message(bad)


def test_a_missing_table_names_the_nearest() -> None:
    text = message("azure-conv-a100", {"workload.lengths.table": "azure-2023-con"})
    assert "workload.lengths.table = 'azure-2023-con': no such table; did you mean" in text


# --- where scenarios come from ---------------------------------------------------------------


def test_sources(tmp_path: Path) -> None:
    scenario = Scenario.load("paper-overload")
    assert Scenario.load(scenario) is scenario
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(data()), encoding="utf-8")
    for source in (path, str(path)):
        loaded = Scenario.load(source)
        assert loaded.name == "mine"
        assert loaded.digest() == scenario.digest()
    assert Scenario.load({**data(), "name": "paper-overload"}) == scenario


def test_bad_sources(tmp_path: Path) -> None:
    assert "did you mean 'paper-overload'?" in message("paper-overlaod")
    assert "no such file" in message(str(tmp_path / "absent.yaml"))
    path = tmp_path / "broken.yaml"
    path.write_text("cluster: {devices: 4\nrouter", encoding="utf-8")
    assert "broken.yaml: not YAML at line" in message(path)
    path.write_text("- a list", encoding="utf-8")
    assert "broken.yaml: must be a mapping" in message(path)
    path.write_bytes(b"\xff\xfe\x00")
    assert "broken.yaml: not UTF-8" in message(path)


def test_a_trace_path_may_count_from_the_scenarios_file(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("arrival_s,prompt,decode\n0,1,1\n2.5,1,1\n", encoding="utf-8")
    changed = {**data("trace"), "period_s": 1.0}
    changed["workload"]["trace"] = {"path": "t.csv"}
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(changed), encoding="utf-8")
    scenario = Scenario.load(path)
    assert scenario.horizon_periods == 3  # the last arrival, at 2.5 s, is strictly inside
    assert scenario.horizon_s == 3.0


# --- overrides -------------------------------------------------------------------------------


def test_overrides_take_text_and_values() -> None:
    overrides = {
        "router.window": "32",
        "period_s": "5e-1",  # PyYAML alone reads this as text
        "cluster.devices": np.int64(8),
        "horizon_periods": 1e4,
        "objective.zeta1": np.float32(2.0),
        "drain": "true",
        "cluster.context_limit": "null",
        "workload.lengths.decode": {"mean": 10, "sigma": 1},
    }
    scenario = Scenario.load("paper-overload", overrides)
    assert scenario.router.window == 32
    assert scenario.period_s == 0.5
    assert scenario.cluster.devices == 8
    assert scenario.horizon_periods == 10_000
    assert scenario.objective.zeta1 == 2.0
    assert scenario.drain is True
    assert scenario.workload.lengths.kind == "lognormal"
    assert scenario.workload.lengths.decode.max is None
    assert Scenario.load("paper-overload").router.window == 512


def test_an_override_of_the_kind_drops_what_no_longer_applies() -> None:
    shift = Scenario.load("paper-rate-shift", {"workload.arrivals.kind": "poisson"})
    assert shift.workload.arrivals == Poisson(rate=0.4)  # the rate stays, the rest goes
    changed = {"workload.arrivals.cv": 3, "workload.arrivals.kind": "gamma"}
    assert Scenario.load("paper-stable", changed).workload.arrivals == Gamma(rate=0.4, cv=3.0)
    on_off = {"kind": "on_off", "rate_on": 1, "on_s": 5, "off_s": 5}
    scenario = Scenario.load("paper-stable", {"workload.arrivals": on_off})
    assert scenario.workload.arrivals == OnOff(rate_on=1.0, rate_off=0.0, on_s=5.0, off_s=5.0)


def test_a_kind_alone_is_enough_where_nothing_else_is_needed() -> None:
    scenario = Scenario.load("paper-overload", {"prediction": "perfect"})
    assert scenario.prediction == Perfect()
    assert scenario == Scenario.load("paper-overload").with_prediction("perfect")
    half = Scenario.load("paper-overload").with_prediction({"kind": "biased", "factor": 0.5})
    assert half.prediction.kind == "biased"


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("router.windw", "did you mean router.window?"),
        ("window", "did you mean router.window?"),
        ("cluster.device", "did you mean cluster.devices?"),
        ("workload.arrivals.rat", "did you mean workload.arrivals.rate?"),
        ("clutser.devices", "did you mean cluster.devices?"),
        ("tail_eel", "did you mean objective.tail_eel_s?"),
        ("zzz", "known: cluster,"),
    ],
)
def test_an_unknown_override_names_the_nearest(key: str, hint: str) -> None:
    text = message("paper-overload", {key: 1})
    assert f"override {key}: unknown key; {hint}" in text


def test_assignments_from_a_command_line() -> None:
    assert parse_assignments(["a.b=1", "c=x=y"]) == {"a.b": "1", "c": "x=y"}
    with pytest.raises(ScenarioError, match="must have the form key=value"):
        parse_assignments(["router.window"])
    text = message("paper-overload", {"workload.arrivals": "{kind: poisson"})
    assert "is not a YAML value" in text


def test_the_digest_stands_for_the_content() -> None:
    scenario = Scenario.load("paper-overload")
    assert scenario.digest() == scenario.with_overrides({"name": "x"}).digest()
    assert scenario.digest() != scenario.with_overrides({"router.window": 31}).digest()
    assert len(scenario.digest()) == 12


def test_a_scenario_cannot_be_changed() -> None:
    scenario = Scenario.load("paper-overload")
    with pytest.raises(ValueError, match="frozen"):
        scenario.period_s = 2.0  # type: ignore[misc]
