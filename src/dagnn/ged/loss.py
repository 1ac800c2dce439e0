"""The differentiable graph-edit-distance loss."""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from dagnn.errors import ConfigError, DtypeError, GraphError
from dagnn.ged.costs import EditCosts, checked_costs
from dagnn.ged.exact.limits import whole_number
from dagnn.ged.labelled import check_flag
from dagnn.ged.loss_parts import AlignmentCost, align, check_clique_size, clique_cost, either, off_diagonal
from dagnn.ged.targets import GraphTargets
from dagnn.graph import Dag


@dataclass(frozen=True)
class GedLossTerms:
    """The value of a `GedLoss` and its parts, graph by graph. The floats have the dtype of the logits.

    Attributes:
        loss: float ``[B]``: alpha node + beta edge + gamma clique.
        node: float ``[B]``, divided by the number of target nodes if the loss normalises.
        edge: float ``[B]``, divided by the number of target edges if the loss normalises.
        clique: float ``[B]``; zeros when gamma is 0.
        alignment: int64 ``[B, M]``: the target node of every position; give it as ``start`` when the same graphs come
            again.

    >>> loss = GedLoss()
    >>> terms = loss.terms(torch.full((1, 2), 20.0), None, torch.full((1, 2, 2), -20.0), [Dag([], 2)])
    >>> [round(part.item(), 3) for part in (terms.loss, terms.node, terms.edge)]
    [0.0, 0.0, 0.0]
    """

    loss: Tensor
    node: Tensor
    edge: Tensor
    clique: Tensor
    alignment: Tensor


