"""ServeGen: workloads of many clients, from their recorded rates, burstiness and lengths.

https://github.com/alibaba/ServeGen. A chunk is one client: ``chunk-N-trace.csv`` has a rate and a
distribution of gaps for every window of ten minutes, ``chunk-N-dataset.json`` has distributions of
prompt and decode tokens for every window of six hours.
"""

from __future__ import annotations

from llmroute_env.workload.servegen.generator import draw, mean_rate, peak_rate, sample

__all__ = ["draw", "mean_rate", "peak_rate", "sample"]
