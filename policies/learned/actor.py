"""The network of ``policies.learned.network`` in torch, and a critic, as an sb3-contrib policy.

Only training and loading a checkpoint of stable-baselines3 import this module.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from sb3_contrib.common.maskable.policies import MaskableActorCriticPolicy
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from torch import nn

from llmroute_env.training.layout import Layout, Privileged
from policies.learned.network import Weights
from policies.learned.question import Context, Machine, Pair, Request

#: gain of the critic's head
VALUE_GAIN = 10.0
#: gain of the features that go straight to a pair's score, so that a small learning rate moves them
LINEAR_GAIN = 10.0


class Actor(nn.Module):
    """Scores of all choices (N, 1 + K * G) from the blocks of `Layout`."""

    def __init__(self, width: int) -> None:
        super().__init__()
        h = width
        self.request = nn.Linear(len(Request), h)
        self.machine = nn.Linear(len(Machine), h)
        self.context = nn.Linear(len(Context) + 2 * h, h)
        self.pair_request = nn.Linear(h, h)
        self.pair_machine = nn.Linear(h, h)
        self.pair_features = nn.Linear(len(Pair), h)
        self.pair_context = nn.Linear(h, h)
        self.hidden = nn.Linear(h, h)
        self.score = nn.Linear(h, 1)
        self.linear = nn.Linear(len(Pair), 1)
        nn.init.zeros_(self.linear.weight)
        self.hold_hidden = nn.Linear(h, h)
        self.hold = nn.Linear(h, 1)

    def forward(self, blocks: dict[str, torch.Tensor]) -> torch.Tensor:
        """Scores; rows that stand for nothing get one too, and a mask takes them out."""
        requests = torch.relu(self.request(blocks["requests"]))
        machines = torch.relu(self.machine(blocks["devices"]))
        pooled = [
            blocks["context"],
            _mean(requests, blocks["present"]),
            _mean(machines, blocks["up"]),
        ]
        system = torch.relu(self.context(torch.cat(pooled, -1)))
        hold = self.hold(torch.relu(self.hold_hidden(system)))
        # Of all pairs few are legal, and only those are computed.
        n, c, g = blocks["legal"].nonzero(as_tuple=True)
        features = blocks["pairs"][n, c, g]
        pairs = (
            self.pair_features(features)
            + self.pair_request(requests)[n, c]
            + self.pair_machine(machines)[n, g]
            + self.pair_context(system)[n]
        )
        found = self.score(torch.relu(self.hidden(torch.relu(pairs)))) + LINEAR_GAIN * self.linear(
            features
        )
        scores = torch.zeros_like(blocks["legal"])
        scores[n, c, g] = found[:, 0]
        return torch.cat([hold, scores.flatten(1)], -1)

    def arrays(self) -> dict[str, np.ndarray]:
        """The parameters as `policies.learned.network.Weights` wants them."""
        found: dict[str, np.ndarray] = {}
        for name in Weights._fields:
            layer = getattr(self, name)
            rows = [layer.weight.detach().T, layer.bias.detach()[None]]
            found[name] = _gain(name) * torch.cat(rows).cpu().numpy().astype(np.float32)
        return found

    def load_arrays(self, arrays: Any) -> None:
        """Take parameters that `arrays` gave."""
        with torch.no_grad():
            for name in Weights._fields:
                layer = getattr(self, name)
                array = torch.as_tensor(np.asarray(arrays[name])) / _gain(name)
                layer.weight.copy_(array[:-1].T)
                layer.bias.copy_(array[-1])


def _gain(name: str) -> float:
    return LINEAR_GAIN if name == "linear" else 1.0


class Critic(nn.Module):
    """Embedding for the value: sees the twin too, and shares nothing with the actor."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.request = nn.Linear(len(Request), width)
        self.machine = nn.Linear(len(Machine), width)
        self.body = nn.Sequential(
            nn.Linear(len(Context) + len(Privileged) + 2 * width, 2 * width),
            nn.Tanh(),
            nn.Linear(2 * width, width),
            nn.Tanh(),
        )
        self.width = width + len(Privileged)

    def forward(self, blocks: dict[str, torch.Tensor]) -> torch.Tensor:
        """Embedding (N, width) of the state, with the comparison to the twin as it is."""
        pooled = [
            blocks["context"],
            blocks["critic"],
            _mean(torch.relu(self.request(blocks["requests"])), blocks["present"]),
            _mean(torch.relu(self.machine(blocks["devices"])), blocks["up"]),
        ]
        return torch.cat([self.body(torch.cat(pooled, -1)), blocks["critic"]], -1)


class PairExtractor(BaseFeaturesExtractor):
    """Scores of the choices and the critic's embedding, side by side.

    Args:
        observation_space: flat, of `Layout`.
        candidates: K.
        devices: G.
        width: of the hidden layers.
    """

    def __init__(
        self, observation_space: Any, candidates: int, devices: int, width: int = 32
    ) -> None:
        layout, critic = Layout(candidates, devices), Critic(width)
        super().__init__(observation_space, layout.actions + critic.width)
        self.layout, self.critic, self.actor = layout, critic, Actor(width)

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        """(N, actions + width)."""
        blocks = self.layout.blocks(observations)
        return torch.cat([self.actor(blocks), self.critic(blocks)], -1)


class _Gain(nn.Module):
    """Multiplies, so that one learning rate serves the actor and a head with large outputs."""

    def __init__(self, gain: float) -> None:
        super().__init__()
        self.gain = gain

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return self.gain * values


class _Split(nn.Module):
    """What SB3 calls the MLP extractor: here the actor's and the critic's part of the features."""

    def __init__(self, actions: int, width: int) -> None:
        super().__init__()
        self.latent_dim_pi, self.latent_dim_vf = actions, width

    def forward(self, features: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.forward_actor(features), self.forward_critic(features)

    def forward_actor(self, features: torch.Tensor) -> torch.Tensor:
        return features[:, : self.latent_dim_pi]

    def forward_critic(self, features: torch.Tensor) -> torch.Tensor:
        return features[:, self.latent_dim_pi :]


class PairPolicy(MaskableActorCriticPolicy):
    """`MaskablePPO`'s policy whose logits are the scores of `Actor`.

    Use with ``policy_kwargs={"features_extractor_class": PairExtractor,
    "features_extractor_kwargs": {"candidates": K, "devices": G, "width": h}}``.
    """

    def _build(self, lr_schedule: Any) -> None:
        extractor = self.features_extractor
        actions = extractor.layout.actions
        self.mlp_extractor = _Split(actions, extractor.features_dim - actions)
        self.action_net = nn.Identity()
        head = nn.Linear(self.mlp_extractor.latent_dim_vf, 1)
        nn.init.zeros_(head.weight)
        nn.init.zeros_(head.bias)
        self.value_net = nn.Sequential(head, _Gain(VALUE_GAIN))
        self.optimizer = self.optimizer_class(
            self.parameters(), lr=lr_schedule(1), **self.optimizer_kwargs
        )

    @property
    def actor(self) -> Actor:
        """The actor, for imitation and export."""
        found: Actor = self.features_extractor.actor
        return found


def _mean(rows: torch.Tensor, present: torch.Tensor) -> torch.Tensor:
    """Mean over the rows (N, R, h) that are there, (N, R) 0 or 1."""
    total = (rows * present[..., None]).sum(1)
    return total / present.sum(1, keepdim=True).clamp(min=1.0)
