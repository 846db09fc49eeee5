"""What must hold at every step of any episode, and what the same seed must repeat."""

from __future__ import annotations

import hashlib
import itertools
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

hypothesis = pytest.importorskip("hypothesis")

from comparison import make  # noqa: E402
from hypothesis import given, settings  # noqa: E402
from strategies import STYLES, Actor, Episode, episodes  # noqa: E402

from llmroute_env.spaces import Active, Clock, Device, Queue  # noqa: E402

QUEUED, DISPATCHED, ACTIVE, COMPLETED, REJECTED, NOT_ARRIVED = range(6)
MOMENTS = ("arrival_s", "dispatch_s", "start_s", "first_token_s", "finish_s")


class Watch:
    """Checks every observation and log against each other and against the step before."""

    def __init__(self, env: Any) -> None:
        self.env = env
        self.before: dict[str, np.ndarray] | None = None
        self.now = -1.0

    def __call__(self, observation: dict[str, np.ndarray]) -> None:
        log = {column: np.array(values) for column, values in self.env.request_log().items()}
        assert self.env.observation_space.contains(observation)
        self.counts(observation, log)
        self.limits(observation)
        self.contents(observation, log)
        self.history(log)
        now = float(observation["clock"][Clock.NOW])
        assert now > self.now
        self.now = now
        self.before = log

    def counts(self, observation: dict[str, np.ndarray], log: dict[str, np.ndarray]) -> None:
        """Arrived = completed + rejected + queued + dispatched + active, in both views."""
        status = log["status"]
        count = np.bincount(status, minlength=6)
        now_ns = round(
            int(observation["clock"][Clock.PERIOD]) * round(self.env.scenario.period_s * 1e9)
        )
        arrived = (np.rint(log["arrival_s"] * 1e9) <= now_ns).sum()
        assert count[:NOT_ARRIVED].sum() == arrived
        visible = int((observation["queue_id"] >= 0).sum())
        assert visible + observation["clock"][Clock.HIDDEN] == count[QUEUED]
        assert observation["devices"][:, Device.FIFO_LENGTH].sum() == count[DISPATCHED]
        assert observation["devices"][:, Device.ACTIVE].sum() == count[ACTIVE]
        if observation["clock"][Clock.HIDDEN] > 0:
            assert visible == len(observation["queue_id"])

    def limits(self, observation: dict[str, np.ndarray]) -> None:
        """Active ≤ B; KV ≤ M in a running iteration, the token that it adds included."""
        devices = observation["devices"]
        running = devices[:, Device.TIME_TO_END] > 0
        active, used = devices[:, Device.ACTIVE], devices[:, Device.KV_USED]
        assert (active <= devices[:, Device.BATCH_LIMIT]).all()
        assert (used + np.where(running, active, 0) <= devices[:, Device.KV_LIMIT]).all()
        assert (active[running] > 0).all()

    def contents(self, observation: dict[str, np.ndarray], log: dict[str, np.ndarray]) -> None:
        """Queue and devices show the requests that the log has there."""
        ids = observation["queue_id"]
        ids = ids[ids >= 0]
        assert (np.diff(ids) > 0).all()
        assert (observation["queue_id"][len(ids) :] == -1).all()
        assert (observation["queue"][len(ids) :] == 0).all()
        waiting = np.flatnonzero(log["status"] == QUEUED)
        np.testing.assert_array_equal(ids, waiting[: len(observation["queue_id"])])
        np.testing.assert_array_equal(
            observation["queue"][: len(ids), Queue.PROMPT], log["prompt"][ids]
        )
        held = log["prompt"] + log["emitted"]
        for g, row in enumerate(observation["devices"]):
            here = log["device"] == g
            batch = held[here & (log["status"] == ACTIVE)]
            shown = observation["active"][g, :, Active.KV]
            assert row[Device.KV_USED] == batch.sum() == shown.sum()
            assert sorted(shown[: len(batch)].tolist()) == sorted(batch.tolist())
            assert (observation["active"][g, len(batch) :] == 0).all()
            assert row[Device.FIFO_TOKENS] == held[here & (log["status"] == DISPATCHED)].sum()

    def history(self, log: dict[str, np.ndarray]) -> None:
        """No more than o tokens, moments in order, and nothing that happened is taken back."""
        assert (log["emitted"] <= log["decode"]).all()
        done = log["status"] == COMPLETED
        np.testing.assert_array_equal(done, log["emitted"] == log["decode"])
        np.testing.assert_array_equal(done, ~np.isnan(log["finish_s"]))
        np.testing.assert_array_equal(log["emitted"] > 0, ~np.isnan(log["first_token_s"]))
        np.testing.assert_array_equal(log["device"] >= 0, ~np.isnan(log["dispatch_s"]))
        np.testing.assert_array_equal(log["status"] == REJECTED, log["reject_reason"] > 0)
        for earlier, later in itertools.pairwise(MOMENTS):
            both = ~np.isnan(log[later])
            # An arrival is the user's own float; the clock rounds it to a nanosecond.
            assert (log[later][both] >= log[earlier][both] - 1e-9).all()
        if self.before is None:
            return
        for column in MOMENTS[1:]:
            known = ~np.isnan(self.before[column])
            np.testing.assert_array_equal(log[column][known], self.before[column][known])
        for column in ("emitted", "preemptions", "recomputed"):
            assert (log[column] >= self.before[column]).all()
        ended = np.isin(self.before["status"], (COMPLETED, REJECTED))
        np.testing.assert_array_equal(log["status"][ended], self.before["status"][ended])


