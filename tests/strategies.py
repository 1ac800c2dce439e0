"""Random graphs and expressions for property tests (hypothesis)."""

from typing import Any

import torch
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from dagnn.graph import Dag

NAMES = st.text(alphabet="abcxyz_éλ0", min_size=1, max_size=4)
LEAVES = st.sampled_from(["x", "y", "z", "0", "1", "2", "13", "-4", "2.5", "pi", "λ"])
OPERATORS = {1: ("sin", "log", "neg"), 2: ("+", "-", "*", "/", "^"), 3: ("+", "integrate"), 4: ("+", "*")}


@st.composite
def edge_lists(draw: DrawFn, min_nodes: int = 0, max_nodes: int = 10) -> tuple[list[tuple[int, int]], int]:
    """Different edges of an acyclic graph in any order, and its number of nodes; numbering is not topological."""
    num_nodes = draw(st.integers(min_nodes, max_nodes))
    if num_nodes < 2:
        return [], num_nodes
    number = draw(st.permutations(range(num_nodes)))
    target_and_source = st.integers(1, num_nodes - 1).flatmap(lambda v: st.tuples(st.integers(0, v - 1), st.just(v)))
    pairs = draw(st.lists(target_and_source, unique=True, max_size=3 * num_nodes))
    return [(number[u], number[v]) for u, v in pairs], num_nodes


@st.composite
def any_edge_lists(draw: DrawFn, max_nodes: int = 8) -> tuple[list[tuple[int, int]], int]:
    """Different edges without self-loops, often with cycles, and the number of nodes."""
    num_nodes = draw(st.integers(1, max_nodes))
    node = st.integers(0, num_nodes - 1)
    pairs = draw(st.lists(st.tuples(node, node), unique=True, max_size=2 * num_nodes))
    return [(u, v) for u, v in pairs if u != v], num_nodes


@st.composite
def dags(
    draw: DrawFn,
    min_nodes: int = 0,
    max_nodes: int = 10,
    *,
    named: bool | None = False,
    attributes: bool = False,
    positions: bool = False,
) -> Dag:
    """A Dag, with any numbering of its nodes.

    Args:
        min_nodes, max_nodes: how many nodes.
        named: with names (str); None draws whether.
        attributes: with the node attributes "label" (tuple of str) and "x" (float32 ``[num_nodes, 2]``) and the edge
            attribute "weight" (float64 ``[num_edges]``), and inputs and outputs of its own.
        positions: with the edge attribute "position": edges into a node in any order, some sources twice.
    """
    edges, num_nodes = draw(edge_lists(min_nodes, max_nodes))
    edge_attributes, node_attributes, ends = dict[str, Any](), dict[str, Any](), dict[str, Any]()
    if positions:
        edges = edges + [edge for edge in edges if draw(st.booleans())]
        edges = draw(st.permutations(edges))
        targets = [v for _, v in edges]
        edge_attributes["position"] = torch.tensor([targets[:i].count(v) for i, v in enumerate(targets)]).long()
    if attributes:
        numbers = st.floats(-8, 8, width=16)
        node_attributes["label"] = draw(st.lists(NAMES, min_size=num_nodes, max_size=num_nodes))
        values = draw(st.lists(st.tuples(numbers, numbers), min_size=num_nodes, max_size=num_nodes))
        node_attributes["x"] = torch.tensor(values, dtype=torch.float32).reshape(num_nodes, 2)
        weights = draw(st.lists(numbers, min_size=len(edges), max_size=len(edges)))
        edge_attributes["weight"] = torch.tensor(weights, dtype=torch.float64)
        for end in ("inputs", "outputs"):
            nodes = draw(st.lists(st.integers(0, num_nodes - 1), unique=True)) if num_nodes else []
            ends[end] = torch.tensor(nodes, dtype=torch.int64)
    is_named = draw(st.booleans()) if named is None else named
    return Dag(
        torch.tensor(edges, dtype=torch.int64).reshape(-1, 2),
        num_nodes,
        names=draw(st.lists(NAMES, min_size=num_nodes, max_size=num_nodes, unique=True)) if is_named else None,
        node_attributes=node_attributes,
        edge_attributes=edge_attributes,
        **ends,
    )


def expressions(max_leaves: int = 12) -> SearchStrategy[str]:
    """Expressions in Polish notation, such as ``(+ (* 2 x) 5)``."""

    def applications(operands: SearchStrategy[str]) -> SearchStrategy[str]:
        return st.integers(1, 4).flatmap(
            lambda arity: st.tuples(
                st.sampled_from(OPERATORS[arity]), st.lists(operands, min_size=arity, max_size=arity)
            ).map(lambda parts: f"({parts[0]} {' '.join(parts[1])})")
        )

    return st.recursive(LEAVES, applications, max_leaves=max_leaves)


def expression_dags(max_leaves: int = 12, *, share: bool | None = None) -> SearchStrategy[Dag]:
    """Graphs of expressions; ``share=None`` draws whether equal sub-expressions are one node."""
    shared = st.booleans() if share is None else st.just(share)
    return st.builds(Dag.from_polish, expressions(max_leaves), share=shared)
