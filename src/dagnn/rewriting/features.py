"""What a network reads of a neighbourhood, as numbers of features or as graphs; and targets in both forms."""

from collections.abc import Collection, Iterable, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from dagnn.errors import ConfigError
from dagnn.ged.targets import GraphTargets
from dagnn.graph import Dag
from dagnn.nn.graph_transform_net import GraphTransformNet
from dagnn.rewriting.system import (
    LEAVE,
    MAX_ARITY,
    Neighbourhood,
    NeighbourhoodTokens,
    ReplacementTokens,
    Signature,
    neighbourhood_nodes,
    read_neighbourhood,
)

ROOT_ADDRESS = 0


class NeighbourhoodFeatures:
    """Turns neighbourhoods into sets of features, and replacements into classes and back.

    A feature says "label s is at address a" or "the node first seen at address b is at address a, too".
    Only features in `known` get a row of their own. Any other is dropped, so a network may read a neighbourhood that
    holds something it never saw in training.

    Attributes:
        num_rows: feature rows, row 0 being the padding.
        num_classes: 1 (leave it) + labels + addresses: what a slot of the replacement may hold.
        max_features: features a neighbourhood may have; a longer neighbourhood is cut.

    >>> from dagnn.rewriting import Label
    >>> signature = Signature((Label("zero", 0), Label("next", 1), Label("plus", 2, neighbourhood_depth=1)))
    >>> features = NeighbourhoodFeatures.from_neighbourhoods(signature, [(2, 1, 3, 0)])
    >>> features.encode([(2, 1, 3, 0)])[0, :6], features.num_rows
    (tensor([1, 2, 4, 3, 0, 0]), 5)
    >>> features.decode((2, 1, 3, 0), [2, 1])  # (next zero)
    (1, 0)
    """

    def __init__(self, signature: Signature, known: Iterable[int] = (), *, max_features: int = 48) -> None:
        self.signature = signature
        self.max_features = max_features
        # One level more than is within sight: hidden nodes have addresses too, to be copied by.
        depth = max((label.neighbourhood_depth or 0 for label in signature.labels), default=0) + 1
        self.num_addresses: int = (MAX_ARITY ** (depth + 1) - 1) // (MAX_ARITY - 1)
        self._num_shown = len(signature.shown)
        self._num_raw = self.num_addresses * (self._num_shown + self.num_addresses)
        self.known = sorted(set(known))
        self._row_of = np.zeros(self._num_raw, np.int64)
        self._row_of[self.known] = np.arange(1, len(self.known) + 1)

    @classmethod
    def from_neighbourhoods(
        cls, signature: Signature, neighbourhoods: Iterable[NeighbourhoodTokens], *, max_features: int = 48
    ) -> "NeighbourhoodFeatures":
        """Features with a row for everything that occurs in `neighbourhoods`."""
        reader = cls(signature, max_features=max_features)
        known: set[int] = set()
        for neighbourhood in neighbourhoods:
            known.update(reader._read(neighbourhood)[0])
        return cls(signature, known, max_features=max_features)

    @property
    def num_rows(self) -> int:
        return len(self.known) + 1

    @property
    def num_classes(self) -> int:
        return 1 + len(self.signature.labels) + self.num_addresses

    def encode(self, neighbourhoods: Sequence[NeighbourhoodTokens]) -> Tensor:
        """Feature rows of every neighbourhood: int64 ``[len(neighbourhoods), max_features]``, padded with 0."""
        rows = np.zeros((len(neighbourhoods), self.max_features), np.int64)
        for i, neighbourhood in enumerate(neighbourhoods):
            raw = self._read(neighbourhood)[0][: self.max_features]
            rows[i, : len(raw)] = self._row_of[raw]
        return torch.from_numpy(rows)

    def encode_targets(
        self, neighbourhoods: Sequence[NeighbourhoodTokens], replacements: Sequence[ReplacementTokens], num_slots: int
    ) -> Tensor:
        """Class of every slot: int64 ``[len(neighbourhoods), num_slots]``, -1 behind the end of a replacement.

        Raises:
            ConfigError: a replacement has more nodes than there are slots.
        """
        longest = max(map(len, replacements), default=0)
        if longest > num_slots or num_slots < 1:
            raise ConfigError(
                f"num_slots = {num_slots}: the longest replacement has {longest} nodes, give as many slots."
            )
        num_labels = len(self.signature.labels)
        targets = np.full((len(neighbourhoods), num_slots), -1, np.int64)
        for i, (neighbourhood, replacement) in enumerate(zip(neighbourhoods, replacements, strict=True)):
            if replacement == LEAVE:
                targets[i, 0] = 0
                continue
            addresses = self._read(neighbourhood)[1]
            targets[i, : len(replacement)] = [
                1 + token if token < num_labels else 1 + num_labels + addresses[token - num_labels]
                for token in replacement
            ]
        return torch.from_numpy(targets)

    def decode(self, neighbourhood: NeighbourhoodTokens, classes: Sequence[int]) -> ReplacementTokens:
        """The replacement that a sequence of classes spells; `LEAVE` where it spells none.

        Reads as many slots as the labels' arities ask for.
        """
        num_labels = len(self.signature.labels)
        index_of = {address: index for index, address in enumerate(self._read(neighbourhood)[1])}
        tokens: list[int] = []
        missing = 1
        for cls in classes:
            if cls == 0:
                return LEAVE
            if cls <= num_labels:
                tokens.append(cls - 1)
                missing += self.signature.labels[cls - 1].arity - 1
            else:
                index = index_of.get(cls - 1 - num_labels)
                if index is None:
                    return LEAVE
                tokens.append(num_labels + index)
                missing -= 1
            if missing == 0:
                return tuple(tokens)
        return LEAVE

    def _read(self, neighbourhood: NeighbourhoodTokens) -> tuple[list[int], list[int]]:
        """(raw features, address of every distinct node) of a neighbourhood."""
        shown, hidden = self.signature.shown, self.signature.hidden
        num_shown, same_base = len(shown), self.num_addresses * len(shown)
        limit = shown[neighbourhood[0]].neighbourhood_depth or 0
        features: list[int] = []
        addresses: list[int] = []
        labelled: set[int] = set()
        stack = [(ROOT_ADDRESS, 0)]
        position = 0
        while stack:
            address, depth = stack.pop()
            token = neighbourhood[position]
            position += 1
            if token > hidden:
                index = token - num_shown
                features.append(same_base + address * self.num_addresses + addresses[index])
                if depth > limit or index in labelled:
                    continue
                token = neighbourhood[position]
                position += 1
            else:
                index = len(addresses)
                addresses.append(address)
                if token == hidden:
                    features.append(address * num_shown + hidden)
                    continue
            labelled.add(index)
            features.append(address * num_shown + token)
            _, _, arity, opaque, _ = shown[token]
            below = limit + 1 if depth and opaque else depth + 1
            for child in range(arity, 0, -1):
                # Heap order with four children per node: child k of address a is 4 a + k + 1, the root is 0.
                stack.append((MAX_ARITY * address + child, below))
        return features, addresses


