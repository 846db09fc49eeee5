"""Schema and lookup of the device and model profiles under ``configs/``.

A device file holds what belongs to the hardware (memory, attention and all-reduce coefficients,
overhead); a model file holds the architecture and, per device and tensor-parallel degree, the
time of one transformer layer's linear operators. ``scripts/calibrate_timing.py`` writes both.
"""

from __future__ import annotations

import math
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, TypeVar

import numpy as np
import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from llmroute_env.scenario.loading import config_directory

GIB = float(2**30)

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Table(_Strict):
    """A monotone piecewise-linear table from a size to a time.

    Attributes:
        sizes: strictly increasing, tokens or bytes.
        microseconds: non-decreasing, one per size.
    """

    sizes: list[float]
    microseconds: list[float]

    @model_validator(mode="after")
    def _shape(self) -> Table:
        if len(self.sizes) != len(self.microseconds) or not self.sizes:
            raise ValueError(
                f"needs as many sizes as microseconds, at least one; "
                f"has {len(self.sizes)} and {len(self.microseconds)}"
            )
        if not all(math.isfinite(v) and v >= 0 for v in (*self.sizes, *self.microseconds)):
            raise ValueError("sizes and microseconds must be finite and not negative")
        if np.any(np.diff(self.sizes) <= 0):
            raise ValueError("sizes must be strictly increasing")
        if np.any(np.diff(self.microseconds) < 0):
            raise ValueError("microseconds must not decrease")
        return self

    def seconds(self, size: np.ndarray | float) -> np.ndarray:
        """Time [s] at ``size``: interpolated, flat below the first knot.

        Past the last knot it grows with the table's average slope over its upper half.
        """
        x = np.asarray(size, np.float64)
        sizes = np.asarray(self.sizes)
        micros = np.asarray(self.microseconds)
        inside = np.interp(x, sizes, micros)
        beyond = np.maximum(x - sizes[-1], 0.0) * self.slope_us()
        return np.asarray((inside + beyond) * 1e-6)

    def slope_us(self) -> float:
        """Average slope [microseconds per unit of size] over the upper half of the table."""
        sizes, micros = np.asarray(self.sizes), np.asarray(self.microseconds)
        middle = np.interp(sizes[-1] / 2, sizes, micros)
        width = sizes[-1] - max(sizes[-1] / 2, sizes[0])
        return float((micros[-1] - middle) / width) if width > 0 else 0.0


class AttentionProfile(_Strict):
    """Attention kernels of one layer on one GPU.

    Attributes:
        decode_overhead_s: part of the decode kernel that no KV byte explains [s per layer].
        decode_s_per_byte: decode kernel time per KV byte read [s/byte].
        prefill_overhead_s: the same for the prefill kernel [s per layer].
        prefill_s_per_query: prefill kernel time per query value, tokens * heads * head_dim [s].
        prefill_s_per_flop: prefill kernel time per floating-point operation [s].
    """

    decode_overhead_s: NonNegative
    decode_s_per_byte: Positive
    prefill_overhead_s: NonNegative
    prefill_s_per_query: NonNegative
    prefill_s_per_flop: Positive


class DeviceProfile(_Strict):
    """One GPU type and the links between its GPUs.

    Attributes:
        memory_gib: memory that the driver reports [GiB].
        activation_reserve_gib: memory that holds neither weights nor KV [GiB per GPU].
        overhead_s: time of an iteration during which no profiled kernel runs [s].
        all_reduce: time by message bytes, per tensor-parallel degree (2 and more).
        notes: why the chosen numbers are what they are.
        provenance: source files, rows, split; errors: measured on held-out rows.
    """

    name: str
    description: str
    memory_gib: Positive
    activation_reserve_gib: NonNegative
    overhead_s: NonNegative
    attention: AttentionProfile
    all_reduce: dict[Count, Table]
    notes: dict[str, str] = {}
    provenance: dict[str, Any]
    errors: dict[str, Any] = {}


class LayerProfile(_Strict):
    """Linear operators of one model on one device at one tensor-parallel degree.

    Attributes:
        layer: time of one transformer layer by tokens in the batch.
        head: embedding and output projection, once an iteration, by tokens in the batch.
        prefill_us_per_token: what a prefill token adds to a decode batch, one layer, where the
            operators are compute-bound [microseconds/token].
    """

    layer: Table
    head: Table
    prefill_us_per_token: Positive
    errors: dict[str, Any] = {}


