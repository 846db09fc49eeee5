r"""Behaviour cloning from an offline dataset of ``scripts/collect.py``.

    python scripts/collect.py --scenario paper-overload --set router.window=64 \
        --policy mc_sf --episodes 3 --out data/mc_sf
    python examples/offline_behaviour_cloning.py data/mc_sf

Each visible request is one row: will the teacher start it in this period, or hold it? A network
shared over requests learns that from the request, its rank by predicted length and the free slots;
requests that it starts go to the device with the most free slots. The clone then plays new seeds.
"""

from __future__ import annotations

import argparse
import sys

import gymnasium as gym
import numpy as np
import torch
from torch import nn

import llmroute_env
from llmroute_env.spaces import Clock, Device, Queue
from llmroute_env.training.dataset import OfflineDataset


def featurize(seen: dict[str, np.ndarray]) -> np.ndarray:
    """(W, 5) features of the visible requests of one observation."""
    queue, devices = seen["queue"], seen["devices"]
    rows = int(np.count_nonzero(seen["queue_id"] >= 0))
    rank = np.argsort(np.argsort(queue[:rows, Queue.PREDICTED], kind="stable"), kind="stable")
    free = float((devices[:, Device.BATCH_LIMIT] - devices[:, Device.ACTIVE]).sum())
    features = np.zeros((rows, 5), np.float32)
    features[:, 0] = np.log1p(queue[:rows, Queue.PREDICTED]) / 8
    features[:, 1] = np.log1p(rank) / 4
    features[:, 2] = np.log1p(free) / 4
    features[:, 3] = rank < free
    features[:, 4] = np.log1p(seen["clock"][Clock.LEFT]) / 8
    return features


class CloneRouter:
    """The network as a policy with the signature of stable-baselines3."""

    information = "predicted"

    def __init__(self, network: nn.Module) -> None:
        self.network = network

    def predict(self, seen, state=None, episode_start=None, deterministic=True):  # noqa: ARG002
        """Start what the network would start, in order of its confidence."""
        action = np.zeros(len(seen["queue_id"]), np.int64)
        features = featurize(seen)
        if len(features) == 0:
            return action, None
        with torch.no_grad():
            score = self.network(torch.as_tensor(features))[:, 0].numpy()
        devices = seen["devices"]
        free = devices[:, Device.BATCH_LIMIT] - devices[:, Device.ACTIVE]
        free -= devices[:, Device.FIFO_LENGTH]
        for row in np.argsort(-score, kind="stable"):
            if score[row] <= 0 or free.max() <= 0:
                break
            device = int(free.argmax())
            action[row] = device + 1
            free[device] -= 1
        return action, None


def main(arguments: list[str] | None = None) -> dict[str, float]:
    """Clone, play, and print; returns the mean rewards by policy."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dataset")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--seeds", type=int, default=5)
    args = parser.parse_args(arguments)
    torch.manual_seed(0)
    torch.set_num_threads(1)

    data = OfflineDataset(args.dataset)
    inputs, targets = [], []
    for episode in data:
        for t in range(len(episode)):
            seen = {key: rows[t] for key, rows in episode.observations.items()}
            free = seen["devices"][:, Device.BATCH_LIMIT] > seen["devices"][:, Device.ACTIVE]
            if free.any() and seen["queue_id"][0] >= 0:  # otherwise there is nothing to decide
                inputs.append(featurize(seen))
                targets.append(episode.actions[t, : len(inputs[-1])] > 0)
    x = torch.as_tensor(np.concatenate(inputs))
    y = torch.as_tensor(np.concatenate(targets), dtype=torch.float32)[:, None]
    print(
        f"{len(data)} episodes of {data.metadata['policy']}, {len(x):,} rows, {y.mean():.1%} start"
    )

    network = nn.Sequential(nn.Linear(5, 32), nn.Tanh(), nn.Linear(32, 1))
    optimizer = torch.optim.Adam(network.parameters(), lr=3e-3)
    for epoch in range(args.epochs):
        for rows in torch.randperm(len(x)).split(128):
            loss = nn.functional.binary_cross_entropy_with_logits(network(x[rows]), y[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch + 1}: loss {loss.item():.4f}")

    env = gym.make("LLMRoute-v0", scenario=data.scenario, series_stride=0)
    seeds = range(50_000, 50_000 + args.seeds)
    found: dict[str, float] = {}
    for name, policy in (("clone", CloneRouter(network)), ("lor", "lor"), ("mc_sf", "mc_sf")):
        rewards = [llmroute_env.evaluate(env, policy, seed=s).summary["reward"] for s in seeds]
        found[name] = float(np.mean(rewards))
        print(f"{name:6} reward {found[name]:,.0f}")
    return found


if __name__ == "__main__":
    main(sys.argv[1:])
