"""What the profiles do not hold: architectures, memory and chosen constants, with their reasons."""

from __future__ import annotations

from dataclasses import dataclass

SOURCE = "microsoft/vidur (https://github.com/microsoft/vidur), MIT"


@dataclass(frozen=True)
class ModelFacts:
    """Architecture from the model's published config.json, and the profile file that fits it."""

    name: str
    description: str
    layers: int
    hidden: int
    mlp_hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    context_limit: int
    operators_csv: str


MODELS: tuple[ModelFacts, ...] = (
    ModelFacts(
        "llama-2-7b", "Llama 2 7B, fp16, multi-head attention",
        layers=32, hidden=4096, mlp_hidden=11008, heads=32, kv_heads=32, head_dim=128,
        vocab=32000, context_limit=4096, operators_csv="a100_mlp_Llama-2-7b-hf.csv",
    ),
    ModelFacts(
        "llama-3-8b", "Llama 3 8B, bf16, grouped-query attention",
        layers=32, hidden=4096, mlp_hidden=14336, heads=32, kv_heads=8, head_dim=128,
        vocab=128256, context_limit=8192, operators_csv="a100_mlp_Meta-Llama-3-8B.csv",
    ),
    ModelFacts(
        "llama-2-70b", "Llama 2 70B, fp16, grouped-query attention",
        layers=80, hidden=8192, mlp_hidden=28672, heads=64, kv_heads=8, head_dim=128,
        vocab=32000, context_limit=4096, operators_csv="a100_mlp_Llama-2-70b-hf.csv",
    ),
    ModelFacts(
        "llama-3-70b", "Llama 3 70B, bf16, grouped-query attention",
        layers=80, hidden=8192, mlp_hidden=28672, heads=64, kv_heads=8, head_dim=128,
        vocab=128256, context_limit=8192, operators_csv="a100_mlp_Meta-Llama-3-70B.csv",
    ),
)  # fmt: skip


@dataclass(frozen=True)
class DeviceFacts:
    """A device, its constants and where its attention and links were profiled."""

    name: str
    description: str
    memory_gib: float
    activation_reserve_gib: float
    overhead_s: float
    notes: dict[str, str]
    attention_csv: str
    attention_model: str
    attention_tp: int
    all_reduce_csv: str
    splitwise_csv: str
    splitwise_hardware: str


A100 = DeviceFacts(
    name="a100-80gb",
    description="NVIDIA A100 SXM 80 GB in a DGX (NVSwitch between eight GPUs)",
    memory_gib=79.22,
    activation_reserve_gib=4.0,
    overhead_s=1.5e-4,
    notes={
        "memory_gib": (
            "what CUDA reports on an 80 GB part, as in vLLM's memory-profiling logs "
            "(vllm-project/vllm pull request 10511)"
        ),
        "activation_reserve_gib": (
            "Those logs (Llama-3-8B, one GPU): 1.79 GiB outside of the allocator and 1.26 GiB of "
            "activation peak; about 1 GiB of captured decode graphs comes on top. It gives "
            "Llama-2-7B 112,112 KV tokens at utilization 0.9. Engines differ: vLLM of December "
            "2023 reported 7,351 to 7,449 blocks of 16 there, 118 to 119 thousand tokens "
            "(pull request 2031), which is a reserve of 1 to 2 GiB; its 70B at TP 4 kept far more "
            "free. Set memory.activation_reserve_gib to study another engine."
        ),
        "overhead_s": (
            "Chosen, not fitted: the profiles hold kernel times only. 0.15 ms is an engine with "
            "captured decode graphs and a scheduler that works while the GPU does: graph launch, "
            "sampling and the input update of the next iteration stay exposed. It keeps "
            "Llama-2-7B (up to 64 requests, 60,000 KV tokens) in the 10 to 30 ms that "
            "arXiv 2607.03948 quotes for a decode iteration on an A100. An engine that schedules "
            "between iterations pays more: Vidur's own measurements of its CPU stages "
            "(data/profiling/a100/cpu_overheads.csv: schedule, prepare inputs, sampler, process "
            "outputs) add up to about 2 ms at batch 8 and 8 ms at batch 64."
        ),
    },
    attention_csv="a100_attention_llama-2-70b_tp2.csv",
    attention_model="llama-2-70b",
    attention_tp=2,
    all_reduce_csv="a100_dgx_all_reduce.csv",
    splitwise_csv="splitwise_perf_model.csv",
    splitwise_hardware="a100-80gb",
)
