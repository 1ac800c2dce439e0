"""Modules over DAGs. Every one is `Learnable`: it clears, applies, measures, clips and counts its gradients.

One DAG as a network: `DagNN`, or `WideDagNN` with several units a node. Many DAGs at once: `Embedding`,
`MessagePassing`, `DagSweep` with its cells, `NodeAttention`, `GraphPool`, the heads, `GraphDecoder`, and
`GraphTransformNet`, which combines them.
"""

from dagnn.nn.cells import AttentionCell, Cell, ChildSumTreeLSTMCell, DiscreteCell, FormulaCell, GRUCell, TreeLSTMCell
from dagnn.nn.dag_nn.edit import StructureChange
from dagnn.nn.dag_nn.export import Exports, Predictor
from dagnn.nn.dag_nn.network import DagNN, from_sequential
from dagnn.nn.dag_nn.pictures_and_tables import Seen
from dagnn.nn.dag_nn.tables import NamedInputs, NamedParameters
from dagnn.nn.dag_sweep import DagSweep
from dagnn.nn.graph_transform_net import GraphTransformNet
from dagnn.nn.heads import (
    EdgeHead,
    GraphDecoder,
    GraphHead,
    GraphLogits,
    GraphPool,
    MultiHeadAttention,
    NodeAttention,
    NodeHead,
)
from dagnn.nn.learnable import Learnable, LearnableModule
from dagnn.nn.message_passing import Embedding, MessagePassing
from dagnn.nn.wide_dag_nn.network import WideDagNN
from dagnn.nn.wide_dag_nn.tables import HeadValues, NamedBlocks

__all__ = [
    "AttentionCell",
    "Cell",
    "ChildSumTreeLSTMCell",
    "DagNN",
    "DagSweep",
    "DiscreteCell",
    "EdgeHead",
    "Embedding",
    "Exports",
    "FormulaCell",
    "GRUCell",
    "GraphDecoder",
    "GraphHead",
    "GraphLogits",
    "GraphPool",
    "GraphTransformNet",
    "HeadValues",
    "Learnable",
    "LearnableModule",
    "MessagePassing",
    "MultiHeadAttention",
    "NamedBlocks",
    "NamedInputs",
    "NamedParameters",
    "NodeAttention",
    "NodeHead",
    "Predictor",
    "Seen",
    "StructureChange",
    "TreeLSTMCell",
    "WideDagNN",
    "from_sequential",
]
