"""PyTorch Geometric's `Data` and `Batch` to Dags and back.

Its ``edge_attr``, ``edge_type``, ... are the edge attributes "attr", "type", ... here; every other entry with one value
per node is a node attribute of the same name. What belongs to a whole graph, such as ``y``, has no place in a Dag; of a
graph with a single node ``y`` is the graph's.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dagnn.errors import DagnnError, DtypeError, GraphError
from dagnn.graph.attributes import check_choice
from dagnn.graph.content import Content, has_own_ends

_OWN_KEYS = ("edge_index", "num_nodes", "names", "input_index", "output_index", "batch", "ptr")


def arguments_from(
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
        """One list or array for all graphs: where a graph holds one, a `Batch` holds a list of those of its graphs.

        Args:
            sizes: how many nodes, or edges, each graph has.
        """
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
    """A `Data` with the content of the Dag; see `Dag.to_pyg`.

    Args:
        with_ends: write ``input_index`` and ``output_index``; None: only if they are not the sources and the sinks.
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
    try:
        import torch_geometric.data  # here: it takes seconds, and nothing else needs it
    except ImportError as error:
        raise DagnnError("to_pyg needs PyTorch Geometric: pip install torch-geometric.") from error
    return torch_geometric.data


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
