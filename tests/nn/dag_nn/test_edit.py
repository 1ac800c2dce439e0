"""A `DagNN` whose edges change while it trains: what stays, what moves along, and what is refused."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import dags

from dagnn.errors import ConfigError, CycleError, DagnnError, GraphError
from dagnn.graph import Dag
from dagnn.nn import DagNN

EDGES = [("x", "a"), ("x", "b"), ("a", "y"), ("b", "y"), ("x", "y")]


def network(**options) -> DagNN:
    torch.manual_seed(0)
    net = DagNN(Dag(EDGES, inputs=["x"], outputs=["y"]), dtype=torch.float64, **options)
    weights = {("x", "a"): 0.5, ("x", "b"): 0.1, ("a", "y"): 2.0, ("b", "y"): -0.2, ("x", "y"): 1.0}
    with torch.no_grad():
        net.edge_weight.copy_(torch.tensor([weights[edge] for edge in net._layout.edge_names()], dtype=torch.float64))
        net.bias.normal_()
    return net


def weights(net: DagNN) -> dict:
    return dict(zip(net._layout.edge_names(), net.edge_weight.tolist(), strict=True))


X = torch.tensor([[0.5], [-1.0], [2.0]], dtype=torch.float64)

# ---- prune ----


def test_prune_by_threshold_removes_the_small_weights_only():
    net = network()
    change = net.prune(threshold=0.2)
    assert weights(net) == {("x", "a"): 0.5, ("a", "y"): 2.0, ("x", "y"): 1.0}
    assert (change.removed, change.added, net.num_parameters()) == (2, 0, 3 + 3)


@pytest.mark.parametrize(("fraction", "left"), [(0.0, 5), (0.39, 4), (0.4, 3), (0.6, 2)])
def test_prune_by_fraction_rounds_down(fraction, left):
    net = network()
    net.prune(fraction=fraction)
    assert net.dag.num_edges == len(net.edge_weight) == left
    assert weights(net).items() <= weights(network()).items()
    assert min(map(abs, weights(net).values())) == sorted(map(abs, weights(network()).values()))[5 - left]


@settings(max_examples=15)
@given(dags(min_nodes=2, named=None), st.floats(0, 1), st.booleans())
def test_pruned_is_the_network_with_those_weights_zero(dag, fraction, bias):
    net = DagNN(dag, dtype=torch.float64, bias=bias)
    torch.nn.init.normal_(net.bias)
    x = torch.randn(4, len(dag.inputs), dtype=torch.float64)
    smallest = net.edge_weight.detach().abs().argsort(stable=True)[: math.floor(fraction * dag.num_edges + 1e-9)]
    with torch.no_grad():
        net.edge_weight[smallest] = 0.0
        expected = net(x)
    net.prune(fraction=fraction, allow_disconnected=True)
    torch.testing.assert_close(net(x), expected, rtol=1e-12, atol=1e-12)
    assert net.dag.num_nodes == dag.num_nodes and net.dag.names == dag.names


def test_a_nan_weight_is_not_small():
    net = network()
    with torch.no_grad():
        net.edge_weight[net._layout.index_of("x", "b")] = math.nan
    net.prune(threshold=0.3)
    assert math.isnan(net.weight_of("x", "b"))


def test_a_prune_that_disconnects_an_output_says_so_and_changes_nothing():
    net = network()
    before = weights(net)
    with pytest.raises(GraphError, match=r"pruning 5 of 5 edges would cut the output 'y' off from every input"):
        net.prune(fraction=1.0)
    assert weights(net) == before and len(net.bias) == 3
    net.prune(fraction=1.0, allow_disconnected=True)
    y = net.activations[net.dag.index_of("y")]
    assert (net.dag.num_edges, y) == (0, "identity")
    assert net(X).shape == (3, 1)


def test_an_output_that_no_input_reached_before_may_stay_so():
    net = DagNN(Dag([("x", "y"), ("s", "z")], inputs=["x"], outputs=["y", "z"]))
    with torch.no_grad():
        net.edge_weight[net._layout.index_of("s", "z")] = 1e-6
    net.prune(threshold=1e-3)
    assert net._layout.edge_names() == [("x", "y")]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "either threshold or fraction, got threshold=None and fraction=None"),
        ({"fraction": "half"}, "either threshold or fraction, got .*fraction='half': give one number"),
        ({"threshold": 1.0, "fraction": 0.5}, "either threshold or fraction"),
        ({"threshold": -1.0}, "threshold must be at least 0, got -1.0"),
        ({"threshold": math.nan}, "threshold must be at least 0, got nan"),
        ({"fraction": 90}, "fraction must lie between 0 and 1, got 90: 0.9 removes 90 %"),
    ],
)
def test_prune_refuses_what_is_no_amount(arguments, message):
    with pytest.raises(ConfigError, match=message):
        network().prune(**arguments)


# ---- grow ----


@settings(max_examples=15)
@given(dags(min_nodes=2, named=None), st.booleans(), st.data())
def test_an_edge_of_weight_zero_changes_no_output(dag, bias, data):
    net = DagNN(dag, dtype=torch.float64, bias=bias)
    torch.nn.init.normal_(net.bias)
    place = {v: i for i, v in enumerate(dag.order.tolist())}
    there, inputs = set(map(tuple, dag.edges.tolist())), set(dag.inputs.tolist())
    free = [
        (u, v)
        for u in range(dag.num_nodes)
        for v in range(dag.num_nodes)
        if place[u] < place[v] and (u, v) not in there and v not in inputs
    ]
    chosen = data.draw(st.lists(st.sampled_from(free), unique=True)) if free else []
    x = torch.randn(4, len(dag.inputs), dtype=torch.float64)
    expected = net(x).detach()
    change = net.grow([(dag.name_of(u), dag.name_of(v)) for u, v in chosen])
    assert (change.added, change.removed, net.dag.num_edges) == (len(chosen), 0, dag.num_edges + len(chosen))
    torch.testing.assert_close(net(x), expected, rtol=1e-12, atol=1e-12)


def test_grown_nodes_and_edges_compute():
    net = network(activation="relu")
    before = net(X).detach()
    net.grow([("x", "new"), ("new", "y")], nodes=["new"], weight=[3.0, 2.0], activation="relu")
    assert net.weight_of("x", "new") == 3.0 and net.weight_of("new", "y") == 2.0
    torch.testing.assert_close(net(X), before + 2 * torch.relu(3 * X))
    net.accumulate_edge_grad("new", "y", 1.5)
    assert net.get_edge_grad("new", "y") == 1.5


def test_nodes_without_names_grow_by_number():
    net = DagNN(Dag([(0, 2), (1, 2)]))
    net.grow(torch.tensor([[0, 3], [3, 2]]), nodes=1, weight=1.0)
    assert (net.dag.num_nodes, net.weight_of(3, 2)) == (4, 1.0)
    assert net.dag.inputs.tolist() == [0, 1] and net.dag.outputs.tolist() == [2]


def test_a_source_keeps_its_bias_when_it_gets_an_edge():
    net = DagNN(Dag([("x", "y"), ("s", "y")], inputs=["x"]), bias=False, dtype=torch.float64)
    torch.nn.init.ones_(net.bias)
    before = net(X).detach()
    net.grow([("x", "s")])
    torch.testing.assert_close(net(X), before)
    assert net.bias.tolist() == [1.0]


@pytest.mark.parametrize(
    ("edges", "options", "error", "message"),
    [
        ([("y", "x")], {}, CycleError, "x"),
        ([("x", "a")], {}, GraphError, r"x -> a \(duplicate edge\)"),
        ([("b", "a"), ("a", "b")], {}, CycleError, "a -> b -> a|b -> a -> b"),
        ([("a", "a")], {}, CycleError, "a -> a"),
        ([("x", "q")], {}, GraphError, "'q'"),
        ([("q", "y")], {"nodes": ["a"]}, GraphError, "'a'"),
        ([], {"nodes": 2}, GraphError, "the nodes of this Dag have names, got nodes=2: list the names"),
        ([("a", "b")], {"weight": [1.0, 2.0]}, ConfigError, r"weight must be a number or 1 numbers"),
        ([("a", "b")], {"weight": "one"}, ConfigError, r"weight must be a number or 1 numbers, got 'one'"),
        ([("a", "b")], {"activation": "swish"}, ConfigError, "activation must be one of"),
    ],
)
def test_grow_refuses_and_changes_nothing(edges, options, error, message):
    net = network()
    before, y = weights(net), net(X).detach()
    with pytest.raises(error, match=message):
        net.grow(edges, **options)
    assert weights(net) == before and torch.equal(net(X), y)


def test_grow_refuses_an_edge_into_an_input():
    net = DagNN(Dag([("x", "y"), ("z", "y")]))
    with pytest.raises(GraphError, match="the input 'x' has the incoming edge 'z' -> 'x'"):
        net.grow([("z", "x")])


def test_grow_refuses_edges_without_the_attributes_of_the_others():
    net = DagNN(Dag([("x", "a"), ("a", "y")], edge_attributes={"source": ["p", "q"]}))
    with pytest.raises(GraphError, match="the edge attribute 'source', which the new edges would lack"):
        net.grow([("x", "y")])
    net.prune(fraction=0.5, allow_disconnected=True)  # the others keep theirs
    assert len(net.dag.edge_attributes["source"]) == 1


# ---- what moves along ----


def test_gradients_of_what_stays_are_kept():
    net, twin = network(), network()
    for model in (net, twin):
        model(X).sum().backward()
    net.prune(threshold=0.2)
    expected = twin.edge_grads()
    assert net.edge_grads() == {edge: expected[edge] for edge in net.edge_grads()}
    net.grow([("b", "y")])
    assert net.grad_of("b", "y") == 0.0 and net.grad_of("a", "y") == expected["a", "y"]


OPTIMIZERS = {
    "SGD with momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.05, amsgrad=True),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.05),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.01),
}


def train(net: DagNN, optimizer: torch.optim.Optimizer, steps: int) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        (net(X) - 1).square().sum().backward()
        optimizer.step()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_state_of_surviving_edges_is_kept(name):
    """After pruning, training goes on as if the pruned weights had been held at zero all along."""
    net, twin = network(), network()
    optimizer, other = OPTIMIZERS[name](net.parameters()), OPTIMIZERS[name](twin.parameters())
    train(net, optimizer, 4)
    train(twin, other, 4)
    change = net.prune(fraction=0.4)
    change.carry_over(optimizer)
    removed = [twin._layout.index_of(*edge) for edge in twin._layout.edge_names() if edge not in weights(net)]
    assert len(removed) == 2
    for _ in range(5):
        with torch.no_grad():
            twin.edge_weight[removed] = 0.0
        train(net, optimizer, 1)
        train(twin, other, 1)
    expected = weights(twin)
    assert weights(net) == pytest.approx({edge: expected[edge] for edge in weights(net)}, rel=1e-10)


def test_the_state_of_a_new_edge_starts_at_zero():
    net = network()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.05)
    train(net, optimizer, 3)
    before = dict(zip(net._layout.edge_names(), optimizer.state[net.edge_weight]["exp_avg"].tolist(), strict=True))
    net.grow([("a", "b")]).carry_over(optimizer)
    state = optimizer.state[net.edge_weight]
    after = dict(zip(net._layout.edge_names(), state["exp_avg"].tolist(), strict=True))
    assert after == {**before, ("a", "b"): 0.0}
    assert state["step"] == 3.0
    train(net, optimizer, 3)


def test_parameters_stay_the_same_objects_even_while_an_old_graph_lives():
    net = network()
    parameters = list(net.parameters())
    old = net(X).sum()  # holds autograd's node for the parameter, with its old shape
    old.backward(retain_graph=True)
    net.prune(threshold=0.2)
    net.zero_grad()
    net(X).sum().backward()
    assert list(map(id, net.parameters())) == list(map(id, parameters))
    assert net.edge_weight.grad.shape == (3,) and net.edge_weight.dtype == torch.float64
    net.edge_weight.grad = None
    (weight,) = torch.autograd.grad(net(X).sum(), net.edge_weight)
    assert weight.shape == (3,)
    with pytest.raises(GraphError, match="after prune or grow, run the forward pass again"):
        old.backward()


def test_backward_by_hand_needs_a_forward_pass_after_a_change():
    net = network()
    net(X)
    net.prune(threshold=0.2)
    with pytest.raises(GraphError, match="there is no forward pass"):
        net.backward_accumulate(torch.ones(3, 1, dtype=torch.float64))


def test_a_changed_network_is_saved_and_loaded(tmp_path):
    net = network(bias=False)
    net.prune(fraction=0.4, allow_disconnected=True)
    net.grow([("x", "new")], nodes=["new"])
    torch.nn.init.normal_(net.bias)
    net.save(tmp_path / "net")
    loaded = DagNN.load(tmp_path / "net")
    assert loaded.dag == net.dag and torch.equal(loaded(X), net(X))
    assert loaded.bias.shape == net.bias.shape


# ---- what is given to grow ----


@pytest.mark.fault("graphs_and_networks", 12)
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"edges": torch.tensor([[0.7, 3.9]])}, "edges must be int64"),
        ({"edges": torch.tensor([[0, 1, 2], [3, 3, 3]])}, r"got \[2, 3\]: transpose it"),
        ({"edges": ["xb"]}, "must be pairs .* got 'xb' at edge 0"),
        ({"edges": [{"a", "b"}]}, "must be pairs"),
        ({"edges": [("a", "b", 1.0)]}, "must be pairs"),
        ({"edges": None}, "edges must be a tensor, an array or a list"),
        ({"edges": {("a", "b"): 1.0}}, "edges must be a list, in the order of weight"),
        ({"edges": {("a", "b"), ("x", "z")}, "nodes": ["z"], "weight": [1.0, 2.0]}, "got a set: list them"),
        ({"nodes": "pq"}, "nodes must be a list of names"),
        ({"nodes": {"p", "q"}}, "nodes must be a list, in the order"),
        ({"nodes": None}, "nodes must be a list of names"),
        ({"nodes": ["p", "p"]}, "holds 'p' twice"),
        ({"edges": [("a", "b")], "weight": 1e300}, "weight is too large for torch.float32"),
        ({"edges": [("a", "b")], "weight": 10**400}, "weight must be a number"),
        ({"edges": [("a", "b")], "weight": torch.tensor(1j)}, "real ones"),
    ],
)
def test_grow_refuses_what_has_no_pairs_and_no_order(arguments, message):
    net = network().float()
    before = (net.dag, net.edge_weights())
    with pytest.raises(DagnnError, match=message):
        net.grow(**arguments)
    assert (net.dag, net.edge_weights()) == before


@pytest.mark.parametrize("nodes", [np.int64(2), 2])
def test_grow_takes_an_array_of_indices_and_a_number_of_numpy(nodes):
    net = DagNN(Dag([(0, 2), (1, 2)]), dtype=torch.float64)
    net.grow(np.array([[0, 3], [3, 4]]), nodes=nodes, weight=[0.1, 0.3])
    assert (net.weight_of(0, 3), net.weight_of(3, 4), net.dag.num_nodes) == (0.1, 0.3, 5)
    with pytest.raises(GraphError, match="nodes must be at least 0"):
        net.grow(nodes=-1)


def test_a_share_of_a_hundred_edges_is_what_it_says():
    for percent in range(101):
        net = DagNN(Dag([(i, 100) for i in range(100)]))
        assert net.prune(fraction=percent / 100, allow_disconnected=True).removed == percent
