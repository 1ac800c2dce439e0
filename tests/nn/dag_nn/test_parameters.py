"""The parameters of a `DagNN`: their order follows the names of the nodes, and sums start with unit variance."""

import copy
import os
import random
import re
import subprocess
import sys
import warnings
from pathlib import Path

import networkx
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from names import declared, digest, named_graph
from strategies import dags

from dagnn.errors import ConfigError, ConstantNodesWarning, DtypeError, GraphError
from dagnn.graph import Dag, DagBatch
from dagnn.kernels import ACTIVATIONS
from dagnn.nn import DagNN, from_sequential
from dagnn.nn.dag_nn.parameters import ParameterLayout

SCRIPT = Path(__file__).parents[2] / "names.py"


@pytest.mark.fault("graphs_and_networks", 2)
@given(st.integers(0, 10_000), st.randoms(use_true_random=False))
def test_equal_dags_share_their_state_dicts(seed, rng):
    names, edges = named_graph(seed)
    a, b = (declared(names, edges, rng, renumber=False) for _ in range(2))
    assert a == b
    assert hash(a) == hash(b)
    assert repr(a.names) == repr(b.names) or any("frozenset" in repr(name) for name in names)
    first, second = DagNN(a, dtype=torch.float64), DagNN(b, dtype=torch.float64)
    second.load_state_dict(first.state_dict())
    x = torch.randn(3, len(a.inputs), dtype=torch.float64)
    assert torch.equal(first(x), second(x))


@given(st.integers(0, 10_000), st.randoms(use_true_random=False))
def test_indices_do_not_depend_on_the_order_of_the_nodes(seed, rng):
    names, edges = named_graph(seed)
    a, b = (ParameterLayout(declared(names, edges, rng, renumber=True), True) for _ in range(2))
    assert a.edge_names() == b.edge_names()


@pytest.mark.fault("graphs_and_networks", 3)
def test_indices_are_the_same_in_processes_of_any_hash_seed():
    seed = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"  # another one than here
    other = subprocess.run(
        [sys.executable, SCRIPT, seed], env=os.environ | {"PYTHONHASHSEED": seed}, capture_output=True, text=True
    )
    assert other.stdout.strip() == digest(0), other.stderr


@pytest.mark.fault("graphs_and_networks", 2)
@pytest.mark.parametrize(("kind", "numpy_kind"), [(int, np.int64), (str, np.str_)])
def test_numpy_names_have_the_indices_of_python_names(kind, numpy_kind):
    names = list(map(kind, range(12)))
    edges = [(name, names[-1]) for name in names[:-1]]
    a, b = (DagNN(Dag(edges, names=list(map(of, names)))) for of in (kind, numpy_kind))
    assert a.dag == b.dag
    b.load_state_dict(a.state_dict())
    for u, v in edges:
        assert a.weight_of(u, v) == b.weight_of(numpy_kind(u), v)


def test_int_and_str_names_sort_as_they_always_have():
    names = [10, 9, "b", "a", "B", -1, "10", "9"]
    layout = ParameterLayout(Dag([(name, "o") for name in names]), True)
    assert [u for u, _ in layout.edge_names()] == [-1, 9, 10, "10", "9", "B", "a", "b"]


@pytest.mark.fault("graphs_and_networks", 3)
def test_blocks_of_a_quotient_graph_are_sorted_by_their_members():
    rng, graph = random.Random(0), networkx.DiGraph([(0, 3), (1, 3), (2, 4), (3, 5), (4, 5)])
    for blocks in ([{0, 1}, {2}, {3, 4}, {5}], [{2}, {3, 4}, {5}, {1, 0}]):
        for block in blocks:
            rng.shuffle(sorted(block))
        dag = Dag.from_networkx(networkx.quotient_graph(graph, blocks))
        assert ParameterLayout(dag, True).edge_names() == [
            (frozenset({0, 1}), frozenset({3, 4})),
            (frozenset({2}), frozenset({3, 4})),
            (frozenset({3, 4}), frozenset({5})),
        ]


@pytest.mark.fault("graphs_and_networks", 8)
def test_a_batch_is_no_dag():
    batch = DagBatch.from_dags([Dag([("a", "b")]), Dag([("a", "c")])])
    with pytest.raises(DtypeError, match=r"dag must be a Dag, got DagBatch: .* take batch\[i\]"):
        DagNN(batch)


@pytest.mark.parametrize("activation", ["relu", "tanh", "sigmoid", "silu", "softplus"])
def test_sums_have_about_unit_second_moment_at_any_depth(activation):
    width, depth = 60, 4
    edges = [
        ((layer, i), (layer + 1, j))
        for layer in range(depth)
        for i in range(width)
        for j in range(width)
        if (i + j) % 3
    ]
    dag = Dag(edges, outputs=[(depth, j) for j in range(width)])
    net = DagNN(dag, activation=activation)
    net.reset_parameters(torch.Generator().manual_seed(0))
    y = net(torch.randn(400, width, generator=torch.Generator().manual_seed(1)))
    assert 0.6 < y.square().mean().item() < 1.5


