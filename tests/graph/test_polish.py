"""Polish notation: text to graph and back, shared sub-expressions, and errors that name the character."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies import dags, expression_dags, expressions

from dagnn.errors import DtypeError, ExpressionError, GraphError
from dagnn.graph import Dag


def test_operands_come_before_operators_and_the_root_is_last():
    dag = Dag.from_polish("(+ (* 2 x) 5)")
    assert dag.node_attributes["label"] == ("2", "x", "*", "5", "+")
    assert dag.edges.tolist() == [[0, 2], [1, 2], [2, 4], [3, 4]]
    assert dag.edge_attributes["position"].tolist() == [0, 1, 0, 1]
    assert dag.levels.tolist() == [0, 0, 1, 0, 2]
    assert dag.outputs.tolist() == [4]
    assert dag.inputs.tolist() == [0, 1, 3]


def test_sharing_makes_equal_sub_expressions_one_node():
    dag = Dag.from_polish("(* (+ x 1) (+ x 1))", share=True)
    assert dag.node_attributes["label"] == ("x", "1", "+", "*")
    assert dag.edges.tolist() == [[0, 2], [1, 2], [2, 3], [2, 3]]
    assert dag.edge_attributes["position"].tolist() == [0, 1, 0, 1]


def test_sharing_tells_the_order_of_operands_and_leaves_from_applications():
    labels = Dag.from_polish("(+ (- x y) (- y x) (f x) f)", share=True).node_attributes["label"]
    assert sorted(labels) == sorted(["x", "y", "-", "-", "f", "f", "+"])


@given(expression_dags())
def test_the_graph_is_the_one_the_constructor_builds(dag):
    checked = Dag(dag.edges, dag.num_nodes, node_attributes=dag.node_attributes, edge_attributes=dag.edge_attributes)
    assert checked == dag
    assert torch.equal(checked.levels, dag.levels)
    assert torch.equal(checked.edges, dag.edges)


@given(expressions())
def test_text_to_graph_to_text_is_the_same_text(text):
    assert Dag.from_polish(text).to_polish() == text
    assert Dag.from_polish(text, share=True).to_polish() == text


@given(expressions(), st.booleans())
def test_graph_to_text_to_graph_is_the_same_graph(text, share):
    dag = Dag.from_polish(text, share=share)
    assert Dag.from_polish(dag.to_polish(), share=share) == dag


@given(expressions())
def test_no_two_nodes_of_a_shared_graph_are_the_same_sub_expression(text):
    dag = Dag.from_polish(text, share=True)
    seen = set()
    for node, label in enumerate(dag.node_attributes["label"]):
        operands = tuple(u for u, v in dag.edges.tolist() if v == node)
        assert (label, operands) not in seen
        seen.add((label, operands))


def test_blanks_of_any_kind_and_amount_separate():
    assert Dag.from_polish("\n( +\t1(sin\u00a0x) )  ").to_polish() == "(+ 1 (sin x))"


def test_nesting_10_000_deep_needs_no_recursion():
    text = "(f " * 10_000 + "x" + ")" * 10_000
    dag = Dag.from_polish(text)
    assert dag.levels.max() == 10_000
    assert dag.to_polish() == text
    assert Dag.from_polish(text, share=True) == dag


def test_a_numbering_of_another_kind_prints_the_same():
    dag = Dag.from_polish("(- (* 2 x) 5)")
    assert dag.subgraph([4, 3, 2, 1, 0]).to_polish() == "(- (* 2 x) 5)"


def doubling(times):
    edges = [(i, i + 1) for i in range(times) for _ in range(2)]
    return Dag(edges, node_attributes={"label": ["x"] + ["+"] * times}, edge_attributes={"position": [0, 1] * times})


def test_sharing_that_writes_out_too_long_is_refused_before_it_is_written():
    assert doubling(2).to_polish() == "(+ (+ x x) (+ x x))"
    assert doubling(2).to_polish(max_tokens=7) == "(+ (+ x x) (+ x x))"
    with pytest.raises(GraphError, match="more than 6 tokens: raise max_tokens, or keep the graph"):
        doubling(2).to_polish(max_tokens=6)
    with pytest.raises(GraphError, match="more than 1000000 tokens"):
        doubling(5_000).to_polish()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "character 0: there is no expression, the text is blank, in ''."),
        ("  \n", "character 0: there is no expression, the text is blank, in '  \\n'."),
        ("(+ 1 2", "character 0: '(' is never closed, in '(+ 1 2'."),
        ("(+ 1 (* 2 3)", "character 0: '(' is never closed, in '(+ 1 (* 2 3)'."),
        ("(+ 1 2))", "character 7: ')' follows a complete expression, in '(+ 1 2))'."),
        (")", "character 0: ')' closes nothing, in ')'."),
        ("x y", "character 2: 'y' follows a complete expression, in 'x y'."),
        ("(+ 1 2) (", "character 8: '(' follows a complete expression, in '(+ 1 2) ('."),
        ("(+ 1 ())", "character 5: '()' is empty: write (operator operand ...), in '(+ 1 ())'."),
        ("(+ 1 (f))", "character 5: '(f)' has no operands: write f for a leaf, in '(+ 1 (f))'."),
        ("((+ 1) 2)", "character 1: the operator of an application must be a word, got '(', in '((+ 1) 2)'."),
        (
            "(+ (* a b) (* c d) (* e f) (g) (* h i) (* j k))",
            "character 27: '(g)' has no operands: write g for a leaf, in "
            "'... b) (* c d) (* e f) (g) (* h i) (* j k))'.",
        ),
    ],
)
def test_text_that_is_no_expression_is_refused_with_the_character(text, message):
    with pytest.raises(ExpressionError) as error:
        Dag.from_polish(text)
    assert str(error.value) == message


def test_something_else_than_text_is_refused():
    with pytest.raises(DtypeError, match="expression must be a str, got int"):
        Dag.from_polish(7)


LABELS = {"label": ["x", "y", "+"]}


@pytest.mark.parametrize(
    ("dag", "message"),
    [
        (Dag([]), "an expression has one node without out-edges, its root, but this graph has 0."),
        (Dag([], 2), "an expression has one node without out-edges, its root, but this graph has 2."),
        (Dag([], 1), "an expression needs the node attribute 'label', a str for every node."),
        (
            Dag([], 1, node_attributes={"label": torch.tensor([1])}),
            "an expression needs the node attribute 'label', a str for every node.",
        ),
        (
            Dag([], names=["n"], node_attributes={"label": ["a b"]}),
            "the label of node n is 'a b', expected a str without blanks and parentheses.",
        ),
        (
            Dag([], 1, node_attributes={"label": [3]}),
            "the label of node 0 is 3, expected a str without blanks and parentheses.",
        ),
        (
            Dag([(0, 2), (1, 2)], node_attributes=LABELS),
            "an expression needs the edge attribute 'position', 0 for the first operand of a node.",
        ),
        (
            Dag([(0, 2), (1, 2)], node_attributes=LABELS, edge_attributes={"position": [0, 2]}),
            "operand 1 of node 2 (+) is missing: the next one has position 2.",
        ),
    ],
)
def test_graphs_that_are_no_expression_are_refused(dag, message):
    with pytest.raises(GraphError) as error:
        dag.to_polish()
    assert str(error.value) == message


@given(dags(min_nodes=1, positions=True))
def test_any_graph_with_one_sink_prints_what_reads_back_to_its_size(dag):
    labels = [f"n{i}" for i in range(dag.num_nodes)]
    single = dag.subgraph(ancestors(dag, int(dag.outputs[0])))
    single = Dag(
        single.edges,
        single.num_nodes,
        node_attributes={"label": labels[: single.num_nodes]},
        edge_attributes=single.edge_attributes,
    )
    again = Dag.from_polish(single.to_polish(max_tokens=10**6), share=True)
    assert (again.num_nodes, again.num_edges) == (single.num_nodes, single.num_edges)


def ancestors(dag, root):
    found = {root}
    for u, v in sorted(dag.edges.tolist(), key=lambda edge: -int(dag.levels[edge[1]])):
        if v in found:
            found.add(u)
    return sorted(found)
