"""The dual function: an upper bound at any prices, its subgradient, and prices on knots.

Resources are slots of the batch, KV tokens and, where iterations grow with the batch, device
time. Prices are in reward per *capacity*: a price of 1 on a slot costs what the whole fleet's
capacity of that slot is worth. That scales the resources alike, and the capacity term of the
dual is the plain sum of prices.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage, sparse

from policies.hindsight.instance import Floats, Instance, Ints
from policies.hindsight.pricing import certify, occupy, respond
from policies.hindsight.schedules import Schedules

Prices = list[Floats]


class Basis:
    """Prices that are piecewise linear in time, by their values at knots.

    Fewer knots than slots keep prices smooth. That costs little (the capacity between two knots
    is averaged), makes the dual easier to minimise, and leaves preemption nothing to gain from
    prices that jump.

    Args:
        slots: N.
        widths: slots between two knots, for each resource.
    """

    def __init__(self, slots: int, widths: list[int]) -> None:
        self.hats = [_hats(slots, width) for width in widths]
        self.sizes = [hat.shape[1] for hat in self.hats]
        self.spots = [  # slots of the knots; the last may lie past the end
            np.minimum(np.arange(size) * width, slots - 1)
            for size, width in zip(self.sizes, widths, strict=True)
        ]
        self.weights: Floats = np.concatenate([hat.sum(axis=0) for hat in self.hats])

    def expand(self, knots: Floats) -> Prices:
        """(N,) prices of each resource."""
        return [hat @ part for hat, part in zip(self.hats, self.split(knots), strict=True)]

    def restrict(self, slopes: Prices) -> Floats:
        """(K,) slopes by knot from the slopes by slot."""
        return np.concatenate([hat.T @ slope for hat, slope in zip(self.hats, slopes, strict=True)])

    def split(self, knots: Floats) -> Prices:
        """The knots of each resource."""
        return np.split(knots, np.cumsum(self.sizes)[:-1])


def _hats(slots: int, width: int) -> Any:
    """(N, K) sparse weights of linear interpolation between knots ``width`` slots apart."""
    position = np.arange(slots) / width
    left = position.astype(np.int64)
    share = position - left
    right = np.where(share > 0, left + 1, left)
    rows = np.arange(slots)
    knots = int(right.max()) + 1 if slots else 1
    return sparse.csr_array(
        (
            np.concatenate([1.0 - share, share]),
            (np.concatenate([rows, rows]), np.concatenate([left, right])),
        ),
        shape=(slots, knots),
    )


@dataclass
class Dual:
    """The Lagrangian dual of an instance.

    Attributes:
        instance: what is bounded.
        value: (R,) gains of the last evaluation.
        begin, resume: (R,) its schedules, see `pricing.respond`.
    """

    instance: Instance
    value: Floats = field(init=False)
    begin: Ints = field(init=False)
    resume: Ints = field(init=False)

    def __post_init__(self) -> None:
        one, requests = self.instance, self.instance.requests
        self.value = np.zeros(requests)
        self.begin, self.resume = np.full(requests, -1), np.full(requests, one.slots)
        self._slots = float(one.batch_limit.sum())
        self._tokens = float(one.kv_limit.sum())
        self._used = np.zeros((3, one.slots))

    @property
    def resources(self) -> int:
        """Number of priced resources."""
        return 3 if self.instance.limited_by_time else 2

    def evaluate(self, prices: Prices, *, pause: bool = True) -> tuple[float, Prices]:
        """The dual with `respond`'s schedules, and its subgradient by slot.

        Args:
            prices: (N,) of each resource, not negative.
            pause: see `pricing.respond`.
        """
        respond(
            self.instance.work, *self._effective(prices), pause, self.value, self.begin, self.resume
        )
        return self.capacity(prices) + float(self.value.sum()), self.slopes()

    def certify(self, prices: Prices, *, schedules: bool = False) -> tuple[float, Schedules]:
        """The dual with the exact subproblem, for routings with preemption; sets ``value`` too.

        Args:
            prices: (N,) of each resource, not negative.
            schedules: whether to return the schedules that attain the gains; else none.
        """
        work, requests = self.instance.work, self.instance.requests
        count = np.zeros(requests, np.int64)
        slot = np.zeros(int(work.decode.sum()) if schedules else 0, np.int64)
        certify(work, *self._effective(prices), self.value, count, slot)
        started = np.flatnonzero(count)
        made = Schedules(started, count[started], slot[: int(count.sum())])
        return self.capacity(prices) + float(self.value.sum()), made

    def slopes(self) -> Prices:
        """1 - use / capacity, by resource and slot, of the last evaluation's schedules."""
        return [1.0 - use for use in self.use(self.begin, self.resume)]

    def use(self, begin: Ints, resume: Ints) -> Prices:
        """Use of each resource by slot as a share of its capacity."""
        held, ran, tokens = self._used
        occupy(self.instance.work, begin, resume, held, ran, tokens)
        return self.shares(held, ran, tokens)

    def shares(self, held: Floats, ran: Floats, tokens: Floats) -> Prices:
        """Use of each resource as a share of capacity, from what requests hold and run."""
        one = self.instance
        shares = [(held if one.hold else ran) / self._slots, tokens / self._tokens]
        if one.limited_by_time:
            shares.append((one.token_share * ran + one.kv_share * tokens) / one.devices)
        return shares

    def capacity(self, prices: Prices) -> float:
        """What the fleet's capacity costs at these prices."""
        total = float(prices[0].sum() + prices[1].sum())
        if self.instance.limited_by_time:
            total += float(_spread(prices[2], self.instance.reach).sum())
        return total

    def _effective(self, prices: Prices) -> tuple[Floats, Floats, Floats]:
        """Prices of holding, running and of a KV token, as `pricing` takes them."""
        one = self.instance
        slot, kv = prices[0] / self._slots, prices[1] / self._tokens
        run = np.full(one.slots, -one.alpha)
        if one.limited_by_time:
            time = prices[2] / one.devices
            run += one.token_share * time
            kv = kv + one.kv_share * time
        if one.hold:
            return slot, run, kv
        return np.zeros_like(slot), run + slot, kv


def _spread(prices: Floats, reach: int) -> NDArray[np.float64]:
    """(N + reach,) largest price from ``reach`` slots before to one slot after each slot."""
    padded = np.concatenate([prices, np.zeros(reach + 1)])
    # maximum_filter1d looks `size // 2 + origin` back and the rest of `size - 1` ahead.
    size = reach + 2
    widest: Floats = ndimage.maximum_filter1d(
        padded, size, origin=reach - size // 2, mode="constant", cval=0.0
    )
    return widest[: len(prices) + reach]
