"""Levels of a DAG: which nodes may be computed together."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dagnn.errors import CycleError
from dagnn.graph.checks import check_edges, check_no_self_loop, check_num_nodes, cycle_message
from dagnn.graph.csr import Csr, grouped
from dagnn.graph.kahn import peel
from dagnn.graph.names import NodeNames


def topological_levels(edges: Tensor, num_nodes: int) -> Tensor:
    """Level of every node: the number of edges on the longest path that ends there.

    Sources are on level 0 and every edge goes to a higher level, so the nodes of one
    level never depend on each other and may be computed in parallel.

    Args:
        edges: int64 ``[num_edges, 2]``. Row ``(u, v)`` is the edge u -> v, both ends in
            ``0 .. num_nodes - 1``. Any order; a repeated edge changes nothing.
        num_nodes: at least 0. Nodes without edges are sources.

    Returns:
        int64 ``[num_nodes]`` on ``edges.device``; empty when ``num_nodes`` is 0.

    Raises:
        DtypeError: ``edges`` is not int64, or ``num_nodes`` no int.
        GraphError: ``edges`` has another shape, or an end is out of range.
        CycleError: the edges form a cycle; the message names one.

    Cost: O(num_nodes + num_edges log num_edges) time, linear memory, on the CPU.
    Source: Kahn, "Topological sorting of large networks", CACM 5(11), 1962.

    >>> topological_levels(torch.tensor([[0, 1], [1, 2], [0, 2]]), num_nodes=4)
    tensor([0, 1, 2, 0])
    """
    num_nodes = check_num_nodes(num_nodes)
    check_edges(edges, num_nodes)
    ends = edges.detach().cpu().numpy()
    nodes = NodeNames(num_nodes)
    check_no_self_loop(ends[:, 0], ends[:, 1], nodes.name_of)
    return torch.from_numpy(levelled(ends, nodes)[1]).to(edges.device)


def levelled(edges: NDArray[np.int64], nodes: NodeNames) -> tuple[Csr, NDArray[np.int64]]:
    """The edges grouped by source, and the level of every node; ``edges`` are in range and no self-loops.

    Raises:
        CycleError: the edges form a cycle; the message names one.
    """
    source, target = np.ascontiguousarray(edges.T)
    by_source = grouped(source, nodes.num_nodes)
    num_parents = np.bincount(target, minlength=nodes.num_nodes)
    levels = peel(by_source.offsets.numpy(), target[by_source.edge_ids.numpy()], num_parents)
    if levels.size and levels.min() < 0:
        raise CycleError(cycle_message(source, target, levels, nodes.name_of))
    return by_source, levels
