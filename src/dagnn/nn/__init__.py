"""Modules over DAGs. Every one is `Learnable`: it clears, applies, measures, clips and counts its gradients.

One DAG as a network: `DagNN`. Many DAGs at once: `Embedding`, `MessagePassing`, `DagSweep` with its
cells, `NodeAttention`, `GraphPool`, the heads, `GraphDecoder`, and `GraphTransformNet`, which combines them.
"""

from dagnn.nn.cells import AttentionCell, Cell, ChildSumTreeLSTMCell, FormulaCell, GRUCell, TreeLSTMCell
from dagnn.nn.dag_nn.edit import StructureChange
from dagnn.nn.dag_nn.export import Exports, Predictor
from dagnn.nn.dag_nn.network import DagNN, from_sequential
from dagnn.nn.dag_nn.tables import NamedParameters
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

__all__ = [
    "AttentionCell",
    "Cell",
    "ChildSumTreeLSTMCell",
    "DagNN",
    "DagSweep",
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
    "Learnable",
    "LearnableModule",
    "MessagePassing",
    "MultiHeadAttention",
    "NamedParameters",
    "NodeAttention",
    "NodeHead",
    "Predictor",
    "StructureChange",
    "TreeLSTMCell",
    "from_sequential",
]
