"""Reproduce the paper and judge its claims: ``python scripts/reproduce_paper.py --help``."""

from __future__ import annotations

import sys

from llmroute_env.experiments.science.reproduce import main

if __name__ == "__main__":
    sys.exit(main())
