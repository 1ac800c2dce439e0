"""Networks whose nodes mean something: named data in, explained and drawn networks out."""

from dagnn.visible.columns import Aligned, align
from dagnn.visible.edge_files import read_edges, read_sif, read_sparse
from dagnn.visible.explaining import explain
from dagnn.visible.explanation import Explanation
from dagnn.visible.gene_sets import read_gmt, read_reactome
from dagnn.visible.graph_files import read_graph
from dagnn.visible.ontology import read_obo
from dagnn.visible.reading import Dropped, Reading, ReadReport
from dagnn.visible.restricting import restrict

__all__ = [
    "Aligned",
    "Dropped",
    "Explanation",
    "ReadReport",
    "Reading",
    "align",
    "explain",
    "read_edges",
    "read_gmt",
    "read_graph",
    "read_obo",
    "read_reactome",
    "read_sif",
    "read_sparse",
    "restrict",
]
