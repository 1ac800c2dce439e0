"""Checks exact graph edit distances against brute force over every map, and against NetworkX.

    python scripts/check_edit_distance.py                        # 20,000 and 2,000 pairs, a few minutes
    python scripts/check_edit_distance.py --pairs 500 --networkx 50

Brute force shares no code with dagnn.ged: it walks every map of up to 8 nodes, deletions included, and has no bounds
but the best cost so far. Graphs are directed or not, with labels on nodes and edges and with self-loops; a third have
many nodes that can be exchanged. Costs are multiples of 1/8, so sums of floats are exact, and mostly asymmetric. Where
NetworkX differs or breaks, as 3.6 does for some graphs with self-loops, brute force decides.
"""

import argparse
import random
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import networkx
import numpy as np
from numba import njit

from dagnn.ged import EditCosts, graph_edit_distance

LABELS = 3


class Plain(NamedTuple):
    """Labels of the nodes, and of the edges by matrix, plus 1; 0 is no edge. Loops are on the diagonal."""

    labels: Any
    edges: Any
    directed: bool


def random_graph(rng: random.Random, nodes: int, directed: bool) -> Plain:
    """Half random, half of few classes of nodes, whose members can mostly be exchanged."""
    classes = list(range(nodes)) if rng.random() < 0.66 else [rng.randrange(2) for _ in range(nodes)]
    label = [rng.randrange(LABELS) for _ in range(max(nodes, 2))]
    chance = rng.choice([0.15, 0.3, 0.6])
    joined = {(c, d): rng.randrange(1, 3) if rng.random() < chance else 0 for c in classes for d in classes}
    edges = np.zeros((nodes, nodes), dtype=np.int64)
    for u in range(nodes):
        for v in range(nodes) if directed else range(u + 1):
            if u != v or rng.random() < 0.2:
                edges[u, v] = joined[classes[u], classes[v]]
                if not directed:
                    edges[v, u] = edges[u, v]
    return Plain(np.array([label[c] for c in classes], dtype=np.int64), edges, directed)


def as_networkx(graph: Plain) -> Any:
    made = networkx.DiGraph() if graph.directed else networkx.Graph()
    made.add_nodes_from((u, {"label": int(label)}) for u, label in enumerate(graph.labels))
    made.add_edges_from((int(u), int(v), {"label": int(graph.edges[u, v])}) for u, v in np.argwhere(graph.edges))
    return made


@njit(cache=False)
def brute_force(a: Any, b: Any, left: Any, right: Any, directed: bool, node: Any, edge: Any) -> float:
    """The least cost of all maps. ``node[x, y]`` and ``edge[x, y]``: label or edge x, plus 1, to y; 0 is nothing."""
    n, m = len(a), len(b)
    image, used = np.full(n + 1, -2), np.zeros(m + 1, np.int64)
    cost = np.zeros(n + 2)
    best, depth = np.inf, 0
    while depth >= 0:
        if depth == n:
            total = cost[n]
            for v in range(m):
                if used[v] == 0:
                    total += node[0, b[v] + 1] + edge[0, right[v, v]]
                    for x in range(m):
                        if x != v and (used[x] == 1 or x < v):
                            total += edge[0, right[v, x]] + (edge[0, right[x, v]] if directed else 0.0)
            best = min(best, total)
            depth -= 1
            continue
        old = image[depth]
        if old >= 0:
            used[old] = 0
        # Images -1 (deleted), 0, 1, ...; -2 before the first.
        v = old + 1
        while v >= 0 and v < m and used[v] == 1:
            v += 1
        if v >= m:
            image[depth] = -2
            depth -= 1
            continue
        image[depth] = v
        if v >= 0:
            used[v] = 1
        step = node[a[depth] + 1, 0 if v < 0 else b[v] + 1] + edge[left[depth, depth], 0 if v < 0 else right[v, v]]
        for w in range(depth):
            x = image[w]
            there = 0 if v < 0 or x < 0 else right[v, x]
            step += edge[left[depth, w], there]
            if directed:
                step += edge[left[w, depth], 0 if v < 0 or x < 0 else right[x, v]]
        cost[depth + 1] = cost[depth] + step
        if cost[depth + 1] < best:
            depth += 1
            image[depth] = -2
    return best


