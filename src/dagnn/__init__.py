"""dagnn: neural networks shaped like DAGs, trained with gradients you can trust."""

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from dagnn.accumulation import GradientAccumulator as GradientAccumulator
    from dagnn.accumulation import accumulate as accumulate
    from dagnn.accumulation import check_equivalence as check_equivalence
    from dagnn.accumulation import check_loop as check_loop
    from dagnn.accumulation import watch as watch
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
    from dagnn.errors import MissingPackageError as MissingPackageError
    from dagnn.errors import RunError as RunError
    from dagnn.errors import StateDictError as StateDictError
    from dagnn.errors import UntranslatedError as UntranslatedError
    from dagnn.ged import EditCosts as EditCosts
    from dagnn.ged import GedLoss as GedLoss
    from dagnn.ged import GedMetric as GedMetric
    from dagnn.ged import GedResult as GedResult
    from dagnn.ged import ged_bounds as ged_bounds
    from dagnn.ged import ged_matrix as ged_matrix
    from dagnn.ged import ged_range as ged_range
    from dagnn.ged import ged_search as ged_search
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
    from dagnn.nn import WideDagNN as WideDagNN
    from dagnn.rewriting import GraphRewriter as GraphRewriter
    from dagnn.training import Trainer as Trainer
    from dagnn.training import TrainingConfig as TrainingConfig


def _loaded_on_first_use(
    package: str, names_in: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """``__getattr__``, ``__dir__`` and ``__all__`` of a package whose names are imported when first read (PEP 562).

    Args:
        package: its ``__name__``.
        names_in: module -> the names to take from it, with blanks between.
    """
    module_of = {name: module for module, names in names_in.items() for name in names.split()}

    def load(name: str) -> Any:
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(module_of[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    names = sorted(module_of)
    return load, lambda: names, names


_NAMES_IN = {
    "dagnn.accumulation": "GradientAccumulator accumulate check_equivalence check_loop watch weights",
    "dagnn.errors": (
        "AccumulationError CheckpointError ConfigError ConstantNodesWarning CycleError DagnnError DataError "
        "DtypeError ExpressionError GraphError MissingPackageError RunError StateDictError UntranslatedError"
    ),
    "dagnn.ged": (
        "EditCosts GedLoss GedMetric GedResult ged_bounds ged_matrix ged_range ged_search graph_edit_distance "
        "tree_edit_distance"
    ),
    "dagnn.graph": "Dag DagBatch collate",
    "dagnn.nn": "DagNN DagSweep Embedding GraphTransformNet Learnable MessagePassing WideDagNN",
    "dagnn.rewriting": "GraphRewriter",
    "dagnn.training": "Trainer TrainingConfig",
}
# `dagnn --help` and `import dagnn.errors` do not wait for torch.
__getattr__, __dir__, __all__ = _loaded_on_first_use(__name__, _NAMES_IN)
__all__ += ["__version__"]  # and so in __dir__
