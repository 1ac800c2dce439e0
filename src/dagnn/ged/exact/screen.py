"""Bounds of the distances from one graph to many others, in one call without the interpreter lock.

Three stages, each one dearer and stronger: `count_bounds` compares how often kinds, pair types and degrees occur;
`branch_bounds` is branch match at the root of the search, and then dual ascent and some nodes of its search.
"""

from typing import NamedTuple

import numpy as np

from dagnn.ged.costs import Ints
from dagnn.ged.exact.assignment import INFINITE
from dagnn.ged.exact.bounds import UPPER, Search, open_all
from dagnn.ged.exact.dual_search import advance_dual, allocate, dual_lower, fits, prepare
from dagnn.ged.exact.problem import DELETED, UNIFORM, Problem, fill, map_cost
from dagnn.ged.exact.search import advance, proved_lower
from dagnn.ged.exact.tables import CostTables, Tables
from dagnn.numba_jit import jitted


class Collection(NamedTuple):
    """Many graphs in few arrays, as jitted functions take them.

    Attributes:
        kind: int64: the node kinds of all graphs, one graph after the other.
        pairs: int64: their matrices of pair types, row by row.
        first: int64 ``[2, graphs + 1]``: where the kinds and the pairs of every graph begin.
    """

    kind: Ints
    pairs: Ints
    first: Ints


def new_collection(tables: CostTables, begin: int) -> Collection:
    """The graphs of ``tables`` from number ``begin`` on."""
    graphs = tables.graphs[begin:]
    none = np.zeros(0, dtype=np.int64)
    sizes = np.array([len(graph.kind) for graph in graphs], dtype=np.int64)
    first = np.zeros((2, len(graphs) + 1), dtype=np.int64)
    first[0, 1:], first[1, 1:] = sizes.cumsum(), (sizes * sizes).cumsum()
    kind = np.concatenate([none, *(graph.kind for graph in graphs)])
    return Collection(kind, np.concatenate([none, *(graph.pairs.ravel() for graph in graphs)]), first)


class Least(NamedTuple):
    """The least costs that a count can charge.

    Attributes:
        same: int64 ``[types]``: one number for a pair type and for the same edges read from the other end.
        node, edge: int64 ``[3]``: the least cost of a change to another kind, of a deletion and of an insertion.
    """

    same: Ints
    node: Ints
    edge: Ints


def least_costs(tables: CostTables, query: int) -> Least:
    """The least costs of turning graph ``query`` of ``tables`` into any other."""
    costs, graph = tables.tables, tables.graphs[query]
    number = {pair: i for i, pair in enumerate(tables.numbers.types)}
    reverse = np.array([number.get((q, p), i) for i, (p, q) in enumerate(tables.numbers.types)], dtype=np.int64)
    same = np.minimum(np.arange(len(reverse)), reverse)
    pair = np.minimum(costs.pair, costs.pair[:, reverse])
    types = np.unique(same[graph.pairs[graph.pairs > 0]])
    every = np.unique(same[1:])
    apart = costs.delete[:, None] + costs.insert
    return Least(
        same,
        _least(np.minimum(costs.substitute, apart), costs.delete, costs.insert, np.unique(graph.kind)),
        _least(pair[:, every], pair[:, 0], pair[0, every], types, every),
    )


def _least(substitute: Ints, delete: Ints, insert: Ints, rows: Ints, columns: Ints | None = None) -> Ints:
    """The least change of one of ``rows`` to another column, its least deletion, and the least insertion."""
    columns = np.arange(substitute.shape[1]) if columns is None else columns
    other = substitute[rows][rows[:, None] != columns]
    return np.array([int(part.min()) if part.size else 0 for part in (other, delete[rows], insert)], dtype=np.int64)