def test_weights_are_bounded_by_in_degree_and_biases_are_zero():
    edges = [(f"i{k}", "many") for k in range(50)] + [("i0", "one"), ("s", "one")]
    dag = Dag(edges, inputs=[f"i{k}" for k in range(50)])
    net = DagNN(dag, activation="relu")
    net.reset_parameters(torch.Generator().manual_seed(0))
    many = max(abs(net.weight_of(f"i{k}", "many")) for k in range(50))
    assert 0.9 * (3 / 50) ** 0.5 < many <= (3 / 50) ** 0.5
    assert abs(net.weight_of("s", "one")) <= (3 / (2 * 0.5)) ** 0.5
    by_place = net.bias.tolist()  # s is on level 0, then many and one
    assert by_place[1:] == [0.0, 0.0]
    assert 0 < abs(by_place[0]) <= 3**0.5


def test_reset_parameters_draws_again_and_repeats_with_a_generator():
    net = DagNN(Dag([("a", "c"), ("b", "c")]))
    first = net.edge_weight.tolist()
    net.reset_parameters()
    assert net.edge_weight.tolist() != first
    net.reset_parameters(torch.Generator().manual_seed(3))
    again = net.edge_weight.tolist()
    net.reset_parameters(torch.Generator().manual_seed(3))
    assert net.edge_weight.tolist() == again


# ---- which activation ----

DIAMOND = [("x", "a"), ("x", "b"), ("a", "y"), ("b", "y"), ("x", "y")]


@pytest.mark.fault("graphs_and_networks", 4)
def test_reading_a_hidden_node_keeps_its_activation():
    torch.manual_seed(0)
    edges = [("x", "h"), ("h", "o"), ("x", "o")]
    net, reading = (DagNN(Dag(edges, outputs=read), dtype=torch.float64) for read in (["o"], ["o", "h"]))
    reading.load_state_dict(net.state_dict())
    x = torch.randn(5, 1, dtype=torch.float64)
    y = reading(x)
    assert torch.equal(y[:, :1], net(x))
    torch.testing.assert_close(y[:, 1:], torch.tanh(net.weight_of("x", "h") * x))


