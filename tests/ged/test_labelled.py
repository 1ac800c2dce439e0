"""Labels of every kind, and what is no graph to compare."""

import math
from collections import OrderedDict
from decimal import Decimal
from types import SimpleNamespace

import networkx as nx
import numpy as np
import pytest
import torch

from dagnn.commands.ged import compare_files
from dagnn.errors import ConfigError, DtypeError, GraphError
from dagnn.ged import (
    EditCosts,
    GedLoss,
    GedMetric,
    GraphTargets,
    ged_bounds,
    ged_matrix,
    graph_edit_distance,
    tree_edit_distance,
)
from dagnn.ged.labelled import _networkx_edges
from dagnn.graph import Dag, DagBatch

NAN = float("nan")


def pair(label, other):
    graphs = []
    for value in (label, other):
        graph = nx.DiGraph([(0, 1)])
        nx.set_node_attributes(graph, {0: value, 1: "x"}, "label")
        graphs.append(graph)
    return graphs


ALIKE = [
    (np.array([NAN, 1.0]), np.array([NAN, 1.0])),
    (NAN, np.float32("nan")),
    (torch.tensor(NAN), math.nan),
    (torch.tensor([[NAN], [1.0]]), np.array([[NAN], [1.0]])),
    ((1, [NAN, "a"]), [1, (NAN, "a")]),
    (complex(NAN, 0), NAN),
    (Decimal("nan"), Decimal("nan")),
    (np.datetime64("NaT"), np.datetime64("NaT")),
    (torch.tensor(3), 3),
    (np.int64(3), 3.0),
    (np.str_("a"), "a"),
    (None, None),
    (torch.tensor([1.0, 2.0], requires_grad=True), [1, 2]),
    (torch.tensor([0.0, 2.0]).to_sparse(), (0, 2)),
    (torch.tensor([1.5], dtype=torch.bfloat16), [1.5]),
    (np.array(["a", None], dtype=object), ["a", None]),
    (np.array([(1, 2.0)], dtype=[("a", int), ("b", float)])[0], (1, 2.0)),
    (frozenset("ab"), frozenset("ba")),
    ([], ()),
    ({"a": 1, "b": [NAN]}, OrderedDict(b=torch.tensor([NAN]), a=1.0)),
    ((1, {}), [1, {}]),
]


@pytest.mark.fault("graph_edit_distance", 7, 9)
@pytest.mark.parametrize(("label", "same"), ALIKE, ids=range(len(ALIKE)))  # a set prints by the hash seed
def test_equal_labels_are_equal_whatever_holds_them(label, same):
    assert graph_edit_distance(*pair(label, same)).distance == 0
    assert graph_edit_distance(*pair(label, "other")).distance == 1
    assert ged_matrix(pair(label, same)).distance[0, 1] == 0


def test_a_mapping_is_no_set_of_pairs_and_differs_by_value():
    assert graph_edit_distance(*pair({"a": 1}, {"a": 2})).distance == 1
    assert graph_edit_distance(*pair({"a": 1}, frozenset({("a", 1)}))).distance == 1
    assert graph_edit_distance(*pair({}, ())).distance == 1


@pytest.mark.fault("graph_edit_distance", 9)
@pytest.mark.parametrize(
    "values", [torch.tensor([NAN, 1.0]), torch.tensor([[NAN, 2.0], [NAN, 2.0]]), (NAN, None), ((NAN, 1), [NAN])]
)
def test_a_dag_is_at_distance_0_of_its_equal(values):
    dag, copy = (Dag([(0, 1)], node_attributes={"label": values}) for _ in range(2))
    assert graph_edit_distance(dag, copy).distance == graph_edit_distance(dag, dag).distance == 0
    assert tree_edit_distance(dag, copy) == 0


@pytest.mark.fault("graph_edit_distance", 7)
@pytest.mark.parametrize("label", [{"a": set()}, {1, 2}, (1, set()), bytearray(b"x"), [[set()]]], ids=repr)
def test_labels_that_cannot_be_compared_are_refused(label):
    with pytest.raises(DtypeError, match="a label must be hashable, an array, a list or a mapping, got"):
        graph_edit_distance(*pair(label, "a"))


