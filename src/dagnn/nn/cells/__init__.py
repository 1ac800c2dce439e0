"""Cells for `DagSweep`: how the state of a node follows from its features and the states that it depends on.

To add one, write a file here with a `FormulaCell`: its formula is all that both paths need. Add its name
to ``__all__`` here and in `dagnn.nn`, a case to ``tests/module_cases.py`` and an oracle to
``tests/nn/test_cells.py``.
"""

from dagnn.kernels import Cell
from dagnn.nn.cells.discrete import DiscreteCell
from dagnn.nn.cells.formula import FormulaCell
from dagnn.nn.cells.gated import AttentionCell, ChildSumTreeLSTMCell, GRUCell, TreeLSTMCell

__all__ = ["AttentionCell", "Cell", "ChildSumTreeLSTMCell", "DiscreteCell", "FormulaCell", "GRUCell", "TreeLSTMCell"]
