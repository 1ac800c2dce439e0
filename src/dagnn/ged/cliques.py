"""What the loss needs beside its alignment: clique counts, the clique term, and the expected cost of the edits."""

from itertools import combinations

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from dagnn.errors import ConfigError
from dagnn.ged.costs import EditCosts, checked_costs
from dagnn.ged.targets import GraphTargets


def clique_counts(skeleton: Tensor, size: int) -> Tensor:
    """Number of cliques of 3 or 4 nodes: float ``[B]``.

    Args:
        skeleton: float ``[B, M, M]``, symmetric with a zero diagonal. If the entries are probabilities of independent
            edges, the result is the expected number.
        size: 3 or 4.

    Raises:
        ConfigError: another ``size``.

    Cost: O(B M^3) for triangles, O(B M^4) for cliques of 4.

    >>> clique_counts(1.0 - torch.eye(5)[None], size=3)
    tensor([10.])
    """
    check_clique_size("size", size)
    if size == 3:
        return _closed_walks(skeleton) / 6
    # A clique of 4 is a node and a triangle among its neighbours; each of its nodes finds it once.
    found = skeleton.new_zeros(len(skeleton))
    for node in range(skeleton.shape[1]):
        found = found + _closed_walks(skeleton[:, node, :, None] * skeleton) / 6
    return found / 4


def clique_cost(edges: Tensor, adjacency: Tensor, *, size: int, normalize: bool) -> Tensor:
    """Cliques of the target that are missing and cliques that only the prediction has: float ``[B]``.

    Directions do not count. A missing target clique costs 1 minus the geometric mean of its edge
    probabilities: their plain product vanishes (6 edges at 0.5 make 1/64) and would leave no gradient. Cliques
    that the target lacks cost their expected number.

    Args:
        edges: float ``[B, M, M]``, logits of the probability that i -> j and both its ends exist.
        adjacency: bool ``[B, M, M]``, target edges in the order of the positions.
        size: 3 or 4.
        normalize: divide by max(1, number of target cliques).
    """
    # An edge in either direction is an undirected edge.
    log_skeleton = logsigmoid(either(edges, edges.transpose(1, 2)))
    skeleton = log_skeleton.exp() * off_diagonal(edges)

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


def check_clique_size(name: str, size: int) -> None:
    """Raise ConfigError unless ``size`` is 3 or 4."""
    if size not in (3, 4):
        raise ConfigError(f"{name} is {size!r}: it must be 3 or 4.")


def either(a: Tensor, b: Tensor) -> Tensor:
    """Logit of "x or y" from the logits of two independent events: with odds p and q, the odds are p + q + pq."""
    return torch.logaddexp(torch.logaddexp(a, b), a + b)


def off_diagonal(like: Tensor) -> Tensor:
    """Which pairs of positions are two: bool ``[M, M]``, where ``like`` is ``[..., M]``."""
    return ~torch.eye(like.shape[-1], dtype=torch.bool, device=like.device)


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

    Nodes exist independently with probability p_i = sigmoid(h_i), edges with p_i p_j sigmoid(e_ij). It bounds the
    expected graph edit distance from above. For logits of +-infinity, the least value over all alignments is the graph
    edit distance, if there are enough positions and no substitution is dearer than a deletion and an insertion.

    Do not train on it from the start: it has no gradient where the prediction is confident and wrong, and "no
    edges at all" is a stable optimum (measured: every output collapsed to nodes without edges).

    Args:
        existence: float ``[B, M]``, logits h.
        labels: float ``[B, M, L]``, logits over the node vocabulary, or None for unlabelled nodes.
        edges: float ``[B, M, M]``, logits e of i -> j; the diagonal is ignored.
        target: padded targets on the device of the logits.
        alignment: int64 ``[B, M]``, the target node of every position.
        edge_labels: float ``[B, M, M, K]``, logits over the edge vocabulary, or None.
        costs: numbers only; unit costs by default.

    Raises:
        ConfigError: costs that depend on labels.

    >>> from dagnn.graph import Dag
    >>> target = GraphTargets.from_dags([Dag([(0, 1)])], 2)
    >>> unsure = torch.zeros(1, 2, 2)  # each edge with probability 1/2
    >>> expected_edit_cost(torch.full((1, 2), 20.0), None, unsure, target, torch.tensor([[0, 1]]))
    tensor([1.])
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
    return node_cost.sum(1) + (edge_cost * off_diagonal(edges)).sum((1, 2))


def _wrong(logits: Tensor, wanted: Tensor) -> Tensor:
    """Probability of any other class than ``wanted``."""
    return 1 - logits.softmax(-1).gather(-1, wanted[..., None])[..., 0]
