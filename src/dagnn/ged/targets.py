"""Target graphs padded to a decoder's positions, and logits decoded to valid DAGs."""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dagnn.errors import ConfigError, DtypeError, GraphError
from dagnn.ged.labelled import label_key
from dagnn.graph import Dag


@dataclass(frozen=True)
class GraphTargets:
    """A batch of B target graphs with at most M nodes each.

    Attributes:
        exists: bool ``[B, M]``, true where the position holds a target node.
        adjacency: bool ``[B, M, M]``, true where the edge i -> j is wanted; false on the diagonal and at empty
            positions.
        labels: int64 ``[B, M]`` or None for graphs without node labels; ignored at empty positions.
        edge_labels: int64 ``[B, M, M]`` or None; ignored where there is no edge.

    >>> targets = GraphTargets.from_dags([Dag([(0, 1)]), Dag([], 1)], 2)
    >>> targets.exists.tolist(), targets.num_edges.tolist()
    ([[True, True], [True, False]], [1, 0])
    """

    exists: Tensor
    adjacency: Tensor
    labels: Tensor | None = None
    edge_labels: Tensor | None = None

    def check(self) -> None:
        """Raise unless the tensors fit together.

        Raises:
            DtypeError: a tensor has another dtype.
            GraphError: shapes disagree, an edge touches an empty position, or a node has an edge to itself.
        """
        shape = self.exists.shape
        if len(shape) != 2:
            raise GraphError(f"exists must have the shape [B, M], got {list(shape)}.")
        square = (shape[0], shape[1], shape[1])
        _check("exists", self.exists, torch.bool, shape)
        _check("adjacency", self.adjacency, torch.bool, square)
        _check("labels", self.labels, torch.int64, shape)
        _check("edge_labels", self.edge_labels, torch.int64, square)
        if self.adjacency.diagonal(dim1=1, dim2=2).any():
            graph, node = self.adjacency.diagonal(dim1=1, dim2=2).nonzero()[0].tolist()
            raise GraphError(f"target {graph} has the edge {node} -> {node}: the loss has no self-loops, drop it.")
        stray = self.adjacency & ~(self.exists[:, :, None] & self.exists[:, None, :])
        if stray.any():
            graph, source, target = stray.nonzero()[0].tolist()
            raise GraphError(f"target {graph} has the edge {source} -> {target}, but one of its ends does not exist.")

    @classmethod
    def from_dags(
        cls,
        dags: Iterable[Dag],
        num_positions: int,
        *,
        node_vocabulary: Sequence[Hashable] | None = None,
        edge_vocabulary: Sequence[Hashable] | None = None,
        node_attribute: str = "label",
        edge_attribute: str = "label",
    ) -> "GraphTargets":
        """Pad graphs to ``num_positions`` nodes; node i of a graph takes position i.

        Args:
            dags: a list of Dags or a DagBatch, with at most ``num_positions`` nodes each.
            num_positions: M, the most nodes that the decoder can predict.
            node_vocabulary: the labels; the class of a label is its index here. None: unlabelled nodes.
            edge_vocabulary: the same for edges. Parallel edges become one edge whose label is the sorted tuple of
                their labels; put such tuples in the vocabulary. None: unlabelled edges.
            node_attribute: the node attribute that holds the labels.
            edge_attribute: the edge attribute that holds the labels.

        Raises:
            DtypeError: a graph is no Dag.
            GraphError: a graph has more nodes than positions, lacks the attribute, holds a label that is not in the
                vocabulary, or has parallel edges without an ``edge_vocabulary``.
            ConfigError: a vocabulary lists a label twice.
        """
        graphs = list(dags)
        shape = (len(graphs), num_positions, num_positions)
        exists = torch.zeros(shape[:2], dtype=torch.bool)
        adjacency = torch.zeros(shape, dtype=torch.bool)
        labels = edge_labels = None
        if node_vocabulary is not None:
            labels, class_of_node = torch.zeros(shape[:2], dtype=torch.int64), _classes("node", node_vocabulary)
        if edge_vocabulary is not None:
            edge_labels, class_of_edge = torch.zeros(shape, dtype=torch.int64), _classes("edge", edge_vocabulary)

        for b, dag in enumerate(graphs):
            if not isinstance(dag, Dag):
                raise DtypeError(f"target {b} must be a Dag, got {type(dag).__name__}.")
            n = dag.num_nodes
            if n > num_positions:
                raise GraphError(
                    f"target {b} has {n} nodes, but there are {num_positions} positions: give the decoder {n}."
                )
            exists[b, :n] = True
            adjacency[b, dag.edges[:, 0], dag.edges[:, 1]] = True
            if labels is not None and n:
                values = _attribute(dag.node_attributes, node_attribute, "node", b)
                found = [_class(class_of_node, value, f"node {i} of target {b}") for i, value in enumerate(values)]
                labels[b, :n] = torch.tensor(found, dtype=torch.int64)
            if edge_labels is not None and dag.num_edges:
                values = _attribute(dag.edge_attributes, edge_attribute, "edge", b)
                for (source, target), value in _bundles(dag, values).items():
                    edge = f"edge {source} -> {target} of target {b}"
                    edge_labels[b, source, target] = _class(class_of_edge, value, edge)
            elif dag.num_edges != int(adjacency[b].sum()):
                raise GraphError(
                    f"target {b} has parallel edges, which one edge logit cannot express: merge them, or give "
                    "edge_vocabulary with the tuples of labels that occur together."
                )
        return cls(exists, adjacency, labels, edge_labels)

    def permuted(self, alignment: Tensor) -> "GraphTargets":
        """The same graphs with target node ``alignment[b, i]`` moved to position i.

        Args:
            alignment: int64 ``[B, M]``, a permutation of 0 .. M - 1 in every row.
        """
        rows = alignment[:, :, None].expand(-1, -1, alignment.shape[1])
        columns = rows.transpose(1, 2)
        adjacency = self.adjacency.gather(1, rows).gather(2, columns)
        labels = None if self.labels is None else self.labels.gather(1, alignment)
        edge_labels = None if self.edge_labels is None else self.edge_labels.gather(1, rows).gather(2, columns)
        return replace(
            self, exists=self.exists.gather(1, alignment), adjacency=adjacency, labels=labels, edge_labels=edge_labels
        )

    def to(self, device: torch.device | str) -> "GraphTargets":
        """The same targets on ``device``."""
        return replace(self, **{name: part.to(device) for name, part in vars(self).items() if part is not None})

    @property
    def num_nodes(self) -> Tensor:
        """int64 ``[B]``."""
        return self.exists.sum(1)

    @property
    def num_edges(self) -> Tensor:
        """int64 ``[B]``."""
        return self.adjacency.sum((1, 2))


