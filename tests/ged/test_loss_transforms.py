"""The loss within ``torch.func``."""

import pytest
import torch

from dagnn import Dag
from dagnn.ged import GedLoss

TARGETS = [Dag([(0, 1), (1, 2)], node_attributes={"label": [0, 1, 1]})] * 2


def given() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return torch.randn(2, 3).double(), torch.randn(2, 3, 2).double(), torch.randn(2, 3, 3).double()


@pytest.mark.fault("graphs_and_networks", 24)
def test_gradients_of_torch_func_are_those_of_autograd():
    loss = GedLoss(node_vocabulary=[0, 1])
    existence, labels, edges = given()
    found = torch.func.grad(lambda e: loss(existence, labels, e, TARGETS))(edges)
    edges.requires_grad_()
    (expected,) = torch.autograd.grad(loss(existence, labels, edges, TARGETS), edges)
    torch.testing.assert_close(found, expected)
