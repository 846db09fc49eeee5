"""Trace files. A new format is one parser and one entry in ``loader.FORMATS``."""

from __future__ import annotations

from llmroute_env.workload.traces.loader import FORMATS, TraceData, TraceReport, load_trace
from llmroute_env.workload.traces.rows import TraceError, TraceMissingError

__all__ = ["FORMATS", "TraceData", "TraceError", "TraceMissingError", "TraceReport", "load_trace"]
