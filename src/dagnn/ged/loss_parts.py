"""What the loss is made of: alignments, counts of cliques, the clique term, and the expected cost of the edits.

**An alignment** says which position of a decoder predicts which target node: a quadratic assignment, solved
approximately.
Legend: B graphs, M positions (and as many target nodes, spare ones included), K edge terms, i and j positions, a and b
target nodes, T the alignment as a matrix (``T[i, a] = 1``: position i predicts target node a).
"""

from dataclasses import dataclass
from itertools import combinations

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor
from torch._C._functorch import get_unwrapped, is_gradtrackingtensor
from torch.nn.functional import logsigmoid

from dagnn.errors import ConfigError, GraphError
from dagnn.ged.costs import EditCosts, checked_costs
from dagnn.ged.targets import GraphTargets
from dagnn.graph.cached import ordinary_tensors


@dataclass(frozen=True)
class AlignmentCost:
    """The cost of an alignment: linear in it for nodes, quadratic for edges.

        cost(T) = sum_ia T_ia node_ia
                + sum_ij,ab T_ia T_jb (pair_ij weight_a weight_b + sum_k predicted_kij target_kab)

    Attributes:
        node: float ``[B, M, M]``: cost of aligning position i with target node a.
        pair: float ``[B, M, M]``, zero on the diagonal, weighted by ``weight``: float ``[B, M]``. This is the part
            of the edge cost that does not depend on edges between a and b. On its own it needs products of a matrix
            and a vector only. It counts ``a = b`` too, which no permutation reaches; relaxed with or without these
            terms, 8 steps ended between 1.5 % lower and 1 % higher (9 settings, M = 4, 8, 20).
        predicted: float ``[B, K, M, M]``, zero on the diagonals; K is 1, or 1 + the number of edge labels.
        target: float ``[B, K, M, M]``. Not symmetric for directed graphs, and need not be.
    """

    node: Tensor
    pair: Tensor
    weight: Tensor
    predicted: Tensor
    target: Tensor

    def of(self, alignment: Tensor) -> Tensor:
        """Cost of a permutation: float ``[B]``. ``alignment``, int64 ``[B, M]``: the target node of every position."""
        rows = alignment[:, :, None].expand_as(self.node)
        columns = rows.transpose(1, 2)
        target = self.target.gather(2, rows[:, None].expand_as(self.target))
        target = target.gather(3, columns[:, None].expand_as(target))
        weight = self.weight.gather(1, alignment)
        node = self.node.gather(2, alignment[:, :, None]).sum((1, 2))
        pair = (self.pair * weight[:, :, None] * weight[:, None, :]).sum((1, 2))
        return node + pair + (self.predicted * target).sum((1, 2, 3))

    def take(self, graphs: Tensor) -> "AlignmentCost":
        """The rows ``graphs`` (int64 ``[b]``) of the batch."""
        return AlignmentCost(
            self.node[graphs], self.pair[graphs], self.weight[graphs], self.predicted[graphs], self.target[graphs]
        )

    def edge_gradient(self, plan: Tensor) -> Tensor:
        """Derivative of the quadratic part at ``plan``: float ``[B, M, M]``; linear in ``plan``.

        For one term it is ``predicted T target' + predicted' T target``. The two products differ for matrices that
        are not symmetric; half of it is a wrong direction for digraphs (the bug of POT's pull request 399).
        """
        mass = plan @ self.weight[:, :, None]
        pair = _both_ways(self.pair) @ mass @ self.weight[:, None, :]
        moved = plan[:, None]
        forward = self.predicted @ (moved @ self.target.transpose(2, 3))
        backward = self.predicted.transpose(2, 3) @ (moved @ self.target)
        return pair + (forward + backward).sum(1)


def align(cost: AlignmentCost, *, steps: int = 8, start: Tensor | None = None, hysteresis: float = 0.0) -> Tensor:
    """An alignment of low cost: int64 ``[B, M]`` on the CPU, a permutation in every row.

    Frank-Wolfe on the relaxed problem from the barycentre (every ``T_ia = 1 / M``): each step solves the linear
    assignment of the gradient and goes the exact best distance towards it. The end point is projected to a
    permutation, and pairs of positions are swapped as long as that helps. No gradient flows through any of it.

    Args:
        cost: finite costs; any device and floating dtype (the work is done on the CPU in float64).
        steps: most Frank-Wolfe steps, at least 1, and most swaps. A graph stops earlier when nothing is better.
        start: int64 ``[B, M]``, an earlier alignment as a second starting point; the cheaper end is kept.
        hysteresis: with ``start``, keep ``start`` itself unless the new alignment is cheaper by more than this.
            It stops the alignment from flickering between nearly equal ones while a model trains.

    Raises:
        GraphError: a cost is NaN or infinite; the linear assignment would hang or crash.

    Cost: O(steps * B * K * M^3) time.
    Source: Frank and Wolfe 1956; Vogelstein et al., "Fast approximate quadratic programming for graph matching",
    PLoS ONE 2015.
    """
    parts = [_numbers_of(part) for part in vars(cost).values()]
    with ordinary_tensors():  # otherwise the transforms of torch.func would own what is computed here, too
        return _searched(AlignmentCost(*(part.to("cpu", torch.float64) for part in parts)), start, hysteresis, steps)


