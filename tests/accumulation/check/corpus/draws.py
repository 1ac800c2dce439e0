"""Losses that draw random numbers in all the ways there are: of PyTorch, of a generator of their own, of NumPy."""

import random

import numpy as np
import torch
from accumulation.check.corpus.projects import simple
from accumulation.check.corpus.registry import loop
from torch import nn
from torch.nn import functional as F

OF_NUMPY, OF_PYTHON = np.random.default_rng(5), random.Random(5)
LASTING = torch.Generator()  # goes on from batch to batch, and must be as it was after a check
DRAWS = {
    "normal numbers": lambda x: torch.normal(torch.zeros_like(x), torch.ones_like(x)),
    "normal numbers of a size": lambda x: torch.normal(0.0, 1.0, size=x.shape),
    "gamma and Dirichlet": lambda x: (
        torch.distributions.Gamma(x.exp(), 1.0).rsample() + torch.distributions.Dirichlet(torch.ones_like(x)).sample()
    ),
    "samples of a policy": lambda x: x * torch.distributions.Categorical(logits=x).sample()[:, None],
    "leaky slopes": lambda x: F.rrelu(x, training=True),
    "a generator of its own": lambda x: torch.randn(x.shape, generator=torch.Generator().manual_seed(3)) * x,
    "a generator that goes on": lambda x: torch.randn(x.shape, generator=LASTING) * x,
    "a factor by a generator of NumPy": lambda x: x * float(OF_NUMPY.normal()),
    "a factor by a generator of Python": lambda x: x * OF_PYTHON.random(),
    "a factor by NumPy": lambda x: x * np.random.rand(),  # noqa: NPY002
    "dropout along time first": lambda x: F.dropout(x[None].expand(5, -1, -1), 0.5).sum(dim=0),
}
for words, draw in DRAWS.items():

    @loop(f"random: {words}", {"no division": "not scaled"})
    def random_numbers(mistake, draw=draw):
        return simple(lambda model, b: F.cross_entropy(model(b[0]) + draw(model(b[0])), b[1]), mistake)


@loop("two recurrent layers with dropout between, time first", {"no division": "not scaled"})
def recurrent(mistake):
    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn, self.out = nn.LSTM(3, 4, num_layers=2, dropout=0.5), nn.Linear(4, 1)

        def forward(self, x):
            return self.out(self.rnn(x.transpose(0, 1))[0]).transpose(0, 1)

    data = torch.randn(24, 5, 3), torch.randn(24, 5, 1)
    return simple(lambda model, b: F.mse_loss(model(b[0]), b[1]), mistake, model=Recurrent(), batch=data)