@pytest.mark.fault("graph_edit_distance", 7)
@pytest.mark.parametrize("label", ["abc", 5, torch.tensor(3), b"abc"], ids=repr)
def test_an_attribute_that_holds_one_thing_for_all_nodes_is_refused(label):
    data = SimpleNamespace(num_nodes=3, edge_index=torch.tensor([[0], [1]]), label=label)
    with pytest.raises(GraphError, match=r"'label' of a is .*: it must hold one label for each of 3 things"):
        graph_edit_distance(data, data)


DAG = Dag([("a", "c"), ("b", "c")], node_attributes={"type": (1, 2, 3)}, edge_attributes={"sign": (1, -1)})


@pytest.mark.fault("graph_edit_distance", 6)
def test_a_label_that_nobody_has_is_refused_where_it_was_given(tmp_path):
    with pytest.raises(
        GraphError, match=r"no node of a or b has the attribute 'typ'; they have 'type'\. Did you mean 'type'\? node_l"
    ):
        graph_edit_distance(DAG, DAG, node_label="typ")
    with pytest.raises(GraphError, match=r"no edge of a or b has the attribute 'sing'; .* Did you mean 'sign'"):
        ged_bounds(DAG, DAG, edge_label="sing")
    graph = nx.relabel_nodes(DAG.to_networkx(), {"a": "z"})
    with pytest.raises(GraphError, match=r"they have 'type'\. Did you mean"):
        graph_edit_distance(graph, graph, node_label="typ")
    plain = nx.path_graph(2)
    with pytest.raises(GraphError, match=r"no node of graphs\[0\] or graphs\[1\] \.\.\. has .*; they have none\. node"):
        ged_matrix([plain] * 3, node_label="x")
    with pytest.raises(GraphError, match="no node of a or b has the attribute 'typ'"):
        tree_edit_distance(DAG.subgraph(["a", "c"]), DAG.subgraph(["a", "c"]), node_label="typ")
    with pytest.raises(GraphError, match="no node of a or b has"):
        GedMetric(node_label="typ").update([DAG], [DAG])
    (tmp_path / "a.json").write_text(DAG.to_json())
    with pytest.raises(GraphError, match="no node of a or b has"):
        compare_files(tmp_path / "a.json", tmp_path / "a.json", node_label="typ")


def test_labels_are_optional_where_none_was_named_or_nothing_could_have_one():
    assert graph_edit_distance(DAG, DAG).distance == 0
    assert graph_edit_distance(Dag([], 0), Dag([], 0), node_label="x", edge_label="y").distance == 0
    assert graph_edit_distance(Dag([], 2), Dag([], 2), edge_label="y").distance == 0
    data = SimpleNamespace(num_nodes=2, edge_index=torch.tensor([[0], [1]]), kind=["a", "b"])
    assert graph_edit_distance(data, data, node_label="kind", edge_label="kind").distance == 0


def test_labels_are_left_out_by_none():
    labelled, other = (Dag([(0, 1)], node_attributes={"label": labels}) for labels in (list("ab"), list("cd")))
    assert graph_edit_distance(labelled, other).distance == 2
    assert graph_edit_distance(labelled, other, node_label=None).distance == 0
    assert graph_edit_distance(labelled, Dag([(0, 1)]), node_label=None, edge_label=None).distance == 0


@pytest.mark.fault("docs_and_packaging", 4)
def test_names_count_where_they_are_the_labels():
    a, b = Dag([("a", "c"), ("b", "c")]), Dag([("x", "z"), ("y", "z")])
    assert graph_edit_distance(a, b).distance == 0
    result = graph_edit_distance(a, b, node_label="names")
    assert result.distance == 3 and result.proved
    assert str(result.edit_path[0]) == "substitute node a [a] by x [x] (1)"
    assert graph_edit_distance(a, a.to_networkx(), node_label="names").distance == 0
    assert ged_matrix([a], [b], node_label="names").distance.item() == 3
    assert ged_bounds(a, b, node_label="names") == (3, 3)
    numbers = nx.DiGraph([(np.int64(0), np.int64(1))])
    assert graph_edit_distance(Dag([(0, 1)]), numbers, node_label="names").distance == 0
    chains = [Dag([(x, "r")]) for x in "pq"]
    assert tree_edit_distance(*chains, node_label="names") == 1
    # An attribute of this name comes first.
    own, other = (Dag([edge], node_attributes={"names": (1, 1)}) for edge in (("a", "b"), ("x", "y")))
    assert graph_edit_distance(own, other, node_label="names").distance == 0


