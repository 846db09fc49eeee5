"""Export an episode as an optimisation instance: ``python scripts/export_instance.py --help``."""

from __future__ import annotations

import sys

from policies.hindsight.cli import main

if __name__ == "__main__":
    sys.exit(main())
