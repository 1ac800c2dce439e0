"""Text as graphs: expressions in Polish notation, ``(+ (* 2 x) 5)``, and back; text as a chain of characters."""

import re

import numpy as np
import regex
from numpy.typing import NDArray

from dagnn.errors import DtypeError, ExpressionError, GraphError
from dagnn.graph.content import Content

_TOKEN = re.compile(r"[()]|[^\s()]+")


def parse(
    expression: str, share: bool
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], tuple[str, ...]]:
    """The graph of an expression: operands before operators, the whole expression last.

    Returns:
        edges int64 ``[num_edges, 2]`` by (target, position); positions int64 ``[num_edges]``; levels int64
        ``[num_nodes]``; labels, one per node.

    Raises:
        DtypeError: ``expression`` is no str.
        ExpressionError: not an expression; the message gives the character.
    """
    if not isinstance(expression, str):
        raise DtypeError(f"expression must be a str, got {type(expression).__name__}.")
    nodes = _Nodes(share)
    open_at, operators, operands = list[int](), list[str | None](), list[list[int]]()  # one entry per open parenthesis
    root = None
    for match in _TOKEN.finditer(expression):
        token, at = match.group(), match.start()
        if root is not None:
            raise _error(expression, at, f"{token!r} follows a complete expression")
        if token == "(":
            if operators and operators[-1] is None:
                raise _error(expression, at, "the operator of an application must be a word, got '('")
            open_at.append(at)
            operators.append(None)
            operands.append([])
            continue
        if token == ")":
            if not operators:
                raise _error(expression, at, "')' closes nothing")
            start, operator, children = open_at.pop(), operators.pop(), operands.pop()
            if operator is None:
                raise _error(expression, start, "'()' is empty: write (operator operand ...)")
            if not children:
                raise _error(expression, start, f"'({operator})' has no operands: write {operator} for a leaf")
            node = nodes.add(operator, tuple(children))
        elif operators and operators[-1] is None:
            operators[-1] = token
            continue
        else:
            node = nodes.add(token, ())
        if operands:
            operands[-1].append(node)
        else:
            root = node
    if operators:
        raise _error(expression, open_at[-1], "'(' is never closed")
    if root is None:
        raise _error(expression, 0, "there is no expression, the text is blank")
    return nodes.arrays()


class _Nodes:
    """The nodes made so far."""

    def __init__(self, share: bool) -> None:
        self.labels = list[str]()
        self.levels = list[int]()
        self.operands = list[tuple[int, ...]]()
        self.node_of: dict[tuple[str, tuple[int, ...]], int] | None = {} if share else None

    def add(self, label: str, operands: tuple[int, ...]) -> int:
        """The node of a leaf or an application; with sharing, an equal one if there is one."""
        node = len(self.labels)
        if self.node_of is not None:
            known = self.node_of.setdefault((label, operands), node)
            if known != node:
                return known
        self.labels.append(label)
        self.levels.append(1 + max([self.levels[operand] for operand in operands], default=-1))
        self.operands.append(operands)
        return node

    def arrays(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], tuple[str, ...]]:
        edges = [(source, target) for target, sources in enumerate(self.operands) for source in sources]
        positions = [position for sources in self.operands for position in range(len(sources))]
        return (
            np.array(edges, dtype=np.int64).reshape(-1, 2),
            np.array(positions, dtype=np.int64),
            np.array(self.levels, dtype=np.int64),
            tuple(self.labels),
        )


def to_polish(dag: Content, max_tokens: int) -> str:
    """The expression that ends at the one sink of ``dag``; see `Dag.to_polish`."""
    root, labels, operands = _expression_parts(dag)
    _check_size(dag, root, operands, max_tokens)

    pieces, pending = list[str](), [(root, False)]
    while pending:
        node, is_end = pending.pop()
        if is_end:
            pieces.append(")")
        elif not operands[node]:
            pieces += (" ", labels[node])
        else:
            pieces += (" (", labels[node])
            pending.append((node, True))
            pending += [(operand, False) for operand in reversed(operands[node])]
    return "".join(pieces)[1:]


def _expression_parts(dag: Content) -> tuple[int, tuple[str, ...], list[list[int]]]:
    """Root, labels and ordered operands of an expression graph; GraphError for any other graph."""
    sinks = (dag.out_degree == 0).nonzero().flatten().tolist()
    if len(sinks) != 1:
        raise GraphError(f"an expression has one node without out-edges, its root, but this graph has {len(sinks)}.")
    labels = dag.node_attributes.get("label")
    if not isinstance(labels, tuple):
        raise GraphError("an expression needs the node attribute 'label', a str for every node.")
    for node, label in enumerate(labels):
        if not isinstance(label, str) or _TOKEN.fullmatch(label) is None or label in "()":
            raise GraphError(
                f"the label of node {dag.name_of(node)} is {label!r}, expected a str without blanks and parentheses."
            )

    offsets = dag.csr_by_target.offsets.tolist()
    positions = dag.edge_attributes.get("position")
    if positions is None:
        if dag.num_edges:
            raise GraphError("an expression needs the edge attribute 'position', 0 for the first operand of a node.")
    else:
        expected = np.arange(dag.num_edges) - np.repeat(offsets[:-1], dag.in_degree.numpy())
        wrong = np.flatnonzero(np.asarray(positions) != expected)
        if wrong.size:
            edge = int(wrong[0])
            node = int(dag.edges[edge, 1])
            raise GraphError(
                f"operand {int(expected[edge])} of node {dag.name_of(node)} ({labels[node]}) is missing: the next one "
                f"has position {int(positions[edge])}."
            )
    sources = dag.edges[:, 0].tolist()
    return sinks[0], labels, [sources[offsets[node] : offsets[node + 1]] for node in range(dag.num_nodes)]


def _check_size(dag: Content, root: int, operands: list[list[int]], max_tokens: int) -> None:
    """GraphError if the expression, written out, has more than ``max_tokens`` operators and leaves."""
    size = [1] * dag.num_nodes
    for node in dag.order.tolist():
        # Capped: a chain of (* x x) doubles at every node, and exact sizes would grow to as many bits as it has nodes.
        size[node] = min(1 + sum(size[operand] for operand in operands[node]), max_tokens + 1)
    if size[root] > max_tokens:
        raise GraphError(
            f"written out, with every shared node repeated, the expression has more than {max_tokens} tokens: raise "
            "max_tokens, or keep the graph (to_json)."
        )


def _error(expression: str, at: int, reason: str) -> ExpressionError:
    start = max(at - 20, 0)
    excerpt = ("..." if start else "") + expression[start : at + 20] + ("..." if at + 20 < len(expression) else "")
    return ExpressionError(f"character {at}: {reason}, in {excerpt!r}.")


def grapheme_clusters(string: str) -> tuple[str, ...]:
    """The characters of ``string`` as a reader sees them: "e" with a combining accent is one."""
    if not isinstance(string, str):
        raise DtypeError(f"the text must be a str, got {type(string).__name__}.")
    return tuple(regex.findall(r"\X", string))
