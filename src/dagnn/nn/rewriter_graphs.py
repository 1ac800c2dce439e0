"""Windows as graphs: what `GraphRewriter` shows to a `GraphTransformNet` in the place of a set of features."""

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from dagnn.graph import Dag
from dagnn.graph.rewriting.signature import MAX_ARITY, Signature
from dagnn.graph.rewriting.window import Window, WindowTokens, read_window, window_nodes
from dagnn.nn.graph_transform_net import GraphTransformNet

# A node takes so many integers: its symbol, and its children by their number among the nodes.
_COLUMNS = 1 + MAX_ARITY


class WindowGraphs:
    """Turns windows into graphs of symbols. A symbol says "a node first reached at address a that shows label s".

    Attributes:
        known: the symbols that have a number of their own, sorted; all others share the number 0.
    """

    def __init__(self, signature: Signature, known: Iterable[int] = ()) -> None:
        self.signature = signature
        self.known = sorted(set(known))
        self._number_of = {symbol: number for number, symbol in enumerate(self.known, 1)}
        self._shown_id = {shown.name: i for i, shown in enumerate(signature.shown)}

    @classmethod
    def from_windows(cls, signature: Signature, windows: Iterable[WindowTokens]) -> "WindowGraphs":
        """Graphs with a number for every symbol that occurs in `windows`."""
        reader = cls(signature)
        known = {reader._symbol(node) for window in windows for node in window_nodes(read_window(window, signature))}
        return cls(signature, known)

    @property
    def num_symbols(self) -> int:
        return len(self.known) + 1

    def encode(self, windows: Sequence[WindowTokens]) -> Tensor:
        """The graphs in one tensor: int64 ``[len(windows), 5 * nodes]``, padded with 0.

        Node after node, the root first: 1 + its symbol's number, then 1 + the place of each child.
        """
        rows = []
        for window in windows:
            row: list[int] = []
            for node in window_nodes(read_window(window, self.signature)):
                children = [1 + child.index for child in node.children]
                row += [1 + self._number_of.get(self._symbol(node), 0), *children, *[0] * (MAX_ARITY - len(children))]
            rows.append(row)
        packed = np.zeros((len(rows), max(map(len, rows), default=_COLUMNS)), np.int64)
        for i, row in enumerate(rows):
            packed[i, : len(row)] = row
        return torch.from_numpy(packed)

    def _symbol(self, node: Window) -> int:
        address = 0
        for position in node.address:
            address = MAX_ARITY * address + position + 1
        return address * len(self.signature.shown) + self._shown_id[node.label]


class GraphEncoder(nn.Module):
    """A `GraphTransformNet` without its decoder, read out at every window's root.

    Args:
        num_symbols: of `WindowGraphs`.
        dim: width of the node features.
        width: of what is read out.

    Shapes: int64 ``[batch, 5 * nodes]`` of `WindowGraphs.encode` -> ``[batch, width]``.
    """

    def __init__(self, num_symbols: int, dim: int, width: int) -> None:
        super().__init__()
        net = GraphTransformNet(num_symbols, 1, 1, dim, message_layers=1, sweeps=1, edge_types=MAX_ARITY)
        net.decoder = None  # type: ignore[assignment]  # its slots are ours
        self.net = net
        self.readout = nn.Linear(dim, width)

    def forward(self, packed: Tensor) -> Tensor:
        used = packed[:, ::_COLUMNS] > 0
        # The last column that some window uses may be in the middle of a node.
        whole = nn.functional.pad(packed, (0, used.shape[1] * _COLUMNS - packed.shape[1]))
        nodes = whole.view(len(packed), -1, _COLUMNS)
        number = used.flatten().cumsum(0).view(used.shape) - 1
        window, parent, operand = (nodes[..., 1:] > 0).nonzero().unbind(1)
        child = nodes[window, parent, 1 + operand] - 1
        # Sorted by parent, then operand: what a Dag keeps as the order of operands.
        edges = torch.stack([number[window, child], number[window, parent]], 1)
        features = self.net.encode(
            nodes[..., 0][used] - 1, Dag(edges, num_nodes=int(used.sum()), edge_attributes={"position": operand})
        )
        read: Tensor = self.readout(features[number[:, 0]])
        return read
