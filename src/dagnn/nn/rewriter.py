"""GraphRewriter: a network that learns one step of a graph-rewriting system, a window in, its replacement out."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dagnn.errors import ConfigError
from dagnn.graph.rewriting.machine import LabelTokens, RewritingMachine, Rewritten
from dagnn.graph.rewriting.signature import Signature
from dagnn.graph.rewriting.window import ReplacementTokens, WindowTokens
from dagnn.nn.learnable import LearnableModule
from dagnn.nn.rewriter_alignment import cheapest_order
from dagnn.nn.rewriter_features import WindowFeatures
from dagnn.nn.rewriter_loss import edit_cost

# Share of the identity in the slot activation. Plain GELU left 61 of 64 units of a slot without gradient for a rare
# window, and that one wrong window cost 11 % of a level.
_LEAK = 0.05


class GraphRewriter(LearnableModule):
    """Predicts the replacement of a window, all of its nodes at once.

    A window's features (see `WindowFeatures`) are embedded and summed, pass residual blocks, and become one vector per
    slot of the replacement; a slot holds a label, a copy of the window node at some address, or, first, "leave it".
    Slots are in preorder and the labels' arities give the edges.

    Args:
        features: the feature rows and classes, built from the windows of the training set.
        width: size of the hidden layer.
        blocks: residual blocks.
        slot_width: size of a slot's vector.
        num_slots: the longest replacement, in nodes.

    Raises:
        ConfigError: a size is below 1.

    Shapes: forward takes int64 ``[batch, max_features]`` and returns logits ``[batch, num_slots, num_classes]``.
    """

    def __init__(
        self, features: WindowFeatures, *, width: int = 512, blocks: int = 2, slot_width: int = 64, num_slots: int = 32
    ) -> None:
        super().__init__()
        for name, value in (("width", width), ("slot_width", slot_width), ("num_slots", num_slots)):
            if value < 1:
                raise ConfigError(f"{name} must be at least 1, got {value}.")
        self.features = features
        self.width, self.slot_width, self.num_slots = width, slot_width, num_slots
        self.embedding = nn.EmbeddingBag(features.num_rows, width, mode="sum", padding_idx=0)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU(), nn.Linear(width, width))
            for _ in range(blocks)
        )
        self.norm = nn.LayerNorm(width)
        self.slots = nn.Linear(width, num_slots * slot_width)
        self.output = nn.Linear(slot_width, features.num_classes)
        self.register_buffer(
            "arity", torch.tensor([label.arity for label in features.signature.labels]), persistent=False
        )
        # A sum of about ten rows starts with variance near one.
        nn.init.normal_(self.embedding.weight, std=0.3)
        with torch.no_grad():
            self.embedding.weight[0] = 0

    @classmethod
    def from_windows(
        cls,
        signature: Signature,
        windows: Iterable[WindowTokens],
        *,
        width: int = 512,
        blocks: int = 2,
        slot_width: int = 64,
        num_slots: int = 32,
    ) -> "GraphRewriter":
        """A rewriter that knows every feature of `windows`."""
        features = WindowFeatures.from_windows(signature, windows)
        return cls(features, width=width, blocks=blocks, slot_width=slot_width, num_slots=num_slots)

    arity: Tensor

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
        best = cheapest_order(weighted.sum(2))
        items = torch.arange(len(targets), device=targets.device)
        return edit_cost(cost[items, best], targets[items, best], self.arity, alpha=alpha, beta=beta, gamma=gamma)

    @torch.no_grad()
    def rewrite(self, windows: Sequence[WindowTokens], *, batch_size: int = 1024) -> list[ReplacementTokens]:
        """The most likely replacement of every window; the empty tuple leaves it as it is."""
        replacements: list[ReplacementTokens] = []
        for first in range(0, len(windows), batch_size):
            part = windows[first : first + batch_size]
            rows = self.features.encode(part).to(self.embedding.weight.device)
            classes = self(rows).argmax(-1).tolist()
            replacements += [self.features.decode(window, row) for window, row in zip(part, classes, strict=True)]
        return replacements

    def solve(self, terms: Sequence[LabelTokens], *, budget: int = 20_000) -> list[Rewritten]:
        """Rewrites every term until the network leaves all of its windows alone.

        Args:
            terms: preorder label ids of `signature`.
            budget: rewrite steps for each term; an untrained network may never come to an end.
        """
        return RewritingMachine(self.signature, self).run(terms, budget=budget)

    def _slot_vectors(self, rows: Tensor, num_slots: int) -> Tensor:
        """``[batch, num_slots, slot_width]``."""
        hidden = self.embedding(rows)
        for block in self.blocks:
            hidden = hidden + block(hidden)
        units = num_slots * self.slot_width
        slots = F.linear(self.norm(hidden), self.slots.weight[:units], self.slots.bias[:units])
        return (F.gelu(slots) + _LEAK * slots).view(-1, num_slots, self.slot_width)
