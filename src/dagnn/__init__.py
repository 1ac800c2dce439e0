"""dagnn: neural networks shaped like DAGs, trained with gradients you can trust."""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from dagnn.accumulation import GradientAccumulator as GradientAccumulator
    from dagnn.accumulation import accumulate as accumulate
    from dagnn.accumulation import check_equivalence as check_equivalence
    from dagnn.accumulation import check_loop as check_loop
    from dagnn.accumulation import weights as weights
    from dagnn.errors import AccumulationError as AccumulationError
    from dagnn.errors import CheckpointError as CheckpointError
    from dagnn.errors import ConfigError as ConfigError
    from dagnn.errors import ConstantNodesWarning as ConstantNodesWarning
    from dagnn.errors import CycleError as CycleError
    from dagnn.errors import DagnnError as DagnnError
    from dagnn.errors import DataError as DataError
    from dagnn.errors import DtypeError as DtypeError
    from dagnn.errors import ExpressionError as ExpressionError
    from dagnn.errors import GraphError as GraphError
    from dagnn.errors import RunError as RunError
    from dagnn.errors import StateDictError as StateDictError
    from dagnn.ged import EditCosts as EditCosts
    from dagnn.ged import GedLoss as GedLoss
    from dagnn.ged import GedMetric as GedMetric
    from dagnn.ged import GedResult as GedResult
    from dagnn.ged import ged_bounds as ged_bounds
    from dagnn.ged import ged_matrix as ged_matrix
    from dagnn.ged import graph_edit_distance as graph_edit_distance
    from dagnn.ged import tree_edit_distance as tree_edit_distance
    from dagnn.graph import Dag as Dag
    from dagnn.graph import DagBatch as DagBatch
    from dagnn.graph import collate as collate
    from dagnn.nn import DagNN as DagNN
    from dagnn.nn import DagSweep as DagSweep
    from dagnn.nn import Embedding as Embedding
    from dagnn.nn import GraphTransformNet as GraphTransformNet
    from dagnn.nn import Learnable as Learnable
    from dagnn.nn import MessagePassing as MessagePassing
    from dagnn.rewriting import GraphRewriter as GraphRewriter
    from dagnn.training import Trainer as Trainer
    from dagnn.training import TrainingConfig as TrainingConfig

# Public name -> the module that defines it. Loaded on first use (PEP 562), so that
# `dagnn --help` and `import dagnn.errors` do not wait for torch.
_MODULE_OF = {
    "AccumulationError": "dagnn.errors",
    "CheckpointError": "dagnn.errors",
    "ConfigError": "dagnn.errors",
    "ConstantNodesWarning": "dagnn.errors",
    "CycleError": "dagnn.errors",
    "Dag": "dagnn.graph",
    "DagBatch": "dagnn.graph",
    "DagNN": "dagnn.nn",
    "DagSweep": "dagnn.nn",
    "DagnnError": "dagnn.errors",
    "DataError": "dagnn.errors",
    "DtypeError": "dagnn.errors",
    "EditCosts": "dagnn.ged",
    "Embedding": "dagnn.nn",
    "ExpressionError": "dagnn.errors",
    "GedLoss": "dagnn.ged",
    "GedMetric": "dagnn.ged",
    "GedResult": "dagnn.ged",
    "GradientAccumulator": "dagnn.accumulation",
    "GraphError": "dagnn.errors",
    "GraphRewriter": "dagnn.rewriting",
    "GraphTransformNet": "dagnn.nn",
    "Learnable": "dagnn.nn",
    "MessagePassing": "dagnn.nn",
    "RunError": "dagnn.errors",
    "StateDictError": "dagnn.errors",
    "Trainer": "dagnn.training",
    "TrainingConfig": "dagnn.training",
    "accumulate": "dagnn.accumulation",
    "check_equivalence": "dagnn.accumulation",
    "check_loop": "dagnn.accumulation",
    "collate": "dagnn.graph",
    "ged_bounds": "dagnn.ged",
    "ged_matrix": "dagnn.ged",
    "graph_edit_distance": "dagnn.ged",
    "tree_edit_distance": "dagnn.ged",
    "weights": "dagnn.accumulation",
}

__all__ = ["__version__", *_MODULE_OF]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'dagnn' has no attribute {name!r}")
    value = getattr(importlib.import_module(_MODULE_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
