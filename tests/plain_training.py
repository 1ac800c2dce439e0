"""A plain training: one linear layer, batches by number, no schedule, no averages, no clipping."""

import torch
from torch import nn

from dagnn.training import TrainingConfig, TrainingInterrupted


class Cycle:
    """The given batches, again and again."""

    def __init__(self, batches):
        self.batches, self.position = batches, 0

    def next_batch(self):
        self.position += 1
        return self.batches[(self.position - 1) % len(self.batches)]

    def state_dict(self):
        return {"position": self.position}

    def load_state_dict(self, state):
        self.position = state["position"]


def config(**flags):
    plain = {
        "max_steps": 5,
        "batch_size": 4,
        "micro_batches": 1,
        "optimizer.name": "sgd",
        "optimizer.lr": 0.1,
        "optimizer.weight_decay": 0.0,
        "schedule.name": "constant",
        "max_norm": 0.0,
        "ema_decay": 0.0,
        "checkpoint.keep_best": 0,
    }
    return TrainingConfig.resolve(
        environment={}, flags={**plain, **{key.replace("__", "."): value for key, value in flags.items()}}
    )


def mse(model, batch):
    return nn.functional.mse_loss(model(batch[0]), batch[1])


def data(*sizes, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [(torch.randn(n, 3, generator=generator), torch.randn(n, 1, generator=generator)) for n in sizes]


def linear(seed=0, **options):
    torch.manual_seed(seed)
    return nn.Linear(3, 1, **options)


def fit_until(trainer, step):
    """Train until a signal comes within this step (None: to the end)."""
    hook = trainer.model.register_forward_pre_hook(
        lambda model, inputs: trainer.stop.request() if trainer.step + 1 == step else None
    )
    try:
        trainer.fit()
        assert step is None
    except TrainingInterrupted:
        assert trainer.step == step
    finally:
        hook.remove()