class GedLoss(nn.Module):
    """Negative log-likelihood of the edits between a predicted and a target graph, under their best alignment.

        loss = alpha node + beta edge + gamma clique, at T* = argmin over permutations T of alpha node + beta edge

    With existence logit h_i, label log-probabilities log P_i and edge logit e_ij of position i, and a target node
    a with existence m_a, label y_a and edges A_ab:

        node = sum_ia T_ia [ m_a (insertion softplus(-h_i) - substitution log P_i(y_a))
                             + (1 - m_a) deletion softplus(h_i) ]
        edge = sum_ij,ab T_ia T_jb m_a m_b [ A_ab insertion softplus(-e_ij)
                                             + (1 - A_ab) deletion softplus(e_ij) ]

    Insertions (the target has it, the prediction does not) and deletions (the reverse) are both charged: either
    alone is 0 for a useless prediction. Edge labels add ``- substitution log Q_ij(label)`` where A_ab = 1.

    T* is found by quadratic assignment and no gradient flows through it: at a unique minimiser the gradient of the
    minimum is the gradient at the minimiser. Node costs alone would pick arbitrary alignments whenever labels
    repeat, and edge targets would change from step to step.

    The likelihood form trains where the expected edit cost (see `expected_edit_cost`) collapses to graphs without
    edges, because it keeps its gradient when the prediction is confident and wrong.

    Args:
        alpha, beta, gamma: weights of the three terms, at least 0.
        alignment: "searched", or "order": position i predicts target node i, for decoders with an order of their own.
        joint: False: edges are charged between target nodes only, as if both ends had been predicted (this form
            trained best). True: an edge has probability p_i p_j sigmoid(e_ij) and every pair of positions is charged.
            With alpha = beta = 1, gamma = 0 and ``normalize=False`` that loss is at least the expected edit cost
            of the sampled graph, hence at least its expected graph edit distance. The other form is not: a missing
            node of degree d costs 1 + d edits and only one -log p.
        costs: numbers only; unit costs by default. Raise ``edge_insertion`` when edges are rare.
        node_vocabulary, edge_vocabulary, node_attribute, edge_attribute: as in `GraphTargets.from_dags`, for Dags given
            as targets. Padded targets need none.
        clique_size: 3 or 4, the nodes of a clique.
        normalize: divide node terms by max(1, target nodes) and edge terms by max(1, target edges), graph by graph.
        steps: Frank-Wolfe steps of the alignment.
        hysteresis: keep the alignment given as ``start`` unless another is cheaper by more than this.
        reduction: "mean" over the graphs of the batch, "sum", or "none".

    Raises:
        ConfigError: a weight, name, flag or number out of range, or costs that depend on labels.

    >>> loss = GedLoss(node_vocabulary=["a", "b"])
    >>> target = Dag([(0, 1)], node_attributes={"label": ("a", "b")})
    >>> existence = torch.full((1, 2), 20.0)
    >>> labels = 20.0 * torch.eye(2)[None]
    >>> edges = torch.tensor([[[0.0, 20.0], [-20.0, 0.0]]])
    >>> round(loss(existence, labels, edges, [target]).item(), 6)
    0.0
    """

    def __init__(
        self,
        alpha: float = 1.0,
        beta: float = 0.5,
        gamma: float = 0.0,
        *,
        alignment: Literal["searched", "order"] = "searched",
        joint: bool = False,
        costs: EditCosts | None = None,
        node_vocabulary: Sequence[Hashable] | None = None,
        edge_vocabulary: Sequence[Hashable] | None = None,
        node_attribute: str = "label",
        edge_attribute: str = "label",
        clique_size: int = 3,
        normalize: bool = True,
        steps: int = 8,
        hysteresis: float = 0.0,
        reduction: Literal["mean", "sum", "none"] = "mean",
    ) -> None:
        super().__init__()
        for name, value in (("alpha", alpha), ("beta", beta), ("gamma", gamma), ("hysteresis", hysteresis)):
            if not 0 <= value < float("inf"):
                raise ConfigError(f"{name} is {value}: it must be finite and at least 0.")
        if alignment not in ("searched", "order"):
            raise ConfigError(f"alignment is {alignment!r}: it must be 'searched' or 'order'.")
        if reduction not in ("mean", "sum", "none"):
            raise ConfigError(f"reduction is {reduction!r}: it must be 'mean', 'sum' or 'none'.")
        check_clique_size("clique_size", clique_size)
        check_flag("joint", joint)
        check_flag("normalize", normalize)
        costs = checked_costs(costs)
        self.alpha, self.beta, self.gamma = float(alpha), float(beta), float(gamma)
        self.alignment = alignment
        self.joint = joint
        self.node_insertion = costs.constant("node_insertion")
        self.node_deletion = costs.constant("node_deletion")
        self.node_substitution = costs.constant("node_substitution")
        self.edge_insertion = costs.constant("edge_insertion")
        self.edge_deletion = costs.constant("edge_deletion")
        self.edge_substitution = costs.constant("edge_substitution")
        self.node_vocabulary = node_vocabulary
        self.edge_vocabulary = edge_vocabulary
        self.node_attribute = node_attribute
        self.edge_attribute = edge_attribute
        self.clique_size = clique_size
        self.normalize = normalize
        self.steps = whole_number("steps", steps, 1, "steps")
        self.hysteresis = float(hysteresis)
        self.reduction = reduction

    def forward(
        self,
        existence: Tensor,
        labels: Tensor | None,
        edges: Tensor,
        target: GraphTargets | Iterable[Dag],
        *,
        edge_labels: Tensor | None = None,
        start: Tensor | None = None,
    ) -> Tensor:
        """The loss: a scalar, or float ``[B]`` with ``reduction="none"``. Arguments as in `terms`."""
        loss = self.terms(existence, labels, edges, target, edge_labels=edge_labels, start=start).loss
        if self.reduction == "mean":
            return loss.mean()
        return loss.sum() if self.reduction == "sum" else loss

    def terms(
        self,
        existence: Tensor,
        labels: Tensor | None,
        edges: Tensor,
        target: GraphTargets | Iterable[Dag],
        *,
        edge_labels: Tensor | None = None,
        start: Tensor | None = None,
    ) -> GedLossTerms:
        """The loss of every graph, its parts and the alignment.

        Args:
            existence: float ``[B, M]``, logits.
            labels: float ``[B, M, L]``, logits over the node vocabulary, or None for unlabelled nodes.
            edges: float ``[B, M, M]``, logits of i -> j; the diagonal is ignored.
            target: a list of B Dags, a DagBatch, or `GraphTargets` (moved to the device of the logits).
            edge_labels: float ``[B, M, M, K]``, logits over the edge vocabulary, or None.
            start: int64 ``[B, M]``, an earlier alignment of these graphs.

        Raises:
            GraphError: shapes that do not fit, a logit that is NaN or infinite, or a target that cannot be read.
            DtypeError: logits that are not floating point.
        """
        target = self._read(target, existence)
        _check_logits(existence, labels, edges, edge_labels, target)
        label_cost = None if labels is None else -labels.log_softmax(-1)
        edge_label_cost = None if edge_labels is None else -edge_labels.log_softmax(-1)
        if self.joint:
            edges = joint_edge_logits(existence, edges)
        predicted = _Predicted(existence, label_cost, edges, edge_label_cost)

        with torch.no_grad():
            found = self._align(predicted, target, start)
        moved = target.permuted(found)
        node, edge = self._node_cost(predicted, moved), self._edge_cost(predicted, moved)
        node_scale, edge_scale = self._scales(target)
        node, edge = node / node_scale, edge / edge_scale
        loss = self.alpha * node + self.beta * edge
        clique = torch.zeros_like(node)
        if self.gamma:
            probable = edges if self.joint else joint_edge_logits(existence, edges)
            clique = clique_cost(probable, moved.adjacency, size=self.clique_size, normalize=self.normalize)
            loss = loss + self.gamma * clique
        return GedLossTerms(loss, node, edge, clique, found)

    def _read(self, target: GraphTargets | Iterable[Dag], existence: Tensor) -> GraphTargets:
        if not isinstance(target, GraphTargets):
            if existence.ndim != 2:
                raise GraphError(f"existence must have the shape [B, M], got {list(existence.shape)}.")
            target = GraphTargets.from_dags(
                target,
                existence.shape[1],
                node_vocabulary=self.node_vocabulary,
                edge_vocabulary=self.edge_vocabulary,
                node_attribute=self.node_attribute,
                edge_attribute=self.edge_attribute,
            )
        target.check()
        return target.to(existence.device)

    def _scales(self, target: GraphTargets) -> tuple[Tensor, Tensor]:
        """Divisors of node and edge terms: int64 ``[B]`` each."""
        if not self.normalize:
            return torch.ones_like(target.num_nodes), torch.ones_like(target.num_edges)
        return target.num_nodes.clamp(min=1), target.num_edges.clamp(min=1)

    def _node_cost(self, predicted: "_Predicted", target: GraphTargets) -> Tensor:
        """Node term under the identity alignment: float ``[B]``."""
        existence, label_cost = predicted.existence, predicted.label_cost
        present = -self.node_insertion * logsigmoid(existence)
        if label_cost is not None:
            present = present + self.node_substitution * _picked(label_cost, target.labels)
        return torch.where(target.exists, present, -self.node_deletion * logsigmoid(-existence)).sum(1)

    def _edge_cost(self, predicted: "_Predicted", target: GraphTargets) -> Tensor:
        """Edge term under the identity alignment: float ``[B]``."""
        edges, edge_label_cost = predicted.edges, predicted.edge_label_cost
        present = -self.edge_insertion * logsigmoid(edges)
        if edge_label_cost is not None:
            present = present + self.edge_substitution * _picked(edge_label_cost, target.edge_labels)
        cost = torch.where(target.adjacency, present, -self.edge_deletion * logsigmoid(-edges))
        return (cost * self._charged(target)).sum((1, 2))

    def _charged(self, target: GraphTargets) -> Tensor:
        """Pairs of positions whose edge is charged: bool ``[B, M, M]``."""
        if self.joint:
            pairs = torch.ones_like(target.adjacency)
        else:
            pairs = target.exists[:, :, None] & target.exists[:, None, :]
        return pairs & off_diagonal(target.adjacency)

    def _align(self, predicted: "_Predicted", target: GraphTargets, start: Tensor | None) -> Tensor:
        batch, size = predicted.existence.shape
        device = predicted.existence.device
        if self.alignment == "order":
            return torch.arange(size, device=device).expand(batch, size)
        if start is not None and not _are_permutations(start, batch, size):
            raise GraphError(
                f"start is {start.dtype} {list(start.shape)}: it must be int64 [{batch}, {size}] with a permutation in "
                "every row, such as the alignment that terms() returned."
            )
        cost = self._alignment_cost(predicted, target)
        return align(cost, steps=self.steps, start=start, hysteresis=self.hysteresis).to(device)

    def _alignment_cost(self, predicted: "_Predicted", target: GraphTargets) -> AlignmentCost:
        """alpha node + beta edge as a function of the alignment, without what is the same for all alignments."""
        existence, label_cost, edges, edge_label_cost = predicted
        batch, size = existence.shape
        node_scale, edge_scale = self._scales(target)
        exists = target.exists.to(existence.dtype)
        node = (-self.node_insertion * logsigmoid(existence))[:, :, None] * exists[:, None, :]
        node = node + (-self.node_deletion * logsigmoid(-existence))[:, :, None] * (1 - exists)[:, None, :]
        if label_cost is not None and target.labels is not None:
            wanted = target.labels[:, None, :].expand(batch, size, size)
            node = node + self.node_substitution * label_cost.gather(2, wanted) * exists[:, None, :]

        charged = off_diagonal(target.adjacency)
        absent = -self.edge_deletion * logsigmoid(-edges) * charged
        present = -self.edge_insertion * logsigmoid(edges) * charged
        edge, wanted_edges = [present - absent], [target.adjacency]
        if edge_label_cost is not None and target.edge_labels is not None:
            for label in range(edge_label_cost.shape[-1]):
                edge.append(self.edge_substitution * edge_label_cost[..., label] * charged)
                wanted_edges.append(target.adjacency & (target.edge_labels == label))
        # Jointly, an absent edge is charged at every pair of positions, whatever the alignment: a constant.
        pair = torch.zeros_like(absent) if self.joint else absent
        weight = (self.beta / edge_scale)[:, None, None]
        return AlignmentCost(
            node=node * (self.alpha / node_scale)[:, None, None],
            pair=pair * weight,
            weight=exists,
            predicted=torch.stack(edge, 1) * weight[:, None],
            target=torch.stack(wanted_edges, 1).to(existence.dtype),
        )


