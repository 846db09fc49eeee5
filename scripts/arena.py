"""Every policy in every cell of an arena: ``python scripts/arena.py --help``."""

from __future__ import annotations

import sys

from llmroute_env.experiments.science.arena_command import main

if __name__ == "__main__":
    sys.exit(main())
