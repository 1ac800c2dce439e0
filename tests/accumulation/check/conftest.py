"""What every loop of the zoo is tried on: a small network, 32 items, windows of 4 micro-batches."""

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss

from dagnn.accumulation.check import check_loop

K = 4


def loss_fn(model, batch):
    return mse_loss(model(batch[0]), batch[1])


@pytest.fixture
def subject():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 2))
    return model, (torch.randn(32, 5), torch.randn(32, 2))


@pytest.fixture
def kinds(subject):
    """``kinds(train_step, **options)`` -> names of the causes that the checker finds."""

    def check(train_step, **options):
        model, batch = subject
        report = check_loop(train_step, model, batch, **{"loss_fn": loss_fn, "micro_batches": K} | options)
        assert report.equal == (not report.causes), str(report)
        return [str(cause.kind) for cause in report.causes]

    return check
