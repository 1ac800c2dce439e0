"""NetworkX graphs to Dags and back."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from dagnn.errors import DtypeError, GraphError
from dagnn.graph.attributes import Attribute, Attributes

if TYPE_CHECKING:
    import networkx

    from dagnn.graph.dag import Dag


def arguments_from(graph: "networkx.DiGraph[Any]") -> dict[str, Any]:
    """Arguments of ``Dag(...)`` from a NetworkX graph; see `Dag.from_networkx`."""
    if not hasattr(graph, "is_directed") or not hasattr(graph, "nodes"):
        raise DtypeError(f"from_networkx needs a networkx.DiGraph, got {type(graph).__name__}.")
    if not graph.is_directed():
        raise GraphError("the NetworkX graph is undirected: give its edges a direction, as a networkx.DiGraph.")
    names = tuple(graph.nodes)
    number = {name: i for i, name in enumerate(names)}
    edges = [(number[u], number[v]) for u, v in graph.edges()]
    unnamed = all(type(name) is int and name == i for i, name in enumerate(names))
    inputs, outputs = (graph.graph.get(key) for key in ("inputs", "outputs"))
    return {
        "edges": torch.tensor(edges, dtype=torch.int64).reshape(-1, 2),
        "num_nodes": len(names),
        "names": None if unnamed else names,
        "inputs": inputs,
        "outputs": outputs,
        "node_attributes": _collected((graph.nodes[name] for name in names), [str(name) for name in names], "node"),
        "edge_attributes": _collected(
            (data for _, _, data in graph.edges(data=True)), [f"{u} -> {v}" for u, v in graph.edges()], "edge"
        ),
    }


def to_networkx(dag: "Dag") -> "networkx.DiGraph[Any]":
    """The same graph as a NetworkX ``DiGraph``; see `Dag.to_networkx`."""
    import networkx  # here: it takes 0.1 s, and few programs need it

    edges = dag.edges.tolist()
    repeats = len(set(map(tuple, edges))) < len(edges)
    graph = networkx.MultiDiGraph() if repeats else networkx.DiGraph()
    names = dag.names or range(dag.num_nodes)
    graph.add_nodes_from(zip(names, _data_of_each(dag.node_attributes, dag.num_nodes), strict=True))
    graph.add_edges_from(
        (names[u], names[v], data)
        for (u, v), data in zip(edges, _data_of_each(dag.edge_attributes, len(edges)), strict=True)
    )
    graph.graph["inputs"] = [names[node] for node in dag.inputs.tolist()]
    graph.graph["outputs"] = [names[node] for node in dag.outputs.tolist()]
    return graph


def _data_of_each(attributes: Attributes, count: int) -> list[dict[str, Any]]:
    data: list[dict[str, Any]] = [{} for _ in range(count)]
    for name, values in attributes.items():
        for each, value in zip(data, values.tolist() if isinstance(values, Tensor) else values, strict=True):
            each[name] = value
    return data


def _collected(data: Iterable[dict[str, Any]], owners: list[str], of: str) -> dict[str, Attribute]:
    """One attribute per key of the data, which all nodes or all edges must have."""
    rows = list(data)
    columns = {key: [row[key] for row in rows if key in row] for key in dict.fromkeys(k for row in rows for k in row)}
    for key, values in columns.items():
        if len(values) < len(rows):
            has = next(owner for row, owner in zip(rows, owners, strict=True) if key in row)
            lacks = next(owner for row, owner in zip(rows, owners, strict=True) if key not in row)
            raise GraphError(f"{of} {has} has the data {key!r} but {of} {lacks} has not: give it to all, or to none.")
    return {key: _column(values) for key, values in columns.items()}


def _column(values: list[Any]) -> Attribute:
    """A tensor if every value is a number, or a list of as many numbers; else the values themselves."""
    if all(_is_numeric(value) for value in values):
        try:
            return torch.tensor(values)
        except (ValueError, TypeError, RuntimeError, OverflowError):
            pass  # lists of different lengths, or an int beyond int64
    return tuple(values)


def _is_numeric(value: object) -> bool:
    if isinstance(value, list):
        return all(_is_numeric(item) for item in value)
    return isinstance(value, bool | int | float)
