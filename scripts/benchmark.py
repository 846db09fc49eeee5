"""Measure speed: ``python scripts/benchmark.py --help``."""

from __future__ import annotations

import sys

from llmroute_env.experiments.benchmark.cli import main

if __name__ == "__main__":
    sys.exit(main())
