"""Capacity of two pools: the search over splits end to end, and the analytical model."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml
from scipy import stats

from llmroute_env.experiments.capacity import command, model, slo
from llmroute_env.experiments.capacity.fleets import gpus, label, names, own, resized
from llmroute_env.experiments.capacity.trials import Case, Trials
from llmroute_env.scenario import Scenario

DECODE = 20
MEAN, SIGMA = 60.0, 1.0


def pooled(**changes: Any) -> Scenario:
    """Short devices with 8 slots up to 100 tokens, long ones with 2 slots; every o is 20."""

    def group(name: str, devices: int, slots: int, context: int) -> dict[str, Any]:
        timing = {"kind": "constant", "iteration_s": 1.0}
        return {"name": name, "devices": devices, "batch_limit": slots, "kv_limit": 100_000,
                "context_limit": context, "timing": timing}  # fmt: skip

    decode = {"mean": DECODE, "sigma": 0.0}
    data = {
        "name": "pools",
        "period_s": 1.0,
        "horizon_periods": 300,
        "drain": True,
        "cluster": {"groups": [group("short", 3, 8, 100), group("long", 2, 2, 5000)]},
        "workload": {
            "arrivals": {"kind": "poisson", "rate": 0.8},
            "lengths": {
                "kind": "lognormal",
                "prompt": {"mean": MEAN, "sigma": SIGMA, "max": 3000},
                "decode": decode,
            },
        },
        "prediction": {"kind": "perfect"},
        "objective": {"tail_eel_s": 60.0, "tail_ttft_s": 20.0},
    }
    return Scenario.load(data | changes)


def test_sizes_of_pools() -> None:
    scenario = pooled()
    assert names(scenario) == ("short", "long")
    assert own(scenario) == (3, 2)
    larger = resized(scenario, (5, 1))
    assert own(larger) == (5, 1)
    assert larger.cluster.devices == 6
    assert own(resized(larger, (3, 2))) == (3, 2)
    assert resized(larger, (3, 2)).digest() == scenario.digest()
    assert gpus(scenario, (5, 1)) == 6


def test_model_in_closed_form() -> None:
    """With 20 iterations of 1 s a request, a full device completes slots / 20 a second."""
    found = model.estimate(pooled())
    assert found is not None
    assert found.short_rps == pytest.approx(8 / DECODE, rel=0.02)
    assert found.long_rps == pytest.approx(2 / DECODE, rel=0.02)
    assert found.mixed_rps == pytest.approx(2 / DECODE, rel=0.02)
    assert found.rho == pytest.approx(4.0, rel=0.02)
    law = stats.lognorm(SIGMA, scale=MEAN * np.exp(-(SIGMA**2) / 2))
    short = law.cdf(100 - DECODE + 0.5)
    assert found.alpha == pytest.approx(short, abs=0.01)
    assert found.saving == pytest.approx(found.alpha * (1 - 1 / found.rho))
    # All requests are the same work here, so both shares agree.
    assert found.alpha_work == pytest.approx(found.alpha, rel=0.03)
    short_devices, long_devices = found.devices(0.8)
    assert short_devices == pytest.approx(found.alpha * 0.8 * DECODE / 8, rel=0.02)
    assert long_devices == pytest.approx((1 - found.alpha) * 0.8 * DECODE / 2, rel=0.06)


def test_model_needs_two_pools_of_unlike_reach() -> None:
    assert model.estimate(Scenario.load("paper-stable")) is None
    data = pooled().to_dict()
    data["cluster"]["groups"][0]["context_limit"] = 5000
    assert model.estimate(Scenario.load(data)) is None


# A router that ignores pools is no case for this: a device more in the short one may not help.
@pytest.mark.parametrize("policy", ["dual_pool", "dual_pool:overload=1000"])
def test_smallest_over_all_splits(policy: str, tmp_path: Path) -> None:
    path = tmp_path / "pools.yaml"
    path.write_text(yaml.safe_dump(pooled().to_dict()))
    slos = ("ttft_p95_s<=15", "rejected_share<=0.25")
    arguments = ["--scenario", path, "--policies", policy, "--seeds", 2, "--jobs", 1]
    arguments += [f"--slo={text}" for text in slos]
    out = tmp_path / "out"
    assert command.main([*map(str, arguments), "--out", str(out)]) == 0
    answer = pd.read_csv(out / "capacity.csv").iloc[0]
    assert (out / "splits.png").stat().st_size > 5_000

    trials = Trials(Case(pooled(), policy), None, slo.parse_all(slos), (1000, 1001))
    total = int(answer["devices"])
    smaller = [f for f in itertools.product(range(1, 12), repeat=2) if sum(f) == total - 1]
    assert not any(trials.meets(fleet) for fleet in smaller)
    assert any(
        label(fleet) == answer["fleet"] and trials.meets(fleet)
        for fleet in itertools.product(range(1, 12), repeat=2)
        if sum(fleet) == total
    )
    assert answer["model_rho"] == pytest.approx(4.0, rel=0.02)
    assert answer["fleets_played"] < 25