def _searched(work: AlignmentCost, start: Tensor | None, hysteresis: float, steps: int) -> Tensor:
    for name, part in vars(work).items():
        if not part.isfinite().all():
            graph = (~part.isfinite()).nonzero()[0, 0].item()
            raise GraphError(f"the alignment cost {name!r} of graph {graph} is not finite: its logits must be finite.")
    if work.node.numel() == 0:
        return torch.zeros(work.node.shape[:2], dtype=torch.int64)

    size = work.node.shape[1]
    best = _descend(work, torch.full_like(work.node, 1 / size), steps)
    if start is None:
        return best
    start = start.to("cpu")
    from_start = _descend(work, torch.nn.functional.one_hot(start, size).to(work.node.dtype), steps)
    best = torch.where((work.of(from_start) < work.of(best))[:, None], from_start, best)
    return torch.where((work.of(best) < work.of(start) - hysteresis)[:, None], best, start)


def _numbers_of(part: Tensor) -> Tensor:
    """The numbers alone, also within a derivative of ``torch.func``: no gradient goes through an alignment."""
    while is_gradtrackingtensor(part):
        part = get_unwrapped(part)
    return part.detach()


def _descend(cost: AlignmentCost, plan: Tensor, steps: int) -> Tensor:
    """Frank-Wolfe from ``plan``, projected: int64 ``[B, M]``."""
    plan = plan.clone()
    moving, active, current = torch.arange(len(plan)), cost, plan
    edge = active.edge_gradient(current)
    for _ in range(steps):
        gradient = active.node + edge
        corner = _one_hot(_assign(gradient), gradient)
        direction = corner - current
        corner_edge = active.edge_gradient(corner)
        # Along the line: cost(t) = cost(0) + slope t + curvature t^2.
        slope = (gradient * direction).sum((1, 2))
        curvature = 0.5 * ((corner_edge - edge) * direction).sum((1, 2))
        step = torch.where(curvature > 0, (-slope / (2 * curvature)).clamp(0, 1), torch.ones_like(slope))
        scale = active.node.abs().amax((1, 2)) + edge.abs().amax((1, 2))
        better = slope < -1e-9 * (1 + scale)
        moving, step = moving[better], step[better, None, None]
        current = current[better] + step * direction[better]
        edge = edge[better] + step * (corner_edge[better] - edge[better])
        plan[moving] = current
        if not len(moving):
            break
        active = active if better.all() else active.take(better.nonzero().flatten())
    return _swap(_project(plan, cost), cost, steps)


def _swap(alignment: Tensor, cost: AlignmentCost, swaps: int) -> Tensor:
    """Swap the two positions that gain most, ``swaps`` times or until no swap gains: int64 ``[B, M]``.

    With ``a = alignment[i]`` and ``b = alignment[j]``, the swap is the direction ``(e_i - e_j)(e_b - e_a)'``, and the
    exact change of the cost is the slope along it plus the quadratic part of it.
    """
    alignment = alignment.clone()
    moving, active = torch.arange(len(alignment)), cost
    for _ in range(swaps):
        current = alignment[moving]
        gradient = active.node + active.edge_gradient(_one_hot(current, active.node))
        columns = current[:, None, :].expand_as(gradient)
        slope = gradient.gather(2, columns)  # [i, j]: position i takes the target of position j
        own = slope.diagonal(dim1=1, dim2=2)
        slope = slope + slope.transpose(1, 2) - own[:, :, None] - own[:, None, :]
        weight = active.weight.gather(1, current)
        bend = -_both_ways(active.pair) * (weight[:, :, None] - weight[:, None, :]) ** 2
        rows = current[:, None, :, None].expand_as(active.target)
        target = active.target.gather(2, rows).gather(3, rows.transpose(2, 3))
        loops = target.diagonal(dim1=2, dim2=3)
        bend = bend + (
            _both_ways(active.predicted) * (_both_ways(target) - loops[:, :, :, None] - loops[:, :, None, :])
        ).sum(1)
        gain, pair = (-slope - bend).flatten(1).max(1)
        better = gain > 1e-9 * (1 + active.node.abs().amax((1, 2)))
        moving, pair = moving[better], pair[better]
        if not len(moving):
            break
        i, j = pair // alignment.shape[1], pair % alignment.shape[1]
        alignment[moving, i], alignment[moving, j] = alignment[moving, j], alignment[moving, i]
        active = active if better.all() else active.take(better.nonzero().flatten())
    return alignment


def _both_ways(matrices: Tensor) -> Tensor:
    return matrices + matrices.transpose(-1, -2)


def _project(plan: Tensor, cost: AlignmentCost) -> Tensor:
    """The permutation closest to ``plan``: int64 ``[B, M]``.

    Target nodes of weight 0 are spare and all alike, so the mass of a position on them counts as one. Otherwise
    60 % spread over three spare nodes would lose to 40 % on one real node.
    """
    spare = (cost.weight == 0)[:, None, :]
    mass = (plan * spare).sum(2, keepdim=True)
    return _assign(-torch.where(spare, mass, plan))


def _assign(cost: Tensor) -> Tensor:
    """Cheapest linear assignment of every matrix: int64 ``[B, M]``, the column of every row."""
    columns = np.empty(cost.shape[:2], dtype=np.int64)
    for graph, matrix in enumerate(cost.numpy()):
        columns[graph] = linear_sum_assignment(matrix)[1]
    return torch.from_numpy(columns)


def _one_hot(alignment: Tensor, like: Tensor) -> Tensor:
    return torch.zeros_like(like).scatter_(2, alignment[:, :, None], 1.0)


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
