"""Behaviour cloning of a `MaskablePPO` policy's actor, with a loop of our own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from llmroute_env.training.demonstrations import Demonstrations
from policies.learned.question import Request, relative_length

Report = Callable[[int, dict[str, float]], None]


def clone(
    policy: Any,
    demonstrations: Demonstrations,
    *,
    epochs: int,
    batch_size: int,
    learning_rate: float,
    smoothing: float,
    hold_above: float,
    spread: float,
    seed: int,
    report: Report | None = None,
) -> dict[str, float]:
    """Fit the policy's distribution to the demonstrations by cross-entropy.

    Args:
        policy: an sb3-contrib maskable policy.
        demonstrations: a tenth is held out.
        epochs: passes over the rest.
        batch_size: decisions in a step.
        learning_rate: Adam's.
        smoothing: probability that the target gives to holding where the teacher starts a long
            request, so that reinforcement begins with a policy that tries it where it may pay.
            (Spread over all requests, holding costs more than it gains, and is unlearned before the
            network can tell when it pays.)
        hold_above: how long: in means of the arriving requests.
        spread: probability that the target spreads evenly over the devices that can start the
            teacher's request, so that reinforcement tries all of them.
        seed: order of the batches, and which tenth is held out.
        report: called after each epoch with its number and its losses.

    Returns:
        Loss and accuracy of the last epoch on the held-out decisions.
    """
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(demonstrations.choices))
    held, train = order[: len(order) // 10], order[len(order) // 10 :]
    holding = _long(demonstrations, hold_above) * np.float32(smoothing)
    optimizer = torch.optim.Adam(policy.parameters(), lr=learning_rate)
    losses: dict[str, float] = {}
    for epoch in range(epochs):
        policy.set_training_mode(True)
        rng.shuffle(train)
        total = 0.0
        for first in range(0, len(train), batch_size):
            rows = train[first : first + batch_size]
            loss, _ = _loss(policy, demonstrations, rows, holding, spread)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += float(loss.detach()) * len(rows)
        policy.set_training_mode(False)
        with torch.no_grad():
            loss, right = _loss(policy, demonstrations, held, holding, spread)
        losses = {
            "train_loss": total / max(len(train), 1),
            "loss": float(loss),
            "accuracy": float(right),
        }
        if report is not None:
            report(epoch + 1, losses)
    return losses


def _long(data: Demonstrations, times: float) -> Any:
    """(n,) float32, 1 where the teacher starts a request ``times`` the mean of those arriving."""
    requests = data.layout.blocks(data.observations)["requests"]
    candidates = np.maximum(data.choices - 1, 0) // data.layout.devices
    relative = requests[np.arange(len(candidates)), candidates, Request.RELATIVE]
    return ((data.choices > 0) & (relative >= relative_length(times))).astype(np.float32)


def _loss(
    policy: Any, data: Demonstrations, rows: Any, holding: Any, spread: float
) -> tuple[torch.Tensor, torch.Tensor]:
    observations = torch.as_tensor(data.observations[rows])
    choices = torch.as_tensor(data.choices[rows])
    masks = torch.as_tensor(data.masks[rows])
    logs = policy.get_distribution(observations, data.masks[rows]).distribution.logits
    chosen = logs.gather(1, choices[:, None])[:, 0]
    smoothing = torch.as_tensor(holding[rows])
    anywhere = _anywhere(logs, masks, choices, data.layout.devices)
    placed = (1.0 - spread) * chosen + spread * torch.where(choices > 0, anywhere, chosen)
    loss = -((1.0 - smoothing) * placed + smoothing * logs[:, 0]).mean()
    return loss, (logs.argmax(1) == choices).float().mean()


def _anywhere(
    logs: torch.Tensor, masks: torch.Tensor, choices: torch.Tensor, devices: int
) -> torch.Tensor:
    """(n,) mean of the logarithms over the devices that can start the chosen request."""
    request = (choices - 1).clamp(min=0) // devices
    there = (1 + request * devices)[:, None] + torch.arange(devices)
    legal = masks.gather(1, there).float()
    total = (logs.gather(1, there).clamp(min=-50.0) * legal).sum(1)
    return total / legal.sum(1).clamp(min=1.0)
