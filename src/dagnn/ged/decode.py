"""From logits to valid DAGs."""

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from dagnn.errors import ConfigError, GraphError
from dagnn.graph import Dag


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
    """The most probable DAG of every graph, its nodes in the order of the slots.

    A slot is a node, and a pair of nodes an edge, if its probability exceeds ``threshold``. Where such edges form
    cycles, they are added from the most to the least probable, and those that would close a cycle are left out;
    ties go to the lower slot numbers. An edge on no cycle is never left out.

    Args:
        existence, labels, edges, edge_labels: logits as in `GedLoss.terms`.
        node_vocabulary, edge_vocabulary: label of every class; None leaves the class numbers.
        node_attribute, edge_attribute: names of the attributes that get the labels.
        threshold: between 0 and 1, exclusive.

    Returns:
        B Dags. Labels are a tuple with a vocabulary, int64 ``[num_nodes]`` (or ``[num_edges]``) without, and no
        attribute where the logits are None.

    Raises:
        ConfigError: ``threshold`` out of range, or a vocabulary of another size than the logits.
        GraphError: shapes that do not fit, or NaN logits.

    Cost: O(num_nodes * num_edges) time for a graph with cycles.
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
        slots = exists[b].nonzero().flatten()
        chosen = acyclic_edges(strength[b][slots.numpy()[:, None], slots.numpy()], cut)
        node_attributes: dict[str, Any] = {}
        edge_attributes: dict[str, Any] = {}
        if node_class is not None:
            node_attributes[node_attribute] = _named(node_class[b, slots], node_vocabulary)
        if edge_class is not None:
            ends = slots[chosen]
            edge_attributes[edge_attribute] = _named(edge_class[b, ends[:, 0], ends[:, 1]], edge_vocabulary)
        dags.append(Dag(chosen, len(slots), node_attributes=node_attributes, edge_attributes=edge_attributes))
    return dags


def acyclic_edges(strength: "np.ndarray[Any, Any]", cut: float) -> "np.ndarray[Any, Any]":
    """Edges stronger than ``cut`` without cycles: int64 ``[num_edges, 2]`` in ascending order.

    Args:
        strength: float64 ``[n, n]``, strength of i -> j; the diagonal is ignored.
        cut: an edge must be stronger than this.
    """
    count = len(strength)
    candidates = np.argwhere((strength > cut) & ~np.eye(count, dtype=bool))
    order = np.argsort(-strength[candidates[:, 0], candidates[:, 1]], kind="stable")
    # One integer a node as a set of bits: the nodes that it reaches, itself included.
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
