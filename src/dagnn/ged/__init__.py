"""Graph edit distance: exact, bounded, and as a differentiable loss."""

# ruff: noqa: E402 - what is missing is named before the first import fails
from dagnn.errors import check_installed

check_installed("dagnn.ged", "dagnn[ged]", "numba", "scipy")

from dagnn.ged.costs import EditCosts
from dagnn.ged.distance import (
    Edit,
    GedBounds,
    GedResult,
    OptimalPaths,
    ged_bounds,
    graph_edit_distance,
    optimal_edit_paths,
)
from dagnn.ged.files import read_graph_files
from dagnn.ged.loss import GedLoss, GedLossTerms
from dagnn.ged.loss_parts import clique_counts, expected_edit_cost
from dagnn.ged.matrix import GedMatrix, GedMetric, GedSummary, ged_matrix
from dagnn.ged.retrieval import GedMatches, Settled, ged_range, ged_search
from dagnn.ged.targets import GraphTargets, decode
from dagnn.ged.tree import tree_edit_distance, tree_edit_path

__all__ = [
    "Edit",
    "EditCosts",
    "GedBounds",
    "GedLoss",
    "GedLossTerms",
    "GedMatches",
    "GedMatrix",
    "GedMetric",
    "GedResult",
    "GedSummary",
    "GraphTargets",
    "OptimalPaths",
    "Settled",
    "clique_counts",
    "decode",
    "expected_edit_cost",
    "ged_bounds",
    "ged_matrix",
    "ged_range",
    "ged_search",
    "graph_edit_distance",
    "optimal_edit_paths",
    "read_graph_files",
    "tree_edit_distance",
    "tree_edit_path",
]
