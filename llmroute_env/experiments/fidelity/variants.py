"""Profiles between ours and Vidur's: each differs from the one before in one convention.

Vidur's conventions are those of its public source (github.com/microsoft/vidur, MIT): the defaults
in ``vidur/config/config.py``, and how ``vidur/execution_time_predictor`` and
``vidur/entities/execution_time.py`` add a layer up. Ours stay what they are; a variant is a copy
of the profile, used for one replay.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from llmroute_env.cluster.calibration import csvs, fitting
from llmroute_env.cluster.calibration.facts import A100, MODELS, ModelFacts
from llmroute_env.cluster.profiled import padded
from llmroute_env.cluster.profiles import (
    DeviceProfile,
    ModelProfile,
    Table,
    load_device,
    load_model,
)
from llmroute_env.experiments.fidelity.runs import CLUSTER, DEVICE, MODEL, TP

DEFAULT_PROFILES: Final = Path("..") / "shared" / "profiles"

#: Vidur: nccl_cpu_launch_overhead_ms, added to each of the two all-reduces of a layer.
LAUNCH_US: Final = 20.0
#: Vidur: attention_decode_batching_overhead_fraction, with grouped-query attention and a batch.
BATCHING: Final = 0.1

Profiles = tuple[DeviceProfile, ModelProfile]


@dataclass(frozen=True)
class Variant:
    """A pair of profiles to replay with.

    Attributes:
        key: name of its files.
        label: what differs, in words.
        base: key of the variant that it is compared with; empty for the first.
        profiles: of the device and of the model.
    """

    key: str
    label: str
    base: str
    profiles: Profiles


#: The replay with nothing changed, the one with all of Vidur's conventions, and the one in which
#: the profile's rows are read otherwise as well.
OURS: Final = "ours"
VIDUR: Final = "vidur"
ROWS: Final = "rows"


def conventions() -> list[Variant]:
    """Our profile, and Vidur's conventions one after the other."""
    steps: list[tuple[str, str, Callable[[Profiles], Profiles]]] = [
        ("launch", f"+ {LAUNCH_US:g} µs of launch per all-reduce", _launch),
        ("attention", f"+ {BATCHING:.0%} of decode attention in a batch", _batching),
        ("head", "− embedding and output projection", _no_head),
        (VIDUR, "− overhead per iteration", _no_overhead),
    ]
    made = [Variant(OURS, "this model", "", (load_device(DEVICE), load_model(MODEL)))]
    for key, label, change in steps:
        made.append(Variant(key, label, made[-1].key, change(made[-1].profiles)))
    return made


def readings(folder: Path) -> list[Variant]:
    """Vidur's conventions with the profile's rows read otherwise than by our fits.

    Vidur interpolates single rows with random forests; ours are smooth, monotone fits. What the
    two make of the same rows is what remains once the conventions agree.

    Args:
        folder: the profile CSVs.

    Raises:
        ValueError: a missing or malformed CSV.
    """
    changes: dict[str, tuple[str, Callable[[Profiles, Path], Profiles]]] = {
        "layer-rows": ("linear layers: every profiled size", _layer_rows),
        "all-reduce-rows": ("all-reduce: the row of each padded size", _all_reduce_rows),
        "attention-rows": (
            "decode attention: fitted on batches that fit a replica",
            _attention_rows,
        ),
    }
    everything = (load_device(DEVICE), load_model(MODEL))
    made = []
    for key, (label, change) in changes.items():
        everything = change(everything, folder)
        alone = change((load_device(DEVICE), load_model(MODEL)), folder)
        made.append(Variant(key, label, VIDUR, _all_conventions(alone)))
    return [*made, Variant(ROWS, "all three", VIDUR, _all_conventions(everything))]


def _all_conventions(profiles: Profiles) -> Profiles:
    for change in (_launch, _batching, _no_head, _no_overhead):
        profiles = change(profiles)
    return profiles


def _launch(profiles: Profiles) -> Profiles:
    table = profiles[0].all_reduce[TP]
    slower = Table(sizes=table.sizes, microseconds=[us + LAUNCH_US for us in table.microseconds])
    return _with_all_reduce(profiles, slower)