# A node takes so many integers: its symbol, and its children by their number among the nodes.
_COLUMNS = 1 + MAX_ARITY


class NeighbourhoodGraphs:
    """Graphs of symbols for neighbourhoods. A symbol says "a node first reached at address a that shows label s".

    ``known``: the symbols that have a number of their own, sorted; all others share the number 0.
    """

    def __init__(self, signature: Signature, known: Iterable[int] = ()) -> None:
        self.signature = signature
        self.known = sorted(set(known))
        self._number_of = {symbol: number for number, symbol in enumerate(self.known, 1)}
        self._shown_id = {shown.name: i for i, shown in enumerate(signature.shown)}

    @classmethod
    def from_neighbourhoods(
        cls, signature: Signature, neighbourhoods: Iterable[NeighbourhoodTokens]
    ) -> "NeighbourhoodGraphs":
        """Graphs with a number for every symbol that occurs in `neighbourhoods`."""
        reader = cls(signature)
        known = {
            reader._symbol(node)
            for neighbourhood in neighbourhoods
            for node in neighbourhood_nodes(read_neighbourhood(neighbourhood, signature))
        }
        return cls(signature, known)

    @property
    def num_symbols(self) -> int:
        return len(self.known) + 1

    def encode(self, neighbourhoods: Sequence[NeighbourhoodTokens]) -> Tensor:
        """The graphs in one tensor: int64 ``[len(neighbourhoods), 5 * nodes]``, padded with 0.

        Node after node, the root first: 1 + its symbol's number, then 1 + the place of each child.
        """
        rows = []
        for neighbourhood in neighbourhoods:
            row: list[int] = []
            for node in neighbourhood_nodes(read_neighbourhood(neighbourhood, self.signature)):
                children = [1 + child.index for child in node.children]
                row += [1 + self._number_of.get(self._symbol(node), 0), *children, *[0] * (MAX_ARITY - len(children))]
            rows.append(row)
        packed = np.zeros((len(rows), max(map(len, rows), default=_COLUMNS)), np.int64)
        for i, row in enumerate(rows):
            packed[i, : len(row)] = row
        return torch.from_numpy(packed)

    def _symbol(self, node: Neighbourhood) -> int:
        address = 0
        for position in node.address:
            address = MAX_ARITY * address + position + 1
        return address * len(self.signature.shown) + self._shown_id[node.label]


