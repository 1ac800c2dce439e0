"""NetworkX graphs to Dags and back."""

from collections import Counter
from collections.abc import Hashable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from dagnn.errors import DtypeError, GraphError
from dagnn.graph.attributes import Attribute, Attributes, check_choice, plain
from dagnn.graph.content import Content, has_own_ends
from dagnn.graph.names import canonical_names

if TYPE_CHECKING:
    import networkx

_NO_NODES = "none"
"""The value of ``graph.graph["inputs"]`` (or outputs) of a Dag without any."""


def arguments_from(
    graph: "networkx.DiGraph[Any]", node_attributes: Iterable[str] | None, edge_attributes: Iterable[str] | None
) -> dict[str, Any]:
    """Arguments of ``Dag(...)`` from a NetworkX graph; see `Dag.from_networkx`."""
    if not hasattr(graph, "is_directed") or not hasattr(graph, "nodes"):
        raise DtypeError(f"from_networkx needs a networkx.DiGraph, got {type(graph).__name__}.")
    if not graph.is_directed():
        raise GraphError(
            f"the NetworkX graph is undirected, a {type(graph).__name__}: give its edges a direction, as a DiGraph."
        )
    nodes = tuple(graph.nodes)
    number = {name: i for i, name in enumerate(nodes)}
    edges = [(number[u], number[v]) for u, v in graph.edges()]
    names = canonical_names(nodes)
    unnamed = all(type(name) is int and name == i for i, name in enumerate(names))
    marks = [mark for mark in (graph.graph.get("inputs"), graph.graph.get("outputs")) if isinstance(mark, str)]
    return {
        "edges": torch.tensor(edges, dtype=torch.int64, device="cpu").reshape(-1, 2),
        "num_nodes": len(names),
        "names": None if unnamed else names,
        "inputs": _ends(graph, "inputs"),
        "outputs": _ends(graph, "outputs"),
        "node_attributes": _collected(
            [{key: value for key, value in graph.nodes[name].items() if key not in marks} for name in nodes],
            [str(name) for name in nodes],
            "node",
            node_attributes,
        ),
        "edge_attributes": _collected(
            [data for _, _, data in graph.edges(data=True)],
            [f"{u} -> {v}" for u, v in graph.edges()],
            "edge",
            edge_attributes,
        ),
    }


def to_networkx(dag: Content) -> "networkx.DiGraph[Any]":
    """The same graph as a NetworkX ``DiGraph``; see `Dag.to_networkx`."""
    import networkx  # here: it takes 0.1 s, and few programs need it

    edges = dag.edges.tolist()
    repeats = len(set(map(tuple, edges))) < len(edges)
    graph = networkx.MultiDiGraph() if repeats else networkx.DiGraph()
    names = dag.names or range(dag.num_nodes)
    if None in names:
        raise GraphError("NetworkX has no node called None: rename it.")
    graph.add_nodes_from(zip(names, _data_of_each(dag.node_attributes, dag.num_nodes), strict=True))
    graph.add_edges_from(
        (names[u], names[v], data)
        for (u, v), data in zip(edges, _data_of_each(dag.edge_attributes, len(edges)), strict=True)
    )
    if has_own_ends(dag):
        for ends, mark, chosen in (("inputs", "input", dag.inputs), ("outputs", "output", dag.outputs)):
            while mark in dag.node_attributes:
                mark += "_"
            graph.graph[ends] = mark if len(chosen) else _NO_NODES
            for place, node in enumerate(chosen.tolist()):
                graph.nodes[names[node]][mark] = place
    return graph


def _ends(graph: "networkx.DiGraph[Any]", ends: str) -> Iterable[Hashable] | None:
    """The inputs or outputs that the graph's data list; None if they list none."""
    listed = graph.graph.get(ends)
    if not isinstance(listed, str):
        return listed  # type: ignore[no-any-return]
    place_of = {name: plain(data[listed]) for name, data in graph.nodes(data=True) if listed in data}
    if not place_of and listed != _NO_NODES:
        raise GraphError(
            f"graph[{ends!r}] is {listed!r}, but no node has such data: give a list of nodes there, or drop it."
        )
    counts = Counter(place_of.values())
    for name, place in place_of.items():
        if not isinstance(place, int) or counts[place] > 1:
            raise GraphError(
                f"graph[{ends!r}] says that the node data {listed!r} hold the place of a node among the {ends}, but "
                f"node {name} has {place!r}: number them 0, 1, 2, ..., or drop graph[{ends!r}]."
            )
    return sorted(place_of, key=place_of.__getitem__)


def _data_of_each(attributes: Attributes, count: int) -> list[dict[str, Any]]:
    data: list[dict[str, Any]] = [{} for _ in range(count)]
    for name, values in attributes.items():
        for each, value in zip(data, values.tolist() if isinstance(values, Tensor) else values, strict=True):
            each[name] = value
    return data


def _collected(
    rows: list[dict[str, Any]], owners: list[str], of: str, chosen: Iterable[str] | None
) -> dict[str, Attribute]:
    """One attribute for each ``chosen`` key of the data (None: for each key); all nodes, or all edges, must have it."""
    known = dict.fromkeys(key for row in rows for key in row)
    for key in (keys := check_choice(known, of, chosen, bool(rows))):
        lacking = next((owner for row, owner in zip(rows, owners, strict=True) if key not in row), None)
        if lacking is not None:
            has = next(owner for row, owner in zip(rows, owners, strict=True) if key in row)
            complete = [other for other in known if all(other in row for row in rows)]
            raise GraphError(
                f"{of} {has} has the data {key!r} but {of} {lacking} has not: give it to all, or choose what to read, "
                f"as in {of}_attributes={complete!r}."
            )
    return {key: _column([row[key] for row in rows]) for key in keys}


def _column(values: list[Any]) -> Attribute:
    """A tensor if all values are numbers, lists of equally many numbers, or arrays of one form; else a tuple."""
    try:
        if all(isinstance(value, Tensor | np.ndarray) for value in values):
            tensors = [torch.as_tensor(value).detach().cpu() for value in values]
            return torch.stack(tensors) if len({tensor.dtype for tensor in tensors}) == 1 else tuple(values)
        numbers = list(map(_numbers, values))
        return torch.tensor(numbers, device="cpu") if all(number is not None for number in numbers) else tuple(values)
    except (ValueError, TypeError, RuntimeError, OverflowError):
        return tuple(values)  # of different lengths, or an int beyond int64


def _numbers(value: Any) -> Any:
    """A number of Python, or nested lists of them; None for anything else."""
    if isinstance(value, list):
        numbers = list(map(_numbers, value))
        return None if any(number is None for number in numbers) else numbers
    number = plain(value)
    return number if isinstance(number, bool | int | float | complex) else None
