"""Replay runs of Vidur and compare the latencies: ``python scripts/fidelity.py --help``."""

from __future__ import annotations

import sys

from llmroute_env.experiments.fidelity.command import main

if __name__ == "__main__":
    sys.exit(main())
