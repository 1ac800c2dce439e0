"""What a network shows: summary, tables, values of all nodes, and which numbers its pictures and pages hold."""

import json
import re

import pytest
import torch

from dagnn import ConfigError, Dag, DagNN, DtypeError, GraphError
from dagnn.nn import WideDagNN

EDGES = [("a", "c"), ("b", "c"), ("b", "d"), ("c", "d")]


@pytest.fixture
def net():
    net = DagNN(Dag(EDGES), dtype=torch.float64)
    net.set_weights(dict(zip(EDGES, [0.5, -2.0, 1.0, 3.0], strict=True)))
    net.set_biases({"c": 0.25, "d": -1.0})
    return net


def data_of(net, tmp_path, **options):
    net.write_page(tmp_path / "net.html", **options)
    text = (tmp_path / "net.html").read_text(encoding="utf-8")
    return json.loads(re.search(r'id="data">(.*?)</script>', text, re.DOTALL)[1])


def test_summary_counts_nodes_edges_and_parameters_of_every_level(net):
    assert net.summary().splitlines() == [
        "DagNN: 4 nodes, 4 edges, 6 parameters of float64 (4 weights, 2 biases)",
        "2 inputs, 1 output, 3 levels",
        "  level  nodes  edges in  activations",
        "      0      2         0  input 2",
        "      1      1         2  tanh 1",
        "      2      1         2  identity 1",
    ]


def test_summary_of_wide_nodes_counts_units():
    lines = WideDagNN(Dag(EDGES), width=3).summary().splitlines()

    assert lines[0] == "WideDagNN: 4 nodes, 4 edges, 14 parameters of float32 (10 weights, 4 biases)"
    assert lines[2].split() == ["level", "nodes", "units", "edges", "in", "activations"]
    assert lines[4].split() == ["1", "1", "3", "2", "tanh", "1"]


def test_table_of_edges_has_weights_and_gradients_by_name(net):
    x = torch.tensor([[1.0, 2.0], [0.5, -1.0]], dtype=torch.float64)
    net(x).sum().backward()

    table = net.table("edges", importance={("a", "c"): 7.0})

    assert list(zip(table["source"], table["target"], strict=True)) == net.edge_names()
    assert dict(zip(net.edge_names(), table["weight"], strict=True)) == net.edge_weights()
    assert dict(zip(net.edge_names(), table["gradient"], strict=True)) == net.edge_grads()
    assert all(value != 0 for value in table["gradient"])
    assert table["importance"] == [7.0 if pair == ("a", "c") else None for pair in net.edge_names()]


def test_table_of_nodes_says_what_each_is(net):
    assert net.table("nodes", importance={"d": 1}) == {
        "node": ["a", "c", "b", "d"],
        "level": [0, 1, 0, 2],
        "kind": ["input", "inner", "input", "output"],
        "in_degree": [0, 2, 0, 2],
        "out_degree": [1, 1, 2, 0],
        "activation": [None, "tanh", None, "identity"],
        "bias": [None, 0.25, None, -1.0],
        "importance": [None, None, None, 1.0],
    }


def test_a_frame_holds_the_table(net):
    pandas = pytest.importorskip("pandas")

    frame = net.to_frame("nodes")
    assert isinstance(frame, pandas.DataFrame) and list(frame.columns) == list(net.table("nodes"))
    assert net.to_frame().to_dict("list") == net.table("edges")


def test_values_of_all_nodes_are_those_that_the_network_computes(net):
    x = torch.randn(3, 2, 2, dtype=torch.float64)
    a, b = x.unbind(-1)
    c = torch.tanh(0.5 * a - 2 * b + 0.25)
    d = b + 3 * c - 1

    before = net.dag
    values = net.node_values(x)

    torch.testing.assert_close(values, torch.stack([a, c, b, d], -1))
    assert net.dag is before and not values.requires_grad and len(net.dag.outputs) == 1
    assert torch.equal(values[..., 3:], net(x))
    torch.testing.assert_close(net.node_values({"b": b[0], "a": a[0]}), values[0])


def test_values_of_other_aggregations_are_right():
    net = DagNN(Dag(EDGES), aggregation={"c": "product"}, response={"d": 2.0}, activation="relu")
    x = torch.rand(5, 2)

    torch.testing.assert_close(net.node_values(x)[:, 3:], net(x))


def bars(figure):
    return [axes.get_title() for axes in figure.axes[1:]]


def test_a_picture_shows_what_its_arguments_are_for(net):
    x = torch.ones(2, 2, dtype=torch.float64)
    net(x).sum().backward()

    assert bars(net.draw()) == ["weight"]
    assert bars(net.draw(show="gradients")) == ["gradient"]
    assert bars(net.draw(x=x)) == ["mean value", "weight"]
    assert bars(net.draw(importance={"c": 1.0})) == ["importance", "weight"]
    assert bars(net.draw(importance={"c": 1.0}, edge_importance={("c", "d"): -1.0})) == ["importance", "importance"]
    figure = net.draw(show="gradients")
    assert figure.axes[1].get_xlim()[1] == pytest.approx(max(map(abs, net.edge_grads().values())))


