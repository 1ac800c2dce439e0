"""Directed acyclic graphs: topology, validation, conversion, and batches of many."""

from dagnn.graph.batch import DagBatch, collate
from dagnn.graph.content import Dangling
from dagnn.graph.dag import Dag
from dagnn.graph.edges import Csr
from dagnn.graph.levels import topological_levels

__all__ = ["Csr", "Dag", "DagBatch", "Dangling", "collate", "topological_levels"]
