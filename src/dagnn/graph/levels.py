"""Levels of a DAG: which nodes may be computed together. Kahn's algorithm, compiled."""

import ctypes
from collections.abc import Callable
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dagnn.errors import CycleError
from dagnn.graph.edges import Csr, check_edges, check_no_self_loop, check_num_nodes, cycle_message, grouped
from dagnn.graph.names import NodeNames

# %first, %child: the out-edges of node u lead to child[first[u]] .. child[first[u + 1] - 1].
# %missing: the number of each node's parents that are still in the graph.
# %queue: the nodes without any; the caller has put the first %ready of them there.
# A node leaves the graph (block `take`), each child loses a parent (`scan`), and a child that has lost its last parent
# goes into the queue (`push`), one level above that parent. The queue is in order of level, so a node's last parent is
# one of its highest.
_ASSEMBLY = """
define i64 @peel(ptr noalias %first, ptr noalias %child, ptr noalias %missing,
                 ptr noalias %level, ptr noalias %queue, i64 %ready) {
entry:
  br label %take
take:
  %head = phi i64 [ 0, %entry ], [ %head.next, %taken ]
  %tail = phi i64 [ %ready, %entry ], [ %tail.taken, %taken ]
  %empty = icmp eq i64 %head, %tail
  br i1 %empty, label %done, label %open
open:
  %u.at = getelementptr i64, ptr %queue, i64 %head
  %u = load i64, ptr %u.at
  %first.at = getelementptr i64, ptr %first, i64 %u
  %edge.first = load i64, ptr %first.at
  %end.at = getelementptr i64, ptr %first.at, i64 1
  %edge.end = load i64, ptr %end.at
  %u.level.at = getelementptr i64, ptr %level, i64 %u
  %u.level = load i64, ptr %u.level.at
  %above = add i64 %u.level, 1
  %is.sink = icmp eq i64 %edge.first, %edge.end
  br i1 %is.sink, label %taken, label %scan
scan:
  %edge = phi i64 [ %edge.first, %open ], [ %edge.next, %scanned ]
  %tail.scan = phi i64 [ %tail, %open ], [ %tail.scanned, %scanned ]
  %v.at = getelementptr i64, ptr %child, i64 %edge
  %v = load i64, ptr %v.at
  %missing.at = getelementptr i64, ptr %missing, i64 %v
  %missing.old = load i64, ptr %missing.at
  %missing.new = sub i64 %missing.old, 1
  store i64 %missing.new, ptr %missing.at
  %is.ready = icmp eq i64 %missing.new, 0
  br i1 %is.ready, label %push, label %scanned
push:
  %place.at = getelementptr i64, ptr %queue, i64 %tail.scan
  store i64 %v, ptr %place.at
  %v.level.at = getelementptr i64, ptr %level, i64 %v
  store i64 %above, ptr %v.level.at
  %tail.push = add i64 %tail.scan, 1
  br label %scanned
scanned:
  %tail.scanned = phi i64 [ %tail.scan, %scan ], [ %tail.push, %push ]
  %edge.next = add i64 %edge, 1
  %is.last = icmp eq i64 %edge.next, %edge.end
  br i1 %is.last, label %taken, label %scan
taken:
  %tail.taken = phi i64 [ %tail, %open ], [ %tail.scanned, %scanned ]
  %head.next = add i64 %head, 1
  br label %take
done:
  ret i64 %tail
}
"""


def peel(first: NDArray[np.int64], child: NDArray[np.int64], num_parents: NDArray[np.int64]) -> NDArray[np.int64]:
    """Level of every node, or -1 for a node on a cycle or behind one.

    Args:
        first: int64 ``[num_nodes + 1]``; the out-edges of node u are ``first[u] .. first[u + 1] - 1``.
        child: int64 ``[num_edges]``, where each edge leads; every entry in ``0 .. num_nodes - 1``.
        num_parents: int64 ``[num_nodes]``, how often each node occurs in ``child``. Not changed.

    All arrays are contiguous, and nobody checks them here: a wrong entry writes outside of the arrays.
    Source: Kahn, "Topological sorting of large networks", CACM 5(11), 1962.
    """
    missing = num_parents.copy()
    queue = np.empty_like(missing)
    sources = np.flatnonzero(missing == 0)
    queue[: len(sources)] = sources
    level = np.full_like(missing, -1)
    level[sources] = 0

    _compiled_peel()(
        _address(first), _address(child), _address(missing), _address(level), _address(queue), len(sources)
    )
    return level


def _address(array: NDArray[np.int64]) -> int:
    return int(array.__array_interface__["data"][0])


@cache
def _compiled_peel() -> Callable[..., int]:
    import llvmlite.binding as llvm  # type: ignore[import-untyped,unused-ignore]  # here, so that `import dagnn.graph` does not wait for it

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(opt=2)
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(_ASSEMBLY), machine)
    engine.finalize_object()
    prototype = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_void_p] * 5, ctypes.c_int64)
    function: Callable[..., int] = prototype(engine.get_function_address("peel"))
    function.engine = engine  # type: ignore[attr-defined]  # the code lives as long as its engine
    return function


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

    The message of the CycleError names a cycle.
    """
    source, target = np.ascontiguousarray(edges.T)
    by_source = grouped(source, nodes.num_nodes)
    num_parents = np.bincount(target, minlength=nodes.num_nodes)
    levels = peel(by_source.offsets.numpy(), target[by_source.edge_ids.numpy()], num_parents)
    if levels.size and levels.min() < 0:
        raise CycleError(cycle_message(source, target, levels, nodes.name_of))
    return by_source, levels
