"""Random numbers inside compiled decisions: splitmix64 on a counter that is part of the memory.

The counter is one uint64 in a policy's memory, so a snapshot of the memory replays the same draws.
Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.
"""

from __future__ import annotations

import numpy as np

from llmroute_env.jit import compiled

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_S30, _S27, _S31, _S11 = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(11)
_UNIT = 2.0**-53
_MASK = (1 << 64) - 1


@compiled
def next_u64(counter: np.ndarray) -> int:
    """Advance ``counter`` ((1,) uint64, in place) and return 64 random bits (uint64)."""
    counter[0] += _GOLDEN
    z = counter[0]
    z = (z ^ (z >> _S30)) * _MIX_1
    z = (z ^ (z >> _S27)) * _MIX_2
    return z ^ (z >> _S31)  # type: ignore[no-any-return]


@compiled
def uniform(counter: np.ndarray) -> float:
    """Draw a float64 in [0, 1) with 53 random bits."""
    return (next_u64(counter) >> _S11) * _UNIT


@compiled
def below(counter: np.ndarray, n: int) -> int:
    """Draw an integer in [0, n), n >= 1; its bias, n / 2**53, is beyond any experiment."""
    return int(uniform(counter) * n)


def _mix(z: int) -> int:
    z = (z + int(_GOLDEN)) & _MASK
    z = ((z ^ (z >> 30)) * int(_MIX_1)) & _MASK
    z = ((z ^ (z >> 27)) * int(_MIX_2)) & _MASK
    return z ^ (z >> 31)


def lane_seed(seed: int, lane: int, episode: int) -> int:
    """Return the 64-bit start of a lane's random stream in its ``episode``-th episode.

    A hash of all three, so that neighbouring seeds, lanes and episodes share nothing.
    """
    return _mix(_mix(_mix(seed & _MASK) ^ (lane & _MASK)) ^ (episode & _MASK))
