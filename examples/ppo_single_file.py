"""PPO with action masks in one file, on nothing but Gymnasium's API and torch (CleanRL's style).

    python examples/ppo_single_file.py --steps 200000

One choice for each of 16 visible requests (hold, or a device), 32 lanes of the native vector
environment. The network is shared over the requests: each row of the queue is scored with the
devices and the clock as context. The scenario's objective pays ``periods left`` at each start and
at each completion. Up to a constant of the workload that is minus, for each period, twice the
requests that have not started plus those that run: the dense reward used here. Lanes of a
group play the same requests, and their mean is the baseline: the workload's luck is theirs alike.
"""

from __future__ import annotations

import argparse
import time

import gymnasium as gym
import numpy as np
import torch
from torch import nn
from torch.distributions import Categorical

import llmroute_env  # noqa: F401  (registers LLMRoute-v0)

# A small overloaded cluster, so that a minute is enough to learn something.
SMALL = {
    "cluster.devices": 2,
    "cluster.batch_limit": 4,
    "workload.arrivals.rate": 0.5,
    "workload.lengths.decode": {"mean": 20, "sigma": 0.9, "min": 1, "max": 100},
}

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--scenario", default="paper-overload", help="to which SMALL is applied")
parser.add_argument("--steps", type=int, default=200_000, help="periods of all lanes together")
parser.add_argument("--lanes", type=int, default=32)
parser.add_argument("--group", type=int, default=8, help="lanes that play the same requests")
parser.add_argument("--window", type=int, default=16, help="visible requests")
parser.add_argument("--periods", type=int, default=200, help="horizon of an episode")
parser.add_argument("--rollout", type=int, default=100, help="periods of a rollout")
parser.add_argument("--epochs", type=int, default=4)
parser.add_argument("--minibatches", type=int, default=4)
parser.add_argument("--learning-rate", type=float, default=1e-3)
parser.add_argument("--gamma", type=float, default=0.98)
parser.add_argument("--gae-lambda", type=float, default=0.95)
parser.add_argument("--clip", type=float, default=0.2)
parser.add_argument("--entropy", type=float, default=0.003)
parser.add_argument("--reward-scale", type=float, default=10.0)
parser.add_argument("--seed", type=int, default=1)


class Agent(nn.Module):
    """Scores (N, W, G + 1) and values (N,) from a featurized observation."""

    def __init__(self, devices: int) -> None:
        super().__init__()
        context = 3 * devices + 2
        self.actor = nn.Sequential(
            nn.Linear(3 + context, 64),
            nn.Tanh(),
            nn.Linear(64, 64),
            nn.Tanh(),
            nn.Linear(64, devices + 1),
        )
        self.critic = nn.Sequential(
            nn.Linear(3 + context, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1)
        )

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> tuple[Categorical, torch.Tensor]:
        """Take x (N, W, F), mask (N, W, G + 1) -> distribution of (N, W) choices, values (N,)."""
        scores = self.actor(x).masked_fill(~mask, -1e9)
        return Categorical(logits=scores), self.critic(x.mean(1)).squeeze(-1)


def featurize(seen: dict[str, np.ndarray]) -> torch.Tensor:
    """(N, W, F): a request's log lengths and wait, then the devices' fill and the queue."""
    queue, devices, clock = seen["queue"], seen["devices"], seen["clock"]
    own = np.log1p(queue[:, :, :3]) / 8
    active, batch, used, limit, fifo = (devices[:, :, i] for i in range(5))
    waiting = (seen["queue_id"] >= 0).mean(1, keepdims=True)
    left = np.log1p(clock[:, 2:3]) / 8
    context = np.concatenate([active / batch, used / limit, np.log1p(fifo) / 4, waiting, left], 1)
    spread = np.broadcast_to(context[:, None], (*own.shape[:2], context.shape[1]))
    return torch.as_tensor(np.concatenate([own, spread], 2), dtype=torch.float32)


def unfinished(seen: dict[str, np.ndarray]) -> np.ndarray:
    """(N,) cost of a period: what has not started counts twice, what runs counts once."""
    active, fifo = seen["devices"][:, :, 0], seen["devices"][:, :, 4]
    waiting = (seen["queue_id"] >= 0).sum(1) + seen["clock"][:, 3]
    return 2.0 * (waiting + fifo.sum(1)) + active.sum(1)


def make(args: argparse.Namespace, lanes: int) -> gym.vector.VectorEnv:
    """The native vector environment."""
    return gym.make_vec(
        "LLMRoute-v0",
        num_envs=lanes,
        scenario=args.scenario,
        overrides=SMALL | {"router.window": args.window, "horizon_periods": args.periods},
        autoreset_mode="SameStep",
    )


