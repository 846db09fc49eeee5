"""Shared by all tests: where the shared inputs are, a deterministic hypothesis, helper modules."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

# pytest's importlib mode leaves this folder off the path; the reference and the strategies live
# here and are imported by several tests.
sys.path.insert(0, str(Path(__file__).parent))

SHARED = Path(os.environ.get("LLMROUTE_SHARED", Path(__file__).parents[2] / "shared"))

try:
    from hypothesis import HealthCheck, settings
except ImportError:  # a plain `pip install` without the dev extra: property tests then skip
    pass
else:
    _quiet = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture]
    settings.register_profile(
        "llmroute", derandomize=True, database=None, deadline=None, suppress_health_check=_quiet
    )
    # For a long hunt with fresh randomness: HYPOTHESIS_PROFILE=soak pytest tests/test_cluster_...
    settings.register_profile(
        "soak", deadline=None, max_examples=20_000, suppress_health_check=_quiet
    )
    settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "llmroute"))


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of shared inputs (traces, profiles, cases) beside the repository."""
    if not SHARED.is_dir():
        pytest.skip(f"{SHARED} is absent: the shared inputs are not part of the repository")
    return SHARED


@pytest.fixture(scope="session")
def cases(shared: Path) -> Path:
    """The folder of small inputs with a known right outcome."""
    return shared / "cases"
