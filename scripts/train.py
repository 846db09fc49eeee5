"""Train a router; see ``llmroute_env.training.cli``.

python scripts/train.py --config pairs --out results/train/001
"""

from __future__ import annotations

import sys

from llmroute_env.training.cli import train_main

if __name__ == "__main__":
    sys.exit(train_main())
