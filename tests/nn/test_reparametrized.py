"""Weights that are computed again in every call: prune, weight_norm, spectral_norm, parametrizations."""

import copy
import itertools
import os
from unittest import mock

import pytest
import torch
import torch.nn.utils.parametrize
import torch.nn.utils.prune
from torch import Tensor, nn

from dagnn import Dag, DagNN
from dagnn.nn import AttentionCell, ChildSumTreeLSTMCell, DagSweep, GRUCell, TreeLSTMCell

GRAPH = Dag([(0, 2), (1, 2), (2, 3), (0, 3)], node_attributes={"operator": torch.tensor([0, 1, 2, 1])})
X = torch.linspace(-1, 1, 12, dtype=torch.float64).view(4, 3)


class Doubled(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return 2 * weight


WAYS = {
    "prune": lambda part, name: torch.nn.utils.prune.l1_unstructured(part, name, amount=0.3),
    "weight_norm": lambda part, name: torch.nn.utils.weight_norm(part, name),
    "parametrize": lambda part, name: torch.nn.utils.parametrize.register_parametrization(part, name, Doubled()),
    "parametrized weight_norm": lambda part, name: torch.nn.utils.parametrizations.weight_norm(part, name),
}
PARTS = {
    GRUCell: [("gru", "weight_ih"), ("gru", "bias_hh"), ("", "state_weight")],
    AttentionCell: [("gru", "weight_ih"), ("", "score_weight"), ("", "state_weight")],
    TreeLSTMCell: [("", "feature_weight"), ("", "state_weight")],
    ChildSumTreeLSTMCell: [("", "feature_weight"), ("", "state_weight"), ("", "forget_weight")],
}
pytestmark = pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm` is deprecated:FutureWarning")


def cases():
    for make, parts in PARTS.items():
        for part, name in parts:
            for way in WAYS:
                for operators in (None, 3):
                    if name == "state_weight" and operators is None and make in (GRUCell, AttentionCell):
                        continue
                    if "weight_norm" in way and name in ("bias_hh", "score_weight"):
                        continue
                    yield pytest.param(
                        make,
                        part,
                        name,
                        way,
                        operators,
                        id=f"{make.__name__}-{name}-{way.replace(' ', '_')}-{operators}",
                    )


def trained(make, part, name, way, operators) -> tuple[DagSweep, list[Tensor]]:
    """A sweep after a few steps and a loaded state dict, and what it gave on the way."""
    torch.manual_seed(3)
    cell = make(3, 4, operators=operators)
    WAYS[way](cell.get_submodule(part), name)
    sweep = DagSweep(cell).double()
    start, outputs = copy.deepcopy(sweep.state_dict()), []
    optimizer = torch.optim.SGD(sweep.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        y = sweep(X, GRAPH)
        y.square().sum().backward()
        optimizer.step()
        outputs.append(y.detach())
    sweep.load_state_dict({key: value * 0.5 for key, value in start.items()})
    outputs.append(sweep(X, GRAPH).detach())
    return sweep, outputs


@pytest.mark.fault("graphs_and_networks", 7)
@pytest.mark.parametrize(("make", "part", "name", "way", "operators"), list(cases()))
def test_steps_and_loaded_states_count(make, part, name, way, operators):
    if operators is None:
        with mock.patch.dict(os.environ, {"DAGNN_KERNELS": "reference"}):
            _, expected = trained(make, part, name, way, None)
    else:  # an operator of one kind for all: the cell without operators is the oracle
        expected = None
    _, found = trained(make, part, name, way, operators)
    if expected is not None:
        torch.testing.assert_close(found, expected)
    assert all(not torch.equal(a, b) for a, b in itertools.pairwise(found))
    # A cell whose weights are what they have been computed to be, written down, gives the same.
    sweep, outputs = trained(make, part, name, way, operators)
    plain = DagSweep(make(3, 4, operators=operators)).double()
    sweep(X, GRAPH)
    for key, parameter in plain.named_parameters():
        owner, _, attribute = key.rpartition(".")
        parameter.data.copy_(getattr(sweep.get_submodule(owner), attribute))
    torch.testing.assert_close(outputs[-1], plain(X, GRAPH).detach())


@pytest.mark.filterwarnings("error")
@pytest.mark.fault("graphs_and_networks", 24)
@pytest.mark.parametrize("way", ["prune", "parametrize"])
def test_a_network_of_computed_weights_trains_without_a_warning(way):
    torch.manual_seed(0)
    net = DagNN(Dag([("a", "c"), ("b", "c"), ("c", "d"), ("a", "d")])).double()
    WAYS[way](net, "edge_weight")
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    x, last = torch.randn(5, 2, dtype=torch.float64), None
    for _ in range(3):
        optimizer.zero_grad()
        y = net(x)
        y.square().mean().backward()
        optimizer.step()
        assert last is None or y.square().mean() < last
        last = y.square().mean().detach()


@pytest.mark.fault("graphs_and_networks", 7)
@pytest.mark.parametrize("way", ["prune", "parametrize"])
def test_backward_accumulate_again_reads_the_weights_anew(way):
    torch.manual_seed(0)
    net = DagNN(Dag([("a", "c"), ("b", "c"), ("c", "d"), ("a", "d")])).double()
    WAYS[way](net, "edge_weight")
    x = torch.randn(5, 2, dtype=torch.float64)
    net(x)
    for _ in range(2):
        net.backward_accumulate(torch.ones(5, 1, dtype=torch.float64))
    found = [p.grad.clone() for p in net.parameters()]
    net.zero_grad()
    (2 * net(x).sum()).backward()
    torch.testing.assert_close(found, [p.grad for p in net.parameters()])