@pytest.mark.fault("graph_edit_distance", 2)
@pytest.mark.fault("graphs_and_networks", 8)
def test_a_batch_is_no_graph():
    batch = DagBatch.from_dags([Dag([], 1, node_attributes={"label": (label,)}) for label in "ab"])
    single = DagBatch.from_dags([Dag([(0, 1)])])
    for given in (batch, single):
        for compare in (graph_edit_distance, ged_bounds):
            with pytest.raises(DtypeError, match="a is a DagBatch of several graphs: compare them one by one"):
                compare(given, given)
        with pytest.raises(DtypeError, match="b is a DagBatch"):
            graph_edit_distance(Dag([], 1), given)
        with pytest.raises(DtypeError, match=r"graphs\[0\] is a DagBatch"):
            ged_matrix([given])
        with pytest.raises(DtypeError, match="b is a DagBatch"):
            GedMetric().update([Dag([], 1)], [given])
        with pytest.raises(DtypeError, match="target 0 must be a Dag, got DagBatch"):
            GraphTargets.from_dags([given], 4)
        with pytest.raises(DtypeError, match="a must be a Dag, got DagBatch"):
            tree_edit_distance(given, given)
    pyg_batch = SimpleNamespace(num_nodes=1, edge_index=torch.zeros(2, 0), to_data_list=list)
    with pytest.raises(DtypeError, match="of several graphs"):
        graph_edit_distance(pyg_batch, pyg_batch)
    assert ged_matrix(batch).distance[0, 1] == 1  # its graphs, each with its label
    with pytest.raises(DtypeError, match="target 0 must be a Dag, got DagBatch"):
        GedLoss()(torch.zeros(1, 2), None, torch.zeros(1, 2, 2), [batch])


def test_one_graph_is_no_list_of_graphs():
    with pytest.raises(DtypeError, match="graphs must be a list of graphs, got one Graph: write"):
        ged_matrix(nx.path_graph(3))
    with pytest.raises(DtypeError, match="other must be a list of graphs, got one Dag: write"):
        ged_matrix([], Dag([], 1))
    with pytest.raises(DtypeError, match="graphs must be a list of graphs, got int"):
        ged_matrix(3)


@pytest.mark.fault("graph_edit_distance", 7)
@pytest.mark.parametrize(
    ("costs", "text"),
    [
        ({"node_insertion": 2}, r"costs must be an EditCosts, got dict: write EditCosts\(\*\*costs\)"),
        (2.0, "costs must be an EditCosts, got float"),
        (EditCosts, "costs must be an EditCosts, got type"),
    ],
)
def test_other_things_than_costs_are_refused(costs, text):
    dag = Dag([(0, 1)])
    for compare in (graph_edit_distance, ged_bounds, tree_edit_distance):
        with pytest.raises(ConfigError, match=text):
            compare(dag, dag, costs)
    with pytest.raises(ConfigError, match=text):
        ged_matrix([dag], costs=costs)
    with pytest.raises(ConfigError, match=text):
        GedMetric(costs)
    with pytest.raises(ConfigError, match=text):
        GedLoss(costs=costs)


@pytest.mark.fault("graph_edit_distance", 7)
@pytest.mark.parametrize("value", [None, "2", [1.0, 2.0], 10**400, 1j, torch.tensor([1.0, 2.0])], ids=repr)
def test_a_callable_that_returns_no_number_is_refused(value):
    with pytest.raises(ConfigError, match=r"node_deletion\(None\) returned .*: it must return a finite number"):
        graph_edit_distance(Dag([], 2), Dag([], 1), EditCosts(node_deletion=lambda label: value))
    with pytest.raises(ConfigError, match=r"node_substitution\('a', 'a'\) returned"):
        graph_edit_distance(*pair("a", "b"), EditCosts(node_substitution=lambda a, b: value))