def _check(name: str, value: Tensor | None, dtype: torch.dtype, shape: Sequence[int]) -> None:
    if value is None:
        return
    if value.dtype != dtype:
        raise DtypeError(f"{name} must be {dtype}, got {value.dtype}.")
    if tuple(value.shape) != tuple(shape):
        raise GraphError(f"{name} must have the shape {list(shape)}, got {list(value.shape)}.")


def _classes(kind: str, vocabulary: Sequence[Hashable]) -> dict[Hashable, int]:
    classes: dict[Hashable, int] = {}
    for index, label in enumerate(vocabulary):
        key = label_key(label)
        if key in classes:
            raise ConfigError(f"{kind}_vocabulary lists {label!r} twice, at {classes[key]} and {index}.")
        classes[key] = index
    return classes


def _class(classes: dict[Hashable, int], label: Hashable, where: str) -> int:
    found = classes.get(label_key(label))
    if found is None:
        raise GraphError(f"{where} has the label {label!r}, which is not in the vocabulary of {len(classes)} labels.")
    return found


def _attribute(attributes: Any, name: str, kind: str, graph: int) -> list[Hashable]:
    """The attribute as a list of plain Python values, one per node or edge."""
    if name not in attributes:
        raise GraphError(
            f"target {graph} has no {kind} attribute {name!r}, only {sorted(attributes)}: "
            f"name the one that holds the labels with {kind}_attribute."
        )
    values = attributes[name]
    return list(values.tolist()) if isinstance(values, Tensor) else list(values)


def _bundles(dag: Dag, labels: list[Hashable]) -> dict[tuple[int, int], Hashable]:
    """Label of every distinct edge: the label itself, or the sorted tuple of the labels of parallel edges."""
    bundles: dict[tuple[int, int], list[Hashable]] = {}
    for (source, target), label in zip(dag.edges.tolist(), labels, strict=True):
        bundles.setdefault((source, target), []).append(label)
    return {edge: found[0] if len(found) == 1 else _sorted(found) for edge, found in bundles.items()}


def _sorted(labels: list[Any]) -> tuple[Hashable, ...]:
    try:
        return tuple(sorted(labels))
    except TypeError:  # labels of several types have no order of their own
        return tuple(sorted(labels, key=repr))


