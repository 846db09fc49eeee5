"""Record episodes of a policy as an offline dataset; see ``llmroute_env.training.dataset``.

python scripts/collect.py --scenario paper-overload --policy mc_sf --episodes 4 --out data/mc_sf
"""

from __future__ import annotations

import sys

from llmroute_env.training.cli import collect_main

if __name__ == "__main__":
    sys.exit(collect_main())
