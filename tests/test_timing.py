"""Iteration times: the numbers of the A100 profile, their composition, and refusals."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml

from llmroute_env.cluster.profiled import ProfiledTimes, padded
from llmroute_env.cluster.profiles import Table, load_device, load_model, profile_path
from llmroute_env.cluster.timing import (
    IterationTiming,
    MixedTiming,
    constant,
    constant_mixed,
    from_profile,
    from_profile_mixed,
)

MODELS = ("llama-2-7b", "llama-3-8b", "llama-2-70b", "llama-3-70b")
DEGREES = (1, 2, 4, 8)


def test_constant_ignores_batch_and_kv() -> None:
    timing = constant(1.0, 24)
    assert timing.base_s.shape == (25,)
    assert timing.iteration_s(1, 0) == timing.iteration_s(24, 16_000, 500) == 1.0


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_constant_refuses_what_would_stop_the_clock(value: float) -> None:
    with pytest.raises(ValueError, match=r"timing\.iteration_s = .* above 0"):
        constant(value, 4)


@pytest.mark.parametrize("batch", [0, -3, 1.5])
def test_batch_limit_is_a_count(batch: float) -> None:
    with pytest.raises(ValueError, match="batch limit"):
        constant(1.0, batch)  # type: ignore[arg-type]


@pytest.mark.parametrize("batch", [1, 8, 32, 64])
@pytest.mark.parametrize("kv", [0, 20_000, 60_000])
def test_llama_2_7b_is_in_the_range_that_the_paper_quotes(batch: int, kv: int) -> None:
    """Ten to thirty milliseconds, arXiv 2607.03948; 60,000 KV tokens are about 50 chat requests."""
    assert 0.010 <= from_profile("a100-80gb", "llama-2-7b", 1, 64).iteration_s(batch, kv) <= 0.030


def test_llama_2_7b_with_full_memory() -> None:
    timing = from_profile("a100-80gb", "llama-2-7b", 1, 64)
    assert timing.iteration_s(64, 112_000) == pytest.approx(0.0455, abs=0.002)


def test_kv_traffic_is_bytes_over_bandwidth() -> None:
    """512 KiB per token, two fp16 values of 4,096 channels in 32 layers, at about 1.64 TB/s."""
    timing = from_profile("a100-80gb", "llama-2-7b", 1, 4)
    assert timing.kv_s == pytest.approx(2 * 2 * 4096 * 32 / 1.64e12, rel=0.01)
    # Grouped-query attention: a quarter of the KV heads, a quarter of the traffic.
    grouped = from_profile("a100-80gb", "llama-3-8b", 1, 4)
    assert grouped.kv_s == pytest.approx(timing.kv_s / 4, rel=1e-12)
    assert from_profile("a100-80gb", "llama-3-8b", 8, 4).kv_s == pytest.approx(grouped.kv_s / 8)


def test_base_is_the_sum_of_its_parts() -> None:
    """Against the YAML itself, with nothing of the package in between."""
    folder = profile_path("a100-80gb", "device").parents[1]
    device = yaml.safe_load((folder / "devices" / "a100-80gb.yaml").read_text())
    model = yaml.safe_load((folder / "models" / "llama-2-70b.yaml").read_text())
    profile = model["profiles"]["a100-80gb"][4]

    def at(table: dict[str, list[float]], size: float) -> float:
        return float(np.interp(size, table["sizes"], table["microseconds"])) * 1e-6

    tokens = 24  # a profiled size, so nothing is padded
    message = tokens * 8192 * 2
    layer = (
        at(profile["layer"], tokens)
        + 2 * at(device["all_reduce"][4], message)
        + device["attention"]["decode_overhead_s"]
    )
    expected = device["overhead_s"] + 80 * layer + at(profile["head"], tokens)
    timing = from_profile("a100-80gb", "llama-2-70b", 4, 32)
    assert timing.base_s[tokens] == pytest.approx(expected, rel=1e-12)
    assert timing.iteration_s(tokens, 1000, 10) == pytest.approx(
        expected + 1000 * timing.kv_s + 10 * timing.prefill_s, rel=1e-12
    )


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("tp", DEGREES)
def test_every_profile_is_usable_and_monotone(model: str, tp: int) -> None:
    timing = from_profile("a100-80gb", model, tp, 256)
    assert timing.base_s.shape == (257,)
    assert np.all(np.diff(timing.base_s) >= 0)
    assert timing.base_s[0] == timing.base_s[1] > 0
    assert timing.kv_s > 0
    assert timing.prefill_s > 0


@pytest.mark.parametrize("model", MODELS)
def test_a_wider_replica_is_faster(model: str) -> None:
    times = [from_profile("a100-80gb", model, tp, 64).iteration_s(64, 50_000) for tp in DEGREES]
    assert times == sorted(times, reverse=True)


def test_batches_pay_for_the_graph_they_are_padded_to() -> None:
    assert padded(np.array([1, 2, 3, 4, 5, 8, 9, 64, 65])).tolist() == [
        1, 2, 4, 4, 8, 8, 16, 64, 72,
    ]  # fmt: skip
    base = from_profile("a100-80gb", "llama-2-7b", 1, 80).base_s
    assert base[65] == base[72] > 1.1 * base[64]  # the tile step


def test_prefill_tokens_cost_what_the_profile_has_for_the_sum() -> None:
    """A recomputed prompt of 1,024 tokens beside 64 requests, against the parts it consists of."""
    times = ProfiledTimes(load_device("a100-80gb"), load_model("llama-2-7b"), 1)
    together = 32 * float(times.layer_s(64 + 1024)) + times.prefill_attention_s(1024)
    alone = 32 * float(times.layer_s(64))
    timing = from_profile("a100-80gb", "llama-2-7b", 1, 64)
    added = timing.iteration_s(64, 0, 1024) - timing.iteration_s(64, 0)
    assert added == pytest.approx(together - alone, rel=0.05)


def test_prefill_attention_grows_with_context_and_quadratically() -> None:
    times = ProfiledTimes(load_device("a100-80gb"), load_model("llama-2-7b"), 1)
    assert times.prefill_attention_s(512, 4096) > times.prefill_attention_s(512)
    assert times.prefill_attention_s(4096) > 4 * times.prefill_attention_s(1024)


def test_overhead_can_be_replaced() -> None:
    device = load_device("a100-80gb")
    base = from_profile(device, "llama-2-7b", 1, 8).base_s
    slow = from_profile(device, "llama-2-7b", 1, 8, overhead_s=0.005).base_s
    np.testing.assert_allclose(slow - base, 0.005 - device.overhead_s)
    with pytest.raises(ValueError, match=r"timing\.overhead_s = nan"):
        from_profile(device, "llama-2-7b", 1, 8, overhead_s=float("nan"))


@pytest.mark.parametrize(
    ("device", "model", "tp", "batch", "message"),
    [
        ("h100", "llama-2-7b", 1, 8, r"timing\.device = 'h100' is unknown; known: a100-80gb"),
        ("a100-80gb", "llama-9", 1, 8, r"timing\.model = 'llama-9' is unknown; .*llama-2-7b"),
        ("a100-80gb", "no/such.yaml", 1, 8, r"timing\.model: no such file: no/such\.yaml"),
        ("a100-80gb", "llama-2-7b", 3, 8, r"timing\.tp = 3: .* profiled for tp 1, 2, 4, 8 only"),
        ("a100-80gb", "llama-2-7b", 1, 513, r"batch limit 513 .* ends at 512 requests"),
    ],
)  # fmt: skip
def test_refusals_are_one_clear_line(
    device: str, model: str, tp: int, batch: int, message: str
) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        from_profile(device, model, tp, batch)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        ({"memory_gb": 80}, "memory_gb: Extra inputs are not permitted"),
        ({"overhead_s": -1}, "overhead_s: Input should be greater than or equal to 0"),
        ({"memory_gib": float("nan")}, "memory_gib: Input should be a finite number"),
        (
            {"all_reduce": {2: {"sizes": [1, 2], "microseconds": [2, 1]}}},
            "all_reduce.2: Value error, microseconds must not decrease",
        ),
    ],
)
def test_a_users_own_device_file_is_checked(
    tmp_path: Path, edit: dict[str, object], message: str
) -> None:
    content = yaml.safe_load(profile_path("a100-80gb", "device").read_text())
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(content))
    assert load_device(path) == load_device("a100-80gb")

    path = tmp_path / "bad.yaml"
    path.write_text(yaml.safe_dump(content | edit))
    with pytest.raises(ValueError, match=str(path)) as caught:
        load_device(str(path))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_yaml(tmp_path: Path) -> None:
    path = tmp_path / "broken.yaml"
    path.write_text("name: [")
    with pytest.raises(ValueError, match="is not YAML") as caught:
        load_model(path)
    assert "\n" not in str(caught.value)


def test_tables_interpolate_and_extrapolate() -> None:
    table = Table(sizes=[1, 10, 20], microseconds=[5, 5, 25])
    np.testing.assert_allclose(table.seconds(np.array([0, 1, 10, 15, 20])) * 1e6, [5, 5, 5, 15, 25])
    assert table.slope_us() == 2.0
    np.testing.assert_allclose(table.seconds(30) * 1e6, 45)


@pytest.mark.parametrize(
    ("base", "kv", "message"),
    [
        ([1.0], 0.0, "shape"),
        ([0.0, 0.0], 0.0, "above 0"),
        ([2.0, 2.0, 1.0], 0.0, "decrease"),
        ([1.0, 1.0], -1.0, "not negative"),
        ([1.0, float("nan")], 0.0, "finite"),
    ],
)
def test_a_hand_made_timing_is_checked(base: list[float], kv: float, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        IterationTiming(np.array(base), kv, 0.0, "test")


def test_a_batch_outside_the_table_is_refused() -> None:
    with pytest.raises(ValueError, match="batch = 5 is outside 0 to 4"):
        constant(1.0, 4).iteration_s(5, 0)


# --- mixed: prefill and decode in one iteration ---------------------------------------------------


def test_constant_mixed_charges_prefill_tokens_alone() -> None:
    timing = constant_mixed(1.0, 0.25)
    assert timing.iteration_s(5, 10_000, []) == 1.0
    assert timing.iteration_s(5, 10_000, [(2, 0), (4, 100)]) == 1.0 + 0.25 * 6
    assert constant_mixed(1.0).iteration_s(0, 0, [(512, 0)]) == 1.0


@pytest.mark.parametrize(
    ("seconds", "per_token", "message"),
    [
        (0.0, 0.0, r"timing\.iteration_s = 0\.0 .* above 0"),
        (1.0, -1.0, r"timing\.prefill_s_per_token = -1\.0 must be finite and not negative"),
        (1.0, float("inf"), r"timing\.prefill_s_per_token = inf"),
    ],
)
def test_constant_mixed_refuses(seconds: float, per_token: float, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        constant_mixed(seconds, per_token)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("tp", DEGREES)
@pytest.mark.parametrize("chunk", [None, 16, 512])
def test_without_chunks_mixed_is_the_decode_timing(model: str, tp: int, chunk: int | None) -> None:
    """Bit for bit: a device that never prefills must not care which of the two it has."""
    decode = from_profile("a100-80gb", model, tp, 48)
    mixed = from_profile_mixed("a100-80gb", model, tp, 48, chunk)
    np.testing.assert_array_equal(mixed.token_s[:49], decode.base_s)
    assert mixed.iteration_s(48, 50_000, []) == decode.iteration_s(48, 50_000)
    assert mixed.table_tokens == {None: 4096, 16: 48, 512: 512}[chunk]
    assert np.all(np.diff(mixed.token_s) >= 0)
    assert mixed.token_slope_s > 0


@pytest.mark.parametrize("decoding", [0, 1, 40])
@pytest.mark.parametrize("chunks", [[(37, 0)], [(464, 512)], [(200, 1000), (263, 0)]])
def test_mixed_is_the_sum_of_its_parts(decoding: int, chunks: list[tuple[int, int]]) -> None:
    times = ProfiledTimes(load_device("a100-80gb"), load_model("llama-2-70b"), 2)
    timing = from_profile_mixed(times.device, times.model, 2, 48, 512, overhead_s=0.002)
    tokens = decoding + sum(new for new, _ in chunks)
    kv = 800 * decoding
    launch = times.device.attention.decode_overhead_s
    expected = (
        0.002
        + 80 * float(times.layer_s(tokens) + times.all_reduce_s(tokens) + launch)
        + float(times.head_s(min(tokens, 48)))  # logits of one token per request
        + times.kv_s * kv
        + sum(times.prefill_attention_s(new, context) for new, context in chunks)
    )
    assert timing.iteration_s(decoding, kv, chunks) == pytest.approx(expected, rel=1e-12)


def test_mixed_batches_pay_for_the_tile_they_are_padded_to() -> None:
    timing = from_profile_mixed("a100-80gb", "llama-2-70b", 2, 48, 512)
    assert timing.token_s[257] == timing.token_s[264] > 1.2 * timing.token_s[256]


def test_a_long_prompt_beyond_the_table_keeps_the_profiles_slope() -> None:
    """Whole prefill of 8,192 tokens: the table ends at 4,096, like the profile."""
    times = ProfiledTimes(load_device("a100-80gb"), load_model("llama-3-8b"), 2)
    timing = from_profile_mixed(times.device, times.model, 2, 64)
    linear = timing.iteration_s(0, 0, [(8192, 0)]) - times.prefill_attention_s(8192)
    expected = float(times.layer_s(8192) + times.all_reduce_s(8192))
    per_layer = expected + times.device.attention.decode_overhead_s
    head = float(times.head_s(64))
    assert linear == pytest.approx(times.device.overhead_s + 32 * per_layer + head, rel=1e-9)
    more = timing.iteration_s(0, 0, [(8193, 0)]) - timing.iteration_s(0, 0, [(8192, 0)])
    assert more > timing.token_slope_s > 0


def test_chunks_of_a_prompt_see_the_same_pairs_as_the_whole() -> None:
    """Splitting a prompt costs launches and weight reads, never attention pairs."""
    timing = from_profile_mixed("a100-80gb", "llama-2-70b", 2, 48, None)
    free = MixedTiming(np.full(2, 1e-9), 0.0, 0.0, 0.0, 0.0, timing.pair_s, "pairs alone")
    whole = free.iteration_s(0, 0, [(1024, 0)])
    halves = free.iteration_s(0, 0, [(512, 0), (512, 512)])
    assert whole == pytest.approx(halves, rel=1e-6)
    assert whole == pytest.approx(timing.pair_s * 1024 * 512, rel=1e-6)


@pytest.mark.parametrize(
    ("table", "rates", "message"),
    [
        ([1.0], {}, "shape"),
        ([0.0, 0.0], {}, "above 0"),
        ([2.0, 2.0, 1.0], {}, "decrease"),
        ([1.0, 1.0], {"pair_s": -1.0}, "not negative"),
        ([1.0, 1.0], {"token_slope_s": float("nan")}, "finite"),
    ],
)
def test_a_hand_made_mixed_timing_is_checked(
    table: list[float], rates: dict[str, float], message: str
) -> None:
    zero = dict.fromkeys(("token_slope_s", "kv_s", "chunk_s", "query_s", "pair_s"), 0.0)
    with pytest.raises(ValueError, match=message):
        MixedTiming(np.array(table), **(zero | rates), provenance="test")


@pytest.mark.parametrize(("decoding", "chunks"), [(-1, []), (1, [(0, 5)]), (1, [(5, -1)])])
def test_mixed_counts_are_checked(decoding: int, chunks: list[tuple[int, int]]) -> None:
    with pytest.raises(ValueError, match="must be at least 0"):
        constant_mixed(1.0).iteration_s(decoding, 0, chunks)


@pytest.mark.parametrize("chunk", [0, -1, 2.5])
def test_a_token_budget_is_a_count(chunk: float) -> None:
    with pytest.raises(ValueError, match=r"chunk_tokens = .* whole number of at least 1"):
        from_profile_mixed("a100-80gb", "llama-2-7b", 1, 8, chunk)  # type: ignore[arg-type]


def test_no_torch_at_run_time() -> None:
    code = (
        "import sys; from llmroute_env.cluster import memory, timing;"
        "timing.from_profile('a100-80gb', 'llama-2-7b', 1, 8); "
        "memory.plan('a100-80gb', 'llama-2-7b'); print('torch' in sys.modules)"
    )
    root = Path(__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root
    )
    assert done.stdout.strip() == "False"
