"""PyTorch Geometric's `Data` and `Batch` to Dags and back.

Its ``edge_attr``, ``edge_type``, ... are the edge attributes "attr", "type", ... here; every other entry with one value
per node is a node attribute of the same name. What belongs to a whole graph, such as ``y``, has no place in a Dag.
"""

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from torch import Tensor

from dagnn.errors import DagnnError, DtypeError, GraphError
from dagnn.graph.parts import has_own_ends

if TYPE_CHECKING:
    from dagnn.graph.dag import Dag

_OWN_KEYS = ("edge_index", "num_nodes", "names", "input_index", "output_index", "batch", "ptr")


def arguments_from(data: Any) -> dict[str, Any]:
    """Arguments of ``Dag(...)`` from a `Data`, or from all graphs of a `Batch` together; see `Dag.from_pyg`."""
    edge_index = getattr(data, "edge_index", None)
    if not isinstance(edge_index, Tensor) or not hasattr(data, "to_dict"):
        raise DtypeError(
            f"from_pyg needs a torch_geometric.data.Data or Batch with an edge_index, got {type(data).__name__}."
        )
    if edge_index.ndim != 2 or edge_index.shape[0] != 2:
        raise GraphError(f"edge_index must have the shape [2, num_edges], got {list(edge_index.shape)}.")
    entries = {name: _flat(value, data) for name, value in data.to_dict().items()}
    num_nodes, num_edges = int(data.num_nodes), edge_index.shape[1]
    node_attributes = {
        name: value
        for name, value in entries.items()
        if name not in _OWN_KEYS and not name.startswith(("edge_", "_")) and _count(value) == num_nodes
    }
    edge_attributes = {
        name.removeprefix("edge_"): value
        for name, value in entries.items()
        if name not in _OWN_KEYS and name.startswith("edge_")
    }
    for name, value in edge_attributes.items():
        if _count(value) != num_edges:
            raise GraphError(
                f"edge_{name} must have one entry for each of the {num_edges} edges, got {_count(value)}: rename what "
                "does not belong to edges."
            )
    return {
        "edges": edge_index.T,
        "num_nodes": num_nodes,
        "names": entries.get("names"),
        "inputs": entries.get("input_index"),
        "outputs": entries.get("output_index"),
        "node_attributes": node_attributes,
        "edge_attributes": edge_attributes,
    }


def to_data(dag: "Dag", *, with_ends: bool | None = None) -> Any:
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


def to_batch(dags: Sequence["Dag"]) -> Any:
    """A `Batch` of these Dags; see `DagBatch.to_pyg`."""
    module = _imported()
    if not dags:
        raise GraphError("a Batch of PyTorch Geometric needs at least one graph, got none.")
    with_ends = any(has_own_ends(dag) for dag in dags)
    return module.Batch.from_data_list([to_data(dag, with_ends=with_ends) for dag in dags])


def _imported() -> Any:
    try:
        import torch_geometric.data  # here: it is not needed otherwise, and takes seconds
    except ImportError as error:
        raise DagnnError("to_pyg needs PyTorch Geometric: pip install torch-geometric.") from error
    return torch_geometric.data


def _check_name(name: str, values: Any) -> None:
    """PyG gives some names a meaning: it shifts their values in a batch, or takes them for those of edges."""
    shifted = isinstance(values, Tensor) and ("index" in name or "batch" in name or name == "face")
    if name in _OWN_KEYS or name.startswith(("edge_", "_")) or shifted:
        raise GraphError(
            f"node_attributes[{name!r}] would mean something else in PyTorch Geometric, which shifts or counts by the "
            "name: rename it."
        )


def _flat(value: Any, data: Any) -> Any:
    """A batch holds a list per graph where a graph holds a list."""
    if getattr(data, "ptr", None) is None or not isinstance(value, list | tuple):
        return value
    return list(chain.from_iterable(part if isinstance(part, Iterable) else [part] for part in value))


def _copied(values: Any) -> Any:
    return values.clone() if isinstance(values, Tensor) else list(values)


def _count(value: Any) -> int | None:
    if isinstance(value, Tensor):
        return value.shape[0] if value.ndim else None
    return len(value) if isinstance(value, list | tuple) else None
