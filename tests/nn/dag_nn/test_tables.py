"""Weights, biases and gradients by name, and parameters that tools of PyTorch compute from others."""

import copy
import math
import pickle
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies import dags
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune, spectral_norm, weight_norm

from dagnn.errors import ConfigError, DtypeError, GraphError
from dagnn.graph import Dag
from dagnn.nn import DagNN, from_sequential

EDGES = [("b", "h"), ("a", "h"), ("h", "y"), ("a", "y")]


def network() -> DagNN:
    torch.manual_seed(0)
    net = DagNN(Dag(EDGES, inputs=["a", "b"], outputs=["y"]), dtype=torch.float64)
    nn.init.normal_(net.bias)
    return net


X = torch.tensor([[0.5, -1.0], [2.0, 0.25]], dtype=torch.float64)


@pytest.mark.fault("docs_and_packaging", 3)
@given(dags(min_nodes=1, named=None), st.randoms())
def test_weights_are_read_and_set_by_name(dag, random):
    net = DagNN(dag, dtype=torch.float64)
    nn.init.normal_(net.bias)
    names = [(dag.name_of(u), dag.name_of(v)) for u, v in dag.edges.tolist()]
    assert net.edge_weights() == {edge: net.weight_of(*edge) for edge in names}
    other = DagNN(dag, dtype=torch.float64)
    for given_names, read, write in (
        (names, net.edge_weights(), other.set_weights),
        (net.bias_names(), net.biases(), other.set_biases),
    ):
        shuffled = list(given_names)
        random.shuffle(shuffled)
        half = len(shuffled) // 2
        write({name: read[name] for name in shuffled[:half]})
        write({name: torch.tensor([read[name]], dtype=torch.float64) for name in shuffled[half:]})
    assert other.edge_weights() == net.edge_weights() and other.biases() == net.biases()
    assert list(net.edge_weights()) == net.edge_names() and list(net.biases()) == net.bias_names()
    x = torch.randn(2, len(dag.inputs), dtype=torch.float64)
    assert torch.equal(other(x), net(x))


def test_setting_takes_any_number_and_leaves_the_rest():
    net = network()
    before, grad = net.edge_weights(), torch.ones(4, dtype=torch.float64)
    net.edge_weight.grad = grad
    net.set_weights({("a", "h"): np.float32(0.5), ("h", "y"): torch.tensor(2), ("a", "y"): math.inf})
    assert net.edge_weights() == before | {("a", "h"): 0.5, ("h", "y"): 2.0, ("a", "y"): math.inf}
    assert net.edge_weight.grad is grad
    net.set_weights({})
    version = net.edge_weight._version
    y = net(X)
    net.set_weights({("a", "h"): 3.0})
    assert net.edge_weight._version > version
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


@pytest.mark.parametrize(
    ("weights", "error", "message"),
    [
        ({("a", "h"): 1.0, ("h", "a"): 2.0}, GraphError, "no edge 'h' -> 'a'; there is 'a' -> 'h'"),
        ({("a", "h"): 1.0, ("q", "h"): 2.0}, GraphError, "unknown node 'q'"),
        ({("a", "h"): 1.0, "ah": 2.0}, GraphError, r"an edge is a pair of names \(source, target\), got 'ah'"),
        ({("a", "h"): 1.0, ("a", "y"): "2"}, DtypeError, r"weights\[\('a', 'y'\)\] must be a real number, got '2'"),
        ({("a", "h"): torch.ones(2)}, DtypeError, r"weights\[\('a', 'h'\)\] must be a real number"),
        ({("a", "h"): 1j}, DtypeError, "must be a real number, got 1j"),
        ({("a", "h"): None}, DtypeError, "must be a real number, got None"),
        ({("a", "h"): 10**400}, DtypeError, r"weights\[\('a', 'h'\)\] is too large for torch.float64"),
        ([1.0, 2.0], DtypeError, "weights must be a mapping from name to number, got a list"),
    ],
)
def test_a_wrong_name_or_value_changes_nothing(weights, error, message):
    net = network()
    before = net.edge_weights()
    with pytest.raises(error, match=message):
        net.set_weights(weights)
    assert net.edge_weights() == before


def test_a_node_without_a_bias():
    with pytest.raises(GraphError, match="the node 'a' has no bias: it is an input"):
        network().set_biases({"a": 1.0})
    with pytest.raises(GraphError, match="the node 'y' has no bias: it was made without one"):
        DagNN(Dag(EDGES), bias=["h"]).set_biases({"y": 1.0})


# ---- parameters that are computed from others ----


class Double(nn.Module):
    def forward(self, value):
        return 2 * value

    def right_inverse(self, value):
        return value / 2


def quietly(tool):
    """Without the warning that the tool is an old one."""

    def apply(net, name):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return tool(net, name)

    return apply


TOOLS = {
    "parametrize": lambda net, name: parametrize.register_parametrization(net, name, Double()),
    "new weight_norm": lambda net, name: parametrizations.weight_norm(net, name, dim=None),
    "weight_norm": quietly(lambda net, name: weight_norm(net, name, dim=None)),
    "spectral_norm": quietly(lambda net, name: spectral_norm(net, name)),
    "prune": lambda net, name: prune.l1_unstructured(net, name, amount=0.5),
    "prune twice": lambda net, name: [prune.l1_unstructured(net, name, amount=0.4) for _ in range(2)],
}


