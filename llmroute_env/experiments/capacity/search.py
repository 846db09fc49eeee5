"""The smallest fleet that passes, by simulation of as few fleets as possible.

A fleet is a tuple of device counts, one per pool. More devices are assumed not to hurt: a fleet
passes when a smaller one does. The assumption saves simulations and is then tested: the
neighbours of the answer are simulated too, and everything tested is searched for a larger fleet
that failed where a smaller one passed. (A router that ignores pools may break it: it puts short
requests on long devices, and a short device more is little help then.)

One pool: gallop from a guess until one size fails and a larger one passes, then bisect.
Several: the same along a ray of sizes that keeps the pools in proportion. Then, one device fewer
at a time, is there any split of that total that passes? What a pool needs at the least, with all
the others as large as the total allows, bounds the splits; of those that remain, every one is
tried that no larger failure rules out. So the answer is the smallest over all splits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

Fleet = tuple[int, ...]
Meets = Callable[[Fleet], bool]
Ray = Callable[[int], Fleet]


@dataclass
class Found:
    """Outcome of a search.

    Attributes:
        fleet: the smallest that passes, its larger neighbours too; None if none up to the largest.
        tested: every fleet that was simulated, and whether it passed.
        contradictions: pairs (smaller fleet that passed, larger fleet that failed).
    """

    fleet: Fleet | None
    tested: dict[Fleet, bool] = field(default_factory=dict)

    @property
    def contradictions(self) -> list[tuple[Fleet, Fleet]]:
        """Where more devices were worse than fewer, nearest pairs only."""
        passed = [fleet for fleet, good in self.tested.items() if good]
        failed = [fleet for fleet, good in self.tested.items() if not good]
        pairs = [(a, b) for a in passed for b in failed if below(a, b)]
        return sorted(
            (a, b)
            for a, b in pairs
            if not any((c, d) != (a, b) and below(a, c) and below(d, b) for c, d in pairs)
        )


def below(small: Fleet, large: Fleet) -> bool:
    """Whether no pool of ``small`` has more devices than in ``large``."""
    return all(a <= b for a, b in zip(small, large, strict=True))


def proportional(weights: tuple[float, ...]) -> Ray:
    """Sizes n to fleets of n devices in proportion to ``weights``, at least one in each pool.

    Each device more goes to the pool with the largest weight per device it would then have
    (Webster's divisors), so a larger size never has fewer devices in any pool.
    """

    def ray(size: int) -> Fleet:
        fleet = [1] * len(weights)
        for _ in range(size - len(weights)):
            gains = [weight / (have + 0.5) for weight, have in zip(weights, fleet, strict=True)]
            fleet[gains.index(max(gains))] += 1
        return tuple(fleet)

    return ray


def smallest(meets: Meets, ray: Ray, *, pools: int = 1, start: int, most: int) -> Found:
    """Find the smallest fleet.

    Args:
        meets: whether a fleet passes; called once for each fleet.
        ray: size n (from ``pools`` on) to the fleet of that size to try first.
        pools: P, entries of a fleet.
        start: size to begin with, a guess.
        most: largest size along the ray.
    """
    search = _Search(meets, ray, pools, most)
    while True:
        fleet = search.once(min(max(start, pools), most))
        if fleet is None:
            return Found(None, search.tested)
        if all(search.ask(larger) for larger in _larger(fleet)):
            return Found(fleet, search.tested)
        # One more device fails: this one passed by luck, so the answer lies above.
        search.lucky.add(fleet)
        start = sum(fleet) + 1


class _Search:
    def __init__(self, meets: Meets, ray: Ray, pools: int, most: int) -> None:
        self.meets, self.ray, self.pools, self.most = meets, ray, pools, most
        self.tested: dict[Fleet, bool] = {}
        self.lucky: set[Fleet] = set()

    def ask(self, fleet: Fleet) -> bool:
        """Simulate, once."""
        if fleet not in self.tested:
            self.tested[fleet] = self.meets(fleet)
        return self.tested[fleet]

    def passes(self, fleet: Fleet) -> bool:
        """Ask, unless the answer follows from a larger failure or a smaller success."""
        if fleet in self.lucky:
            return False
        if fleet not in self.tested:
            for other, good in self.tested.items():
                if good and other not in self.lucky and below(other, fleet):
                    return True
                if not good and below(fleet, other):
                    return False
        return self.ask(fleet)

    def once(self, start: int) -> Fleet | None:
        size = self._along_ray(start)
        if size is None:
            return None
        fleet = self.ray(size)
        if self.pools > 1:
            # What was inferred on the ray may be one of several fleets of its size.
            while (better := self._split_of(sum(fleet) - 1)) is not None:
                fleet = better
        return fleet

    def _along_ray(self, start: int) -> int | None:
        """Smallest passing size on the ray: gallop, then bisect."""
        low, high, step = self.pools - 1, start, 1  # low fails: no fleet can be without devices
        if self._on_ray(start):
            while high - step > low:
                if not self._on_ray(high - step):
                    low = high - step
                    break
                high, step = high - step, 2 * step
        else:
            low = start
            while True:
                if low >= self.most:
                    return None
                high = min(low + step, self.most)
                if self._on_ray(high):
                    break
                low, step = high, 2 * step
        return bisect(self._on_ray, low, high)

    def _on_ray(self, size: int) -> bool:
        fleet = self.ray(size)
        if fleet in self.lucky:
            return False
        return self.ask(fleet)

    def _split_of(self, total: int) -> Fleet | None:
        """A fleet of ``total`` devices that passes, or None when there is none."""
        if total < self.pools:
            return None
        least = []
        for pool in range(self.pools):
            need = self._least(pool, total)
            if need is None:
                return None
            least.append(need)
        near = self.ray(total)
        splits = sorted(
            _splits(total, tuple(least)),
            key=lambda fleet: (sum(abs(a - b) for a, b in zip(fleet, near, strict=True)), fleet),
        )
        return next((fleet for fleet in splits if self.passes(fleet)), None)

    def _least(self, pool: int, total: int) -> int | None:
        """Fewest devices of one pool with the others as large as the total allows."""
        largest = total - (self.pools - 1)

        def enough(devices: int) -> bool:
            fleet = [largest] * self.pools
            fleet[pool] = devices
            return self.passes(tuple(fleet))

        if not enough(largest):
            return None
        return bisect(enough, 0, largest)


def bisect(enough: Callable[[int], bool], low: int, high: int) -> int:
    """Smallest integer in (low, high] that is enough, given that ``high`` is and ``low`` is not."""
    while high - low > 1:
        middle = (low + high) // 2
        if enough(middle):
            high = middle
        else:
            low = middle
    return high


def _larger(fleet: Fleet) -> Iterator[Fleet]:
    """The fleets with one device more in one pool."""
    for pool in range(len(fleet)):
        yield (*fleet[:pool], fleet[pool] + 1, *fleet[pool + 1 :])


def _splits(total: int, least: Fleet) -> Iterator[Fleet]:
    """Every fleet of ``total`` devices with at least ``least`` in each pool."""
    if len(least) == 1:
        if total >= least[0]:
            yield (total,)
        return
    for first in range(least[0], total - sum(least[1:]) + 1):
        for rest in _splits(total - first, least[1:]):
            yield (first, *rest)