def random_costs(rng: random.Random) -> tuple[EditCosts, Any, Any]:
    """Costs, and their tables with row and column 0 for nothing."""
    given, tables = {}, []
    for part in ("node", "edge"):
        table = np.zeros((LABELS + 1, LABELS + 1))
        remove, insert, change = (rng.randrange(1, 25) / 8 for _ in range(3))
        table[1:, 0], table[0, 1:] = remove, insert
        # An edge can always be replaced; a node that is replaced loses its edges, which brute force tries by itself.
        kept = min(change, remove + insert) if part == "edge" else change
        table[1:, 1:] = kept * (1 - np.eye(LABELS))
        given |= {f"{part}_deletion": remove, f"{part}_insertion": insert, f"{part}_substitution": change}
        tables.append(table)
    return EditCosts(**given), tables[0], tables[1]


def against_brute_force(pairs: int) -> int:
    """How many distances differ."""
    wrong = 0
    for seed in range(pairs):
        rng = random.Random(seed)
        directed = rng.random() < 0.5
        a, b = (random_graph(rng, rng.randint(0, 8), directed) for _ in range(2))
        costs, node, edge = random_costs(rng)
        expected = brute_force(a.labels, b.labels, a.edges, b.edges, directed, node, edge)
        found = graph_edit_distance(as_networkx(a), as_networkx(b), costs)
        paid = sum(each.cost for each in found.edit_path)
        if not (found.proved and found.upper == expected == paid):
            wrong += 1
            print(f"seed {seed}: brute force {expected}, ours {found.lower} .. {found.upper}, edits {paid}", flush=True)
        if seed % 1000 == 999:
            print(f"{seed + 1:,} pairs, {wrong} differ", flush=True)
    return wrong


def against_networkx(pairs: int) -> int:
    """How many distances differ from NetworkX's and from brute force."""
    wrong, theirs = 0, 0
    for seed in range(pairs):
        rng = random.Random(-1 - seed)
        directed = rng.random() < 0.5
        plain = [random_graph(rng, rng.randint(0, 5), directed) for _ in range(2)]
        a, b = map(as_networkx, plain)
        costs, node, edge = random_costs(rng)
        try:
            expected = networkx.graph_edit_distance(
                a,
                b,
                node_subst_cost=lambda x, y, node=node: node[x["label"] + 1, y["label"] + 1],
                node_del_cost=lambda x, node=node: node[x["label"] + 1, 0],
                node_ins_cost=lambda y, node=node: node[0, y["label"] + 1],
                edge_subst_cost=lambda x, y, edge=edge: edge[x["label"], y["label"]],
                edge_del_cost=lambda x, edge=edge: edge[x["label"], 0],
                edge_ins_cost=lambda y, edge=edge: edge[0, y["label"]],
            )
        except IndexError:  # NetworkX 3.6 breaks on some graphs with self-loops
            expected = None
        found = graph_edit_distance(a, b, costs)
        if found.proved and found.upper == expected:
            continue
        (x, left, _), (y, right, _) = plain
        if found.proved and found.upper == brute_force(x, y, left, right, directed, node, edge):
            theirs += 1
            continue
        wrong += 1
        print(f"seed {seed}: NetworkX {expected}, ours {found.lower} .. {found.upper}", flush=True)
    print(f"NetworkX breaks, or differs from brute force and from us, on {theirs} pairs")
    return wrong


def main(argv: Sequence[str] | None = None) -> int:
    """1 if a distance differs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pairs", type=int, default=20_000)
    parser.add_argument("--networkx", type=int, default=2_000)
    arguments = parser.parse_args(argv)
    wrong = against_brute_force(arguments.pairs)
    print(f"brute force: {wrong} of {arguments.pairs:,} differ")
    other = against_networkx(arguments.networkx)
    print(f"NetworkX: {other} of {arguments.networkx:,} differ")
    return 1 if wrong or other else 0


if __name__ == "__main__":
    sys.exit(main())
