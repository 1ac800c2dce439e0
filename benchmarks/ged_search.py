"""The 10 nearest of 10,000 molecule-like graphs are found exactly, the median query in at most 2 s on two cores.

Graphs as molecules are: trees with up to two rings, at most four bonds an atom, labels on atoms and bonds. First the
answers are compared with the full row of distances over 300 of them.
"""

import argparse
import random
import sys
import time
from collections.abc import Sequence
from typing import Any

import networkx
import torch

from dagnn.ged import ged_matrix, ged_search

GRAPHS, SECONDS, CHECKED = 10_000, 2.0, 300


def molecule(rng: random.Random, atoms: int) -> Any:
    """A connected graph with elements and bonds as labels."""
    graph = networkx.Graph()
    for atom in range(atoms):
        graph.add_node(atom, label=rng.choices("CNOSPF", [70, 10, 12, 3, 2, 3])[0])
        if atom:
            near = [other for other in range(max(0, atom - 4), atom) if graph.degree(other) < 4]
            graph.add_edge(atom, rng.choice(near), label=rng.choices([1, 2], [75, 25])[0])
    for _ in range(rng.choice([0, 1, 1, 2])):
        a, b = rng.sample(range(atoms), 2)
        if not graph.has_edge(a, b) and max(graph.degree(a), graph.degree(b)) < 4:
            graph.add_edge(a, b, label=1)
    return graph


def main(argv: Sequence[str] | None = None) -> int:
    """Prints a line for every query; 1 when an answer differs, or the median query takes too long."""
    headline = (__doc__ or "").splitlines()[0]
    parser = argparse.ArgumentParser(description=headline)
    parser.add_argument("--graphs", type=int, default=GRAPHS, help="size of the collection")
    parser.add_argument("--queries", type=int, default=7)
    parser.add_argument("--quick", action="store_true", help="1,000 graphs and 2 queries; checks answers, not time")
    arguments = parser.parse_args(argv)
    count, queries = (1_000, 2) if arguments.quick else (arguments.graphs, arguments.queries)
    torch.set_num_threads(1)
    rng = random.Random(0)
    graphs = [molecule(rng, rng.randint(8, 20)) for _ in range(count)]

    print(headline)
    some, query = graphs[:CHECKED], molecule(rng, 12)
    row = ged_matrix([query], some).distance[0]
    found = ged_search(query, some, 10)
    agree = found.complete and found.index.tolist() == row.argsort(stable=True)[:10].tolist()
    print(f"10 nearest of {len(some)}: {'as' if agree else 'NOT as'} in the full row of distances")
    walls = []
    for _ in range(queries):
        query = molecule(rng, rng.randint(8, 20))
        wall, processor = time.perf_counter(), time.process_time()
        found = ged_search(query, graphs, 10)
        walls.append(time.perf_counter() - wall)
        print(
            f"{len(query):3} atoms: {walls[-1]:.2f} s, {time.process_time() - processor:.2f} s of processors, at "
            f"{found.lower[0]:g} .. {found.upper[-1]:g}, settled by counts, branches, search: {tuple(found.settled)}"
        )
        agree &= found.complete
    median = sorted(walls)[len(walls) // 2]
    late = not arguments.quick and median > SECONDS
    print(f"median {median:.2f} s, limit {SECONDS:g} s{'  MISSED' * late}")
    return 1 if late or not agree else 0


if __name__ == "__main__":
    sys.exit(main())