@pytest.mark.fault("graphs_and_networks", 11)
@pytest.mark.parametrize("name", ["edge_weight", "bias"])
@pytest.mark.parametrize("tool", TOOLS)
def test_structure_is_refused_before_anything_has_changed(tool, name):
    net = network()
    TOOLS[tool](net, name)
    before, dag = net(X), net.dag
    calls = {
        "prune": lambda: net.prune(fraction=0.5, allow_disconnected=True),
        "grow": lambda: net.grow([("b", "y")]),
        "reset_parameters": net.reset_parameters,
    }
    if name == "edge_weight":
        calls["set_weights"] = lambda: net.set_weights({("a", "y"): 1.0})
        calls["a gradient by name"] = net.edge_grads
        calls["a gradient"] = lambda: net.accumulate_edge_grad("a", "y", 1.0)
        calls["a gradient by"] = lambda: net.grad_of("a", "y")
    else:
        calls["set_biases"] = lambda: net.set_biases({"y": 1.0})
    for what, call in calls.items():
        with pytest.raises(ConfigError, match=f"{what}.* needs {name} as a parameter of its own, .*: call .*remove"):
            call()
    net.eval()  # spectral_norm refines its estimate in training
    before = net(X)
    assert net.dag is dag and torch.equal(net(X), before)


@pytest.mark.parametrize("name", ["edge_weight", "bias"])
@pytest.mark.parametrize("tool", TOOLS)
def test_what_is_read_saved_and_copied_is_what_the_network_computes(tool, name, tmp_path):
    net = network()
    TOOLS[tool](net, name)
    net.eval()
    with torch.no_grad():
        for parameter in net.parameters():  # as an optimizer's step: the older tools' attribute is stale now
            parameter += 0.25
    net.save(tmp_path / "net")
    values = net.edge_weights(), net.biases()
    expected = net(X)
    loaded = DagNN.load(tmp_path / "net")
    assert torch.equal(loaded(X), expected)
    assert (loaded.edge_weights(), loaded.biases()) == values
    assert values[0]["a", "y"] == net.weight_of("a", "y")
    assert torch.equal(copy.deepcopy(net)(X), expected)
    if not parametrize.is_parametrized(net):
        assert torch.equal(pickle.loads(pickle.dumps(net))(X), expected)


@pytest.mark.parametrize("tool", [tool for tool in TOOLS if tool != "spectral_norm"])
def test_backward_by_hand_goes_through_the_tool(tool):
    net, twin = network(), network()
    for each in (net, twin):
        TOOLS[tool](each, "edge_weight")
    net(X)
    twin(X).sum().backward()
    net.backward_accumulate(torch.ones(2, 1, dtype=torch.float64))
    net.step(0.1)
    twin.step(0.1)
    net.zero_grad()
    twin.zero_grad()
    net.backward_accumulate(torch.ones(2, 1, dtype=torch.float64))  # with the weights as they are now
    twin(X).sum().backward()
    for mine, theirs in zip(net.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad)


def test_removing_the_tool_makes_structure_free_again():
    net = network()
    prune.l1_unstructured(net, "edge_weight", amount=0.5)
    net(X)
    prune.remove(net, "edge_weight")
    net.prune(threshold=0.0, allow_disconnected=True)
    assert net.dag.num_edges == 2


@pytest.mark.parametrize("tool", TOOLS)
def test_a_sequential_under_a_tool_is_copied_as_what_it_computes(tool):
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    TOOLS[tool](model[0], "weight")
    TOOLS["prune"](model[2], "bias")
    model.eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.25
    net = from_sequential(model)
    x = torch.randn(5, 3, dtype=torch.float64)
    torch.testing.assert_close(net(x), model(x), rtol=1e-12, atol=1e-12)


class Series:
    """A column of pandas, as far as labels go: they may repeat."""

    def __init__(self, values: list, index: list) -> None:
        self.values, self.index = values, index

    def __iter__(self):
        return iter(self.values)

    def items(self):
        return zip(self.index, self.values, strict=True)


@pytest.mark.parametrize("weights", [{("a", "h"): 1.0, (2, 1): 2.0}, Series([1.0, 2.0], [("a", "h"), ("a", "h")])])
def test_a_weight_given_twice_is_refused(weights):
    net = network()
    before = net.edge_weights()
    with pytest.raises(GraphError, match="twice"):
        net.set_weights(weights)
    with pytest.raises(GraphError, match="twice"):
        net.set_biases(Series([1.0, 2.0], ["h", "h"]))
    assert net.edge_weights() == before


def test_activations_in_a_column_belong_to_its_labels():
    dag = Dag(EDGES, inputs=["a", "b"], outputs=["y"])
    by_label = DagNN(dag, activation=Series(["relu", "gelu", "tanh", "tanh"], ["h", "y", "a", "b"]))
    assert by_label.activations == DagNN(dag, activation={"h": "relu", "y": "gelu"}).activations
    with pytest.raises(GraphError, match="'h' twice"):
        DagNN(dag, activation={"h": "relu", 1: "tanh", "y": "gelu"})


@pytest.mark.parametrize("number", [None, "1", 1j, torch.ones(2), True])
def test_a_gradient_by_name_is_a_real_number(number):
    net = network()
    with pytest.raises(DtypeError, match=r"g\[\('a', 'h'\)\] must be a real number"):
        net.accumulate_edge_grad("a", "h", number)
    assert not net.has_gradients()
