"""Scenarios: validated configuration of cluster, workload, prediction and objective."""

from __future__ import annotations

from llmroute_env.scenario.errors import ScenarioError
from llmroute_env.scenario.loading import config_directory, list_scenarios
from llmroute_env.scenario.models import Scenario
from llmroute_env.scenario.overrides import parse_assignments

__all__ = [
    "Scenario",
    "ScenarioError",
    "config_directory",
    "list_scenarios",
    "parse_assignments",
]
