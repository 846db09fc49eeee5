"""Compare routers on a scenario: ``python scripts/compare.py --help``."""

from __future__ import annotations

import sys

from llmroute_env.experiments.compare import main

if __name__ == "__main__":
    sys.exit(main())
