"""`DagBatch`: many Dags as one graph of separate parts, on any device; and `collate`, which makes one for a loader."""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, chain, pairwise
from operator import index
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self, SupportsIndex, final, overload

import torch
from torch import Tensor
from torch.utils.data import default_collate

from dagnn.errors import DtypeError, GraphError
from dagnn.graph import library_formats
from dagnn.graph.attributes import Attributes
from dagnn.graph.cached import cached_tensor_property
from dagnn.graph.concatenation import (
    check_alike,
    check_offsets,
    concatenate,
    concatenate_attributes,
    offsets_of_counts,
    packed_dags,
    partitioned,
)
from dagnn.graph.dag import Dag
from dagnn.graph.edges import Csr

if TYPE_CHECKING:
    import networkx

_TENSORS = (
    "edges", "levels", "heights", "inputs", "outputs",
    "node_offsets", "edge_offsets", "input_offsets", "output_offsets", "graph_of_node",
)  # fmt: skip


@final
class DagBatch:
    """The disjoint union of Dags: their nodes one after the other, no edge from one Dag to another.

    Make one with `DagBatch.from_dags`. Like a Dag it never changes: `to` and `pin_memory` return another batch.

    Attributes:
        edges: int64 ``[num_edges, 2]``, rows (source, target) of nodes of the batch, sorted as in a Dag: all edges into
            a node are adjacent, operands in their order.
        levels, heights: int64 ``[num_nodes]``, as in each Dag.
        node_offsets, edge_offsets: int64 ``[num_graphs + 1]``; graph i has the nodes
            ``node_offsets[i] .. node_offsets[i + 1] - 1``.
        graph_of_node: int64 ``[num_nodes]``.
        inputs, outputs: int64, nodes of the batch; graph i has ``inputs[input_offsets[i]:input_offsets[i + 1]]``.
        input_offsets, output_offsets: int64 ``[num_graphs + 1]``.
        names: of all nodes, or None. Two graphs may use the same name.
        node_attributes, edge_attributes: name -> tensor or tuple, those of the Dags concatenated.

    >>> batch = DagBatch.from_dags([Dag([(0, 1)]), Dag([(0, 2), (1, 2)])])
    >>> batch.edges.tolist(), batch.graph_of_node.tolist()
    ([[0, 1], [2, 4], [3, 4]], [0, 0, 1, 1, 1])
    """

    def __init__(
        self,
        *,
        edges: Tensor,
        levels: Tensor,
        heights: Tensor,
        inputs: Tensor,
        outputs: Tensor,
        node_offsets: Tensor,
        edge_offsets: Tensor,
        input_offsets: Tensor,
        output_offsets: Tensor,
        graph_of_node: Tensor,
        names: tuple[Hashable, ...] | None,
        node_attributes: Attributes,
        edge_attributes: Attributes,
    ) -> None:
        self.edges, self.levels, self.heights = edges, levels, heights
        self.inputs, self.outputs = inputs, outputs
        self.node_offsets, self.edge_offsets = node_offsets, edge_offsets
        self.input_offsets, self.output_offsets = input_offsets, output_offsets
        self.graph_of_node = graph_of_node
        self.names = names
        self.node_attributes = MappingProxyType(dict(node_attributes))
        self.edge_attributes = MappingProxyType(dict(edge_attributes))

    @classmethod
    def from_dags(cls, dags: Iterable[Dag]) -> Self:
        """The union of ``dags``, on the CPU. Levels and heights are those of each Dag, not computed again.

        Args:
            dags: any number, empty ones too. All have names or none has. All have the same attributes, of the same
                kind: tuples, or tensors of one dtype that differ in their first dimension only.

        Raises:
            DtypeError: an item that is no Dag.
            GraphError: names or attributes differ; the message says in which Dag first.
        """
        if not isinstance(dags, Iterable):
            raise DtypeError(f"dags must be a list of Dags, got {type(dags).__name__}.")
        given = list(dags)
        if not set(map(type, given)) <= {Dag}:
            i = next(i for i, dag in enumerate(given) if type(dag) is not Dag)
            raise DtypeError(f"dags[{i}] must be a Dag, got {type(given[i]).__name__}.")
        packed = packed_dags(given)
        check_alike(given, packed)
        tensors = concatenate(packed)
        named = any(each.named for each in packed)
        return cls(
            **tensors,
            names=(tuple(chain.from_iterable(dag.names or () for dag in given)) or None) if named else None,
            node_attributes=concatenate_attributes("node", given, packed, len(tensors["levels"])),
            edge_attributes=concatenate_attributes("edge", given, packed, len(tensors["edges"])),
        )

    @classmethod
    def from_networkx(
        cls,
        graphs: "Iterable[networkx.DiGraph[Any]]",
        *,
        node_attributes: Iterable[str] | None = None,
        edge_attributes: Iterable[str] | None = None,
    ) -> Self:
        """The union of NetworkX graphs, each read as by `Dag.from_networkx`.

        Raises:
            DtypeError: a single graph, or an item that is none.
            GraphError: as `Dag.from_networkx` and `from_dags`.
            CycleError: the edges of a graph form a cycle.
        """
        if hasattr(graphs, "nodes"):  # iterating, it would yield its nodes
            raise DtypeError("DagBatch.from_networkx needs a list of graphs, got one: use Dag.from_networkx for it.")
        chosen: dict[str, Any] = {"node_attributes": node_attributes, "edge_attributes": edge_attributes}
        return cls.from_dags(Dag.from_networkx(graph, **chosen) for graph in graphs)

    @classmethod
    def from_pyg(
        cls, batch: Any, *, node_attributes: Iterable[str] | None = None, edge_attributes: Iterable[str] | None = None
    ) -> "DagBatch":
        """The graphs of a ``torch_geometric.data.Batch``, on its device; read as by `Dag.from_pyg`, all in one pass.

        PyTorch Geometric shifts some numbers when it makes a batch, such as ``image_index``: they are shifted back.

        Raises:
            DtypeError: no ``Batch``; a single ``Data`` is for `Dag.from_pyg`.
            GraphError: an edge from one graph to another, or a ``ptr`` that does not divide the nodes among the graphs.
            CycleError: the edges form a cycle; nodes are numbered as in the batch.
        """
        arguments = library_formats.pyg_arguments(batch, node_attributes, edge_attributes)
        offsets = getattr(batch, "ptr", None)
        if not isinstance(offsets, Tensor):
            raise DtypeError("DagBatch.from_pyg needs a Batch, got a single graph: use Dag.from_pyg for it.")
        check_offsets(offsets, arguments["num_nodes"])
        names = arguments.pop("names")
        union = Dag(**arguments)
        return DagBatch(**partitioned(union, offsets.cpu(), names)).to(batch.edge_index.device)

    # ---- back to graphs ----

    def to_dags(self) -> list[Dag]:
        """All graphs as Dags, equal to those that the batch was made of; like ``list(batch)``."""
        return list(self)

    def to_networkx(self) -> "list[networkx.DiGraph[Any]]":
        """Every graph as a NetworkX graph; see `Dag.to_networkx`."""
        return [dag.to_networkx() for dag in self]

    def to_pyg(self) -> Any:
        """A ``torch_geometric.data.Batch`` on the same device; `from_pyg` gives an equal batch back.

        Raises:
            DagnnError: PyTorch Geometric is not installed.
            GraphError: no graphs, or a node attribute with a name that PyTorch Geometric gives a meaning of its own.
        """
        return library_formats.to_batch(list(self)).to(self.device)

    def __len__(self) -> int:
        """How many graphs there are."""
        return self.num_graphs

    def __iter__(self) -> Iterator[Dag]:
        return (self[i] for i in range(len(self)))

    @overload
    def __getitem__(self, graph: SupportsIndex) -> Dag: ...

    @overload
    def __getitem__(self, graph: slice) -> "DagBatch": ...

    def __getitem__(self, graph: SupportsIndex | slice) -> "Dag | DagBatch":
        """Graph number ``graph`` as a Dag; a negative number counts from the end. For a slice, a batch.

        Raises:
            IndexError: there is no such graph.
            DtypeError: neither a number nor a slice.
        """
        if isinstance(graph, slice):
            first, end, step = graph.indices(len(self))
            if step == 1:
                return self._between(first, max(first, end))
            return DagBatch.from_dags([self[i] for i in range(first, end, step)]).to(self.device)
        try:
            number = index(graph)
        except TypeError:
            raise DtypeError(
                f"a batch is indexed by a number or a slice, got {graph!r}: for several graphs make a batch, "
                "DagBatch.from_dags([batch[i] for i in ...])."
            ) from None
        if not -len(self) <= number < len(self):
            raise IndexError(f"graph {number} is out of range: the batch has {len(self)} graphs.")
        i = range(len(self))[number]
        part = self._between(i, i + 1).to("cpu")
        dag = Dag._trusted(
            part.edges.numpy(),
            part.levels.numpy(),
            part.names,
            part.inputs.numpy(),
            part.outputs.numpy(),
            part.node_attributes,
            part.edge_attributes,
        )
        vars(dag)["heights"] = part.heights  # known here, so not computed again
        return dag

    def split(self, sizes: int | Sequence[int] = 1) -> list["DagBatch"]:
        """Consecutive smaller batches on the same device; like ``torch.split``.

        Args:
            sizes: graphs per batch (the last batch may be smaller), or a list with the size of each.

        Raises:
            GraphError: sizes that are not positive, or that do not add up to ``len(batch)``.
            DtypeError: sizes that are no whole numbers.

        >>> batch = DagBatch.from_dags([Dag([(0, 1)]), Dag([], 1), Dag([], 2)])
        >>> [part.num_nodes for part in batch.split([1, 2])]
        [2, 3]
        """
        try:
            sizes = index(sizes) if isinstance(sizes, SupportsIndex) and not hasattr(sizes, "__len__") else sizes
            sizes = sizes if isinstance(sizes, int) else list(map(index, sizes))
        except TypeError:
            raise DtypeError(f"sizes must be a whole number of graphs, or a list of them, got {sizes!r}.") from None
        if isinstance(sizes, int):
            if sizes < 1:
                raise GraphError(f"sizes must be at least 1 graph per batch, got {sizes}.")
            bounds = [*range(0, len(self), sizes), len(self)]
        else:
            bounds = list(accumulate(sizes, initial=0))
            if bounds[-1] != len(self) or min(sizes, default=0) < 0:
                raise GraphError(f"sizes must add up to {len(self)}, the graphs of the batch, got {list(sizes)}.")
        return [self._between(first, end) for first, end in pairwise(bounds)]

    # ---- what it is ----

    @property
    def num_graphs(self) -> int:
        return self.node_offsets.shape[0] - 1

    @property
    def num_nodes(self) -> int:
        return self.levels.shape[0]

    @property
    def num_edges(self) -> int:
        return self.edges.shape[0]

    @property
    def edge_index(self) -> Tensor:
        """int64 ``[2, num_edges]``: `edges` in the layout of PyTorch Geometric."""
        return self.edges.T

    @property
    def device(self) -> torch.device:
        return self.edges.device

    @cached_tensor_property
    def in_degree(self) -> Tensor:
        """int64 ``[num_nodes]``: edges into each node."""
        return torch.bincount(self.edges[:, 1], minlength=self.num_nodes)

    @cached_tensor_property
    def out_degree(self) -> Tensor:
        """int64 ``[num_nodes]``: edges out of each node."""
        return torch.bincount(self.edges[:, 0], minlength=self.num_nodes)

    @cached_tensor_property
    def csr_by_target(self) -> Csr:
        """The edges into each node; ``edge_ids`` is 0, 1, 2, ..., since `edges` are in this order."""
        return Csr(offsets_of_counts(self.in_degree), torch.arange(self.num_edges, device=self.device))

    @cached_tensor_property
    def csr_by_source(self) -> Csr:
        """The edges out of each node, by (source, target)."""
        return Csr(offsets_of_counts(self.out_degree), self.edges[:, 0].argsort(stable=True))

    @cached_tensor_property
    def order(self) -> Tensor:
        """int64 ``[num_nodes]``: all nodes in topological order, by (level, node): each level is a slice."""
        return self.levels.argsort(stable=True)

    def __repr__(self) -> str:
        return (
            f"DagBatch(num_graphs={self.num_graphs}, num_nodes={self.num_nodes}, num_edges={self.num_edges}, "
            f"device={str(self.device)!r})"
        )

    # ---- moving it ----

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> "DagBatch":
        """The same batch on ``device``; this batch if it is there already. Tuples stay as they are."""
        if self.device == torch.device(device):
            return self
        return self._mapped(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> "DagBatch":
        """The same batch in page-locked memory, for ``to(device, non_blocking=True)``; DataLoader calls it."""
        return self._mapped(Tensor.pin_memory)

    def _mapped(self, change: Callable[[Tensor], Tensor]) -> "DagBatch":
        tensors: dict[str, Any] = {name: change(getattr(self, name)) for name in _TENSORS}
        return DagBatch(
            **tensors,
            names=self.names,
            node_attributes=_changed(self.node_attributes, change),
            edge_attributes=_changed(self.edge_attributes, change),
        )

    def __getstate__(self) -> dict[str, Any]:
        # A DataLoader worker sends batches back: read-only views cannot be pickled, derived tensors need not be.
        attributes = {"node_attributes": dict(self.node_attributes), "edge_attributes": dict(self.edge_attributes)}
        return {name: getattr(self, name) for name in (*_TENSORS, "names")} | attributes

    def __setstate__(self, state: dict[str, Any]) -> None:
        DagBatch.__init__(self, **state)

    def _between(self, first: int, end: int) -> "DagBatch":
        """The graphs ``first .. end - 1``; tensors are views where they can be."""
        graphs = slice(first, end + 1)
        node, last_node = self.node_offsets[first].item(), self.node_offsets[end].item()
        edge, last_edge = self.edge_offsets[first].item(), self.edge_offsets[end].item()
        nodes, edges = slice(int(node), int(last_node)), slice(int(edge), int(last_edge))
        inputs = slice(int(self.input_offsets[first]), int(self.input_offsets[end]))
        outputs = slice(int(self.output_offsets[first]), int(self.output_offsets[end]))
        return DagBatch(
            edges=self.edges[edges] - nodes.start,
            levels=self.levels[nodes],
            heights=self.heights[nodes],
            inputs=self.inputs[inputs] - nodes.start,
            outputs=self.outputs[outputs] - nodes.start,
            node_offsets=self.node_offsets[graphs] - nodes.start,
            edge_offsets=self.edge_offsets[graphs] - edges.start,
            input_offsets=self.input_offsets[graphs] - inputs.start,
            output_offsets=self.output_offsets[graphs] - outputs.start,
            graph_of_node=self.graph_of_node[nodes] - first,
            names=None if self.names is None else self.names[nodes],
            node_attributes={name: values[nodes] for name, values in self.node_attributes.items()},
            edge_attributes={name: values[edges] for name, values in self.edge_attributes.items()},
        )


def _changed(attributes: Attributes, change: Callable[[Tensor], Tensor]) -> dict[str, Any]:
    return {name: change(values) if isinstance(values, Tensor) else values for name, values in attributes.items()}


def collate(samples: Sequence[Any]) -> Any:
    """One batch from samples: Dags become a `DagBatch`, ``default_collate`` of PyTorch does everything else.

    Args:
        samples: at least one; each a Dag, or a tuple, list or mapping with Dags anywhere inside, all of one structure.

    Returns:
        The structure of one sample, with batches in place of its entries.

    Raises:
        GraphError: no samples, samples of different structure, or Dags that cannot be in one batch.
        DtypeError: a sample with a `DagBatch` in it.

    >>> batch, targets = collate([(Dag([(0, 1)]), 3), (Dag([], 1), 4)])
    >>> batch.num_graphs, targets
    (2, tensor([3, 4]))
    """
    if not samples:
        raise GraphError("collate needs at least one sample, got none.")
    first = samples[0]
    if isinstance(first, Dag):
        return DagBatch.from_dags(samples)
    if isinstance(first, DagBatch):
        raise DtypeError("a sample holds a DagBatch, which is a batch already: give its graphs, list(batch).")
    if isinstance(first, Mapping):
        _check_same([sorted(map(str, sample)) for sample in samples], "keys")
        return {key: collate([sample[key] for sample in samples]) for key in first}
    if isinstance(first, list | tuple):
        _check_same([len(sample) for sample in samples], "length")
        parts = [collate(part) for part in zip(*samples, strict=True)]
        if isinstance(first, list):
            return parts
        return type(first)(*parts) if hasattr(first, "_fields") else tuple(parts)
    return default_collate(list(samples))


def _check_same(facts: Sequence[Any], what: str) -> None:
    for i, fact in enumerate(facts):
        if fact != facts[0]:
            raise GraphError(f"sample {i} has the {what} {fact}, but sample 0 has {facts[0]}: give all the same.")
