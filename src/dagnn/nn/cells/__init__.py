"""Cells for `DagSweep`: what a node makes of its features and of the states that it depends on.

To add one: a file here with a `LearnableModule` that fits `dagnn.kernels.Cell`, its name in
``__all__`` here and in `dagnn.nn`, a line in ``tests/nn/test_contract.py``, an oracle in
``tests/nn/test_cells.py``.
"""

from dagnn.kernels import Cell
from dagnn.nn.cells.attention import AttentionCell
from dagnn.nn.cells.gru import GRUCell
from dagnn.nn.cells.tree_lstm import ChildSumTreeLSTMCell, TreeLSTMCell

__all__ = ["AttentionCell", "Cell", "ChildSumTreeLSTMCell", "GRUCell", "TreeLSTMCell"]