@settings(max_examples=10)
@given(dags(min_nodes=1, max_nodes=9, named=None), st.data())
def test_more_outputs_never_change_the_others(dag, data):
    """Whether activations are one name for all, a list or a dict."""
    nodes = range(dag.num_nodes)
    names = [dag.name_of(v) for v in nodes]
    fed = sorted(set(dag.edges[:, 0].tolist()))  # nodes that edges leave
    first = data.draw(st.lists(st.sampled_from(nodes), unique=True, min_size=1))
    more = [v for v in data.draw(st.lists(st.sampled_from(fed), unique=True) if fed else st.just([])) if v not in first]
    hidden, last = data.draw(st.sampled_from(sorted(ACTIVATIONS))), data.draw(st.sampled_from(sorted(ACTIVATIONS)))
    listed = data.draw(st.lists(st.sampled_from(sorted(ACTIVATIONS)), min_size=len(nodes), max_size=len(nodes)))
    inputs = set(dag.inputs.tolist())
    by_name = {names[v]: data.draw(st.sampled_from(sorted(ACTIVATIONS))) for v in fed if v not in inputs}
    by_name |= {names[v]: "gelu" for v in nodes if v not in fed and v not in first}
    for activation in (hidden, listed, by_name):
        few, many = (
            DagNN(
                Dag(dag.edges, dag.num_nodes, names=dag.names, inputs=dag.inputs, outputs=torch.tensor(outputs)),
                activation=activation,
                output_activation=last,
                dtype=torch.float64,
            )
            for outputs in (first, [*more, *first])
        )
        torch.nn.init.normal_(few.bias)
        many.load_state_dict(few.state_dict())
        x = torch.randn(3, len(dag.inputs), dtype=torch.float64)
        torch.testing.assert_close(many(x)[:, len(more) :], few(x), rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("argument", ["activation", "output_activation"])
def test_an_unknown_activation(argument):
    with pytest.raises(ConfigError, match=f"{argument} must be one of identity, relu.*got 'swish'"):
        DagNN(Dag(DIAMOND), **{argument: "swish"})


@pytest.mark.fault("graphs_and_networks", 13)
@pytest.mark.parametrize(
    ("wrong", "hint"),
    [
        (torch.tanh, "write activation='tanh'"),
        (torch.nn.functional.leaky_relu, "write activation='leaky_relu'"),
        (torch.nn.SiLU, "write activation='silu'"),
        (torch.nn.LeakyReLU(), "write activation='leaky_relu'"),
        ("ReLU", "write activation='relu'"),
        (None, "write activation='identity'"),
        (torch.nn.Sequential(torch.nn.Tanh()), "got Sequential"),
        ({"tanh"}, "got {'tanh'}"),
        (3, "got 3"),
        (b"tanh", "got b'tanh'"),
    ],
)
def test_an_activation_that_is_no_name_gets_the_names(wrong, hint):
    for construct in (
        lambda: DagNN(Dag(DIAMOND), activation=wrong),
        lambda: DagNN(Dag(DIAMOND), output_activation=wrong),
        lambda: DagNN(Dag(DIAMOND)).grow([("a", "b")], activation=wrong),
        lambda: DagNN(Dag(DIAMOND), activation=[wrong] * 4),
        lambda: DagNN(Dag(DIAMOND), activation={"a": wrong, "b": wrong}),
    ):
        with pytest.raises(ConfigError, match="must be one of identity, relu, leaky_relu, ") as raised:
            construct()
        assert hint.partition("activation=")[2] in str(raised.value)
    with pytest.raises(ConfigError, match=re.escape(hint)):
        DagNN(Dag(DIAMOND), activation=wrong)


def test_a_bias_that_names_no_nodes_and_a_graph_that_is_no_dag():
    for bias in (None, "a", 1, {"a": True}):
        with pytest.raises(ConfigError, match="bias must be True, False, or the nodes to give one"):
            DagNN(Dag(DIAMOND), bias=bias)
    with pytest.raises(GraphError, match="bias: unknown node 'q'"):
        DagNN(Dag(DIAMOND), bias=["q"])
    with pytest.raises(DtypeError, match=r"dag must be a Dag, got DiGraph: .*Dag\.from_networkx"):
        DagNN(networkx.DiGraph(DIAMOND))


def test_activations_by_name():
    net = DagNN(Dag(DIAMOND), activation={"a": "relu", "b": "gelu"}, output_activation="sigmoid")
    assert dict(zip(net.dag.names, net.activations, strict=True)) == {
        "x": "identity",
        "a": "relu",
        "b": "gelu",
        "y": "sigmoid",
    }
    assert DagNN(Dag(DIAMOND), activation={"a": "relu", "b": "gelu", "y": "elu"}).activations[2:] == ["gelu", "elu"]


def test_activations_that_do_not_fit_the_nodes():
    with pytest.raises(ConfigError, match=r"without the hidden node 'b' \(1 missing in all\)"):
        DagNN(Dag(DIAMOND), activation={"a": "relu"})
    with pytest.raises(GraphError, match="'q'"):
        DagNN(Dag(DIAMOND), activation={"a": "relu", "b": "relu", "q": "relu"})
    with pytest.raises(ConfigError, match="activation lists 2 names, expected one for each of 4 nodes"):
        DagNN(Dag(DIAMOND), activation=["relu", "relu"])
    with pytest.raises(ConfigError, match=r"activation\[1\] must be one of"):
        DagNN(Dag(DIAMOND), activation=["relu", 3, "relu", "relu"])


# ---- nodes that nothing feeds ----


@pytest.mark.fault("graphs_and_networks", 23)
def test_nodes_that_nothing_feeds_are_named_and_can_be_dropped():
    """An unmeasured gene, and a pathway that lost its only one."""
    edges = [("measured", "p"), ("unmeasured", "p"), ("p", "y"), ("empty pathway", "y"), ("lost", "q"), ("q", "y")]
    dag = Dag(edges, inputs=["measured"], outputs=["y"])
    for bias in (True, False, ["q", "y"]):
        with pytest.warns(
            ConstantNodesWarning, match=r"no edge leads to 'unmeasured', 'empty pathway', 'lost', which.*dag\.without"
        ) as caught:
            DagNN(dag, bias=bias)
        assert len(caught) == 1 and caught[0].filename == __file__
    for smaller in (dag.without_dangling(), dag.remove(nodes=dag.dangling().unfed)):
        assert set(smaller.names) == {"measured", "p", "y"}
        DagNN(smaller)


@pytest.mark.filterwarnings("error")
def test_networks_that_are_meant_so_get_no_warning(tmp_path):
    with_bias_node = Dag([("x", "y"), ("one", "y")], inputs=["x"])
    net = DagNN(with_bias_node, bias=["one", "y"])
    DagNN(with_bias_node, bias={"one"})
    DagNN(Dag(DIAMOND))
    DagNN(Dag(DIAMOND, outputs=["a"]))  # b is not read: it changes nothing
    DagNN(Dag([("x", "y")], names=["x", "y", "not used"], inputs=["x", "not used"], outputs=["y"]))
    from_sequential(torch.nn.Sequential(torch.nn.Linear(2, 2)))
    copy.deepcopy(net).prune(fraction=1.0, allow_disconnected=True)
    net.grow([("z", "y")], nodes=["z"])
    for bias in (True, False, ["y"]):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConstantNodesWarning)
            first = DagNN(with_bias_node, bias=bias)
        first.save(tmp_path / "net")
        again = DagNN.load(tmp_path / "net")
        assert again.edge_weights() == first.edge_weights() and again.biases() == first.biases()
        assert torch.equal(torch.as_tensor(again.bias_nodes), torch.as_tensor(first.bias_nodes))
