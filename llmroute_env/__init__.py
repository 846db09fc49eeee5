"""LLMRoute: a Gymnasium environment and benchmark for routing requests to LLM decode devices.

``import llmroute_env`` registers ``LLMRoute-v0``; ``gymnasium.make("llmroute_env:LLMRoute-v0")``
does both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gymnasium.envs.registration import register, registry

if TYPE_CHECKING:
    from llmroute_env.env import LLMRouteEnv
    from llmroute_env.evaluation import EpisodeResult, evaluate
    from llmroute_env.scenario import Scenario, ScenarioError, list_scenarios
    from llmroute_env.vector import LLMRouteVectorEnv
    from llmroute_env.workload import RequestTable

__version__ = "0.1.0"

# Loaded when first asked for: a script that lists scenarios need not wait for the compiler.
_EXPORTS = {
    "EpisodeResult": "llmroute_env.evaluation",
    "LLMRouteEnv": "llmroute_env.env",
    "LLMRouteVectorEnv": "llmroute_env.vector",
    "RequestTable": "llmroute_env.workload",
    "Scenario": "llmroute_env.scenario",
    "ScenarioError": "llmroute_env.scenario",
    "evaluate": "llmroute_env.evaluation",
    "list_scenarios": "llmroute_env.scenario",
}

__all__ = [
    "EpisodeResult",
    "LLMRouteEnv",
    "LLMRouteVectorEnv",
    "RequestTable",
    "Scenario",
    "ScenarioError",
    "evaluate",
    "list_scenarios",
]


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_EXPORTS[name]), name)


if "LLMRoute-v0" not in registry:
    register(
        id="LLMRoute-v0",
        entry_point="llmroute_env.env:LLMRouteEnv",
        vector_entry_point="llmroute_env.vector:LLMRouteVectorEnv",
    )
