"""Episode records made up from a formula, for tests of what is done with records."""

from __future__ import annotations

import numpy as np

from llmroute_env.cluster.dtypes import Component
from llmroute_env.cluster.state import COMPLETED, QUEUED, Series
from llmroute_env.experiments.records import EpisodeRecord, ResultDirectory, write_episode
from llmroute_env.metrics import METRICS

PERIODS = 200


def record(
    policy: str, seed: int = 0, *, slowness: float = 1.0, load: float | None = None
) -> EpisodeRecord:
    rng = np.random.default_rng(seed)
    arrival = np.sort(rng.uniform(0, PERIODS, 60))
    finish = arrival + slowness * rng.exponential(20.0, 60)
    done = finish < PERIODS
    now = np.arange(0.0, PERIODS + 1.0, dtype=np.float32)
    arrays = {
        "requests/arrival_s": arrival,
        "requests/status": np.where(done, COMPLETED, QUEUED),
        "requests/finish_s": np.where(done, finish, np.nan),
        "requests/first_token_s": np.where(done, arrival + 1.0, np.nan),
        "capacity/batch_limit": np.array([4, 4]),
        "capacity/kv_limit": np.array([1000, 1000]),
    }
    arrays |= {f"series/{column.name.lower()}": now * 0.01 for column in Series}
    arrays["series/now"] = now
    if policy.startswith("olp"):
        arrays |= {
            "diagnostics/period": now,
            "diagnostics/price_batch": np.sin(now / 50.0) ** 2,
            "diagnostics/price_memory": np.zeros_like(now),
        }
    eel = float(np.where(done, finish - arrival, PERIODS - arrival).mean())
    summary = dict.fromkeys(METRICS, 1.0 + 0.1 * seed) | {
        "eel_mean_s": eel,
        "slo_attainment": float(done.mean()),
        "arrived": 60,
        "completed": int(done.sum()),
        "unfinished": int((~done).sum()),
        "rejected": 0,
        "hidden_share": 0.0,
        "prefix_hit_rate": float("nan"),
        "misrouted": 0.0,
        "tpot_mean_s": float("nan"),
    }
    timings = {"decision_us_p50": 1.5, "decision_us_p99": 4.0, "wall_s": 0.01}
    return EpisodeRecord(
        scenario="paper-overload",
        policy=policy,
        information="predicted" if policy.startswith(("olp", "sjf")) else "none",
        seed=seed,
        summary=summary | timings,
        rewards={component.name.lower(): 1.0 for component in Component},
        load=load,
        arrays=arrays if load is None else {},
    )


def fill(results: ResultDirectory, policies: dict[str, float], seeds: int = 3) -> None:
    results.add_policies(policies)
    for policy, slowness in policies.items():
        for seed in range(seeds):
            made = record(policy, seed, slowness=slowness)
            write_episode(results.episode_path(policy, seed), made)
