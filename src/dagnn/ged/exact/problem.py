"""One pair of graphs, ready for the search: what every node map costs, and local improvement of a map.

Legend: u and w are nodes of the left graph (the smaller one), v and x of the right; ``image[u]`` is the node that
u is mapped to, or -1 if u is deleted; p and q are pair types.
"""

from typing import Any, NamedTuple

import numpy as np

from dagnn.ged.costs import Ints
from dagnn.ged.exact.tables import GraphArrays, Tables
from dagnn.numba_jit import jitted

DELETED = -1

# Any large odd number. A sum of multiples may overflow: equal rows still have equal sums.
MULTIPLE = 0x9E3779B97F4A7

# Indices into `Problem.constants`.
ALL_EDGES, DELETIONS_PAY, UNIFORM, SUBSTITUTION, DELETION, INSERTION = range(6)


class Problem(NamedTuple):
    """The costs of mapping a left graph of n1 nodes into a right graph of n2 >= n1 nodes.

    Attributes:
        node: int64 ``[n1, n2]``: cost of mapping u to v, self-loops included.
        delete: int64 ``[n1]``; insert: int64 ``[n2]``.
        left: int64 ``[n1, n1]``, right: int64 ``[n2, n2]``: pair types.
        pair: int64 ``[types, types]``, directions: int64 ``[2, types]``: as in `Tables`.
        twin: int64 ``[n2]``: an earlier node that can be exchanged with v at no cost, or -1.
        left_twin: int64 ``[n1]``: the same for u.
        constants: int64 ``[6]``: cost of inserting all edges of the right graph; 1 if deletions can pay although
            n1 <= n2; then `Tables.uniform`.
    """

    node: Ints
    delete: Ints
    insert: Ints
    left: Ints
    right: Ints
    pair: Ints
    directions: Ints
    twin: Ints
    left_twin: Ints
    constants: Ints


class Prices(NamedTuple):
    """Edge costs moved to the nodes, in parts of a unit, by `relaxations`.

    If u is mapped to v and w to x, their pair is left with the cost ``scale * saving(pair types) + left[u, w, v] +
    left[w, u, x] + right[v, x, u] + right[x, v, w]``, which is never negative.

    Attributes:
        node: int64 ``[n1, n2]``: cost of u -> v once all prices are paid.
        left: int64 ``[n1, n1, n2]``, at least 0: price of the edge between u and w if u -> v; 0 without an edge.
        right: int64 ``[n2, n2, n1]``, at least 0: price of the edge between v and x if u -> v; 0 without an edge.
        constants: int64 ``[2]``: parts of a unit; cost of deleting and inserting everything, in parts.
    """

    node: Ints
    left: Ints
    right: Ints
    constants: Ints


# Allocates in Python: numba makes the arrays that a jitted function returns by calls of Python, and crashes the process
# if Ctrl-C comes during such a call.
def new_problem(tables: Tables, a: GraphArrays, b: GraphArrays) -> Problem:
    """The problem of turning ``a`` into ``b``; ``a`` must not have more nodes than ``b``."""
    n1, n2 = len(a.kind), len(b.kind)
    problem = Problem(
        node=np.empty((n1, n2), np.int64),
        delete=np.empty(n1, np.int64),
        insert=np.empty(n2, np.int64),
        left=a.pairs,
        right=b.pairs,
        pair=tables.pair,
        directions=tables.directions,
        twin=np.empty(n2, np.int64),
        left_twin=np.empty(n1, np.int64),
        constants=np.zeros(6, np.int64),
    )
    fill(problem, tables, a.kind, b.kind)
    return problem


@jitted
def fill(problem: Problem, tables: Tables, kind_a: Ints, kind_b: Ints) -> None:
    """Compute what `new_problem` has only allocated."""
    node, delete, insert, constants = problem.node, problem.delete, problem.insert, problem.constants
    right, pair, substitute = problem.right, problem.pair, tables.substitute
    for v in range(len(kind_b)):
        insert[v] = tables.insert[kind_b[v]]
        for x in range(v):
            constants[ALL_EDGES] += pair[0, right[v, x]]
    for u in range(len(kind_a)):
        delete[u] = tables.delete[kind_a[u]]
        for v in range(len(kind_b)):
            node[u, v] = substitute[kind_a[u], kind_b[v]]
            if node[u, v] > delete[u] + insert[v]:
                constants[DELETIONS_PAY] = 1
    constants[UNIFORM:] = tables.uniform
    _find_twins(kind_b, right, problem.twin)
    _find_twins(kind_a, problem.left, problem.left_twin)


