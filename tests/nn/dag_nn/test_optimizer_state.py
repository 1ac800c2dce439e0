"""What of an optimizer's state goes along when edges come and go."""

import copy

import pytest
import torch

from dagnn.errors import ConfigError
from dagnn.graph import Dag
from dagnn.nn import DagNN

EDGES = [("x", "a"), ("x", "b"), ("a", "y"), ("b", "y"), ("x", "y")]
X = torch.tensor([[0.5], [-1.0], [2.0]], dtype=torch.float64)
# All of PyTorch's but Muon, for matrices, and SparseAdam, for sparse gradients.
KINDS = [
    kind
    for name in dir(torch.optim)
    if isinstance(kind := getattr(torch.optim, name), type) and name not in ("Optimizer", "Muon", "SparseAdam", "LBFGS")
]
OPTIONS = {"Adagrad": {"initial_accumulator_value": 0.5}, "SGD": {"momentum": 0.9}, "RMSprop": {"momentum": 0.5}}
# The others count the steps of a parameter once for all its entries.
EXACT = ("SGD", "Rprop", "Adagrad", "Adadelta", "RMSprop")


def network() -> DagNN:
    torch.manual_seed(0)
    return DagNN(Dag(EDGES), dtype=torch.float64)


def made(kind: type, parameters) -> torch.optim.Optimizer:
    return kind(parameters, lr=0.01, **OPTIONS.get(kind.__name__, {}))


def train(net: DagNN, optimizer: torch.optim.Optimizer, steps: int) -> None:
    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = (net(X) - 1).square().sum()
        loss.backward()
        return loss

    for _ in range(steps):
        optimizer.step(closure)


@pytest.mark.fault("graphs_and_networks", 17)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("steps", [0, 5])
def test_a_grown_edge_moves_as_a_fresh_parameter(kind, steps):
    net = network()
    optimizer = made(kind, net.parameters())
    train(net, optimizer, steps)
    before = {
        name: dict(zip(net.edge_names(), value.tolist(), strict=True))
        for name, value in optimizer.state[net.edge_weight].items()
        if value.shape == (5,)
    }
    net.grow([("a", "b")], weight=0.3).carry_over(optimizer)
    state, grown = optimizer.state[net.edge_weight], net.edge_names().index(("a", "b"))
    for name, values in before.items():
        after = dict(zip(net.edge_names(), state[name].tolist(), strict=True))
        assert values.items() <= after.items()

    fresh = torch.nn.Parameter(torch.tensor([0.3], dtype=torch.float64))
    first = made(kind, [fresh])
    for parameter in (net.edge_weight, net.bias, fresh):
        parameter.grad = torch.full_like(parameter, 0.7)
    for each in (optimizer, first):
        each.step()
    moved, expected = net.edge_weight[grown].item() - 0.3, fresh.item() - 0.3
    if kind.__name__ in EXACT:
        assert moved == pytest.approx(expected, rel=1e-6)
    else:
        assert 0.01 < moved / expected < 10
    if kind is torch.optim.ASGD:
        assert state["ax"][grown] == pytest.approx(float(first.state[fresh]["ax"]), rel=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_every_optimizer_goes_on_after_pruning_and_growing(kind):
    net = network()
    optimizer = made(kind, net.parameters())
    for edges in ([("a", "b")], [("x", "c"), ("c", "y")]):
        train(net, optimizer, 2)
        net.prune(fraction=0.3, allow_disconnected=True).carry_over(optimizer)
        train(net, optimizer, 2)
        net.grow(edges, nodes=["c"] if "c" in edges[0] else (), weight=0.1).carry_over(optimizer)
    train(net, optimizer, 2)
    assert all(parameter.isfinite().all() for parameter in net.parameters())


@pytest.mark.fault("graphs_and_networks", 17)
def test_lbfgs_starts_anew():
    net = network()
    optimizer = torch.optim.LBFGS(net.parameters(), lr=0.1, max_iter=3)
    train(net, optimizer, 2)
    net.grow([("a", "b")], weight=0.3).carry_over(optimizer)
    twin = copy.deepcopy(net)
    train(net, optimizer, 2)
    train(twin, torch.optim.LBFGS(twin.parameters(), lr=0.1, max_iter=3), 2)
    assert torch.equal(net.edge_weight, twin.edge_weight)


def test_carrying_over_twice_is_carrying_over_once():
    net = network()
    optimizer = made(torch.optim.Adam, net.parameters())
    train(net, optimizer, 2)
    change = net.prune(fraction=0.4, allow_disconnected=True)
    change.carry_over(optimizer)
    before = optimizer.state[net.edge_weight]["exp_avg"].clone()
    change.carry_over(optimizer)
    assert torch.equal(optimizer.state[net.edge_weight]["exp_avg"], before)


def test_a_change_that_was_left_out_and_a_state_of_another_form_are_refused():
    net = network()
    optimizer = made(torch.optim.Adam, net.parameters())
    train(net, optimizer, 2)
    net.prune(fraction=0.4, allow_disconnected=True)
    before = copy.deepcopy(optimizer.state[net.edge_weight])
    with pytest.raises(
        ConfigError, match=r"exp_avg has the shape \[5\], but .* had 3 entries .*: carry over every change"
    ):
        net.grow([("a", "b")]).carry_over(optimizer)
    assert all(torch.equal(value, before[name]) for name, value in optimizer.state[net.edge_weight].items())


def test_an_optimizer_of_another_network_is_refused():
    with pytest.raises(ConfigError, match="needs an optimizer of this network's parameters"):
        network().prune(fraction=0.2).carry_over(made(torch.optim.Adam, network().parameters()))
    net = network()
    weights_only = made(torch.optim.Adam, [net.edge_weight])
    train(net, weights_only, 1)
    net.prune(fraction=0.2, allow_disconnected=True).carry_over(weights_only)
    train(net, weights_only, 1)