class _Predicted(NamedTuple):
    """Logits, and the cost of every label: minus its log-probability."""

    existence: Tensor
    label_cost: Tensor | None
    edges: Tensor
    edge_label_cost: Tensor | None


def joint_edge_logits(existence: Tensor, edges: Tensor) -> Tensor:
    """Logit of the probability that nodes i and j and the edge i -> j all exist: float ``[B, M, M]``.

    One of them is absent if either of two is, or the third. In logs this is stable at any logit, where
    ``log(1 - p_i p_j q_ij)`` is not.
    """
    absent = either(-existence[:, :, None], -existence[:, None, :])
    return -either(absent, -edges)


def _picked(cost: Tensor, index: Tensor | None) -> Tensor:
    """``cost[..., index[...]]``."""
    assert index is not None, "_check_logits lets label logits through only with target labels"
    return cost.gather(-1, index[..., None])[..., 0]


def _are_permutations(start: Tensor, batch: int, size: int) -> bool:
    if start.dtype != torch.int64 or tuple(start.shape) != (batch, size):
        return False
    return bool((start.sort(1).values == torch.arange(size, device=start.device)).all())


def _check_logits(
    existence: Tensor, labels: Tensor | None, edges: Tensor, edge_labels: Tensor | None, target: GraphTargets
) -> None:
    batch, size = target.exists.shape
    wanted: list[tuple[str, Tensor | None, list[int | str], Tensor | None]] = [
        ("existence", existence, [batch, size], None),
        ("labels", labels, [batch, size, "L"], target.labels),
        ("edges", edges, [batch, size, size], None),
        ("edge_labels", edge_labels, [batch, size, size, "K"], target.edge_labels),
    ]
    for name, logits, shape, classes in wanted:
        if logits is None:
            continue
        if not logits.is_floating_point():
            raise DtypeError(f"{name} must be floating-point logits, got {logits.dtype}.")
        given = list(logits.shape)
        if len(given) != len(shape) or any(want not in (got, "L", "K") for got, want in zip(given, shape, strict=True)):
            raise GraphError(
                f"{name} must have the shape [{', '.join(map(str, shape))}] to match {batch} targets of {size} "
                f"positions, got {given}."
            )
        if not logits.isfinite().all():
            where = (~logits.isfinite()).nonzero()[0].tolist()
            raise GraphError(
                f"{name}{where} is {logits[tuple(where)].item()}: logits must be finite. "
                "Check the model for overflow; to forbid something, use a large negative number such as -30."
            )
        if name.endswith("labels"):
            if classes is None:
                kind = "edge_vocabulary" if name == "edge_labels" else "node_vocabulary"
                raise GraphError(f"{name} are predicted, but the targets have none: give {kind}, or pass {name}=None.")
            used = target.adjacency if name == "edge_labels" else target.exists
            high, low = int((classes * used).max()) if used.any() else 0, int(classes.min()) if classes.numel() else 0
            if low < 0 or high >= given[-1]:
                bad = low if low < 0 else high
                raise GraphError(f"a target has the {name[:-1]} {bad}, but the logits are over 0 .. {given[-1] - 1}.")
