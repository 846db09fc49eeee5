"""The memory planner: M and B by hand, what does not fit, and what a user may override."""

from __future__ import annotations

import pytest

from llmroute_env.cluster.memory import plan
from llmroute_env.cluster.profiles import load_device, load_model


@pytest.mark.parametrize(
    ("model", "parameters"),
    [
        ("llama-2-7b", 6_738_415_616),
        ("llama-3-8b", 8_030_261_248),
        ("llama-2-70b", 68_976_648_192),
        ("llama-3-70b", 70_553_706_496),
    ],
)
def test_parameters_are_the_published_counts(model: str, parameters: int) -> None:
    assert load_model(model).parameters == parameters


def test_llama_2_7b_on_one_a100_by_hand() -> None:
    result = plan("a100-80gb", "llama-2-7b", 1)
    left = 79.22 * 0.9 * 2**30 - 4 * 2**30 - 6_738_415_616 * 2
    per_token = 2 * 32 * 32 * 128 * 2  # K and V, layers, heads, head_dim, fp16
    assert result.kv_bytes_per_token == per_token == 512 * 1024
    assert result.kv_limit == int(left // (16 * per_token)) * 16
    assert result.kv_limit == pytest.approx(112_000, rel=0.005)
    assert result.kv_limit % 16 == 0
    assert result.context_limit == 4096


@pytest.mark.parametrize(
    ("model", "context"),
    [("llama-2-7b", 4096), ("llama-2-70b", 4096), ("llama-3-8b", 8192), ("llama-3-70b", 8192)],
)
def test_context_limit_is_the_models(model: str, context: int) -> None:
    assert plan("a100-80gb", model, 8).context_limit == context


@pytest.mark.parametrize("model", ["llama-2-70b", "llama-3-70b"])
def test_a_model_that_does_not_fit_is_refused_in_one_line(model: str) -> None:
    with pytest.raises(ValueError, match=rf"{model} does not fit on a100-80gb at tp 1") as caught:
        plan("a100-80gb", model, 1)
    assert "\n" not in str(caught.value)
    assert plan("a100-80gb", model, 2).kv_limit > 4096


def test_batch_limit_is_the_smaller_of_engine_and_memory() -> None:
    assert plan("a100-80gb", "llama-2-7b", max_num_seqs=64).batch_limit == 64
    # Memory for a few blocks only: each request needs at least one.
    tight = plan("a100-80gb", "llama-2-7b", utilization=0.2112, max_num_seqs=256)
    assert tight.batch_limit == tight.kv_limit // 16 < 256


def test_weights_and_kv_heads_are_split_over_the_group() -> None:
    one, two = (plan("a100-80gb", "llama-3-8b", tp) for tp in (1, 2))
    assert two.weight_bytes == one.weight_bytes / 2
    assert two.kv_bytes_per_token == one.kv_bytes_per_token // 2
    assert two.kv_limit > 2 * one.kv_limit


def test_with_fewer_kv_heads_than_gpus_they_are_replicated() -> None:
    eight, sixteen = (plan("a100-80gb", "llama-3-8b", tp) for tp in (8, 16))
    assert eight.kv_bytes_per_token == sixteen.kv_bytes_per_token == 2 * 32 * 128 * 2


def test_more_memory_never_holds_less() -> None:
    limits = [
        plan("a100-80gb", "llama-2-7b", utilization=share).kv_limit for share in (0.5, 0.8, 0.9, 1)
    ]
    assert limits == sorted(limits)
    reserves = [
        plan("a100-80gb", "llama-2-7b", activation_reserve_gib=gib).kv_limit for gib in (0, 2, 4, 8)
    ]
    assert reserves == sorted(reserves, reverse=True)
    assert plan("a100-80gb", "llama-2-7b", kv_block=1).kv_limit >= limits[2]


def test_the_default_reserve_is_the_devices() -> None:
    device = load_device("a100-80gb")
    same = plan(device, "llama-2-7b", activation_reserve_gib=device.activation_reserve_gib)
    assert same == plan(device, "llama-2-7b")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"utilization": 0}, r"memory\.utilization = 0 must be above 0"),
        ({"utilization": 1.2}, r"memory\.utilization = 1\.2"),
        ({"utilization": float("nan")}, r"memory\.utilization = nan"),
        ({"max_num_seqs": 0}, r"memory\.max_num_seqs = 0"),
        ({"kv_block": 0}, r"kv_block = 0"),
        ({"activation_reserve_gib": -1}, r"memory\.activation_reserve_gib = -1"),
        ({"tp": 0}, r"timing\.tp = 0"),
    ],
)
def test_bad_arguments_name_their_key(arguments: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        plan("a100-80gb", "llama-2-7b", **arguments)  # type: ignore[arg-type]