@jitted
def count_bounds(
    least: Least,
    num_kinds: int,
    kind: Ints,
    pairs: Ints,
    graphs: Collection,
    first: int,
    last: int,
    lower: Ints,
    stop: Ints,
) -> None:
    """Write lower bounds of the distances from one graph to those from number ``first`` to ``last - 1`` into ``lower``.

    Nodes: of min(n1, n2) pairs at most as many are free as both graphs have nodes of one kind; the others change, and
    the rest of the larger graph is deleted or inserted. Edges: the same, or by degrees, whichever is more: with both
    sequences sorted, every difference is an edge deleted or inserted, which two nodes see.
    """
    same, node, edge = least.same, least.node, least.edge
    n1 = len(kind)
    kinds, types = np.zeros(num_kinds, np.int64), np.zeros(len(same), np.int64)
    edges = 0
    for u in range(n1):
        kinds[kind[u]] += 1
        for w in range(u):
            if pairs[u, w] != 0:
                edges += 1
                types[same[pairs[u, w]]] += 1
    degrees = _degrees(pairs)
    for g in range(first, last):
        if stop[0] != 0:
            return
        other = graphs.kind[graphs.first[0, g] : graphs.first[0, g + 1]]
        n2 = len(other)
        matrix = graphs.pairs[graphs.first[1, g] : graphs.first[1, g + 1]].reshape((n2, n2))
        common, kept, others = 0, 0, 0
        for v in range(n2):
            common += kinds[other[v]] > 0
            kinds[other[v]] -= 1
            for x in range(v):
                if matrix[v, x] != 0:
                    others += 1
                    kept += types[same[matrix[v, x]]] > 0
                    types[same[matrix[v, x]]] -= 1
        for v in range(n2):
            kinds[other[v]] += 1
            for x in range(v):
                if matrix[v, x] != 0:
                    types[same[matrix[v, x]]] += 1
        nodes = (min(n1, n2) - common) * node[0] + max(0, n1 - n2) * node[1] + max(0, n2 - n1) * node[2]
        by_type = (min(edges, others) - kept) * edge[0] + max(0, edges - others) * edge[1]
        by_type += max(0, others - edges) * edge[2]
        theirs = _degrees(matrix)
        halves = 0
        for i in range(max(n1, n2)):
            more = (degrees[n1 - 1 - i] if i < n1 else 0) - (theirs[n2 - 1 - i] if i < n2 else 0)
            halves += more * edge[1] if more > 0 else -more * edge[2]
        lower[g] = nodes + max(by_type, (halves + 1) // 2)


@jitted
def _degrees(pairs: Ints) -> Ints:
    """The numbers of neighbours, in ascending order."""
    degree = np.zeros(len(pairs), np.int64)
    for u in range(len(pairs)):
        for w in range(len(pairs)):
            degree[u] += pairs[u, w] != 0
    degree.sort()
    return degree


@jitted
def branch_bounds(
    tables: Tables,
    reverse: Tables,
    kind: Ints,
    pairs: Ints,
    graphs: Collection,
    chosen: Ints,
    limit: int,
    last: int,
    nodes: int,
    lower: Ints,
    upper: Ints,
    stop: Ints,
) -> None:
    """Raise ``lower`` and lower ``upper`` for the graphs ``chosen`` by a search for distances up to ``limit``.

    Args:
        last: graphs with a higher number are searched for distances below ``limit`` only.
        nodes: most search nodes for each; 0 stops after branch match at the root.
    """
    # For a literal 0 numba would compile `prepare` and `advance` once more.
    none = int(np.int64(0))
    for g in chosen:
        other = graphs.kind[graphs.first[0, g] : graphs.first[0, g + 1]]
        n1, n2 = len(kind), len(other)
        matrix = graphs.pairs[graphs.first[1, g] : graphs.first[1, g + 1]].reshape((n2, n2))
        most = limit - 1 if g > last else limit
        if n1 <= n2:
            problem = _problem(tables, kind, pairs, other, matrix)
        else:
            problem = _problem(reverse, other, matrix, kind, pairs)
        if nodes > 0 and fits(problem):
            dual = allocate(problem, stop)
            nothing = np.full(len(problem.delete), DELETED, np.int64)
            prepare(problem, dual, nothing, map_cost(problem, nothing), most, none)
            done = advance_dual(problem, dual, nodes)
            found, least = dual.numbers[UPPER], dual_lower(dual, done)
        else:
            search = _search(problem, most, stop)
            done = advance(problem, search, none, nodes)
            found, least = search.numbers[UPPER], proved_lower(search, done)
        if stop[0] != 0:
            return
        lower[g], upper[g] = max(lower[g], least), min(upper[g], found)


@jitted
def _problem(tables: Tables, kind: Ints, pairs: Ints, other: Ints, matrix: Ints) -> Problem:
    """As `problem.new_problem`, for use inside of jitted functions only: Ctrl-C cannot come between."""
    n1, n2 = len(kind), len(other)
    problem = Problem(
        np.empty((n1, n2), np.int64),
        np.empty(n1, np.int64),
        np.empty(n2, np.int64),
        pairs,
        matrix,
        tables.pair,
        tables.directions,
        np.empty(n2, np.int64),
        np.empty(n1, np.int64),
        np.zeros(6, np.int64),
    )
    fill(problem, tables, kind, other)
    return problem


@jitted
def _search(problem: Problem, limit: int, stop: Ints) -> Search:
    """As `bounds.new_search`, for use inside of jitted functions only."""
    n1, n2 = problem.node.shape
    labels = 1
    if problem.constants[UNIFORM] == 1:
        labels = problem.directions.max() + 1
    numbers = np.zeros(9, np.int64)
    numbers[:] = np.array([0, 1, -1, limit, 0, -1, 0, 2, 0])
    left, right = np.zeros((6, n1), np.int64), np.zeros((3, n2), np.int64)
    open_all(problem, left, right)
    return Search(
        numbers,
        left,
        right,
        np.zeros((3, n1 + 1), np.int64),
        np.zeros((n1 + 1, n2 + 1), np.int64),
        np.zeros((n1 + 1, n2 + 1), np.int64),
        np.zeros((n1, n2), np.int64),
        np.zeros((n1, 2, labels), np.int64),
        np.zeros((n2, 2, labels), np.int64),
        np.zeros((n1, n2), np.int64),
        np.zeros((n1, n2), np.int64),
        np.zeros((6, n2 + 1), np.int64),
        stop,
    )


NO_LIMIT = INFINITE >> 2
"""For `branch_bounds`: every map is improved."""
