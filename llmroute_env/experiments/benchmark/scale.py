"""Large clusters: whole episodes of 100,000 requests, each size in a process of its own.

``python -m llmroute_env.experiments.benchmark.scale DEVICES BATCH REQUESTS`` plays one and prints
its numbers as JSON. Memory is the growth of the process's peak over what it had after it had
played a small episode, with all code loaded.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any, Final

from llmroute_env.experiments.benchmark.clock import thread_s
from llmroute_env.experiments.benchmark.machine import child_environment, memory_mb
from llmroute_env.experiments.benchmark.model import Batch, Derived, Group, Measure, Plan, Probe
from llmroute_env.experiments.benchmark.stepping import SCENARIO

_BATCH: Final = 128  #: B
_KV_LIMIT: Final = 64_000
_POLICY: Final = "lor"
#: Arrivals per device and period: nine tenths of what the slots serve (mean stay 205 periods).
_RATE: Final = 0.9 * _BATCH / 205
_CLUSTERS: Final = (256, 1_000)
_REQUESTS: Final = (25_000, 50_000, 100_000)
_TIMEOUT_S: Final = 120


def _episode(devices: int, batch: int, requests: int) -> dict[str, float]:
    """Play one episode to the last completion."""
    import policies
    from llmroute_env.env import LLMRouteEnv
    from llmroute_env.experiments.benchmark.episodes import device_iterations

    rate = _RATE * devices * batch / _BATCH
    keys: dict[str, Any] = {
        "cluster.devices": devices,
        "cluster.batch_limit": batch,
        "cluster.kv_limit": _KV_LIMIT,
        "workload.arrivals.rate": rate,
        "horizon_periods": max(round(requests / rate), 1),
        "drain": True,
    }
    env = LLMRouteEnv(SCENARIO, keys)
    policy = policies.make(_POLICY, env)
    env.reset(seed=0)
    start = thread_s()
    policy.run_episode(env, timed=False)
    seconds = thread_s() - start
    log = env.request_log()
    return {
        "seconds": seconds,
        "iterations": device_iterations(env),
        "requests": len(env.requests),
        "unfinished": int((log["status"] < 3).sum()),
    }


def play(devices: int, batch: int, requests: int) -> dict[str, float]:
    """Play a small episode to load the code, then the asked one; adds its memory."""
    _episode(4, batch, 200)
    before = memory_mb(peak=True)
    found = _episode(devices, batch, requests)
    peak = memory_mb(peak=True)
    return found | {"peak_mb": peak, "growth_mb": peak - before}


def _child(devices: int, requests: int) -> dict[str, float]:
    command = [sys.executable, "-m", __name__, str(devices), str(_BATCH), str(requests)]
    done = subprocess.run(
        command,
        env=child_environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=_TIMEOUT_S,
    )
    if done.returncode:
        reason = (done.stderr.strip() or "no message").splitlines()[-1]
        raise RuntimeError(f"{devices} devices, {requests:,} requests: {reason}")
    found: dict[str, float] = json.loads(done.stdout)
    if found["unfinished"]:
        raise RuntimeError(f"{devices} devices: {found['unfinished']} requests never finished")
    return found


def _probe(devices: int, requests: int) -> Probe:
    name = f"scale.{devices}.{requests}"
    memory = f"scale.memory.{devices}"
    measures = (
        Measure(f"{name}.iterations_per_s", "iterations/s", "higher"),
        Measure(f"{name}.requests_per_s", "requests/s", "higher"),
        Measure(f"{name}.episode_s", "s"),
        Measure(f"{name}.peak_mb", "MB"),
        Measure(f"{name}.growth_mb", "MB", "lower", memory, requests),
    )

    def run() -> tuple[float, ...]:
        found = _child(devices, requests)
        rates = (found["iterations"] / found["seconds"], found["requests"] / found["seconds"])
        return (*rates, found["seconds"], found["peak_mb"], found["growth_mb"])

    return Probe(measures, run, warm_up=False)


def _linearity(devices: int, sizes: tuple[int, ...]) -> list[Derived]:
    """Bytes per request between the last two sizes, and over those between the first two."""
    names = [f"scale.{devices}.{size}.growth_mb" for size in sizes]

    def slope(values: Any, i: int) -> float:
        more = values[names[i + 1]] - values[names[i]]
        return float(more * 1e6 / (sizes[i + 1] - sizes[i]))

    last = len(sizes) - 2
    return [
        Derived(Measure(f"scale.{devices}.bytes_per_request", "bytes"), lambda v: slope(v, last)),
        Derived(
            Measure(f"scale.{devices}.memory_over_linear", "×"),
            lambda v: slope(v, last) / slope(v, 0),
        ),
    ]


def _batches(plan: Plan) -> Iterator[Batch]:
    if plan.quick:
        yield Batch("16 devices", [_probe(16, 1_000)], repeats=1)
        return
    _child(4, 200)  # compiles, should nothing else have
    for devices in _CLUSTERS:
        probes = [_probe(devices, requests) for requests in _REQUESTS]
        yield Batch(f"{devices} devices", probes, _linearity(devices, _REQUESTS), repeats=2)


GROUP: Final = Group(
    "scale",
    f"whole episodes of large clusters (devices . requests), B = {_BATCH}, {_POLICY}, drained",
    _batches,
)

if __name__ == "__main__":
    print(json.dumps(play(*(int(word) for word in sys.argv[1:4]))))
