"""Graphs of NetworkX and PyTorch Geometric to Dags and back.

``edge_attr``, ``edge_type``, ... of PyTorch Geometric are the edge attributes "attr", "type", ... here; every other
entry with one value per node is a node attribute of the same name. What belongs to a whole graph, such as ``y``, has no
place in a Dag; of a graph with a single node ``y`` is the graph's.
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from dagnn.errors import DtypeError, GraphError, library
from dagnn.graph.attributes import Attribute, Attributes, check_choice, plain
from dagnn.graph.content import Content, has_own_ends
from dagnn.graph.names import canonical_names

if TYPE_CHECKING:
    import networkx


_NO_NODES = "none"
"""The value of ``graph.graph["inputs"]`` (or outputs) of a Dag without any."""


def networkx_arguments(
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


_OWN_KEYS = ("edge_index", "num_nodes", "names", "input_index", "output_index", "batch", "ptr")


def pyg_arguments(
    data: Any, node_attributes: Iterable[str] | None = None, edge_attributes: Iterable[str] | None = None
) -> dict[str, Any]:
    """Arguments of ``Dag(...)`` from a `Data`, or from all graphs of a `Batch` together; see `Dag.from_pyg`."""
    edge_index = getattr(data, "edge_index", None)
    if not isinstance(edge_index, Tensor) or not hasattr(data, "to_dict"):
        raise DtypeError(
            f"from_pyg needs a torch_geometric.data.Data or Batch with an edge_index, got {type(data).__name__}."
        )
    if edge_index.ndim != 2 or edge_index.shape[0] != 2:
        raise GraphError(f"edge_index must have the shape [2, num_edges], got {list(edge_index.shape)}.")
    num_nodes, num_edges = int(data.num_nodes), edge_index.shape[1]
    entries = _Entries(data)
    of_nodes = {
        name: value
        for name, value in entries.others.items()
        if not name.startswith(("edge_", "_")) and entries.has_one_per_node(name)
    }
    of_edges = {name.removeprefix("edge_"): value for name, value in entries.others.items() if name.startswith("edge_")}
    if node_attributes is None and set(entries.sizes) <= {0, 1}:
        of_nodes.pop("y", None)  # one value for one node: a graph's, as PyG uses the name
    of_nodes = {name: of_nodes[name] for name in check_choice(of_nodes, "node", node_attributes)}
    of_edges = {name: of_edges[name] for name in check_choice(of_edges, "edge", edge_attributes)}
    for name, value in of_edges.items():
        if _count(value) != num_edges:
            raise GraphError(
                f"edge_{name} must have one entry for each of the {num_edges} edges, got {_count(value)}: rename what "
                "does not belong to edges, or list what does in edge_attributes=[...]."
            )
    return {
        "edges": edge_index.T,
        "num_nodes": num_nodes,
        "names": entries.names,
        "inputs": entries.own.get("input_index"),
        "outputs": entries.own.get("output_index"),
        "node_attributes": of_nodes,
        "edge_attributes": of_edges,
    }


def check_is_one_graph(data: Any) -> None:
    """DtypeError for a `Batch` of several graphs, which would otherwise be read as one large graph."""
    ptr = getattr(data, "ptr", None)
    if isinstance(ptr, Tensor) and ptr.ndim == 1 and len(ptr) > 2:
        raise DtypeError(f"Dag.from_pyg needs a single graph, got a Batch of {len(ptr) - 1}: use DagBatch.from_pyg.")


class _Entries:
    """The entries of a `Data`, or those of all graphs of a `Batch` as they were before PyG joined them.

    Attributes:
        sizes: how many nodes each graph has; of a `Data`, one number.
        own: those that `to_data` writes, unchanged.
        others: all others. Of a `Batch`, lists are concatenated, and numbers that PyG shifted are shifted back.
        names: of the nodes, or None.
    """

    def __init__(self, data: Any) -> None:
        self.data = data
        ptr: Any = getattr(data, "ptr", None)
        self.is_batch = isinstance(ptr, Tensor) and ptr.ndim == 1 and len(ptr) > 0
        self.sizes: list[int] = ptr.diff().tolist() if self.is_batch else [int(data.num_nodes)]
        # Private to PyG, but its own ``to_data_list`` reads them, and nothing public has this.
        self.slices: Mapping[str, Any] = getattr(data, "_slice_dict", None) or {}
        self.shifts: Mapping[str, Any] = getattr(data, "_inc_dict", None) or {}
        entries: dict[str, Any] = data.to_dict()
        followed = {name for name in entries if name.endswith("_batch") and f"{name[:-5]}ptr" in entries}
        into: Any = self.slices.get("edge_index")
        edges = into.diff().tolist() if isinstance(into, Tensor) else None
        self.own = {name: value for name, value in entries.items() if name in _OWN_KEYS}
        self.others = {
            name: self._unshifted(name, self._joined(value, edges if name.startswith("edge_") else self.sizes))
            for name, value in entries.items()
            if name not in _OWN_KEYS and name not in followed
        }
        names = self._joined(self.own.get("names"), self.sizes)
        names = names.tolist() if isinstance(names, Tensor) else names
        self.names = names if isinstance(names, list | tuple | np.ndarray) else None

    def has_one_per_node(self, name: str) -> bool:
        """Has every node a value of this entry?"""
        value = self.others[name]
        if _count(value) != sum(self.sizes):
            return False
        if not isinstance(value, Tensor):
            return True
        slices: Any = self.slices.get(name)
        is_sliced = isinstance(slices, Tensor) and len(slices) == len(self.sizes) + 1
        return self._dim(name, value) == 0 and (not is_sliced or slices.diff().tolist() == self.sizes)

    def _joined(self, value: Any, sizes: list[int] | None) -> Any:
        """One list or array for all graphs, of so many nodes or edges each; a `Batch` lists what its graphs have."""
        if hasattr(value, "to_numpy"):  # a column of pandas
            value = value.to_numpy()
        if not self.is_batch or not isinstance(value, list | tuple):
            return value
        value = [part.to_numpy() if hasattr(part, "to_numpy") else part for part in value]
        if [len(part) if isinstance(part, list | tuple | np.ndarray) else None for part in value] != sizes:
            return None
        if all(isinstance(part, np.ndarray) for part in value):
            return np.concatenate(value)
        return list(chain.from_iterable(value))

    def _unshifted(self, name: str, value: Any) -> Any:
        """The numbers before PyG shifted them, "...index" by the nodes before a graph, others by ``__inc__``."""
        slices, shifts = self.slices.get(name), self.shifts.get(name)
        if not (isinstance(value, Tensor) and isinstance(slices, Tensor) and isinstance(shifts, Tensor)):
            return value
        dim = self._dim(name, value)
        if not shifts.any() or dim is None or value.shape[dim] != slices[-1]:
            return value
        parts = value.tensor_split(slices[1:-1].cpu(), dim)
        return torch.cat([part - shift.to(part.device) for part, shift in zip(parts, shifts, strict=True)], dim)

    def _dim(self, name: str, value: Tensor) -> int | None:
        """The dimension along which PyG concatenates the entry; None if it stacks."""
        dim = self.data.__cat_dim__(name, value) if value.ndim else None
        return dim % value.ndim if isinstance(dim, int) else None


def to_data(dag: Content, *, with_ends: bool | None = None) -> Any:
    """A `Data` with the content of the Dag, see `Dag.to_pyg`.

    ``with_ends``: write ``input_index`` and ``output_index``; None: only if they are not the sources and the sinks.
    """
    data_class = _imported().Data
    data = data_class(edge_index=dag.edges.T.contiguous(), num_nodes=dag.num_nodes)
    for name, values in dag.node_attributes.items():
        _check_name(name, values)
        data[name] = _copied(values)
    for name, values in dag.edge_attributes.items():
        if name == "index":
            raise GraphError("edge_attributes['index'] would be edge_index in PyTorch Geometric: rename it.")
        data[f"edge_{name}"] = _copied(values)
    if dag.names is not None:
        data.names = list(dag.names)
    if has_own_ends(dag) if with_ends is None else with_ends:
        # PyG shifts what is called "index" by the nodes before it when it makes a batch.
        data.input_index, data.output_index = dag.inputs.clone(), dag.outputs.clone()
    return data


def to_batch(dags: Sequence[Content]) -> Any:
    """A `Batch` of these Dags; see `DagBatch.to_pyg`."""
    module = _imported()
    if not dags:
        raise GraphError("a Batch of PyTorch Geometric needs at least one graph, got none.")
    with_ends = any(has_own_ends(dag) for dag in dags)
    return module.Batch.from_data_list([to_data(dag, with_ends=with_ends) for dag in dags])


def _imported() -> Any:
    # Here: it takes seconds, and nothing else needs it.
    return library("torch_geometric.data", "to_pyg", "torch-geometric")


def _check_name(name: str, values: Any) -> None:
    """GraphError for a name that means something to PyG: values that it shifts in a batch, or takes for edges'."""
    shifted = isinstance(values, Tensor) and ("index" in name or "batch" in name or name == "face")
    if name in _OWN_KEYS or name.startswith(("edge_", "_")) or shifted:
        raise GraphError(
            f"node_attributes[{name!r}] would mean something else in PyTorch Geometric, which shifts or counts by the "
            "name: rename it."
        )


def _copied(values: Any) -> Any:
    return values.clone() if isinstance(values, Tensor) else list(values)


def _count(value: Any) -> int | None:
    if isinstance(value, Tensor | np.ndarray):
        return value.shape[0] if value.ndim else None
    return len(value) if isinstance(value, list | tuple) else None
