"""The smallest fleet that meets an SLO: ``python scripts/capacity.py --help``."""

from __future__ import annotations

import sys

from llmroute_env.experiments.capacity.command import main

if __name__ == "__main__":
    sys.exit(main())
