import pytest
from expression_strategies import expressions
from hypothesis import given, settings

from dagnn.curriculum.engine import from_dag, to_dag
from dagnn.curriculum.expression import size
from dagnn.curriculum.parsing import parse
from dagnn.errors import ExpressionError, GraphError
from dagnn.graph import Dag


@settings(max_examples=50)
@given(expressions())
def test_graph_reads_back_to_the_same_expression(expr):
    assert from_dag(to_dag(expr)) == expr
    assert from_dag(to_dag(expr, share=True)) == expr


@settings(max_examples=50)
@given(expressions())
def test_graph_has_one_node_per_operator_and_leaf(expr):
    assert to_dag(expr).num_nodes == size(expr)
    assert to_dag(expr).num_edges == size(expr) - 1


def test_graph_is_the_one_of_polish_text():
    text = "(+ (* 2 x) (- 0.5 x))"
    assert to_dag(parse(text)) == Dag.from_polish(text)
    assert to_dag(parse(text), share=True) == Dag.from_polish(text, share=True)


def test_sharing_makes_equal_parts_one_node():
    expr = parse("(* (+ x 1) (+ x 1))")
    assert to_dag(expr).num_nodes == 7
    assert to_dag(expr, share=True).num_nodes == 4


def test_fifty_deep_survives_the_graph():
    expr = "x"
    for _ in range(50):
        expr = ("sin", expr)
    assert from_dag(to_dag(expr)) == expr


def test_no_expression_has_no_graph():
    with pytest.raises(ExpressionError, match="takes at least 2 operands"):
        to_dag(("+", 1))


def test_graph_that_is_no_expression_is_refused():
    with pytest.raises(GraphError):
        from_dag(Dag([(0, 1)], num_nodes=2))


def test_graph_with_a_foreign_label_is_refused():
    with pytest.raises(ExpressionError, match="expected an operator"):
        from_dag(Dag.from_polish("(plus 1 2)"))


def test_graph_that_doubles_too_often_is_refused():
    text = "x"
    for _ in range(17):
        text = f"(+ {text} {text})"
    with pytest.raises(ExpressionError, match="more than 100,000 nodes"):
        from_dag(Dag.from_polish(text, share=True))
