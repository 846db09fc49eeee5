"""The compiled kernel against the reference: groups, handoff, prefill, prefix caches."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

hypothesis = pytest.importorskip("hypothesis")

from comparison import make, play  # noqa: E402
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from mixed_strategies import MODES, MixedEpisode, chains, episodes  # noqa: E402
from reference_mixed import MixedDevice  # noqa: E402
from strategies import STYLES, Row, tables, workload  # noqa: E402


@settings(max_examples=60, deadline=None)
@given(st.data())
@pytest.mark.parametrize("mode", MODES)
def test_kernel_equals_reference(mode: str, data: st.DataObject) -> None:
    episode: MixedEpisode = data.draw(episodes((mode,)))
    play(make(episode.scenario), episode)


def scenario(**cluster: Any) -> dict[str, Any]:
    """One device in lock-step; prefill in whole, KV in single tokens."""
    return {
        "name": "fixed",
        "period_s": 1.0,
        "horizon_periods": 30,
        "drain": True,
        "max_drain_periods": 1000,
        "cluster": {
            "devices": 1,
            "batch_limit": 4,
            "kv_limit": 40,
            "context_limit": None,
            "kv_block": 1,
            "kv_watermark": 0.0,
            "head_of_line_skip": False,
            "timing": {"kind": "constant", "iteration_s": 1.0},
            "prefill": {"chunk_tokens": None, "emits_token": False},
            **cluster,
        },
        "router": {"window": 8},
        "workload": workload(),
        "prediction": {"kind": "perfect"},
        "objective": {"alpha": 1.0, "tail_eel_s": 20.0, "tail_ttft_s": 10.0},
    }


def row(at: float, prompt: int, decode: int) -> Row:
    return at, prompt, decode, float(decode), 0


@pytest.mark.parametrize("cache", [None, {"block": 4}])
def test_the_watermark_spares_an_empty_device(cache: dict[str, int] | None) -> None:
    """M = 40 with 10 kept free: 36 tokens may start alone, but 27 not beside 4."""
    episode = MixedEpisode(
        scenario(kv_watermark=0.25, **({} if cache is None else {"prefix_cache": cache})),
        (row(0, 36, 2), row(0, 4, 9), row(0, 27, 2)),
        "one_device",
        0,
        None if cache is None else (tuple(range(9)), (9,), tuple(range(10, 16))),
    )
    reference = play(make(episode.scenario), episode)
    # The second waits as well: 36 + 4 leave nothing free. The third waits for its end.
    assert [r.started_at for r in reference.requests] == [0, 3 * 10**9, 13 * 10**9]


def test_an_answer_that_has_no_room_is_not_cached() -> None:
    """M = 8. A prompt of 7 ends with its one token: that block of 4 needs a token it never had."""
    episode = MixedEpisode(
        scenario(
            kv_limit=8,
            prefill={"chunk_tokens": None, "emits_token": True},
            prefix_cache={"block": 4},
        ),
        (row(0, 1, 3), row(0, 7, 1), row(4, 6, 1)),
        "one_device",
        0,
        ((), (0, 1), (0,)),
    )
    reference = play(make(episode.scenario), episode)
    assert [r.finished_at for r in reference.requests] == [3 * 10**9, 10**9, 5 * 10**9]
    assert reference.requests[2].cached == 4
    device = reference.devices[0]
    assert isinstance(device, MixedDevice)
    assert device.cache is not None
    assert device.cache.unused == [0]


def test_a_preempted_prompt_may_find_more_than_it_had() -> None:
    """The last admitted loses 1 token, and starts again from the 6 that another has computed.

    M = 23: 5 + 6 + 12 fit at 1 s, 6 + 7 + 12 do not at 2 s; of the 12, 6 are then shared.
    """
    episode = MixedEpisode(
        scenario(
            kv_limit=23,
            prefill={"chunk_tokens": 8, "emits_token": False},
            prefix_cache={"block": 2},
        ),
        (row(0, 4, 6), row(1, 6, 2), row(1, 12, 2)),
        "one_device",
        0,
        ((0, 1), (2, 3, 4), (2, 3, 4, 5, 6, 7)),
    )
    reference = play(make(episode.scenario), episode)
    last = reference.requests[2]
    assert (last.preemptions, last.cached, last.recomputed) == (1, 0, 0)
    assert last.started_at == 10**9


@pytest.fixture(scope="module")
def used() -> dict[str, Any]:
    """Environments that the examples of one test share."""
    return {}


@settings(max_examples=25, deadline=None)
@given(st.data(), st.sampled_from(STYLES), st.integers(0, 99))
@pytest.mark.parametrize(
    "cluster",
    [
        {"prefix_cache": {"block": 4}},
        {
            "kv_block": 2,
            "head_of_line_skip": True,
            "prefill": {"chunk_tokens": 8, "emits_token": True},
            "prefix_cache": {"block": 4},
        },
        {"prefill": {"chunk_tokens": 5, "emits_token": False}},
    ],
    ids=["whole", "chunks and blocks", "no cache"],
)
def test_one_environment_over_many_episodes(
    used: dict[str, Any], cluster: dict[str, Any], data: st.DataObject, style: str, seed: int
) -> None:
    """Blocks, chunks and progress that a reset forgets to clear would show."""
    key = repr(cluster)
    setting = scenario(devices=2, **cluster)
    if key not in used:
        used[key] = make(setting)
    rows = data.draw(tables(setting))
    cache = cluster.get("prefix_cache")
    names = None if cache is None else data.draw(chains(rows, cache["block"]))
    play(used[key], MixedEpisode(setting, rows, style, seed, names))


#: Embedded scenarios with memory so tight that preemption and eviction are common.
REAL: dict[str, dict[str, Any]] = {
    "chat-prefix": {"workload.arrivals.rate": 40.0, "cluster.kv_limit": 20_000},
    "agent-prefix": {"workload.arrivals.rate": 20.0, "cluster.kv_limit": 9_000},
}


@pytest.mark.parametrize("style", ["spread", "late"])
@pytest.mark.parametrize("name", list(REAL))
def test_kernel_equals_reference_on_embedded_scenarios(name: str, style: str) -> None:
    """Requests of real sizes and real chains, in chunks of 512 tokens."""
    size = {
        "horizon_periods": 500,
        "warmup_s": 1.0,
        "drain": True,
        "max_drain_periods": 150,
        "cluster.devices": 2,
        "router.window": 32,
    }
    env = make(name, overrides={**size, **REAL[name]})
    env.reset(seed=4)
    table = env.requests
    columns = (table.arrival_s, table.prompt, table.decode, table.predicted, table.tier)
    rows = tuple(zip(*(column.tolist() for column in columns), strict=True))
    ids, start = table.block_ids.tolist(), table.block_start.tolist()
    names = tuple(tuple(ids[a:b]) for a, b in pairwise(start))
    known = env.scenario.to_dict()
    known["cluster"]["batch_limit"] = int(env.spec_cluster.batch_limit[0])
    episode = MixedEpisode(known, rows, style, 5, names)
    reference = play(env, episode, stride=25)
    assert sum(r.cached for r in reference.requests) > 0
    assert style == "late" or sum(r.preemptions for r in reference.requests) > 0