def held_out(agent: Agent, args: argparse.Namespace) -> float:
    """Mean return of the agent's likeliest choices on 32 seeds that are never trained on."""
    envs = make(args, 32)
    seen, info = envs.reset(seed=10_000)
    total = 0.0
    for _ in range(args.periods):
        mask = torch.as_tensor(info["action_mask"], dtype=torch.bool)
        with torch.no_grad():
            action = agent(featurize(seen), mask)[0].logits.argmax(-1)
        seen, reward, _, _, info = envs.step(action.numpy())
        total += reward.mean()
    return float(total)


def main(arguments: list[str] | None = None) -> tuple[float, float]:
    """Train; returns the held-out mean return before and after."""
    args = parser.parse_args(arguments)
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    envs = make(args, args.lanes)
    agent = Agent(envs.single_observation_space["devices"].shape[0])
    optimizer = torch.optim.Adam(agent.parameters(), lr=args.learning_rate, eps=1e-5)
    # The k-th episode after a seed has the same requests whatever was done before, so a group of
    # lanes with one seed plays the same sample paths for ever.
    groups = args.lanes // args.group
    seen, info = envs.reset(seed=np.repeat(args.seed + np.arange(groups), args.group).tolist())
    x, mask = featurize(seen), torch.as_tensor(info["action_mask"], dtype=torch.bool)
    before = held_out(agent, args)
    print(f"untrained: return {before:,.0f} on held-out seeds")
    returns, running = [], np.zeros(args.lanes)
    start, updates = time.time(), args.steps // (args.lanes * args.rollout)
    for update in range(1, updates + 1):
        rows = []
        for _ in range(args.rollout):
            with torch.no_grad():
                choice, value = agent(x, mask)
                action = choice.sample()
                log = (choice.log_prob(action) * (mask.sum(-1) > 1)).sum(-1)
            seen, reward, terminated, truncated, info = envs.step(action.numpy())
            over = terminated | truncated
            running += reward
            returns += running[over].tolist()
            running[over] = 0.0
            cost = (unfinished(seen) * ~over).reshape(-1, args.group)
            gained = (cost.mean(1, keepdims=True) - cost).reshape(-1) / args.reward_scale
            gained = torch.as_tensor(gained, dtype=torch.float32)
            rows.append((x, mask, action, log, value, gained, torch.as_tensor(over).float()))
            x = featurize(seen)
            mask = torch.as_tensor(info["action_mask"], dtype=torch.bool)
        xs, masks, actions, logs, values, rewards, overs = (
            torch.stack(c) for c in zip(*rows, strict=True)
        )
        with torch.no_grad():
            following = agent(x, mask)[1]
        advantages, carried = torch.zeros_like(rewards), torch.zeros(args.lanes)
        for t in reversed(range(args.rollout)):  # nothing is earned after the horizon
            alive = 1.0 - overs[t]
            error = rewards[t] + args.gamma * alive * following - values[t]
            carried = error + args.gamma * args.gae_lambda * alive * carried
            advantages[t], following = carried, values[t]
        targets = (advantages + values).flatten()
        xs, masks, actions = xs.flatten(0, 1), masks.flatten(0, 1), actions.flatten(0, 1)
        logs, advantages = logs.flatten(), advantages.flatten()
        for _ in range(args.epochs):
            for rows_ in torch.randperm(len(logs)).chunk(args.minibatches):
                choice, value = agent(xs[rows_], masks[rows_])
                free = masks[rows_].sum(-1) > 1
                log = (choice.log_prob(actions[rows_]) * free).sum(-1)
                ratio = (log - logs[rows_]).exp()
                a = advantages[rows_]
                a = (a - a.mean()) / (a.std() + 1e-8)
                clipped = ratio.clamp(1 - args.clip, 1 + args.clip)
                loss = -torch.min(ratio * a, clipped * a).mean()
                loss = loss + 0.5 * (value - targets[rows_]).square().mean()
                loss = loss - args.entropy * (choice.entropy() * free).sum(-1).mean()
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
                optimizer.step()
        if returns:
            rate = update * args.lanes * args.rollout / (time.time() - start)
            print(
                f"update {update}/{updates}  return {np.mean(returns):,.0f}  {rate:,.0f} periods/s"
            )
            returns.clear()
    envs.close()
    after = held_out(agent, args)
    print(f"trained: return {after:,.0f} on held-out seeds, {after / before - 1:+.1%}")
    return before, after


if __name__ == "__main__":
    main()
