"""How the cost of a decision grows: with devices, queue, look-ahead, and decode length."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from llmroute_env.experiments.benchmark.backlog import record
from llmroute_env.experiments.benchmark.decisions import DEVICES, OLP, WAITING, deciding
from llmroute_env.experiments.benchmark.model import Batch, Derived, Group, Measure, Plan, Values

_DEVICES: Final = (4, 16, 64, 256)
_DEVICES_WAITING: Final = 512
_QUEUES: Final = (16, 64, 128, 512, 2048)
_QUEUE_POLICIES: Final = ("olp", "mc_sf", "sjf", "lor")
_LOOKAHEADS: Final = (64, 128, 256, 512, 1024, 2048)
_LENGTHS: Final = (1, 4, 16)  #: factors on the decode lengths


def _grown(name: str, first: float, last: float) -> Derived:
    """Cost at the last point over the first, divided by the growth of x: 1 is linear."""

    def of(values: Values) -> float:
        cost = values[f"{name}.{last}.p50_us"] / values[f"{name}.{first}.p50_us"]
        return cost / (last / first)

    return Derived(Measure(f"{name}.over_linear", "×"), of)


def _device_batches(plan: Plan) -> Iterator[Batch]:
    timed = 20 if plan.quick else 150
    sizes = (4, 16) if plan.quick else _DEVICES
    waiting = 64 if plan.quick else _DEVICES_WAITING
    probes = [
        deciding(record(g, waiting, timed), OLP, f"devices.{g}", "devices.olp", g) for g in sizes
    ]
    repeats = 2 if plan.quick else 5
    yield Batch("olp by devices", probes, [_grown("devices", sizes[0], sizes[-1])], repeats)


def _queue_batches(plan: Plan) -> Iterator[Batch]:
    timed = 20 if plan.quick else 150
    for waiting in (16, 64) if plan.quick else _QUEUES:
        tape = record(DEVICES, waiting, timed)
        probes = [
            deciding(tape, policy, f"queue.{waiting}.{policy}", f"queue.{policy}", waiting)
            for policy in _QUEUE_POLICIES
        ]
        yield Batch(f"{waiting} waiting", probes, repeats=2 if plan.quick else 3)


def _lookahead_batches(plan: Plan) -> Iterator[Batch]:
    tape = record(DEVICES, WAITING, 20 if plan.quick else 300)
    sizes = (64, 128) if plan.quick else _LOOKAHEADS
    probes = [
        deciding(tape, f"olp:lookahead={h}", f"lookahead.{h}", "lookahead.olp", h) for h in sizes
    ]
    yield Batch("olp by look-ahead", probes, [_grown("lookahead", sizes[0], sizes[-1])])


def _length_batches(plan: Plan) -> Iterator[Batch]:
    probes = []
    for factor in (1, 4) if plan.quick else _LENGTHS:
        longer = {
            "workload.lengths.decode.mean": 214.5 * factor,
            "workload.lengths.decode.max": 2_000 * factor,
            # room enough at every factor, so that slots bind everywhere
            "cluster.kv_limit": 2_000_000,
        }
        tape = record(DEVICES, WAITING, 20 if plan.quick else 300, longer)
        probes.append(deciding(tape, OLP, f"lengths.{factor}", "lengths.olp", factor))
    last = 4 if plan.quick else _LENGTHS[-1]

    def of(values: Values) -> float:
        return values[f"lengths.{last}.p50_us"] / values["lengths.1.p50_us"]

    flat = Derived(Measure("lengths.longest_over_shortest", "×"), of)
    yield Batch("olp by decode length", probes, [flat])


GROUPS: Final = (
    Group("devices", f"olp by devices, {_DEVICES_WAITING} waiting", _device_batches),
    Group("queue", f"decision by requests waiting, {DEVICES} devices", _queue_batches),
    Group(
        "lookahead", f"olp by look-ahead, {DEVICES} devices, {WAITING} waiting", _lookahead_batches
    ),
    Group("lengths", "olp by decode length (factor on mean and maximum)", _length_batches),
)
