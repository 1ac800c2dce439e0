"""Content of a Dag: when two are equal, and how one prints."""

from typing import TYPE_CHECKING

import torch

from dagnn.graph.attributes import attributes_key, same_attributes

if TYPE_CHECKING:
    from dagnn.graph.dag import Dag


def same_content(a: "Dag", b: "Dag") -> bool:
    """Same nodes, edges, names, inputs, outputs and attributes, in the same order."""
    return (
        a.num_nodes == b.num_nodes
        and torch.equal(a.edges, b.edges)
        and torch.equal(a.inputs, b.inputs)
        and torch.equal(a.outputs, b.outputs)
        and a.names == b.names
        and same_attributes(a.node_attributes, b.node_attributes)
        and same_attributes(a.edge_attributes, b.edge_attributes)
    )


def content_hash(dag: "Dag") -> int:
    """A hash that is equal for the same content; it differs between processes, as that of str does."""
    arrays = (dag.edges.numpy().tobytes(), dag.inputs.numpy().tobytes(), dag.outputs.numpy().tobytes())
    attributes = (attributes_key(dag.node_attributes), attributes_key(dag.edge_attributes))
    return hash((dag.num_nodes, arrays, dag.names, attributes))


def summary(dag: "Dag") -> str:
    """``Dag(num_nodes=..., num_edges=..., inputs=..., outputs=...)``, counts only, and the names of attributes."""
    counts = (
        f"num_nodes={dag.num_nodes}, num_edges={dag.num_edges}, inputs={len(dag.inputs)}, outputs={len(dag.outputs)}"
    )
    for of, attributes in (("node", dag.node_attributes), ("edge", dag.edge_attributes)):
        if attributes:
            counts += f", {of}_attributes={sorted(attributes)}"
    return f"Dag({counts})"
