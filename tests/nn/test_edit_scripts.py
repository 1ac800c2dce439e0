"""`EditScripts`: what they write, there and back, and what they refuse."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies import dags, expression_dags

from dagnn.errors import DtypeError, GraphError
from dagnn.graph import Dag, DagBatch
from dagnn.nn import EditScripts

PAIRS = st.lists(st.tuples(expression_dags(share=True), expression_dags()), min_size=1, max_size=4)


def vocabulary_of(graphs: list[Dag]) -> list[str]:
    return sorted({label for graph in graphs for label in graph.node_attributes["label"]})


def test_a_script_by_hand():
    """(+ (f x) 0) becomes (g (f x) (f x)): copy f and what is below it, then g with it twice."""
    graph, target = Dag.from_polish("(+ (f x) 0)"), Dag.from_polish("(g (f x) (f x))")
    scripts = EditScripts.from_dags(graph, [target], ["h", "g"])
    assert scripts.kind.tolist() == [[2, 1, 3, 3, 0]]
    assert scripts.value.tolist() == [[1, 1, 0, 0, 0]]
    assert scripts.length.tolist() == [5]
    (written,) = scripts.to_dags(graph, ["h", "g"])
    assert written.to_polish() == "(g (f x) (f x))"
    assert written.node_attributes["label"] == ("x", "f", "g")


def test_copies_are_as_large_as_they_can_be():
    graph = Dag.from_polish("(+ (* a b) c)")
    for text, kinds in (
        ("(+ (* a b) c)", [2, 0]),
        ("(* a b)", [2, 0]),
        ("(+ c (* a b))", [2, 2, 1, 3, 3, 0]),
        ("(* b a)", [2, 2, 1, 3, 3, 0]),
    ):
        assert EditScripts.from_dags(graph, [Dag.from_polish(text)], ["+", "*"]).kind.tolist() == [kinds]


def test_nodes_that_stand_for_the_same_are_alike():
    batch = DagBatch.from_dags([Dag.from_polish(text) for text in ("(+ (f x) (f x))", "(f x)", "(f y)")])
    alike = EditScripts.from_dags(batch, list(batch), []).alike.tolist()
    first, other = alike[:5], alike[5:]
    assert first[:2] == first[2:4] == other[:2]
    assert len({*first[:2], first[4], *other[2:]}) == 5


@given(PAIRS)
def test_scripts_write_their_targets(pairs):
    graphs, targets = map(list, zip(*pairs, strict=True))
    batch, vocabulary = DagBatch.from_dags(graphs), vocabulary_of(targets)
    written = EditScripts.from_dags(batch, targets, vocabulary).to_dags(batch, vocabulary)
    assert [dag.to_polish() for dag in written] == [dag.to_polish() for dag in targets]
    for dag, target in zip(written, targets, strict=True):  # equal parts are one node, as in a shared expression
        assert dag.num_nodes == Dag.from_polish(target.to_polish(), share=True).num_nodes


@given(st.lists(dags(attributes=True, positions=True), min_size=1, max_size=4))
def test_without_copies_every_node_is_written_as_it_is(targets):
    batch, vocabulary = DagBatch.from_dags(targets[::-1]), vocabulary_of(targets)
    scripts = EditScripts.from_dags(batch, targets, vocabulary, copy=False)
    assert scripts.alike is None
    assert not (scripts.kind == 2).any()
    for written, target, script in zip(
        scripts.to_dags(batch, vocabulary), targets, scripts.value.tolist(), strict=True
    ):
        assert (written.num_nodes, written.num_edges) == (target.num_nodes, target.num_edges)
        assert shape_of(written) == shape_of(target)
        assert len(script) >= target.num_nodes + target.num_edges + 1


def shape_of(dag: Dag) -> list[tuple]:
    """What does not depend on how nodes are numbered: label and operands, all the way down, of every node."""
    below = [()] * dag.num_nodes
    for node in dag.order.tolist():
        operands = dag.edges[dag.edges[:, 1] == node, 0].tolist()
        below[node] = (dag.node_attributes["label"][node], *(below[u] for u in operands))
    return sorted(below, key=repr)


def test_graphs_without_nodes_need_no_action():
    batch = DagBatch.from_dags([Dag([], node_attributes={"label": []})] * 2)
    scripts = EditScripts.from_dags(batch, list(batch), [])
    assert scripts.kind.tolist() == [[0], [0]]
    assert [dag.num_nodes for dag in scripts.to_dags(batch, [])] == [0, 0]
    assert len(EditScripts.from_dags(DagBatch.from_dags([]), [], [])) == 0


def test_a_deep_target_needs_no_recursion():
    text = "(f " * 5_000 + "x" + ")" * 5_000
    graph = Dag.from_polish(text)
    assert EditScripts.from_dags(graph, [graph], []).kind.tolist() == [[2, 0]]
    scripts = EditScripts.from_dags(graph, [Dag.from_polish(f"(g {text})")], ["g"])
    (written,) = scripts.to_dags(graph, ["g"])
    assert written.to_polish() == f"(g {text})"


def test_scripts_move():
    graph = Dag.from_polish("x")
    scripts = EditScripts.from_dags(graph, [graph], []).to("meta")
    assert {scripts.kind.device.type, scripts.length.device.type, scripts.alike.device.type} == {"meta"}


def script(*actions: tuple[int, int]) -> EditScripts:
    kind, value = torch.tensor([actions], dtype=torch.int64).unbind(2)
    return EditScripts(kind, value, torch.tensor([len(actions)]))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: EditScripts.from_dags(Dag.from_polish("x"), [], []),
            "there must be one target for each of the 1 graphs, got 0.",
        ),
        (
            lambda: EditScripts.from_dags(Dag([], 1), [Dag.from_polish("x")], []),
            "graph needs the node attribute 'label'.",
        ),
        (
            lambda: EditScripts.from_dags(Dag.from_polish("x"), [Dag([], 1)], []),
            "targets[0] needs the node attribute 'label'.",
        ),
        (
            lambda: EditScripts.from_dags(Dag.from_polish("x"), [Dag.from_polish("(f x)")], ["g"]),
            "targets[0] has a node with the label 'f', which is neither in the vocabulary nor in the input: add it to "
            "the vocabulary.",
        ),
        (
            lambda: script((0, 0)).to_dags(DagBatch.from_dags([]), []),
            "there are 1 scripts, but 0 graphs.",
        ),
        (
            lambda: script((1, 0), (3, 0)).to_dags(Dag.from_polish("x"), ["f"]),
            "action 1 of script 0 names operand 0, but there are 0 to choose.",
        ),
        (
            lambda: script((2, 1)).to_dags(Dag.from_polish("x"), []),
            "action 0 of script 0 names input node 1, but there are 1 to choose.",
        ),
        (
            lambda: script((1, 1)).to_dags(Dag.from_polish("x"), ["f"]),
            "action 0 of script 0 names label 1, but there are 1 to choose.",
        ),
    ],
)
def test_what_does_not_fit_is_refused(call, message):
    with pytest.raises(GraphError) as error:
        call()
    assert str(error.value) == message


def test_refusals_of_what_is_no_script():
    whole = torch.zeros(2, 3, dtype=torch.int64)
    with pytest.raises(DtypeError, match=r"kind must be torch.int64, got torch.int32"):
        EditScripts(whole.int(), whole, torch.ones(2, dtype=torch.int64))
    with pytest.raises(GraphError, match=r"got \[2, 3\], \[2, 2\] and \[2\]"):
        EditScripts(whole, whole[:, :2], torch.ones(2, dtype=torch.int64))
    with pytest.raises(GraphError, match=r"got \[2, 3\], \[2, 3\] and \[3\]"):
        EditScripts(whole, whole, torch.ones(3, dtype=torch.int64))
    for kind in (-1, 4):
        wrong = EditScripts(torch.tensor([[kind, 0]]), torch.zeros(1, 2, dtype=torch.int64), torch.tensor([2]))
        with pytest.raises(GraphError, match=rf"action 0 of script 0 is of the kind {kind}, but kinds are 0 .. 3"):
            wrong.to_dags(Dag.from_polish("x"), ["x"])
