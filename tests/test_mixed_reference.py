"""The compiled kernel against the reference: groups, handoff, prefill, prefix caches."""

from __future__ import annotations

import pytest

hypothesis = pytest.importorskip("hypothesis")

from comparison import make, play  # noqa: E402
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from mixed_strategies import MODES, MixedEpisode, episodes  # noqa: E402


@settings(max_examples=80, deadline=None)
@given(st.data())
@pytest.mark.parametrize("mode", MODES)
def test_kernel_equals_reference(mode: str, data: st.DataObject) -> None:
    episode: MixedEpisode = data.draw(episodes((mode,)))
    play(make(episode.scenario), episode)
