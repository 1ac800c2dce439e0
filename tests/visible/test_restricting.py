"""`restrict`: what measured inputs feed and roots read, chains merged, and a report that adds up."""

import networkx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from read_graphs import adds_up, edges_of
from strategies import dags

from dagnn import Dag, DagNN
from dagnn.errors import ConfigError, DtypeError, GraphError
from dagnn.visible import Reading, read_edges, restrict


def names_of(dag, nodes):
    return [dag.name_of(node) for node in nodes.tolist()]


@given(dags(named=True, min_nodes=2), st.data())
def test_what_stays_lies_between_a_measured_input_and_a_root(dag, data):
    inputs = names_of(dag, dag.inputs)
    measured = data.draw(st.lists(st.sampled_from(inputs), min_size=1, unique=True))
    roots = data.draw(st.lists(st.sampled_from(dag.names), min_size=1, unique=True))
    graph = networkx.DiGraph(edges_of(dag))
    graph.add_nodes_from(dag.names)
    below = set(measured).union(*(networkx.descendants(graph, name) for name in measured))
    above = set(roots).union(*(networkx.ancestors(graph, name) for name in roots))
    if not set(roots) <= below:
        with pytest.raises(GraphError, match="nothing measured feeds the root"):
            restrict(dag, measured, roots=roots)
        return
    reading = restrict(dag, measured, roots=roots)
    assert {*reading.dag.names} == below & above and adds_up(reading.report)
    assert edges_of(reading.dag) == {(u, v) for u, v in edges_of(dag) if {u, v} <= below & above}
    assert names_of(reading.dag, reading.dag.inputs) == [n for n in inputs if n in set(measured) & above]
    assert names_of(reading.dag, reading.dag.outputs) == roots
    DagNN(reading.dag)  # it would warn of a constant node

    merged = restrict(dag, measured, roots=roots, merge_chains=True)
    assert adds_up(merged.report) and names_of(merged.dag, merged.dag.outputs) == roots
    small, large = networkx.DiGraph(edges_of(merged.dag)), networkx.DiGraph(edges_of(reading.dag))
    small.add_nodes_from(merged.dag.names)
    large.add_nodes_from(reading.dag.names)
    for name in merged.dag.names:
        kept = networkx.descendants(large, name) & {*merged.dag.names}
        assert networkx.descendants(small, name) == kept
        children = list(small.predecessors(name))
        assert len(children) != 1 or name in roots or children[0] in names_of(merged.dag, merged.dag.inputs)


CHAIN = [("A", "p"), ("B", "p"), ("p", "q"), ("q", "r"), ("q", "s"), ("r", "t"), ("s", "t"), ("t", "root"), ("C", "z")]


def test_two_chains_of_one_node_become_one_and_so_does_what_they_feed():
    reading = restrict(Dag(CHAIN), ["A", "B"], roots=["root"], merge_chains=True)
    assert edges_of(reading.dag) == {("A", "p"), ("B", "p"), ("p", "root")}
    assert reading.report.names("nodes", "merged into the only node that feeds them") == ("q", "r", "s", "t")
    assert reading.report.names("nodes", "not measured") == ("C",)
    assert reading.report.names("nodes", "nothing measured feeds them") == ("z",)


def test_columns_come_from_tables_of_any_kind():
    class Table:
        def __init__(self, **attributes):
            vars(self).update(attributes)

    tables = [
        ["B", "A"],
        {"A": [1.0], "B": [2.0]},
        Table(columns=["A", "B"]),
        Table(column_names=["A", "B"], columns=[[1.0], [2.0]]),
        Table(var_names=["A", "B"]),
        (name for name in "AB"),
    ]
    expected = restrict(Dag(CHAIN), ["A", "B"]).dag
    assert [restrict(Dag(CHAIN), table).dag == expected for table in tables] == [True] * len(tables)


def test_labels_weights_and_attributes_stay_with_their_nodes():
    whole = read_edges([("A", "p", 1.0), ("B", "q", 2.0), ("p", "root", 3.0), ("q", "root", 4.0)], weight=2)
    reading = restrict(Reading(whole.dag, whole.report, {"p": "Repair", "q": "Growth"}, whole.weights), ["A"])
    assert reading.weights == {("A", "p"): 1.0, ("p", "root"): 3.0} and reading.labels == {"p": "Repair"}
    dag = Dag([("A", "p"), ("p", "q"), ("q", "r")], node_attributes={"size": [1, 2, 3, 4], "kind": list("gppr")})
    merged = restrict(dag, ["A"], merge_chains=True).dag
    assert merged.names == ("A", "p", "r") and merged.node_attributes["kind"] == ("g", "p", "r")
    assert list(merged.node_attributes["size"]) == [1, 2, 4]


def test_other_columns_are_named_in_the_report():
    reading = restrict(Dag(CHAIN), ["A", "p", "age", "sex"])
    assert reading.report.notes == (
        "2 measured columns are no nodes: 'age', 'sex'",
        "1 measured column is an inner node, and not read: 'p'",
    )
    assert reading.report.names("nodes", "nothing measured feeds them") == ("z",)
    assert reading.report.names("nodes", "not measured") == ("B", "C")


def test_what_cannot_be_restricted_is_refused():
    with pytest.raises(GraphError, match="no input of the Dag is measured: its inputs are 'A', 'B', 'C', the columns"):
        restrict(Dag(CHAIN), ["TP53", "p"])
    with pytest.raises(GraphError, match="nothing measured feeds the root 'z'"):
        restrict(Dag(CHAIN), ["A"], roots=["root", "z"])
    with pytest.raises(GraphError, match="roots: unknown node 'nothing'"):
        restrict(Dag(CHAIN), ["A"], roots=["nothing"])
    with pytest.raises(ConfigError, match=r"roots must be a list, got the text 'qr': give \['qr'\]"):
        restrict(Dag(CHAIN), ["A"], roots="qr")
    with pytest.raises(GraphError, match="have no names"):
        restrict(Dag([(0, 1)]), [0])
    with pytest.raises(DtypeError, match="dag must be a Dag or a Reading, got a list"):
        restrict(CHAIN, ["A"])
    with pytest.raises(DtypeError, match="expected names of columns, or a table that has them, got 'A'"):
        restrict(Dag(CHAIN), "A")
    heavy = Dag([("A", "p"), ("p", "q")], edge_attributes={"weight": [1.0, 2.0]})
    with pytest.raises(GraphError, match=r"merge_chains=True would lose the edge attributes \['weight'\]"):
        restrict(heavy, ["A"], merge_chains=True)
    assert restrict(heavy, ["A"]).dag == heavy
