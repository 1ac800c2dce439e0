"""The expected number of edits: what a sampled prediction costs, as a number to read rather than to train on."""

import torch
from torch import Tensor

from dagnn.ged.costs import EditCosts, checked_costs
from dagnn.ged.targets import GraphTargets


def expected_edit_cost(
    existence: Tensor,
    labels: Tensor | None,
    edges: Tensor,
    target: GraphTargets,
    alignment: Tensor,
    *,
    edge_labels: Tensor | None = None,
    costs: EditCosts | None = None,
) -> Tensor:
    """Expected cost of the edits that ``alignment`` prescribes, for a graph sampled from the logits: float ``[B]``.

    Nodes exist independently with probability sigmoid(h_i), edges with p_i p_j sigmoid(e_ij). It bounds the
    expected graph edit distance from above; for logits of +-infinity the least value over all alignments of
    enough slots is the graph edit distance, if no substitution is dearer than a deletion and an insertion.

    Do not train on it from the start: it has no gradient where the prediction is confident and wrong, and "no
    edges at all" is a stable optimum (measured: every output collapsed to nodes without edges).

    Args:
        existence, labels, edges, edge_labels: logits as in `GedLoss.terms`.
        target: padded targets on the device of the logits.
        alignment: int64 ``[B, M]``, the target node of every slot.
        costs: constants only.
    """
    costs = checked_costs(costs)
    moved = target.permuted(alignment)
    node, edge = existence.sigmoid(), edges.sigmoid()
    pair = node[:, :, None] * node[:, None, :] * edge

    wrong = 0.0 if labels is None or moved.labels is None else _wrong(labels, moved.labels)
    substitution = costs.constant("node_substitution") * wrong
    present = (1 - node) * costs.constant("node_insertion") + node * substitution
    node_cost = torch.where(moved.exists, present, node * costs.constant("node_deletion"))

    wrong = 0.0 if edge_labels is None or moved.edge_labels is None else _wrong(edge_labels, moved.edge_labels)
    substitution = costs.constant("edge_substitution") * wrong
    present = (1 - pair) * costs.constant("edge_insertion") + pair * substitution
    edge_cost = torch.where(moved.adjacency, present, pair * costs.constant("edge_deletion"))
    off_diagonal = ~torch.eye(edges.shape[-1], dtype=torch.bool, device=edges.device)
    return node_cost.sum(1) + (edge_cost * off_diagonal).sum((1, 2))


def _wrong(logits: Tensor, wanted: Tensor) -> Tensor:
    """Probability of any other class than ``wanted``."""
    return 1 - logits.softmax(-1).gather(-1, wanted[..., None])[..., 0]
