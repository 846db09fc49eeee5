"""Variants of the environment, by wrapper and not by copy.

`SB3VecEnv` is imported from its own module on first use, so that nothing here needs torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from llmroute_env.wrappers.flat import FlatFeatures, FlatObservation, Scales
from llmroute_env.wrappers.one_request import OneRequestEnv

if TYPE_CHECKING:
    from llmroute_env.wrappers.sb3_vec_env import SB3VecEnv

__all__ = ["FlatFeatures", "FlatObservation", "OneRequestEnv", "SB3VecEnv", "Scales"]


def __getattr__(name: str) -> Any:
    if name == "SB3VecEnv":
        from llmroute_env.wrappers.sb3_vec_env import SB3VecEnv

        return SB3VecEnv
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
