"""Replays what real inputs once broke: every row has tests that carry its number.

    python scripts/replay_faults.py [SUBJECT ...]     graphs_and_networks, checker, ... ; all without one

A test belongs to a row by its mark: ``@pytest.mark.fault("checker", 3)``. Prints a line per row: how many tests
replay it and whether they pass. Exit code 1 when a row falls short.
"""

import sys
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

ROWS: dict[str, dict[str, str]] = {
    "graphs_and_networks": {
        "1": "NumPy integers as names",
        "2": "equal Dags, one function",
        "3": "names without a stable order",
        "4": "reading an inner node changes nothing",
        "5": "a state dict of another topology",
        "6": "an exported program carries its topology",
        "7": "cells with a reparametrised weight",
        "8": "DagBatch as an argument of an edit distance",
        "9": ".grad is written with its version",
        "10": "image_index of PyG's batches",
        "11": "prune, grow and save under parametrisations",
        "12": "arrays of strings are names",
        "13": "activation=torch.tanh, None, a module",
        "14": "GraphML and JSON of every name",
        "15": "ragged data of NetworkX graphs",
        "16": "NumPy scalars in NetworkX data",
        "17": "optimizer state of grown edges",
        "18": "deferred initialisation on the meta device",
        "19": "y of a PyG graph with one node",
        "20": "an array or a frame as x",
        "21": "tests pass on every processor",
        "22": "a read-only installation",
        "23": "nodes that nothing feeds",
        "24": "torch.func, jit.trace, sparse x, slices, parametrised weights",
        "25": "ONNX export takes the reference path",
        "26": "floats as names",
        "27": "captum's DeepLift",
        "28": "float32 sigmoid of compiled cells",
        "29": "kernel tests in any order",
    },
    "graph_edit_distance": {
        "1": "costs of any size, exactly",
        "2": "DagBatch as an argument",
        "3": "Ctrl-C ends a search",
        "4": "seconds= is kept",
        "5": "upper_bound=inf",
        "6": "a label that no node has",
        "7": "odd labels and costs",
        "8": "paths, normalised distances, scores",
        "9": "a label that holds NaN",
    },
    "accumulation": {
        "1": "averages of several models",
        "2": "gradients of a frozen layer",
        "3": "a parameter exchanged in its group",
        "4": "an error inside window.backward",
        "5": "float16 sums",
        "6": "a loader that refills its buffer",
        "7": "lists count items",
        "8": "deferred batch norm under checkpointing",
        "9": "a nan loss with a zero gradient",
        "10": "a bfloat16 loss of float32 weights",
        "11": "sparse, then dense gradients",
        "12": "a scheduler that cannot be stepped",
        "13": "weight= on batches that cannot be counted",
        "14": "nested batches",
        "15": "ready-made weights",
        "16": "lazy models, and nothing to train",
    },
    "checker": {
        "1": "float32 inside the float64 check",
        "2": "right loops condemned",
        "3": "wrong loops passed",
        "4": "top-1 routing",
        "5": "sparse embeddings",
        "6": "what the check could not see",
        "7": "recomputation with other masks",
        "8": "batch-coupled loops, and K = 1",
        "9": "worst error, located line, zeroed too often",
    },
    "training_and_command": {
        "1": "averaged weights of tied parameters",
        "2": "a foreign checkpoint",
        "3": "requires_grad is resumed",
        "4": "evaluate returns NumPy numbers",
        "5": "extra state and odd dtypes",
        "6": "the reader of stderr goes away",
        "7": "encodings and closed streams",
        "8": "loaders, mappings of losses, (loss, weight)",
        "9": "resume of a complete run",
        "10": "a narrow terminal",
        "11": "threads that spin on a busy machine",
    },
    "curriculum": {
        "1": "approx proves its digits",
        "2": "divergent integrals",
        "3": "logarithms of negative constants",
        "4": "false roots",
        "5": "shared operands",
        "5b": "a mapping binds at once",
        "6": "advice that can be followed",
        "7": "products with roots",
        "8": "the network says when it does not know",
        "9": "real values, infix hints",
        "10": "more mathematics",
    },
    "docs_and_packaging": {
        "1": "report of an unfinished run",
        "2": "columns of a DagNN",
        "3": "weights by name",
        "4": "names as labels of an edit distance",
        "5": "platforms",
        "6": "ged_matrix: seconds, progress, Ctrl-C",
        "7": "an optimizer of another model",
        "8": "which torch is installed",
        "9": "make with an old Python",
        "10": "snippets run alone",
        "11": "the reference",
        "12": "tables fit",
        "13": "the distribution, and README's links on PyPI",
        "14": "extras, and the core without them",
        "15": "pictures of one graph or network",
        "16": "tutorials and their notebooks",
        "17": "a task and graphs of one's own",
        "18": "bars, colours, and how often a line is written",
        "19": "the report's charts",
        "20": "infix input",
        "21": "guides, records and guarantees",
    },
}


class _Outcomes:
    """What came of the tests of every row."""

    def __init__(self, wanted: list[str]) -> None:
        self.wanted = wanted
        self.rows: dict[str, set[tuple[str, str]]] = {}
        self.passed: Counter[tuple[str, str]] = Counter()
        self.failed: Counter[tuple[str, str]] = Counter()

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        kept = []
        for item in items:
            rows = {(mark.args[0], str(row)) for mark in item.iter_markers("fault") for row in mark.args[1:]}
            unknown = [row for row in rows if row[1] not in ROWS.get(row[0], {})]
            if unknown:
                raise pytest.UsageError(f"{item.nodeid} is marked with {unknown}, which is no row.")
            rows = {row for row in rows if row[0] in self.wanted}
            if rows:
                self.rows[item.nodeid] = rows
                kept.append(item)
        items[:] = kept

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when != "call" and report.passed:
            return
        for row in self.rows[report.nodeid]:
            # A skipped test has shown nothing.
            (self.passed if report.passed else self.failed)[row] += 1


def main(arguments: list[str]) -> int:
    unknown = [subject for subject in arguments if subject not in ROWS]
    if unknown:
        print(f"unknown: {', '.join(unknown)}; there are {', '.join(ROWS)}.", file=sys.stderr)
        return 2
    wanted = arguments or list(ROWS)
    outcomes = _Outcomes(wanted)
    pytest.main(["-q", "-m", "slow or not slow", "-p", "no:cacheprovider", str(ROOT / "tests")], plugins=[outcomes])
    short = 0
    for subject in wanted:
        print(f"\n{subject}")
        for row, title in ROWS[subject].items():
            passed, failed = outcomes.passed[subject, row], outcomes.failed[subject, row]
            if passed and not failed:
                what = f"ok, {passed} test{'s' if passed > 1 else ''}"
            elif failed:
                what, short = f"FALLS SHORT: {failed} of {passed + failed} tests fail", short + 1
            else:
                what, short = "FALLS SHORT: no test", short + 1
            print(f"  {row:>3}  {title:55}  {what}")
    print(f"\n{short} rows fall short")
    return 1 if short else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
