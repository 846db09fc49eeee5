"""The report's section on cached prefixes: its rows from episodes, its words from rows."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import pytest

from llmroute_env.env import LLMRouteEnv
from llmroute_env.evaluation import evaluate
from llmroute_env.experiments.science import cache_routing as section
from llmroute_env.experiments.science.rows import Row

POLICIES = section.RIVALS + section.VARIANTS


def made_up(ttft: dict[str, float], loads: tuple[float, ...] = (8.0, 12.0)) -> list[Row]:
    """Rows of one workload; every router's latencies are ``ttft`` (1 by default) at any load."""
    rows: list[Row] = []
    for load, unit, policy in product(loads, range(1000, 1006), POLICIES):
        seconds = ttft.get(policy, 1.0) * (1.0 + 0.001 * (unit - 1000))
        rows.append(
            {
                "workload": "agents", "load": load, "main": load == 8.0,
                "unit_of_load": "requests/s", "policy": policy, "information": "none",
                "detected": 0.02, "persistent": 0.001, "unit": unit, "hit": 0.5,
                "unfinished": 0.5 if policy == "lor" else 0.0,
                **{f"ttft_{key}_s": seconds for key in ("mean", "p95", "p99")},
                "tpot_mean_s": 0.02 * seconds, "eel_mean_s": 3 * seconds,
            }
        )  # fmt: skip
    return rows


def test_words_and_numbers_come_from_the_rows() -> None:
    rows = made_up({"vllm_dp": 10.0, "lmetric": 0.8, "prefix_priced": 0.4, "linear_cache": 1.6})
    page = section.render(rows)
    assert page.startswith("## Cached prefixes")
    assert (
        "*TTFT −92% against vLLM's balancer* reproduces: over the loads below it is anything "
        in page
    )
    assert "from 92 to 92%" in page
    assert "*TPOT −24% against vLLM's balancer* does not reproduce" in page
    assert "is ahead of LMETRIC in mean TTFT in 0 of 2 cells and behind in 2" in page
    assert "(`prefix_priced`) are ahead of LMETRIC in mean TTFT in 2 cells and behind in 0" in page
    assert ": 2% of LMETRIC's requests were of a class" in page
    assert "in P99 in 2 and 0" in page
    assert "| `lor` † |" in page
    assert "+50.0 [50.0, 50.0]" in page  # prefix_priced over lmetric
    assert "92 to 92% below" in section.line(rows)
    assert "beats LMETRIC in 2 of 2 cells and loses in 0" in section.line(rows)


def test_plot(tmp_path: Path) -> None:
    section.plot(made_up({}), tmp_path)
    assert (tmp_path / "cache_routing.png").stat().st_size > 10_000


def test_rows_of_an_episode(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is filed is the summary's, and the hit rate that of requests after the warm-up."""
    monkeypatch.setattr(section, "RIVALS", ("vllm_dp", "lmetric"))
    monkeypatch.setattr(section, "VARIANTS", ())
    chats = section.WORKLOADS[0]
    rows = section.play(chats, chats.main, 1000, True)
    assert [row["policy"] for row in rows] == ["vllm_dp", "lmetric"]
    assert np.isnan(rows[0]["detected"])
    assert rows[1]["detected"] >= rows[1]["persistent"] >= 0.0
    assert 0.0 < rows[0]["hit"] < rows[1]["hit"] < 1.0


def test_pieces_of_a_drained_episode_add_up() -> None:
    overrides = {"horizon_periods": 1200, "warmup_s": 0.0, "drain": True}
    env = LLMRouteEnv(section.Scenario.load("chat-prefix", overrides))
    result = evaluate(env, "lmetric", 5)
    pieces = section._pieces(result)
    assert len(pieces) == section.PIECES
    sizes = [len(part) for part in np.array_split(result.log["arrival_s"], section.PIECES)]
    for key in ("ttft_mean_s", "eel_mean_s"):
        mean = np.average([piece[key] for piece in pieces], weights=sizes)
        assert mean == pytest.approx(result.summary[key])
    cut = evaluate(LLMRouteEnv(section.Scenario.load("chat-prefix", {**overrides, "drain": False})),
                   "lmetric", 5)  # fmt: skip
    with pytest.raises(RuntimeError, match="lmetric: requests of a drained episode"):
        section._pieces(cut)
