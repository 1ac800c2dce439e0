"""Networks whose nodes mean something: named data in, explained and drawn networks out."""

import importlib
from typing import TYPE_CHECKING, Any

from dagnn.errors import library
from dagnn.visible.columns import Aligned, align, restrict
from dagnn.visible.edge_files import read_edges, read_sif, read_sparse
from dagnn.visible.explaining import Explanation, explain
from dagnn.visible.gene_sets import read_gmt, read_obo, read_reactome
from dagnn.visible.graph_files import read_graph
from dagnn.visible.reading import Dropped, Reading, ReadReport
from dagnn.visible.replicates import Replicates, explain_replicates
from dagnn.visible.runs import ReplicateTraining, rewired
from dagnn.visible.survival import concordance_index, cox_loss

if TYPE_CHECKING:
    from dagnn.visible.estimators import DagClassifier, DagRegressor, DagSurvival

__all__ = [
    "Aligned",
    "DagClassifier",
    "DagRegressor",
    "DagSurvival",
    "Dropped",
    "Explanation",
    "ReadReport",
    "Reading",
    "ReplicateTraining",
    "Replicates",
    "align",
    "concordance_index",
    "cox_loss",
    "explain",
    "explain_replicates",
    "read_edges",
    "read_gmt",
    "read_graph",
    "read_obo",
    "read_reactome",
    "read_sif",
    "read_sparse",
    "restrict",
    "rewired",
]


def __getattr__(name: str) -> Any:
    """The estimators are made on first use: they are classes of scikit-learn, which is an extra."""
    if name in ("DagClassifier", "DagRegressor", "DagSurvival"):
        library("sklearn", name, "dagnn[visible]")
        return getattr(importlib.import_module("dagnn.visible.estimators"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
