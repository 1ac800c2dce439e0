"""Oracles that share no code with dagnn.ged, and small random graphs."""

import itertools
import random
from collections.abc import Callable
from typing import Any

import networkx as nx
import pytest


class PlainGraph:
    """A labelled graph as plain lists; ``edges`` are (source, target, label), self-loops and repeats allowed."""

    def __init__(self, labels: list[Any], edges: list[tuple[int, int, Any]], directed: bool = True) -> None:
        self.labels, self.edges, self.directed = labels, edges, directed

    def bundles(self) -> dict[Any, list[Any]]:
        found: dict[Any, list[Any]] = {}
        for source, target, label in self.edges:
            key = (source, target) if self.directed else (min(source, target), max(source, target))
            found.setdefault(key, []).append(label)
        return found


class PlainCosts:
    """Six callables; by default unit costs."""

    def __init__(self, **given: Callable[..., float]) -> None:
        def differ(a: Any, b: Any) -> float:
            return float(a != b)

        def one(_: Any) -> float:
            return 1.0

        self.node_substitution = given.get("node_substitution", differ)
        self.node_deletion = given.get("node_deletion", one)
        self.node_insertion = given.get("node_insertion", one)
        self.edge_substitution = given.get("edge_substitution", differ)
        self.edge_deletion = given.get("edge_deletion", one)
        self.edge_insertion = given.get("edge_insertion", one)

    def bundle(self, left: list[Any], right: list[Any]) -> Any:
        """Cheapest way to turn parallel edges into others."""
        best = float("inf")
        for size in range(min(len(left), len(right)) + 1):
            for kept in itertools.combinations(range(len(left)), size):
                for image in itertools.permutations(range(len(right)), size):
                    cost = sum(self.edge_substitution(left[i], right[j]) for i, j in zip(kept, image, strict=True))
                    cost += sum(self.edge_deletion(left[i]) for i in range(len(left)) if i not in kept)
                    cost += sum(self.edge_insertion(right[j]) for j in range(len(right)) if j not in image)
                    best = min(best, cost)
        return best


def cost_of_map(a: PlainGraph, b: PlainGraph, node_map: dict[int, int], costs: PlainCosts) -> Any:
    cost: Any = 0  # exact if the costs are fractions
    for u, label in enumerate(a.labels):
        cost += costs.node_substitution(label, b.labels[node_map[u]]) if u in node_map else costs.node_deletion(label)
    for v, label in enumerate(b.labels):
        if v not in node_map.values():
            cost += costs.node_insertion(label)
    left, right = a.bundles(), b.bundles()
    for (u, w), labels in left.items():
        image: Any = (node_map.get(u), node_map.get(w))
        if None in image:
            cost += costs.bundle(labels, [])
            continue
        if not a.directed:
            image = (min(image), max(image))
        cost += costs.bundle(labels, right.pop(image, []))
    return cost + sum(costs.bundle([], labels) for labels in right.values())


def brute_force(a: PlainGraph, b: PlainGraph, costs: PlainCosts) -> Any:
    """Graph edit distance by trying every partial map."""
    best = float("inf")
    for size in range(min(len(a.labels), len(b.labels)) + 1):
        for kept in itertools.combinations(range(len(a.labels)), size):
            for image in itertools.permutations(range(len(b.labels)), size):
                best = min(best, cost_of_map(a, b, dict(zip(kept, image, strict=True)), costs))
    return best


def random_dag(rng: random.Random, nodes: int, labels: int = 4, probability: float | None = None) -> PlainGraph:
    """The random DAGs of the measurements: edge probability min(0.5, 2.5 / (n - 1)), nodes shuffled."""
    chance = min(0.5, 2.5 / max(1, nodes - 1)) if probability is None else probability
    order = list(range(nodes))
    rng.shuffle(order)
    pairs = itertools.combinations(range(nodes), 2)
    edges = [(order[i], order[j], None) for i, j in pairs if rng.random() < chance]
    return PlainGraph([rng.randrange(labels) for _ in range(nodes)], edges)


def perturbed(rng: random.Random, graph: PlainGraph, edits: int, labels: int = 4) -> PlainGraph:
    """``graph`` with some nodes relabelled and some edges added or removed, then shuffled; acyclic if it was."""
    nodes = len(graph.labels)
    below: dict[int, set[int]] = {u: set() for u in range(nodes)}
    for u, v, _ in graph.edges:
        below[u].add(v)
    order: list[int] = []
    while len(order) < nodes:
        waiting = [u for u in range(nodes) if u not in order]
        order += [u for u in waiting if all(u not in below[w] for w in waiting)]
    new_labels, edges = list(graph.labels), {(u, v) for u, v, _ in graph.edges}
    for _ in range(edits):
        if rng.random() < 0.34:
            new_labels[rng.randrange(nodes)] = rng.randrange(labels)
        else:
            i, j = sorted(rng.sample(range(nodes), 2))
            edges ^= {(order[i], order[j])}
    place = list(range(nodes))
    rng.shuffle(place)
    moved = [new_labels[place.index(i)] for i in range(nodes)]
    return PlainGraph(moved, [(place[u], place[v], None) for u, v in sorted(edges)])


def to_networkx(graph: PlainGraph, multi: bool = False) -> Any:
    kinds = {(True, True): nx.MultiDiGraph, (True, False): nx.DiGraph, (False, True): nx.MultiGraph}
    made = kinds.get((graph.directed, multi), nx.Graph)()
    for node, label in enumerate(graph.labels):
        made.add_node(node, **({} if label is None else {"label": label}))
    for source, target, label in graph.edges:
        made.add_edge(source, target, **({} if label is None else {"label": label}))
    return made


class Oracle:
    """What the tests of this folder use, in one fixture: test files here cannot import one another."""

    Graph = PlainGraph
    Costs = PlainCosts
    cost_of_map = staticmethod(cost_of_map)
    brute_force = staticmethod(brute_force)
    random_dag = staticmethod(random_dag)
    perturbed = staticmethod(perturbed)
    to_networkx = staticmethod(to_networkx)


@pytest.fixture(scope="session")
def oracle() -> type[Oracle]:
    return Oracle