def decode(
    existence: Tensor,
    labels: Tensor | None,
    edges: Tensor,
    *,
    edge_labels: Tensor | None = None,
    node_vocabulary: Sequence[Hashable] | None = None,
    edge_vocabulary: Sequence[Hashable] | None = None,
    node_attribute: str = "label",
    edge_attribute: str = "label",
    threshold: float = 0.5,
) -> list[Dag]:
    """The most probable DAG of every graph, its nodes in the order of the positions.

    A position is a node, and a pair of nodes an edge, if its probability exceeds ``threshold``. Where such edges form
    cycles, they are added from the most to the least probable, and those that would close a cycle are left out;
    ties go to the lower position. An edge on no cycle is never left out.

    Args:
        existence: float ``[B, M]``, logits.
        labels: float ``[B, M, L]``, logits over the node vocabulary, or None for unlabelled nodes.
        edges: float ``[B, M, M]``, logits of i -> j; the diagonal is ignored.
        edge_labels: float ``[B, M, M, K]``, logits over the edge vocabulary, or None.
        node_vocabulary, edge_vocabulary: label of every class; None leaves the class numbers.
        node_attribute, edge_attribute: the attributes to write the labels to.
        threshold: between 0 and 1, exclusive.

    Returns:
        B Dags. Labels are a tuple with a vocabulary, int64 ``[num_nodes]`` (or ``[num_edges]``) without, and no
        attribute where the logits are None.

    Raises:
        ConfigError: ``threshold`` out of range, or a vocabulary of another size than the logits.
        GraphError: shapes that do not fit, or NaN logits.

    Cost: O(num_nodes * num_edges) time for a graph with cycles.

    >>> edges = torch.tensor([[[0.0, 2.0], [1.0, 0.0]]])  # both directions: only the more probable one is kept
    >>> decode(torch.tensor([[3.0, 3.0]]), None, edges)[0].edges.tolist()
    [[0, 1]]
    """
    if not 0 < threshold < 1:
        raise ConfigError(f"threshold is {threshold}: it must be between 0 and 1, exclusive.")
    if existence.ndim != 2 or edges.shape != (*existence.shape, existence.shape[-1]):
        raise GraphError(
            "existence must have the shape [B, M] and edges [B, M, M], "
            f"got {list(existence.shape)} and {list(edges.shape)}."
        )
    for name, logits in (("existence", existence), ("labels", labels), ("edges", edges), ("edge_labels", edge_labels)):
        if logits is not None and logits.isnan().any():
            raise GraphError(f"{name} has NaN at {logits.isnan().nonzero()[0].tolist()}: there is nothing to decode.")
    _check_vocabulary("node", labels, node_vocabulary)
    _check_vocabulary("edge", edge_labels, edge_vocabulary)

    cut = float(np.log(threshold / (1 - threshold)))
    exists = (existence > cut).cpu()
    strength = edges.detach().cpu().double().numpy()
    node_class = None if labels is None else labels.detach().argmax(-1).cpu()
    edge_class = None if edge_labels is None else edge_labels.detach().argmax(-1).cpu()
    dags = []
    for b in range(len(existence)):
        nodes = exists[b].nonzero().flatten()
        chosen = acyclic_edges(strength[b][nodes.numpy()[:, None], nodes.numpy()], cut)
        node_attributes: dict[str, Any] = {}
        edge_attributes: dict[str, Any] = {}
        if node_class is not None:
            node_attributes[node_attribute] = _named(node_class[b, nodes], node_vocabulary)
        if edge_class is not None:
            ends = nodes[chosen]
            edge_attributes[edge_attribute] = _named(edge_class[b, ends[:, 0], ends[:, 1]], edge_vocabulary)
        dags.append(Dag(chosen, len(nodes), node_attributes=node_attributes, edge_attributes=edge_attributes))
    return dags


def acyclic_edges(strength: "np.ndarray[Any, Any]", cut: float) -> "np.ndarray[Any, Any]":
    """The edges of ``strength`` ``[n, n]`` above ``cut`` without cycles: int64 ``[num_edges, 2]``, ascending."""
    count = len(strength)
    candidates = np.argwhere((strength > cut) & ~np.eye(count, dtype=bool))
    order = np.argsort(-strength[candidates[:, 0], candidates[:, 1]], kind="stable")
    # One integer per node: the set of nodes that it reaches, itself included, a bit each.
    reach = [1 << node for node in range(count)]
    kept = []
    for source, target in candidates[order].tolist():
        if reach[target] >> source & 1:
            continue
        kept.append((source, target))
        if not reach[source] >> target & 1:
            for node in range(count):
                if reach[node] >> source & 1:
                    reach[node] |= reach[target]
    return np.array(sorted(kept), dtype=np.int64).reshape(-1, 2)


def _check_vocabulary(kind: str, logits: Tensor | None, vocabulary: Sequence[Hashable] | None) -> None:
    if logits is not None and vocabulary is not None and len(vocabulary) != logits.shape[-1]:
        raise ConfigError(
            f"{kind}_vocabulary has {len(vocabulary)} labels, but the logits are over {logits.shape[-1]} classes."
        )


def _named(classes: Tensor, vocabulary: Sequence[Hashable] | None) -> Any:
    return classes if vocabulary is None else tuple(vocabulary[index] for index in classes.tolist())