class ModelProfile(_Strict):
    """Architecture of a decoder-only transformer with gated MLP and untied embeddings.

    Attributes:
        context_limit: tokens of prompt plus output that the model was trained for.
        bytes_per_value: of weights and KV, 2 for fp16 and bf16.
        profiles: device name to tensor-parallel degree to measured times.
    """

    name: str
    description: str
    layers: Count
    hidden: Count
    mlp_hidden: Count
    heads: Count
    kv_heads: Count
    head_dim: Count
    vocab: Count
    context_limit: Count
    bytes_per_value: Count = 2
    profiles: dict[str, dict[Count, LayerProfile]]
    provenance: dict[str, Any]

    @property
    def parameters(self) -> int:
        """Weights of the model [values]: embeddings, layers, norms, output projection."""
        attention = self.hidden * self.head_dim * 2 * (self.heads + self.kv_heads)
        mlp = 3 * self.hidden * self.mlp_hidden
        per_layer = attention + mlp + 2 * self.hidden
        return 2 * self.vocab * self.hidden + self.layers * per_layer + self.hidden

    @property
    def weight_bytes(self) -> int:
        """Weights of the whole model [bytes]."""
        return self.parameters * self.bytes_per_value

    def kv_bytes_per_layer(self, tp: int) -> int:
        """KV bytes of one token in one layer on one GPU of a tensor-parallel group.

        KV heads are split over the group; with fewer heads than GPUs they are replicated.
        """
        return 2 * math.ceil(self.kv_heads / tp) * self.head_dim * self.bytes_per_value

    def kv_bytes_per_token(self, tp: int) -> int:
        """KV bytes of one token on one GPU, all layers."""
        return self.layers * self.kv_bytes_per_layer(tp)

    def layer_profile(self, device: str, tp: int) -> LayerProfile:
        """Measured times at ``tp`` GPUs of ``device``.

        Raises:
            ValueError: the model was not profiled there; the line names what exists.
        """
        by_tp = self.profiles.get(device)
        if by_tp is None:
            known = ", ".join(sorted(self.profiles)) or "none"
            raise ValueError(f"model {self.name!r} has no profile on {device!r}; it has: {known}")
        if tp not in by_tp:
            known = ", ".join(str(degree) for degree in sorted(by_tp))
            raise ValueError(
                f"timing.tp = {tp}: {self.name} on {device} is profiled for tp {known} only"
            )
        return by_tp[tp]


_Profile = TypeVar("_Profile", DeviceProfile, ModelProfile)


def load_device(device: str | Path | DeviceProfile) -> DeviceProfile:
    """Load a device by name (``configs/devices``), path to a YAML file, or pass one through."""
    return device if isinstance(device, DeviceProfile) else _load(device, "device", DeviceProfile)


def load_model(model: str | Path | ModelProfile) -> ModelProfile:
    """Load a model by name (``configs/models``), path to a YAML file, or pass one through."""
    return model if isinstance(model, ModelProfile) else _load(model, "model", ModelProfile)


def _load(name: str | Path, kind: str, schema: type[_Profile]) -> _Profile:
    path = profile_path(name, kind)
    return _parse(path, path.stat().st_mtime_ns, kind, schema)  # type: ignore[return-value]


@lru_cache(maxsize=64)
def _parse(
    path: Path, _mtime_ns: int, kind: str, schema: type[DeviceProfile] | type[ModelProfile]
) -> DeviceProfile | ModelProfile:
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), Loader=_LOADER)
        return schema.model_validate(content)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{kind} file {path} is not YAML: {str(error).splitlines()[0]}") from None
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"]) or "file"
        raise ValueError(f"{kind} file {path}: {key}: {first['msg']}") from None


# The C parser where PyYAML has it: profiles load on every cold start.
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def profile_path(name: str | Path, kind: str) -> Path:
    """Path of a ``kind`` ("device" or "model") file, by name under ``configs/`` or by path.

    Raises:
        ValueError: no such file; the line lists the known names.
    """
    if isinstance(name, Path) or "/" in name or name.endswith((".yaml", ".yml")):
        path = Path(name).expanduser()
        if not path.is_file():
            raise ValueError(f"timing.{kind}: no such file: {path}")
        return path
    folder = config_directory() / f"{kind}s"
    path = folder / f"{name}.yaml"
    if not path.is_file():
        known = ", ".join(sorted(p.stem for p in folder.glob("*.yaml"))) or "none"
        raise ValueError(
            f"timing.{kind} = {name!r} is unknown; known: {known} (or a path to a YAML file)"
        )
    return path
