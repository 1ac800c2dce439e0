"""Reinforcement learning: losses with advantages, targets and several networks."""

import copy

import torch
from accumulation.check.corpus.registry import ends, items_around, loop, windows_of
from torch import nn
from torch.nn import functional as F

K, ACTIONS = 4, 3


class ActorCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.actor, self.critic = nn.Linear(5, 8), nn.Linear(8, ACTIONS), nn.Linear(8, 1)

    def forward(self, states):
        hidden = self.body(states).tanh()
        return self.actor(hidden), self.critic(hidden).squeeze(-1)


def rollout(items=24):
    return {
        "states": torch.randn(items, 5),
        "actions": torch.randint(0, ACTIONS, (items,)),
        "before": -torch.rand(items) - 0.5,
        "advantages": torch.randn(items) + 0.3,
        "returns": torch.randn(items),
    }


def ppo_loss(model, batch, advantages):
    scores, values = model(batch["states"])
    chosen = scores.log_softmax(-1).gather(-1, batch["actions"][:, None]).squeeze(-1)
    ratio = (chosen - batch["before"]).exp()
    policy = -torch.min(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages).mean()
    entropy = -(scores.softmax(-1) * scores.log_softmax(-1)).sum(-1).mean()
    return policy + 0.5 * F.mse_loss(values, batch["returns"]) - 0.01 * entropy


def normalised(advantages):
    return (advantages - advantages.mean()) / (advantages.std() + 1e-8)


def length(batch):
    return len(batch["states"])


@loop(
    "PPO: advantages normalised over the window",
    {
        "normalised per micro-batch": "batch-coupled loss",
        "never normalised": "another loss",
        "no division": "not scaled",
        "stepped at every micro-batch": "early or extra step",
    },
)
def ppo(mistake):
    def train_step(model, optimizer, micro_batches):
        for window in windows_of(micro_batches, K):
            advantages = torch.cat([b["advantages"] for b in window])
            mean, spread, items = advantages.mean(), advantages.std(), len(advantages)
            for batch in window:
                scaled = (batch["advantages"] - mean) / (spread + 1e-8)
                if mistake == "normalised per micro-batch":
                    scaled = normalised(batch["advantages"])
                if mistake == "never normalised":
                    scaled = batch["advantages"]
                share = 1.0 if mistake == "no division" else length(batch) / items
                (ppo_loss(model, batch, scaled) * share).backward()
                if mistake == "stepped at every micro-batch":
                    optimizer.step()
                    optimizer.zero_grad()
            if mistake != "stepped at every micro-batch":
                nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                optimizer.step()
                optimizer.zero_grad()

    return {
        "train_step": train_step,
        "model": ActorCritic(),
        "batch": rollout(),
        "loss_fn": lambda m, b: ppo_loss(m, b, normalised(b["advantages"])),
    }


@loop(
    "REINFORCE over a finished rollout",
    {"return summed": "sum loss", "zeroed before the step": "zeroed too often"},
)
def reinforce(mistake):
    def loss_fn(model, batch, reduce=torch.mean):
        scores, _ = model(batch["states"])
        return reduce(F.cross_entropy(scores, batch["actions"], reduction="none") * batch["returns"])

    def train_step(model, optimizer, micro_batches):
        for window in windows_of(micro_batches, K):
            items = sum(map(length, window))
            for batch in window:
                loss = loss_fn(model, batch, torch.sum) / (1 if mistake == "return summed" else items)
                loss.backward()
            if mistake == "zeroed before the step":
                optimizer.zero_grad()
            optimizer.step()
            optimizer.zero_grad()

    return {"train_step": train_step, "model": ActorCritic(), "batch": rollout(), "loss_fn": loss_fn}


@loop("DQN with a target network", {"Huber loss summed": "sum loss", "target not detached": "another loss"})
def dqn(mistake):
    def loss_fn(model, batch, target=None, reduction="mean"):
        values = model(batch["states"])[0].gather(-1, batch["actions"][:, None]).squeeze(-1)
        following = (target or model)(batch["states"].flip(-1))[0].max(-1).values
        if target is None or mistake != "target not detached":
            following = following.detach()
        return F.smooth_l1_loss(values, batch["returns"] + 0.9 * following, reduction=reduction)

    def train_step(model, optimizer, micro_batches):
        target = copy.deepcopy(model).requires_grad_(False)
        for window in windows_of(micro_batches, K):
            items = sum(map(length, window))
            for batch in window:
                if mistake == "Huber loss summed":
                    loss = loss_fn(model, batch, target, "sum") / len(window)
                else:
                    network = model if mistake == "target not detached" else target
                    loss = loss_fn(model, batch, network) * length(batch) / items
                loss.backward()
            nn.utils.clip_grad_value_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            target.load_state_dict(model.state_dict())

    return {"train_step": train_step, "model": ActorCritic(), "batch": rollout(), "loss_fn": loss_fn}


@loop(
    "actor and critic with an optimizer each",
    {"critic never zeroed": "not zeroed", "actor scaled twice": "scaled twice"},
)
def two_optimizers(mistake):
    class Agent(nn.Module):
        def __init__(self):
            super().__init__()
            self.actor = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, ACTIONS))
            self.critic = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 1))

    def losses(model, batch):
        values = model.critic(batch["states"]).squeeze(-1)
        gain = (batch["returns"] - values).detach()
        policy = (F.cross_entropy(model.actor(batch["states"]), batch["actions"], reduction="none") * gain).mean()
        return policy, F.mse_loss(values, batch["returns"])

    def train_step(model, _, micro_batches):
        actor = torch.optim.Adam(model.actor.parameters(), lr=1e-3)
        critic = torch.optim.RMSprop(model.critic.parameters(), lr=1e-3)
        for i, batch in enumerate(micro_batches):
            share = length(batch) / sum(map(length, micro_batches[i - i % K : i - i % K + K]))
            policy, value = losses(model, batch)
            (policy * share / (K if mistake == "actor scaled twice" else 1)).backward()
            (value * share).backward()
            if ends(i, len(micro_batches), K):
                actor.step()
                critic.step()
                actor.zero_grad()
                if mistake != "critic never zeroed":
                    critic.zero_grad()

    return {
        "train_step": train_step,
        "model": Agent(),
        "batch": rollout(),
        "loss_fn": lambda m, b: sum(losses(m, b)),
        "tail": False,
    }


@loop("policy gradient over ragged episodes, per token", {"mean over episodes": "wrong denominator"})
def per_token(mistake):
    def loss_fn(model, batch):
        states, mask, gains = batch
        chosen = model(states)[0].log_softmax(-1)[..., 0]
        return -(chosen * gains[:, None] * mask).sum() / mask.sum()

    def train_step(model, optimizer, micro_batches):
        for i, batch in enumerate(micro_batches):
            window = micro_batches[i - i % K : i - i % K + K]
            share = float(batch[1].sum() / sum(b[1].sum() for b in window))
            if mistake:
                share = len(batch[0]) / items_around(micro_batches, i, K)
            (loss_fn(model, batch) * share).backward()
            if ends(i, len(micro_batches), K):
                optimizer.step()
                optimizer.zero_grad()

    mask = (torch.arange(6) < torch.randint(1, 7, (24, 1))).float()
    return {
        "train_step": train_step,
        "model": ActorCritic(),
        "batch": (torch.randn(24, 6, 5), mask, torch.randn(24)),
        "loss_fn": loss_fn,
    }
