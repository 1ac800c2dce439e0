"""A small graph, and a sweep of each kind of cell over it, whose weights are matrices in whole packs or not."""

import torch
from torch import Tensor

from dagnn.graph import Dag, DagBatch
from dagnn.nn import ChildSumTreeLSTMCell, DagSweep, GRUCell, TreeLSTMCell

D, WHOLE, RAGGED = 3, 16, 5  # widths: of features; of states in whole packs on every processor, and not
CELLS = {
    "tree_lstm": lambda hidden: TreeLSTMCell(D, hidden, max_children=3),
    "tree_lstm by operator": lambda hidden: TreeLSTMCell(D, hidden, max_children=3, operators=2),
    "child_sum": lambda hidden: ChildSumTreeLSTMCell(D, hidden),
    "gru": lambda hidden: GRUCell(D, hidden),
    "gru by operator": lambda hidden: GRUCell(D, hidden, operators=2),
}
DIRECT = {"tree_lstm": 1, "tree_lstm by operator": 1, "child_sum": 2, "gru": 0, "gru by operator": 1}
"""Weights that are matrices and leaves: that of a GRU is a view of its parameter, without operators."""
GRAPH = DagBatch.from_dags(
    [
        Dag(
            torch.tensor([(0, 2), (1, 2), (1, 3), (2, 3), (2, 4), (2, 5), (3, 5)]),
            6,
            node_attributes={"operator": torch.tensor([0, 1, 0, 1, 1, 0])},
            edge_attributes={"position": torch.tensor([0, 1, 2, 0, 1, 0, 1])},
        )
    ]
    * 3
)


def sweep_of(name: str, direction: str = "up", hidden: int = WHOLE) -> DagSweep:
    torch.manual_seed(0)
    return DagSweep(CELLS[name](hidden), direction).double()


def features() -> Tensor:
    return torch.randn(GRAPH.num_nodes, D, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