@pytest.mark.parametrize(
    "value",
    [2, 2.0, np.float32(2), np.int8(2), torch.tensor(2.0), np.array(2.0), torch.tensor(2.0, requires_grad=True)],
)
def test_a_callable_may_return_any_number(value):
    assert graph_edit_distance(Dag([], 2), Dag([], 1), EditCosts(node_deletion=lambda label: value)).distance == 2


def test_an_error_inside_a_callable_is_the_callers():
    def broken(label):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        graph_edit_distance(Dag([], 2), Dag([], 1), EditCosts(node_deletion=broken))


@pytest.mark.fault("graph_edit_distance", 5)
@pytest.mark.parametrize("bound", [math.inf, np.float64("inf"), 1e300, 10**30, 2, np.int64(2)])
def test_bounds_may_be_as_large_as_one_likes(bound):
    three, four = nx.path_graph(3), nx.path_graph(4)
    assert graph_edit_distance(three, four, upper_bound=bound).distance == 2
    assert graph_edit_distance(three, four, upper_bound=bound, seconds=math.inf, budget=10**30).distance == 2
    wide = EditCosts(node_insertion=1e-9, edge_insertion=1e-9, edge_deletion=1e12)
    assert graph_edit_distance(three, four, wide, upper_bound=bound).distance == 2e-9


@pytest.mark.fault("graph_edit_distance", 5)
def test_a_bound_of_0_asks_whether_graphs_are_equal():
    three, four = nx.path_graph(3), nx.path_graph(4)
    assert graph_edit_distance(three, four, upper_bound=0).lower > 0
    assert graph_edit_distance(three, three, upper_bound=0).distance == 0
    wide = EditCosts(node_insertion=1e-9, edge_insertion=1e-9, edge_deletion=1e12)
    assert graph_edit_distance(three, four, wide, upper_bound=0).lower > 0


@pytest.mark.fault("graph_edit_distance", 5)
@pytest.mark.parametrize("value", [-1, NAN, -math.inf, "1", [1], None])
def test_bad_limits_are_refused(value):
    one = Dag([], 1)
    for name in ("seconds", "upper_bound"):
        if value is not None:
            with pytest.raises(ConfigError, match=f"{name} is .*: it must be at least 0"):
                graph_edit_distance(one, one, **{name: value})
    with pytest.raises(ConfigError, match="budget is"):
        graph_edit_distance(one, one, budget=value)
    if value is not None:
        with pytest.raises(ConfigError, match="seconds is"):
            ged_matrix([one], seconds=value)


@pytest.mark.fault("graph_edit_distance", 8)
def test_normalized_distances_are_parts_of_deleting_and_inserting_everything():
    a, b = pair("a", "b")
    assert graph_edit_distance(a, b).normalized == 1 / 6
    assert graph_edit_distance(a, a).normalized == 0
    assert graph_edit_distance(Dag([], 2), Dag([], 0)).normalized == 1
    assert graph_edit_distance(Dag([], 0), Dag([], 0)).normalized == 0
    costs = EditCosts(node_deletion=1e-9, node_insertion=3e12, edge_insertion=2.0, edge_deletion=0.0)
    assert graph_edit_distance(a, Dag([], 0), costs, node_label=None).normalized == 1
    matrix = ged_matrix([a, b, nx.DiGraph()])
    assert torch.equal(matrix.normalized, torch.tensor([[0, 1 / 6, 1], [1 / 6, 0, 1], [1, 1, 0]], dtype=torch.float64))


@pytest.mark.parametrize("kind", [nx.Graph, nx.DiGraph, nx.MultiGraph, nx.MultiDiGraph])
def test_every_edge_of_networkx_is_read_once_with_its_data(kind):
    graph = kind()
    graph.add_nodes_from([3, "a", 0, 1])
    graph.add_edges_from([(1, 3), (3, 1), (0, 0), ("a", 0), (0, "a"), (1, 3)], label="x")
    for some in (
        graph,
        graph.subgraph([0, 1, 3]),
        graph.copy(as_view=True),
        graph.reverse() if kind().is_directed() else graph,
    ):
        number = {node: i for i, node in enumerate(some.nodes)}
        assert _networkx_edges(some, number) == list(some.edges(data=True))
