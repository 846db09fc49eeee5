"""Workloads: arrivals, lengths, predicted lengths, traces. ``generate`` draws one episode."""

from __future__ import annotations

from llmroute_env.workload.generate import generate, prepare
from llmroute_env.workload.table import Category, RequestTable, Streams

__all__ = ["Category", "RequestTable", "Streams", "generate", "prepare"]