class GraphEncoder(nn.Module):
    """A `GraphTransformNet` without its decoder, read out at every neighbourhood's root.

    Args:
        num_symbols: of `NeighbourhoodGraphs`.
        dim: width of the node features.
        width: of what is read out.

    Shapes: int64 ``[batch, 5 * nodes]`` of `NeighbourhoodGraphs.encode` -> ``[batch, width]``.
    """

    def __init__(self, num_symbols: int, dim: int, width: int) -> None:
        super().__init__()
        net = GraphTransformNet(num_symbols, 1, 1, dim, message_layers=1, sweeps=1, edge_types=MAX_ARITY)
        net.decoder = None  # type: ignore[assignment]  # its slots are ours
        self.net = net
        self.readout = nn.Linear(dim, width)

    def forward(self, packed: Tensor) -> Tensor:
        used = packed[:, ::_COLUMNS] > 0
        # The last column that some neighbourhood uses may be in the middle of a node.
        whole = nn.functional.pad(packed, (0, used.shape[1] * _COLUMNS - packed.shape[1]))
        nodes = whole.view(len(packed), -1, _COLUMNS)
        number = used.flatten().cumsum(0).view(used.shape) - 1
        neighbourhood, parent, operand = (nodes[..., 1:] > 0).nonzero().unbind(1)
        child = nodes[neighbourhood, parent, 1 + operand] - 1
        # Sorted by parent, then operand: what a Dag keeps as the order of operands.
        edges = torch.stack([number[neighbourhood, child], number[neighbourhood, parent]], 1)
        features = self.net.encode(
            nodes[..., 0][used] - 1, Dag(edges, num_nodes=int(used.sum()), edge_attributes={"position": operand})
        )
        read: Tensor = self.readout(features[number[:, 0]])
        return read


def parent_slots(targets: Tensor, arity: Tensor) -> Tensor:
    """Slot of every slot's parent: int64 ``[batch, slots]``; -1 for the first slot and behind the end."""
    num_labels = len(arity)
    asks = torch.zeros_like(targets)
    is_label = (targets >= 1) & (targets <= num_labels)
    asks[is_label] = arity[targets[is_label] - 1]

    # In preorder the parent is the last earlier node that still waits for a child.
    parent = torch.full_like(targets, -1)
    missing = torch.zeros_like(targets)
    rows = torch.arange(len(targets), device=targets.device)
    position = torch.arange(1, targets.shape[1] + 1, device=targets.device)
    for slot in range(targets.shape[1]):
        used = targets[:, slot] >= 0
        if slot:
            waiting = (missing[:, :slot] > 0) * position[:slot]
            last = waiting.argmax(1)
            found = used & (waiting.max(1).values > 0)
            parent[found, slot] = last[found]
            missing[rows[found], last[found]] -= 1
        missing[:, slot] = asks[:, slot] * used
    return parent


def replacement_graphs(targets: Tensor, arity: Tensor) -> GraphTargets:
    """Replacements as graphs: a node for every slot in use, an edge from every operand to its operator.

    Args:
        targets: int64 ``[batch, slots]``, -1 behind the end of a replacement (see `NeighbourhoodFeatures`).
        arity: int64 ``[labels]``.
    """
    targets = targets[:, : int((targets >= 0).any(0).sum())]
    parent = parent_slots(targets, arity)
    adjacency = torch.zeros(*targets.shape, targets.shape[1], dtype=torch.bool, device=targets.device)
    neighbourhood, operand = (parent >= 0).nonzero().unbind(1)
    adjacency[neighbourhood, operand, parent[neighbourhood, operand]] = True
    return GraphTargets(targets >= 0, adjacency, targets.clamp(min=0))


# Three exchangeable pairs. Longer replacements than that keep the order of the operands that come last.
MAX_ORDERS = 8


def target_orders(targets: Tensor, arity: Tensor, unordered: Collection[int]) -> Tensor:
    """Every order of the target graphs' nodes that the exchange of operands allows.

    Args:
        targets: int64 ``[batch, slots]``, classes in preorder, -1 behind the end (see `NeighbourhoodFeatures`).
        arity: int64 ``[labels]``.
        unordered: ids of labels whose two operands may be exchanged.

    Returns:
        int64 ``[batch, orders, slots]``; the given order first, and again where there are fewer than `orders`.
    """
    arities, classes = arity.tolist(), {label + 1 for label in unordered}
    found = [
        _orders(row[: row.index(-1)] if -1 in row else row, arities, classes) if classes & set(row) else [row]
        for row in targets.tolist()
    ]
    most = max(map(len, found), default=1)
    orders = np.full((len(found), most, targets.shape[1]), -1, np.int64)
    for i, given in enumerate(found):
        for k in range(most):
            row = given[k if k < len(given) else 0]
            orders[i, k, : len(row)] = row
    return torch.from_numpy(orders).to(targets.device)


def _orders(row: list[int], arity: list[int], unordered: set[int]) -> list[list[int]]:
    """All preorders of one tree, the given one first."""

    def read(position: int) -> tuple[list[list[int]], int]:
        cls = row[position]
        position += 1
        count = arity[cls - 1] if 1 <= cls <= len(arity) else 0
        parts: list[list[list[int]]] = []
        for _ in range(count):
            part, position = read(position)
            parts.append(part)
        orders = [[cls]]
        for part in parts:
            orders = [before + after for before in orders for after in part][:MAX_ORDERS]
        if cls in unordered and count == 2:
            exchanged = [[cls, *b, *a] for a in parts[0] for b in parts[1]]
            orders = (orders + [order for order in exchanged if order not in orders])[:MAX_ORDERS]
        return orders, position

    return read(0)[0]
