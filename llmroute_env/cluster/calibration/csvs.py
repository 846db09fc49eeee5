"""Read profile CSVs; whatever is wrong with one ends in one clear line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from llmroute_env.cluster.calibration.facts import DeviceFacts, ModelFacts

#: Operators that one transformer layer runs besides attention and all-reduce, each once: Vidur's
#: accounting (its `ExecutionTime` sums exactly these). A layer has two residual additions; Vidur
#: times and counts one, and so do we.
LAYER_OPERATORS = (
    "input_layernorm",
    "attn_pre_proj",
    "attn_rope",
    "attn_post_proj",
    "post_attention_layernorm",
    "mlp_up_proj",
    "mlp_act",
    "mlp_down_proj",
    "add",
)


def time_column(operator: str) -> str:
    """Column with the median time [ms] of an operator; the median is what Vidur fits too."""
    return f"time_stats.{operator}.median"


def read_operators(folder: Path, model: ModelFacts) -> pd.DataFrame:
    """Linear operators of ``model``.

    Returns:
        Columns ``tp``, ``tokens``, ``layer_us`` (sum of the layer's operators), ``head_us``
        (embedding, and the output projection scaled from ``mlp_up_proj`` by weight bytes).
    """
    path = folder / model.operators_csv
    times = [time_column(name) for name in (*LAYER_OPERATORS, "emb")]
    shape = {"n_head": model.heads, "n_kv_head": model.kv_heads, "n_embd": model.hidden,
             "n_expanded_embd": model.mlp_hidden}  # fmt: skip
    frame = _read(path, [*shape, "num_tokens", "num_tensor_parallel_workers", *times])
    for column, wanted in shape.items():
        found = sorted(set(frame[column].astype(int)))
        if found != [wanted]:
            raise ValueError(f"{path}: {column} is {found}, but {model.name} has {wanted}")
    _positive(path, frame, ["num_tokens", "num_tensor_parallel_workers"])
    # mlp_up_proj multiplies by 2 * mlp_hidden columns (gate and up), the head by vocab columns.
    head = frame[time_column("mlp_up_proj")] * model.vocab / (2 * model.mlp_hidden)
    return pd.DataFrame(
        {
            "tp": frame["num_tensor_parallel_workers"].astype(int),
            "tokens": frame["num_tokens"].astype(int),
            "layer_us": 1e3 * frame[times[:-1]].sum(axis=1),
            "head_us": 1e3 * (head + frame[times[-1]]),
        }
    )


def read_attention(folder: Path, device: DeviceFacts, model: ModelFacts) -> pd.DataFrame:
    """Attention kernels of the model and degree that were profiled.

    Returns:
        Columns ``decode`` (bool), ``batch``, ``new`` (prefill chunk, 0 when decoding),
        ``context`` (cached tokens per request), ``us``.
    """
    path = folder / device.attention_csv
    shape = {"n_embd": model.hidden, "n_q_head": model.heads, "n_kv_head": model.kv_heads,
             "num_tensor_parallel_workers": device.attention_tp}  # fmt: skip
    sizes = ["batch_size", "prefill_chunk_size", "kv_cache_size"]
    kinds = {True: time_column("attn_decode"), False: time_column("attn_prefill")}
    frame = _read(path, [*shape, *sizes], optional=list(kinds.values()))
    for column, wanted in shape.items():
        frame = frame[frame[column] == wanted]
        if frame.empty:
            raise ValueError(f"{path}: no row with {column} = {wanted}")
    decode = frame["prefill_chunk_size"] == 0
    parts = []
    for is_decode, column in kinds.items():
        rows = frame[decode == is_decode]
        _not_negative(path, rows, [column])
        _positive(path, rows, [column])
        parts.append(
            pd.DataFrame(
                {
                    "decode": is_decode,
                    "batch": rows["batch_size"].astype(int),
                    "new": rows["prefill_chunk_size"].astype(int),
                    "context": rows["kv_cache_size"].astype(int),
                    "us": 1e3 * rows[column],
                }
            )
        )
    return pd.concat(parts, ignore_index=True)


def read_all_reduce(folder: Path, device: DeviceFacts) -> pd.DataFrame:
    """All-reduces inside one node.

    Returns:
        Columns ``tp``, ``bytes`` (message; the profile's ``size`` is in bytes of fp16), ``us``.
    """
    path = folder / device.all_reduce_csv
    time = time_column("all_reduce")
    frame = _read(path, ["num_workers", "devices_per_node", "size", time], text=["collective"])
    frame = frame[
        (frame["collective"] == "all_reduce") & (frame["num_workers"] == frame["devices_per_node"])
    ]
    if frame.empty:
        raise ValueError(f"{path}: no all_reduce row with num_workers = devices_per_node")
    _positive(path, frame, ["size", time])
    return pd.DataFrame(
        {
            "tp": frame["num_workers"].astype(int),
            "bytes": frame["size"].astype(float),
            "us": 1e3 * frame[time],
        }
    )


def read_splitwise(folder: Path, device: DeviceFacts) -> pd.DataFrame | None:
    """Splitwise's measured Llama-2-70B times, or None where the file is absent.

    Returns:
        Columns ``tp``, ``prompt``, ``batch``, ``output`` (tokens), ``token_ms``.
    """
    path = folder / device.splitwise_csv
    if not path.is_file():
        return None
    numbers = ["tensor_parallel", "prompt_size", "batch_size", "token_size", "token_time"]
    frame = _read(path, numbers, text=["model", "hardware"])
    frame = frame[
        (frame["model"] == "llama2-70b") & (frame["hardware"] == device.splitwise_hardware)
    ]
    if frame.empty:
        raise ValueError(f"{path}: no row of llama2-70b on {device.splitwise_hardware}")
    columns = ["tp", "prompt", "batch", "output", "token_ms"]
    return frame[numbers].set_axis(columns, axis=1).reset_index(drop=True)


def _read(
    path: Path,
    numbers: list[str],
    *,
    optional: list[str] | None = None,
    text: list[str] | None = None,
) -> pd.DataFrame:
    """The wanted columns; ``optional`` ones may be empty in rows, ``text`` ones are not numbers."""
    if not path.is_file():
        raise ValueError(f"no such profile: {path} (published in microsoft/vidur, data/profiling)")
    columns = [*numbers, *(optional or []), *(text or [])]
    try:
        frame = pd.read_csv(path, low_memory=False)
    except (pd.errors.EmptyDataError, pd.errors.ParserError, UnicodeDecodeError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ValueError(f"{path} is not a CSV table: {reason}") from None
    missing = [name for name in columns if name not in frame.columns]
    if missing:
        raise ValueError(f"{path}: missing column {', '.join(missing)} (Vidur's profile format)")
    if frame.empty:
        raise ValueError(f"{path}: no rows")
    frame = frame[columns].copy()
    for name in [*numbers, *(optional or [])]:
        values = pd.to_numeric(frame[name], errors="coerce")
        bad = values.isna() & frame[name].notna()
        if bad.any():
            _refuse(path, frame, name, bad.to_numpy(), "must be a number")
        frame[name] = values
    _not_negative(path, frame, numbers)
    return frame


def _not_negative(path: Path, frame: pd.DataFrame, columns: list[str]) -> None:
    for name in columns:
        values = frame[name].to_numpy(np.float64)
        _refuse(path, frame, name, ~(np.isfinite(values) & (values >= 0)), "must be 0 or more")


def _positive(path: Path, frame: pd.DataFrame, columns: list[str]) -> None:
    for name in columns:
        _refuse(path, frame, name, frame[name].to_numpy(np.float64) <= 0, "must be above 0")


def _refuse(path: Path, frame: pd.DataFrame, name: str, bad: np.ndarray, allowed: str) -> None:
    if bad.any():
        where = int(np.flatnonzero(bad)[0])
        row = int(frame.index[where]) + 2  # the header is line 1
        raise ValueError(f"{path} line {row}: {name} = {frame[name].iloc[where]!s} {allowed}")
