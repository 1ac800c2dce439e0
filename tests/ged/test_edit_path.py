import random

import networkx as nx
import pytest

from dagnn.ged import EditCosts, graph_edit_distance


@pytest.mark.parametrize("seed", range(15))
def test_edits_turn_one_graph_into_the_other(oracle, seed):
    rng = random.Random(seed)
    graphs = [oracle.random_dag(rng, rng.randint(0, 6), labels=2) for _ in range(2)]
    for graph in graphs:
        graph.edges = [(u, v, rng.randrange(2)) for u, v, _ in graph.edges]
    a, b = map(oracle.to_networkx, graphs)
    result = graph_edit_distance(a, b, EditCosts(edge_substitution=0.5))

    built = nx.relabel_nodes(a, {node: ("old", node) for node in a})
    name = {v: ("old", u) for u, v in result.node_map if u is not None}
    for edit in result.edit_path:
        if edit.kind == "delete edge":
            built.remove_edge(*(("old", node) for node in edit.source))
        elif edit.kind == "delete node":
            assert built.degree(("old", edit.source)) == 0, "edges go before their nodes"
            built.remove_node(("old", edit.source))
        elif edit.kind == "substitute node":
            assert built.nodes["old", edit.source]["label"] == edit.source_label
            built.nodes["old", edit.source]["label"] = edit.target_label
        elif edit.kind == "insert node":
            name[edit.target] = ("new", edit.target)
            built.add_node(name[edit.target], label=edit.target_label)
        elif edit.kind == "substitute edge":
            built.edges[tuple(name[node] for node in edit.target)]["label"] = edit.target_label
        else:
            ends = tuple(name[node] for node in edit.target)
            assert set(ends) <= set(built), "nodes come before their edges"
            built.add_edge(*ends, label=edit.target_label)
    same = nx.algorithms.isomorphism.categorical_node_match("label", None)
    assert nx.is_isomorphic(built, b, node_match=same, edge_match=same)


def test_parallel_edges_and_loops_are_told_one_by_one():
    a = nx.MultiDiGraph([("p", "q", {"label": 1}), ("p", "q", {"label": 2}), ("p", "p", {"label": 3})])
    b = nx.MultiDiGraph([("p", "q", {"label": 2})])
    edits = graph_edit_distance(a, b).edit_path
    assert [str(edit) for edit in edits] == ["delete edge p -> q [1] (1)", "delete edge p -> p [3] (1)"]


def test_equal_labels_that_cost_are_told_and_free_changes_too():
    a = nx.DiGraph()
    a.add_node("n", label="x")
    b = nx.DiGraph()
    b.add_node("m", label="y")
    charged = graph_edit_distance(a, a, EditCosts(node_substitution=lambda s, t: 0.5)).edit_path
    assert [str(edit) for edit in charged] == ["substitute node n [x] by n [x] (0.5)"]
    free = graph_edit_distance(a, b, EditCosts(node_substitution=0)).edit_path
    assert [str(edit) for edit in free] == ["substitute node n [x] by m [y] (0)"]
