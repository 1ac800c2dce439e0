"""Expressions as graphs: one node per operator and leaf, edges from operand to operator."""

from dagnn.curriculum.expression import MAX_SIZE, Expr, check, parse, to_text
from dagnn.errors import ExpressionError, GraphError
from dagnn.graph import Dag


def to_dag(expr: Expr, share: bool = False) -> Dag:
    """The graph of an expression, as ``Dag.from_polish`` builds it.

    Args:
        expr: any expression.
        share: make equal sub-expressions one node.

    Returns:
        A Dag with the node attribute "label" (tuple of str) and the edge attribute "position" (int64 ``[num_edges]``,
        0 for the first operand).

    Raises:
        ExpressionError: not an expression.

    >>> to_dag(("*", ("+", "x", 1), ("+", "x", 1)), share=True).num_nodes
    4
    """
    check(expr)
    return Dag.from_polish(to_text(expr), share=share)


def from_dag(dag: Dag) -> Expr:
    """The expression of a graph; shared nodes are written out. ``from_dag(to_dag(expr)) == expr``.

    Raises:
        GraphError: not one expression: no label or position, or more than one node without a user.
        ExpressionError: a label that the language does not have, a wrong number of operands, or an expression of more
            than 100,000 nodes when sharing is undone.
    """
    try:
        text = dag.to_polish(max_tokens=2 * MAX_SIZE)
    except GraphError as error:
        if "max_tokens" not in str(error):
            raise
        raise ExpressionError(f"the graph writes out to more than {MAX_SIZE:,} nodes: keep it shared.") from None
    return parse(text)