def _batching(profiles: Profiles) -> Profiles:
    kernel = profiles[0].attention
    return _with_decode(
        profiles,
        kernel.decode_overhead_s * (1 + BATCHING),
        kernel.decode_s_per_byte * (1 + BATCHING),
    )


def _no_head(profiles: Profiles) -> Profiles:
    head = profiles[1].layer_profile(DEVICE, TP).head
    return _with_operators(
        profiles, head=Table(sizes=head.sizes, microseconds=[0.0] * len(head.sizes))
    )


def _no_overhead(profiles: Profiles) -> Profiles:
    return profiles[0].model_copy(update={"overhead_s": 0.0}), profiles[1]


def _layer_rows(profiles: Profiles, folder: Path) -> Profiles:
    rows = csvs.read_operators(folder, _facts())
    rows = rows[rows["tp"] == TP]
    rows = rows[rows["tokens"] <= profiles[1].layer_profile(DEVICE, TP).layer.sizes[-1]]
    table = _monotone(rows["tokens"].to_numpy(np.float64), rows["layer_us"].to_numpy())
    return _with_operators(profiles, layer=table)


def _all_reduce_rows(profiles: Profiles, folder: Path) -> Profiles:
    """Engines run padded batches only: the rows between their sizes say nothing about them."""
    rows = csvs.read_all_reduce(folder, A100)
    rows = rows[rows["tp"] == TP]
    model = profiles[1]
    most = int(CLUSTER["prefill"]["chunk_tokens"])
    message = np.unique(padded(np.arange(1, most + 1))) * model.hidden * model.bytes_per_value
    sizes, us = rows["bytes"].to_numpy(), rows["us"].to_numpy()
    nearest = np.abs(sizes[None, :] - message[:, None]).argmin(axis=1)
    return _with_all_reduce(profiles, _monotone(message, us[nearest]))


def _attention_rows(profiles: Profiles, folder: Path) -> Profiles:
    """The rows of batches that a replica can run: at most B requests and M tokens of KV.

    Our fit is on the whole profile, up to 128 requests with 500,000 tokens, in absolute errors, so
    that the largest decide.
    """
    rows = csvs.read_attention(folder, A100, _facts())
    batch = int(CLUSTER["batch_limit"])
    rows = rows[rows["decode"] & (rows["batch"] <= batch)]
    kv = (rows["batch"] * (rows["context"] + 1)).to_numpy(np.float64)
    held = kv <= int(CLUSTER["kv_limit"])
    features = np.column_stack([np.ones(held.sum()), kv[held]])
    launch, per_token = fitting.least_squares(features, rows["us"].to_numpy()[held])
    per_byte = per_token / profiles[1].kv_bytes_per_layer(TP)
    return _with_decode(profiles, float(launch * 1e-6), float(per_byte * 1e-6))


def _monotone(size: np.ndarray, us: np.ndarray) -> Table:
    return fitting.monotone_table(size, us, tolerance=0.0, max_knots=len(size))


def _with_all_reduce(profiles: Profiles, table: Table) -> Profiles:
    device, model = profiles
    return device.model_copy(update={"all_reduce": {**device.all_reduce, TP: table}}), model


def _with_decode(profiles: Profiles, overhead_s: float, s_per_byte: float) -> Profiles:
    device, model = profiles
    changed = {"decode_overhead_s": overhead_s, "decode_s_per_byte": s_per_byte}
    return (
        device.model_copy(update={"attention": device.attention.model_copy(update=changed)}),
        model,
    )


def _with_operators(profiles: Profiles, **tables: Table) -> Profiles:
    device, model = profiles
    changed = model.layer_profile(DEVICE, TP).model_copy(update=tables)
    return device, model.model_copy(
        update={"profiles": {DEVICE: {**model.profiles[DEVICE], TP: changed}}}
    )


def _facts() -> ModelFacts:
    return next(model for model in MODELS if model.name == MODEL)