def run(env: Any, actor: Actor, periods: int, **reset: Any) -> str:
    """Play with every invariant watched; a digest of all that was seen."""
    digest = hashlib.sha256()
    observation, info = env.reset(**reset)
    watch = Watch(env)
    watch(observation)
    for _ in range(periods):
        visible = int((observation["queue_id"] >= 0).sum())
        observation, reward, terminated, truncated, info = env.step(
            actor(visible, len(observation["queue_id"]))
        )
        watch(observation)
        for key in sorted(observation):
            digest.update(observation[key].tobytes())
        digest.update(info["action_mask"].tobytes())
        digest.update(repr((float(reward), terminated, truncated, info["cost"])).encode())
        if terminated or truncated:
            break
    return digest.hexdigest()


@settings(max_examples=60)
@given(episodes())
def test_invariants_in_random_episodes(episode: Episode) -> None:
    run(make(episode.scenario), episode.actor(), 400, options={"requests": episode.table()})


SCENARIOS = (
    "paper-overload",
    "paper-rate-shift",
    "azure-conv-a100",
    "azure-code-a100",
    "memory-bound-a100",
)


@pytest.mark.parametrize("name", SCENARIOS)
@pytest.mark.parametrize("style", ["spread", "illegal"])
def test_invariants_in_the_embedded_scenarios(name: str, style: str) -> None:
    env = make(name, overrides={"router.window": 64})
    devices = env.scenario.cluster.devices
    run(env, Actor(style, devices, 0), 300, seed=3)


# --- the same seed, the same trajectory -----------------------------------------------------


def trajectory(seed: int) -> str:
    env = make("memory-bound-a100", overrides={"router.window": 32, "horizon_periods": 150})
    actor = Actor("spread", env.scenario.cluster.devices, 7)
    return run(env, actor, 10_000, seed=seed) + run(env, actor, 10_000)


def test_same_seed_same_trajectory_in_another_process() -> None:
    here = trajectory(11)
    assert here == trajectory(11)
    assert here != trajectory(12)
    tests = Path(__file__).parent
    code = (
        f"import sys; sys.path[:0] = [{str(tests)!r}, {str(tests.parent)!r}]\n"
        "from test_invariants import trajectory\n"
        "print(trajectory(11))"
    )
    there = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert there.stdout.split()[-1] == here


def test_actions_do_not_change_the_workload() -> None:
    """The k-th episode after a seed has the same requests whatever was done before."""
    logs = []
    for style in STYLES:
        env = make("paper-overload", overrides={"horizon_periods": 30})
        actor = Actor(style, env.scenario.cluster.devices, 5)
        run(env, actor, 1_000, seed=4)
        run(env, actor, 10)
        env.reset()
        logs.append({column: env.request_log()[column] for column in ("arrival_s", "predicted")})
    for log in logs[1:]:
        np.testing.assert_array_equal(log["arrival_s"], logs[0]["arrival_s"])
        np.testing.assert_array_equal(log["predicted"], logs[0]["predicted"])
