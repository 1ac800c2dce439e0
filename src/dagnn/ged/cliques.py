"""Numbers to read beside the loss: cliques of undirected skeletons, and the expected number of edits."""

from itertools import combinations

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from dagnn.ged.costs import EditCosts, checked_costs
from dagnn.ged.targets import GraphTargets


def clique_counts(skeleton: Tensor, size: int) -> Tensor:
    """Number of cliques of 3 or 4 nodes: float ``[B]``.

    Args:
        skeleton: float ``[B, M, M]``, symmetric with a zero diagonal. With entries between 0 and 1 that are
            probabilities of independent edges, the result is the expected number.
        size: 3 or 4.

    Cost: O(B M^3) for triangles, O(B M^4) for cliques of 4.

    >>> clique_counts(1.0 - torch.eye(5)[None], size=3)
    tensor([10.])
    """
    if size == 3:
        return _closed_walks(skeleton) / 6
    # A clique of 4 is a node and a triangle among its neighbours; each clique is found once from each of its nodes.
    found = skeleton.new_zeros(len(skeleton))
    for node in range(skeleton.shape[1]):
        found = found + _closed_walks(skeleton[:, node, :, None] * skeleton) / 6
    return found / 4


def clique_cost(edges: Tensor, adjacency: Tensor, *, size: int, normalize: bool) -> Tensor:
    """Cliques of the target that are missing and cliques that only the prediction has: float ``[B]``.

    Both graphs are read without directions. A missing target clique costs 1 minus the geometric mean of its edge
    probabilities: their plain product vanishes (6 edges at 0.5 make 1/64) and would leave no gradient. Cliques
    that the target lacks cost their expected number.

    Args:
        edges: float ``[B, M, M]``, logits of the probability that i -> j and both its ends exist.
        adjacency: bool ``[B, M, M]``, target edges in the order of the slots.
        size: 3 or 4.
        normalize: divide by max(1, number of target cliques).
    """
    off_diagonal = ~torch.eye(edges.shape[-1], dtype=torch.bool, device=edges.device)
    back = edges.transpose(1, 2)
    # Either direction makes an undirected edge: the odds for "x or y" are a + b + ab with the odds a and b for each.
    log_skeleton = logsigmoid(torch.logaddexp(torch.logaddexp(edges, back), edges + back))
    skeleton = log_skeleton.exp() * off_diagonal

    graph, members = _cliques(adjacency | adjacency.transpose(1, 2), size)
    pairs = list(combinations(range(size), 2))
    first, second = members[:, [i for i, _ in pairs]], members[:, [j for _, j in pairs]]
    log_pairs = log_skeleton[graph[:, None], first, second]
    missing = 1 - log_pairs.mean(1).exp()
    right = log_pairs.sum(1).exp()

    none = edges.new_zeros(len(edges))
    spurious = (clique_counts(skeleton, size) - none.index_add(0, graph, right)).clamp(min=0)
    cost = none.index_add(0, graph, missing) + spurious
    return cost / torch.bincount(graph, minlength=len(edges)).clamp(min=1) if normalize else cost


def _closed_walks(weights: Tensor) -> Tensor:
    """Weight of all closed walks of 3 steps: float ``[B]``."""
    return ((weights @ weights) * weights.transpose(1, 2)).sum((1, 2))


def _cliques(skeleton: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Every clique once: its graph, int64 ``[num_cliques]``, and its ascending nodes, ``[num_cliques, size]``."""
    later = skeleton.triu(1)
    graph, *edge = later.nonzero().unbind(1)
    members = torch.stack(edge, 1)
    while members.shape[1] < size:
        common = later[graph[:, None], members].all(1)
        clique, node = common.nonzero().unbind(1)
        graph, members = graph[clique], torch.cat([members[clique], node[:, None]], 1)
    return graph, members


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