def test_wide_networks_show_the_norms_of_their_blocks(tmp_path):
    net = WideDagNN(Dag(EDGES), width=2)
    net.set_weights({("b", "d"): -0.5})  # a block of one has a norm too
    figure = net.draw()

    assert bars(figure) == ["weight (norm of the block)"]
    norms = {pair: float(block.norm()) for pair, block in net.edge_weights().items()}
    assert norms[("b", "d")] == 0.5
    assert figure.axes[1].get_xlim()[1] == pytest.approx(max(norms.values()))
    assert dict(zip(net.edge_names(), net.table("edges")["weight"], strict=True)) == norms
    assert list(data_of(net, tmp_path)["edges"]) == ["weight (norm of the block)"]


def test_a_page_holds_all_that_is_known(net, tmp_path):
    assert list(data_of(net, tmp_path)["edges"]) == ["weight"]

    x = torch.ones(2, 2, dtype=torch.float64)
    net(x).sum().backward()
    found = data_of(net, tmp_path, x=x, importance={"c": 2.0}, title="mine")

    assert list(found["nodes"]) == ["importance", "mean value", "bias"] and list(found["edges"]) == [
        "weight",
        "gradient",
    ]
    assert found["nodes"]["importance"] == [None, 2.0, None, None] and found["nodes"]["bias"] == [
        None,
        0.25,
        None,
        -1.0,
    ]
    assert found["nodes"]["mean value"] == pytest.approx(net.node_values(x)[0].tolist(), rel=1e-5)
    assert found["texts"]["activation"] == ["none (input)", "tanh", "none (input)", "identity"]


def test_computed_weights_are_shown_without_gradients(net, tmp_path):
    torch.nn.utils.parametrize.register_parametrization(net, "edge_weight", torch.nn.Softplus())

    assert "gradient" not in net.table("edges") and bars(net.draw()) == ["weight"]
    assert list(data_of(net, tmp_path)["edges"]) == ["weight"]
    assert "4 weights" in net.summary()
    with pytest.raises(ConfigError, match="gradient by name"):
        net.draw(show="gradients")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"show": "colours"}, "show must be one of weights, gradients, values, importance, got 'colours'."),
        ({"show": "values"}, "show='values' needs x=..."),
        ({"show": "importance"}, "show='importance' needs importance=..."),
        ({"x": torch.ones(1, 2), "importance": {}}, "x is for show='values', got show='importance': drop one of them."),
        ({"show": "gradients", "importance": {}}, "importance is for show='importance', got show='gradients'"),
    ],
)
def test_arguments_that_do_not_belong_together_are_refused(net, arguments, text):
    with pytest.raises(ConfigError, match=re.escape(text)):
        net.draw(**arguments)


def test_wrong_names_and_samples_are_refused(net):
    with pytest.raises(GraphError, match=r"importance has 'z', which is no node of the network\."):
        net.table("nodes", importance={"z": 1.0})
    with pytest.raises(ConfigError, match="x gives values of nodes"):
        net.table("edges", x=torch.ones(1, 2))
    with pytest.raises(ConfigError, match='of must be "edges" or "nodes", got \'rows\''):
        net.table("rows")
    with pytest.raises(GraphError, match=r"x must have the shape \[..., inputs\] = \[..., 2\], got \[3\]"):
        net.node_values(torch.ones(3, dtype=torch.float64))
    with pytest.raises(DtypeError, match="float64"):
        net.node_values(torch.ones(1, 2, dtype=torch.float32))
    with pytest.raises(ConfigError, match="the nodes of a WideDagNN hold several units"):
        WideDagNN(Dag(EDGES), width=2).node_values(torch.ones(1, 2))


def test_an_explanation_is_shown_by_its_means(net, tmp_path):
    from dagnn.visible import explain

    found = explain(net, torch.tensor([[1.0, 2.0], [-0.5, 1.0]], dtype=torch.float64))

    assert net.table("nodes", importance=found)["importance"] == found.node_means.tolist()
    assert net.table("edges", importance=found)["importance"] == found.edge_means.tolist()
    assert bars(net.draw(importance=found)) == ["importance", "importance"]
    page = data_of(net, tmp_path, importance=found)
    shown = {
        (page["names"][u], page["names"][v]): value
        for u, v, value in zip(page["source"], page["target"], page["edges"]["importance"], strict=True)
    }
    assert shown == pytest.approx(dict(zip(found.edge_names, found.edge_means.tolist(), strict=True)), rel=1e-5)
