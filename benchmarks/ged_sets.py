"""Every pair of the public sets AIDS, LINUX and IMDB up to 10 nodes is proved, and 95 % of IMDB's pairs of 11 to 30.

``--data FOLDER`` has AIDS.jsonl, LINUX.jsonl and IMDB.jsonl: a graph on each line, as ``{"n": 3, "edges": [[0, 1]],
"labels": ["C", "C", "O"]}``. A set that is missing is replaced by random graphs of the same sizes and numbers of
labels, and its rows say so. Times are those of one thread, reading of graphs included. ``--cores`` measures what a
second one gains for a single pair, and that it changes no bit.

``--fgwalign FOLDER`` has a copy of the public code of FGWAlign (Tang et al., "Fused Gromov-Wasserstein Alignment for
Graph Edit Distance Computation and Beyond", PVLDB 18(10), 2025), which needs POT: its rows are for the same pairs, each
right after ours, in the two settings that its authors name.
"""

import argparse
import importlib.util
import logging
import random
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import networkx
import torch

from benchmarks.ged import unrelated_pairs
from dagnn.ged import GedResult, ged_matrix, graph_edit_distance, read_graph_files

Pairs = list[tuple[Any, Any]]
QUICK = 20  # parts of the pairs
FGWALIGN = {"fast": {"patience": 1, "topk": 10}, "full": {"patience": 20, "topk": 10}}
BESIDE = 100  # pairs for FGWAlign: they take seconds, and in its full setting some ten times as long
HARD = 20_000  # search nodes: five times as many as a search bounds before it is split up


class Set(NamedTuple):
    """A public set: how many pairs are measured, the seconds that 100 of them may take, and its stand-in."""

    pairs: int
    seconds: float
    graphs: int
    nodes: tuple[int, int]
    labels: int


SETS = {
    "AIDS": Set(14_000, 0.045, 700, (2, 10), 29),
    "LINUX": Set(20_000, 0.012, 1_000, (4, 10), 1),
    "IMDB": Set(2_960, 0.22, 1_500, (7, 30), 1),
}


def stand_in(name: str) -> list[Any]:
    """Random graphs: cliques that share one node for IMDB, trees with a few more edges for the others."""
    rng, kind = random.Random(name), SETS[name]
    found = []
    for _ in range(kind.graphs):
        nodes = rng.randint(*kind.nodes)
        graph = networkx.Graph()
        graph.add_nodes_from(range(nodes))
        if name == "IMDB":
            first = 1
            while first < nodes:
                last = min(nodes, first + rng.randint(3, 8))
                graph.add_edges_from(networkx.complete_graph([0, *range(first, last)]).edges)
                first = last
        else:
            graph.add_edges_from((node, rng.randrange(node)) for node in range(1, nodes))
            graph.add_edges_from(rng.sample(range(nodes), 2) for _ in range(rng.choice([0, 0, 1, 2])))
        if kind.labels > 1:
            weights = [1 / (1 + label) ** 2 for label in range(kind.labels)]
            for node in graph:
                graph.nodes[node]["label"] = rng.choices(range(kind.labels), weights)[0]
        found.append(graph)
    return found


def graphs_of(name: str, folder: Path | None) -> tuple[list[Any], bool]:
    """The graphs of a set, and whether they are its own."""
    path = None if folder is None else folder / f"{name}.jsonl"
    if path is None or not path.exists():
        return stand_in(name), False
    return list(read_graph_files(path).values()), True


def sample(graphs: Sequence[Any], nodes: tuple[int, int], count: int) -> Pairs:
    """``count`` pairs of different graphs of so many nodes, the same in every run."""
    some = [graph for graph in graphs if nodes[0] <= len(graph) <= nodes[1]]
    rng = random.Random(0)
    return [(*rng.sample(some, 2),) for _ in range(count)]


