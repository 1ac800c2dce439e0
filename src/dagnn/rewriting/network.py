"""GraphRewriter, a network that learns the steps of a rewriting system, and its loss: what a replacement costs."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dagnn.errors import ConfigError
from dagnn.ged import GedLoss
from dagnn.nn.heads import GraphLogits
from dagnn.nn.learnable import LearnableModule, before_call
from dagnn.rewriting.features import (
    GraphEncoder,
    NeighbourhoodFeatures,
    NeighbourhoodGraphs,
    parent_slots,
    replacement_graphs,
)
from dagnn.rewriting.machine import LabelTokens, RewritingMachine, Rewritten
from dagnn.rewriting.system import NeighbourhoodTokens, ReplacementTokens, Signature

# Share of the identity in the slot activation. Plain GELU left 61 of 64 units of a slot without gradient for a rare
# neighbourhood, and that one wrong neighbourhood cost 11 % of a level.
_LEAK = 0.05
_GRAPH_TABLE = "net.embedding.weight"


Backbone = Literal["features", "graph"]


class Proposal(NamedTuple):
    """What a network would put in the place of a neighbourhood.

    Attributes:
        replacement: as tokens; the empty tuple leaves the neighbourhood as it is.
        confidence: the probability that the network gives to it, the product over its nodes, 0 .. 1; 0 where its logits
            are NaN.
    """

    replacement: ReplacementTokens
    confidence: float


class GraphRewriter(LearnableModule):
    """Predicts the replacement of a neighbourhood, all of its nodes at once.

    A neighbourhood's features (see `NeighbourhoodFeatures`) are embedded and summed, or its graph is read by a
    `GraphTransformNet` (see `NeighbourhoodGraphs`). What comes out passes residual blocks and becomes one vector per
    slot of the replacement; a slot holds a label, a copy of the neighbourhood node at some address, or, first, "leave
    it". Slots are in preorder and the labels' arities give the edges.

    Args:
        features: the feature rows and classes, built from the neighbourhoods of the training set.
        width: size of the hidden layer.
        blocks: residual blocks.
        slot_width: size of a slot's vector.
        num_slots: the longest replacement, in nodes.
        graphs: how neighbourhoods are read as graphs; None reads them as sets of features.
        graph_dim: width of the node features where there are graphs.
        whole_graphs: predicts existence and edges of nodes too, for `predict_graphs`; what it rewrites depends on the
            labels alone.

    Raises:
        ConfigError: a size is below 1.

    Shapes: forward takes int64 ``[batch, n]`` from `encode` and returns logits ``[batch, num_slots, num_classes]`` of
    the parameters' dtype.

    >>> from dagnn.rewriting import Label
    >>> signature = Signature((Label("zero", 0), Label("next", 1), Label("plus", 2, neighbourhood_depth=1)))
    >>> net = GraphRewriter.from_neighbourhoods(signature, [(2, 1, 3, 0)], width=8, blocks=1, num_slots=4)
    >>> net(net.encode([(2, 1, 3, 0)])).shape == (1, 4, net.features.num_classes)
    True
    """

    def __init__(
        self,
        features: NeighbourhoodFeatures,
        *,
        width: int = 512,
        blocks: int = 2,
        slot_width: int = 64,
        num_slots: int = 32,
        graphs: NeighbourhoodGraphs | None = None,
        graph_dim: int = 128,
        whole_graphs: bool = False,
    ) -> None:
        super().__init__()
        sizes = (("width", width), ("slot_width", slot_width), ("num_slots", num_slots), ("graph_dim", graph_dim))
        for name, value in sizes:
            if value < 1:
                raise ConfigError(f"{name} must be at least 1, got {value}.")
        self.features = features
        self.width, self.slot_width, self.num_slots = width, slot_width, num_slots
        self.graphs, self.graph_dim = graphs, graph_dim
        self.embedding: nn.Module
        if graphs is None:
            self.embedding = nn.EmbeddingBag(features.num_rows, width, mode="sum", padding_idx=0)
            # A sum of about ten rows starts with variance near one.
            nn.init.normal_(self.embedding.weight, std=0.3)
            with torch.no_grad():
                self.embedding.weight[0] = 0
        else:
            self.embedding = GraphEncoder(graphs.num_symbols, graph_dim, width)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU(), nn.Linear(width, width))
            for _ in range(blocks)
        )
        self.norm = nn.LayerNorm(width)
        self.slots = nn.Linear(width, num_slots * slot_width)
        self.output = nn.Linear(slot_width, features.num_classes)
        self.whole_graphs = whole_graphs
        if whole_graphs:
            self.existence = nn.Linear(slot_width, 1)
            self.edge_ends = nn.Linear(slot_width, 2 * slot_width)

    @classmethod
    def from_neighbourhoods(
        cls,
        signature: Signature,
        neighbourhoods: Iterable[NeighbourhoodTokens],
        *,
        width: int = 512,
        blocks: int = 2,
        slot_width: int = 64,
        num_slots: int = 32,
        backbone: Backbone = "features",
        graph_dim: int = 128,
        whole_graphs: bool = False,
    ) -> "GraphRewriter":
        """A rewriter that knows every feature of `neighbourhoods`, or with ``backbone="graph"`` every symbol."""
        if backbone not in get_args(Backbone):
            raise ConfigError(f"backbone must be one of {', '.join(get_args(Backbone))}, got {backbone!r}.")
        known = list(neighbourhoods)
        return cls(
            NeighbourhoodFeatures.from_neighbourhoods(signature, known),
            width=width,
            blocks=blocks,
            slot_width=slot_width,
            num_slots=num_slots,
            graphs=NeighbourhoodGraphs.from_neighbourhoods(signature, known) if backbone == "graph" else None,
            graph_dim=graph_dim,
            whole_graphs=whole_graphs,
        )

    def encode(self, neighbourhoods: Sequence[NeighbourhoodTokens]) -> Tensor:
        """The neighbourhoods as this network reads them: int64 ``[len(neighbourhoods), n]``, padded with 0."""
        return self.features.encode(neighbourhoods) if self.graphs is None else self.graphs.encode(neighbourhoods)

    @torch.no_grad()
    def warm_start(self, other: "GraphRewriter") -> int:
        """Takes the weights of a rewriter that was trained on fewer neighbourhoods; returns how many feature rows it
        had.

        Feature rows, or symbols of graphs, are taken by what they mean. Rows that `other` lacks begin at 0, slots that
        it lacks at their own first values: what `other` knew comes out as before.

        Raises:
            ConfigError: the labels, the backbone, or the width, blocks or slot width, differ.
        """
        mine, theirs = ((net.width, len(net.blocks), net.slot_width) for net in (self, other))
        backbones = [None if net.graphs is None else net.graph_dim for net in (self, other)]
        if backbones[0] != backbones[1]:
            here, there = ("features" if dim is None else f"graph with graph_dim {dim}" for dim in backbones)
            raise ConfigError(
                f"a warm start takes a network of the same backbone: it is {there} there and {here} here."
            )
        if self.signature.labels != other.signature.labels or mine != theirs:
            raise ConfigError(
                f"a warm start takes a network of the same labels and sizes: width, blocks and slot_width are {theirs} "
                f"there and {mine} here."
            )
        known, others = (net.features.known if net.graphs is None else net.graphs.known for net in (self, other))
        row_of = {feature: row for row, feature in enumerate(others, 1)}
        # Row 0 is the padding, zeros, or the symbol of all that is unknown.
        rows = [row_of.get(feature, 0) for feature in known]
        table, other_table = self._table(), other._table()
        if self.graphs is not None:
            kept = {name: value for name, value in other.embedding.state_dict().items() if name != _GRAPH_TABLE}
            self.embedding.load_state_dict(kept, strict=False)
        table[1:], table[0] = other_table[rows], other_table[0]
        units = min(self.num_slots, other.num_slots) * self.slot_width
        self.slots.weight[:units], self.slots.bias[:units] = other.slots.weight[:units], other.slots.bias[:units]
        for name in ("blocks", "norm", "output"):
            getattr(self, name).load_state_dict(getattr(other, name).state_dict())
        return sum(row > 0 for row in rows)

    @property
    def arity(self) -> Tensor:
        """int64 ``[num_labels]``, on the device of the parameters."""
        # No buffer: on the device "meta", and after `to_empty`, it would have no values.
        return torch.tensor([label.arity for label in self.signature.labels], device=self.output.weight.device)

    @property
    def signature(self) -> Signature:
        return self.features.signature

    def forward(self, rows: Tensor, num_slots: int | None = None) -> Tensor:
        """Logits of the first `num_slots` slots (default: all): ``[batch, num_slots, num_classes]``.

        Slots do not see each other, so asking for fewer changes nothing in those that are returned.
        """
        logits: Tensor = self.output(self._slot_vectors(rows, self.num_slots if num_slots is None else num_slots))
        return logits

    def loss(
        self, rows: Tensor, targets: Tensor, *, alpha: float = 1.0, beta: float = 1.0, gamma: float = 0.0
    ) -> Tensor:
        """The mean edit cost of a batch, see `edit_cost`.

        Args:
            rows: int64 ``[batch, max_features]``.
            targets: int64 ``[batch, slots]``, -1 behind the end of a replacement: nodes are aligned by the decoder's
                order. Or ``[batch, orders, slots]`` from `target_orders`: the alignment is searched among them.
            alpha, beta, gamma: weights of labels, copies and parent-child pairs.
        """
        if targets.dim() == 2:
            targets = targets[:, None]
        used = (targets >= 0).any(1)
        # A batch's replacements are mostly short: slots behind the longest, and unused ones, cost nothing.
        num_slots = int(used.any(0).sum())
        targets, used = targets[..., :num_slots], used[:, :num_slots]
        log_likelihood = self.output(self._slot_vectors(rows, num_slots)[used]).log_softmax(-1)
        costs = []
        for order in targets.unbind(1):
            # Where this order is done and another is not, any class will do: `edit_cost` leaves the slot out.
            chosen = log_likelihood.gather(1, order[used].clamp(min=0)[:, None])[:, 0]
            costs.append(log_likelihood.new_zeros(order.shape).masked_scatter(used, -chosen))
        if len(costs) == 1:
            return edit_cost(costs[0], targets[:, 0], self.arity, alpha=alpha, beta=beta, gamma=gamma)
        cost = torch.stack(costs, 1)
        weighted = cost * torch.where(targets > len(self.arity), beta, alpha) * (targets >= 0)
        best = weighted.sum(2).detach().argmin(1)  # the first of equal ones
        items = torch.arange(len(targets), device=targets.device)
        return edit_cost(cost[items, best], targets[items, best], self.arity, alpha=alpha, beta=beta, gamma=gamma)

    def predict_graphs(self, rows: Tensor, num_slots: int | None = None) -> GraphLogits:
        """The replacements as graphs, for `dagnn.ged.GedLoss`; an edge goes from operand to operator.

        Raises:
            ConfigError: the network was made without ``whole_graphs``.
        """
        if not self.whole_graphs:
            raise ConfigError("this network predicts no edges: make it with whole_graphs=True.")
        vectors = self._slot_vectors(rows, self.num_slots if num_slots is None else num_slots)
        tail, head = self.edge_ends(vectors).chunk(2, dim=-1)
        return GraphLogits(
            existence=self.existence(vectors)[..., 0],
            labels=self.output(vectors),
            edges=tail @ head.transpose(1, 2) / math.sqrt(self.slot_width),
        )

    def rewrite(
        self, neighbourhoods: Sequence[NeighbourhoodTokens], *, batch_size: int = 1024
    ) -> list[ReplacementTokens]:
        """The most likely replacement of every neighbourhood; the empty tuple leaves it as it is."""
        return [
            replacement
            for part, logits in self._logits_of(neighbourhoods, batch_size)
            for replacement in self._most_likely(part, logits)
        ]

    def propose(self, neighbourhoods: Sequence[NeighbourhoodTokens], *, batch_size: int = 1024) -> list[Proposal]:
        """The same replacements, each with the probability that the network gives to it."""
        proposals: list[Proposal] = []
        for part, logits in self._logits_of(neighbourhoods, batch_size):
            replacements = self._most_likely(part, logits)
            targets = self.features.encode_targets(part, replacements, self.num_slots).to(logits.device)
            chosen = logits.log_softmax(-1).gather(-1, targets.clamp(min=0)[..., None])[..., 0]
            confidences = (chosen * (targets >= 0)).sum(1).exp().nan_to_num(nan=0.0).tolist()
            proposals += [Proposal(*pair) for pair in zip(replacements, confidences, strict=True)]
        return proposals

    def leads(
        self,
        neighbourhoods: Sequence[NeighbourhoodTokens],
        replacements: Sequence[ReplacementTokens],
        *,
        batch_size: int = 1024,
    ) -> list[float]:
        """By how many logits each of these replacements beats what else the network could write.

        The least over the nodes of a replacement. Where it is above 0, `rewrite` gives this replacement.
        """
        leads: list[float] = []
        first = 0
        for part, logits in self._logits_of(neighbourhoods, batch_size):
            wanted = replacements[first : first + len(part)]
            targets = self.features.encode_targets(part, wanted, self.num_slots).to(logits.device)
            index = targets.clamp(min=0)[..., None]
            others = logits.scatter(-1, index, -math.inf).amax(-1)
            lead = (logits.gather(-1, index)[..., 0] - others).masked_fill(targets < 0, math.inf)
            leads += lead.amin(1).tolist()
            first += len(part)
        return leads

    def solve(self, terms: Sequence[LabelTokens], *, budget: int = 20_000) -> list[Rewritten]:
        """Rewrites every term until the network leaves all of its neighbourhoods alone.

        Args:
            terms: preorder label ids of `signature`.
            budget: rewrite steps for each term; an untrained network may never come to an end.
        """
        return RewritingMachine(self.signature, self).run(terms, budget=budget)

    def _table(self) -> Tensor:
        """The vectors of the feature rows, or of the symbols."""
        weight = (
            self.embedding.net.embedding.weight if isinstance(self.embedding, GraphEncoder) else self.embedding.weight
        )
        assert isinstance(weight, Tensor)
        return weight

    @torch.no_grad()
    def _logits_of(
        self, neighbourhoods: Sequence[NeighbourhoodTokens], batch_size: int
    ) -> Iterator[tuple[Sequence[NeighbourhoodTokens], Tensor]]:
        for first in range(0, len(neighbourhoods), batch_size):
            part = neighbourhoods[first : first + batch_size]
            yield part, self(self.encode(part).to(self.output.weight.device))

    def _most_likely(self, neighbourhoods: Sequence[NeighbourhoodTokens], logits: Tensor) -> list[ReplacementTokens]:
        classes = logits.argmax(-1).tolist()
        return [
            self.features.decode(neighbourhood, row) for neighbourhood, row in zip(neighbourhoods, classes, strict=True)
        ]

    def _slot_vectors(self, rows: Tensor, num_slots: int) -> Tensor:
        """``[batch, num_slots, slot_width]``."""
        hidden = self.embedding(rows)
        for block in self.blocks:
            hidden = hidden + block(hidden)
        units = num_slots * self.slot_width
        hidden = self.norm(hidden)
        before_call(self.slots, hidden)
        slots = F.linear(hidden, self.slots.weight[:units], self.slots.bias[:units])
        # Not by len(rows), which torch.export would take for a constant.
        return (F.gelu(slots) + _LEAK * slots).view(slots.shape[0], num_slots, self.slot_width)


def edit_cost(
    cost: Tensor, targets: Tensor, arity: Tensor, *, alpha: float = 1.0, beta: float = 1.0, gamma: float = 0.0
) -> Tensor:
    """Edit cost between predicted and target replacements, nodes aligned by the decoder's order (preorder).

    ``alpha * node + beta * edge + gamma * clique`` per neighbourhood, averaged over the batch:

    - node: negative log-likelihood of every made node's label. A node too many, too few or wrong is a wrong class
      in its slot, so insertions, deletions and substitutions are all paid here.
    - edge: negative log-likelihood of every copy, which is an edge from the replacement into the neighbourhood. All
      other edges follow from the labels' arities.
    - clique: ``1 - sqrt(p_parent * p_child)``, summed over all parent-child pairs, the cliques of a tree.

    With alpha = beta = 1 and gamma = 0 it is the cross-entropy of the whole replacement, an upper bound of the
    expected number of wrong nodes because ``1 - p <= -log p``.

    Args:
        cost: ``[batch, slots]``, negative log-likelihood of every target; unused slots do not matter.
        targets: int64 ``[batch, slots]``, classes as in `NeighbourhoodFeatures`: leave it, labels, addresses; -1
            behind the end of a replacement.
        arity: int64 ``[labels]``, children that each label asks for.
        alpha, beta, gamma: weights of the three terms, at least 0.

    Returns:
        A scalar; 0 for an empty batch.
    """
    used = targets >= 0
    weight = torch.where(targets > len(arity), beta, alpha).to(cost.dtype)
    loss = (cost * weight)[used].sum()
    if gamma:
        parent = parent_slots(targets, arity)
        pair_cost = (cost + cost.gather(1, parent.clamp(min=0)))[parent >= 0]
        loss = loss + gamma * (1 - torch.exp(-pair_cost / 2)).sum()
    return loss / max(1, len(targets))


def replacement_objective(
    objective: str = "edit", *, alpha: float = 1.0, beta: float = 1.0, gamma: float = 0.0
) -> Callable[[GraphRewriter, Tensor, Tensor], Tensor]:
    """The objective ``(network, rows, targets) -> loss`` of these settings: mean over a batch, 0 for an empty one.

    Args:
        objective: "edit", `GraphRewriter.loss`; or "ged", `dagnn.ged.GedLoss` over `GraphRewriter.predict_graphs`.
        alpha, beta, gamma: weights of its terms.
    """
    if objective == "edit":
        return lambda network, rows, targets: network.loss(rows, targets, alpha=alpha, beta=beta, gamma=gamma)

    # Slots are read in preorder, so slot i is node i of the target.
    ged_loss = GedLoss(alpha, beta, gamma, alignment="order")

    def graph_objective(network: GraphRewriter, rows: Tensor, targets: Tensor) -> Tensor:
        if not len(rows):
            return network.loss(rows, targets)
        target = replacement_graphs(targets[:, 0], network.arity)
        cost: Tensor = ged_loss(*network.predict_graphs(rows, target.exists.shape[1]), target)
        return cost

    return graph_objective
