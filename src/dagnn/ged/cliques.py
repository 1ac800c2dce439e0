"""Cliques of undirected skeletons: how many there are, and what wrong ones cost."""

from itertools import combinations

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid


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