def proved(pairs: Pairs, seconds: float | None = None) -> tuple[int, float, float]:
    """How many pairs are proved, the processor seconds in all, and those of the slowest."""
    count, slowest, begin = 0, 0.0, time.process_time()
    for a, b in pairs:
        before = time.process_time()
        budget = 100_000_000 if seconds else 200_000
        found: GedResult = graph_edit_distance(a, b, budget=budget, seconds=seconds, workers=1)
        count += found.proved
        slowest = max(slowest, time.process_time() - before)
    return count, time.process_time() - begin, slowest


def row(name: str, pairs: Pairs, least: float, *, seconds: float | None = None, per_100: float | None = None) -> bool:
    """Prints a line; whether the claims hold: the share that is proved, and the time for 100 pairs."""
    count, took, slowest = proved(pairs, seconds)
    holds = count >= least * len(pairs)
    limit = "" if per_100 is None else f", {100 * took / len(pairs):.3f} s for 100 (earlier: {per_100:g})"
    print(
        f"{name}: {count:,} of {len(pairs):,} proved (at least {least:.0%}){limit}, slowest {slowest:.2f} s"
        f"{'' if holds else '  MISSED'}",
        flush=True,
    )
    return holds


def load_fgwalign(folder: Path) -> Callable[..., Any]:
    """The function ``FGWAlign`` of the copy in ``folder``.

    Raises:
        FileNotFoundError: there is no src/FGWAlign.py.
        ImportError: it needs a package that is not installed.
    """
    path = folder / "src" / "FGWAlign.py"
    if not path.is_file():
        raise FileNotFoundError(f"{path} is not there: give the folder that README.md of FGWAlign is in.")
    spec = importlib.util.spec_from_file_location("FGWAlign", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    logging.getLogger("FGWAlign").setLevel(logging.ERROR)  # it reports every pair
    function: Callable[..., Any] = module.FGWAlign
    return function


def beside_fgwalign(title: str, pairs: Pairs, function: Callable[..., Any]) -> None:
    """Prints a line for each setting of FGWAlign: its errors and its time on the same pairs, interleaved with ours."""
    torch.manual_seed(0)
    for setting, options in FGWALIGN.items():
        ours, theirs, errors = 0.0, 0.0, []
        for a, b in pairs:
            begin = time.process_time()
            exact = graph_edit_distance(a, b, workers=1).distance
            middle = time.process_time()
            found, _ = function(*_for_fgwalign(a, b), **options)
            theirs, ours = theirs + time.process_time() - middle, ours + middle - begin
            errors.append(found - exact)
        assert min(errors) > -1e-6, "FGWAlign's map costs less than what is proved to be the least"
        right = sum(error < 1e-6 for error in errors)
        print(
            f"{title}, {len(pairs)} pairs, FGWAlign, {setting}: mean error {sum(errors) / len(errors):.2f}, exact on "
            f"{right / len(errors):.0%}, {100 * theirs / len(pairs):.3f} s for 100; ours: exact on all, "
            f"{100 * ours / len(pairs):.3f} s",
            flush=True,
        )


def _for_fgwalign(a: Any, b: Any) -> tuple[Any, ...]:
    """Adjacency matrices, and labels as numbers or None: the first four arguments of FGWAlign."""
    labels = [[label for _, label in graph.nodes(data="label")] for graph in (a, b)]
    number = {label: i for i, label in enumerate(dict.fromkeys(labels[0] + labels[1]))}
    known = None not in number
    return (
        *(torch.tensor(networkx.to_numpy_array(graph, weight=None), dtype=torch.float32) for graph in (a, b)),
        *(torch.tensor([number[label] for label in one]) if known else None for one in labels),
    )


def cores(title: str, pairs: Pairs, budget: int, rounds: int = 3) -> None:
    """Prints the seconds of every pair that is long enough to be split up, on one core and on two, interleaved."""
    walls, processors, hard = ([0.0, 0.0], [0.0, 0.0], 0)
    for a, b in pairs:
        first = graph_edit_distance(a, b, budget=budget, workers=1)
        if first.search_nodes < HARD:
            continue
        hard += 1
        best = [(float("inf"), 0.0)] * 2
        for _ in range(rounds):
            for workers in (1, 2):
                wall, processor = time.perf_counter(), time.process_time()
                found = graph_edit_distance(a, b, budget=budget, workers=workers)
                took = (time.perf_counter() - wall, time.process_time() - processor)
                best[workers - 1] = min(best[workers - 1], took)
                assert found == first, "the result depends on the number of cores"
        for place, (wall, processor) in enumerate(best):
            walls[place] += wall
            processors[place] += processor
    print(
        f"{title}, {hard} of {len(pairs)} pairs of {HARD:,} search nodes or more, at most {budget:,}, the best of "
        f"{rounds}: 1 core {walls[0]:.2f} s ({processors[0]:.2f} s of processors), 2 cores {walls[1]:.2f} s "
        f"({processors[1]:.2f}), ratio {walls[0] / max(walls[1], 1e-9):.2f}",
        flush=True,
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Prints a line for every claim; 1 when one is missed. Times are shown, for the reader to judge."""
    headline = (__doc__ or "").splitlines()[0]
    parser = argparse.ArgumentParser(description=headline)
    parser.add_argument("--data", type=Path, metavar="FOLDER", help="where the sets are")
    parser.add_argument("--quick", action="store_true", help="one pair of twenty, none of 30 nodes")
    parser.add_argument("--cores", action="store_true", help="only hard pairs on one core and on two")
    parser.add_argument("--fgwalign", type=Path, metavar="FOLDER", help="a copy of its public code, to run beside ours")
    arguments = parser.parse_args(argv)
    peer = None
    if arguments.fgwalign is not None:
        try:
            peer = load_fgwalign(arguments.fgwalign)
        except (FileNotFoundError, ImportError) as error:
            parser.error(f"--fgwalign: {error}")
    torch.set_num_threads(1)
    warnings.filterwarnings("error", message="the graph edit distance is between")

    print(headline)
    if arguments.cores:
        graphs, own = graphs_of("IMDB", arguments.data)
        budget = 40_000 if arguments.quick else 400_000
        cores("unrelated, 30 nodes, 4 labels", unrelated_pairs(30, 2 if arguments.quick else 10), budget)
        title = f"IMDB{'' if own else ' (absent: random graphs of its sizes)'}, 31 nodes and more"
        pairs = sample(graphs, (31, 89) if own else (24, 30), 2 if arguments.quick else 14)
        cores(title, pairs, max(HARD, budget // 4))
        return 0
    if peer is None:
        print("FGWAlign: left out; --fgwalign FOLDER runs a copy of its public code on the same pairs.")
    parts, holds = (QUICK if arguments.quick else 1), []
    for name, kind in SETS.items():
        graphs, own = graphs_of(name, arguments.data)
        title = f"{name}{'' if own else ' (absent: random graphs of its sizes)'}, up to 10 nodes"
        pairs = sample(graphs, (0, 10), kind.pairs // parts)
        ged_matrix([pairs[0][0]], [pairs[0][1]])  # loads the machine code
        holds.append(row(title, pairs, 1.0, per_100=kind.seconds))
        if peer is not None:
            beside_fgwalign(title, pairs[: BESIDE // parts], peer)
    # IMDB is the last of them.
    title = f"IMDB{'' if own else ' (absent: random graphs of its sizes)'}, 11 to 30 nodes, 1 s each"
    holds.append(row(title, sample(graphs, (11, 30), 40 if arguments.quick else 200), 0.95, seconds=1.0))
    row("unrelated, 16 nodes", [(a, b) for a, b in unrelated_pairs(16, 5 if arguments.quick else 25)], 1.0)
    if not arguments.quick:
        row("unrelated, 30 nodes, 4 labels, 60 s each", [(a, b) for a, b in unrelated_pairs(30, 10)], 0.8, seconds=60.0)
    return 0 if all(holds) else 1


if __name__ == "__main__":
    sys.exit(main())