@jitted
def _find_twins(kind: Ints, pairs: Ints, twin: Ints) -> None:
    n = len(kind)
    # Compare rows by a sum of multiples first: without their entries at v and x, the sums of twins are equal.
    summary = np.zeros(n, np.int64)
    for v in range(n):
        for y in range(n):
            summary[v] += pairs[v, y] * (y * MULTIPLE + 1)
    for v in range(n):
        twin[v] = -1
        for x in range(v - 1, -1, -1):
            here, there = summary[v] - pairs[v, x] * (x * MULTIPLE + 1), summary[x] - pairs[x, v] * (v * MULTIPLE + 1)
            same = here == there and kind[v] == kind[x] and pairs[v, x] == pairs[x, v]
            for y in range(n):
                if not same:
                    break
                same = y in (v, x) or pairs[v, y] == pairs[x, y]
            if same:
                twin[v] = x
                break


@jitted
def map_cost(problem: Problem, image: Ints) -> int:
    """Cost of the edits of the map ``image`` (int64 ``[n1]``)."""
    # Take the fields out of the tuple once: doing so in the loop made it take 5 times as long.
    node, delete, insert, left, right, pair = problem[:6]
    n1, nobody = len(image), np.int64(-1)
    cost: int = problem.constants[ALL_EDGES]
    for v in range(len(insert)):
        cost += insert[v]
    for u in range(n1):
        cost += _share(node, delete, insert, left, right, pair, image, u, u, nobody)
    return cost


@jitted
def improve(problem: Problem, image: Ints, stop: Ints) -> int:
    """Move one node, or swap two, in ``image`` as long as that makes it cheaper; returns its cost.

    It returns early once another thread has written 1 into ``stop``, int64 ``[1]``.
    """
    node, delete, insert, left, right, pair = problem[:6]
    n1, n2 = node.shape
    first = DELETED if problem.constants[DELETIONS_PAY] == 1 else 0
    owner, nobody = np.full(n2, -1, np.int64), np.int64(-1)
    for u in range(n1):
        if image[u] >= 0:
            owner[image[u]] = u
    better = True
    while better:
        better = False
        for u in range(n1):
            if stop[0] != 0:
                better = False
                break
            for v in range(first, n2):
                old = image[u]
                if v == old:
                    continue
                w = owner[v] if v >= 0 else -1
                # u takes v; its owner w, if any, takes what u had. Their own pair counts once, with u.
                change = -_share(node, delete, insert, left, right, pair, image, u, n1, nobody)
                if w >= 0:
                    change -= _share(node, delete, insert, left, right, pair, image, w, n1, u)
                    image[w] = old
                image[u] = v
                change += _share(node, delete, insert, left, right, pair, image, u, n1, nobody)
                if w >= 0:
                    change += _share(node, delete, insert, left, right, pair, image, w, n1, u)
                if change < 0:
                    better = True
                    if old >= 0:
                        owner[old] = w
                    if v >= 0:
                        owner[v] = u
                else:
                    image[u] = old
                    if w >= 0:
                        image[w] = v
    return map_cost(problem, image)


@jitted
def _share(
    node: Ints,
    delete: Ints,
    insert: Ints,
    left: Ints,
    right: Ints,
    pair: Ints,
    image: Ints,
    u: int,
    last: int,
    without: np.integer[Any] | int,
) -> int:
    """The cost of u and of its pairs with the nodes before ``last``, except for ``without``."""
    v = image[u]
    cost: int = delete[u] if v < 0 else node[u, v] - insert[v]
    for w in range(last):
        if w != u and w != without:
            x = image[w]
            if v < 0 or x < 0:
                cost += pair[left[u, w], 0]
            else:
                cost += pair[left[u, w], right[v, x]] - pair[0, right[v, x]]
    return cost
