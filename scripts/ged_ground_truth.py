"""Proved distances of all pairs of a set of graphs, with edit paths, as CSV or Parquet; goes on where it was stopped.

    python scripts/ged_ground_truth.py FOLDER/AIDS.jsonl aids.csv --max-nodes 10
    python scripts/ged_ground_truth.py FOLDER aids.parquet          # and pandas with pyarrow

A row has the names of both graphs, the bounds, whether they meet, the map as JSON pairs of nodes (null: deleted or
inserted) and the edits in words. Rows are for pairs i <= j: the costs are 1, so the other half is the same. The CSV is
written row by row; run it again with the same files and it goes on after the last whole row. A Parquet file is made of
the CSV beside it once that is whole.
"""

import argparse
import csv
import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from dagnn.errors import DagnnError
from dagnn.ged import graph_edit_distance, read_graph_files

COLUMNS = ("a", "b", "lower", "upper", "proved", "search_nodes", "node_map", "edits")


def rows_of(graphs: dict[str, Any], skip: int, budget: int) -> Iterator[dict[str, Any]]:
    """The rows of all pairs in order, without the first ``skip``."""
    names = list(graphs)
    number = 0
    for i, a in enumerate(names):
        for b in names[i:]:
            number += 1
            if number <= skip:
                continue
            found = graph_edit_distance(graphs[a], graphs[b], budget=budget)
            yield {
                "a": a,
                "b": b,
                "lower": found.lower,
                "upper": found.upper,
                "proved": found.proved,
                "search_nodes": found.search_nodes,
                "node_map": json.dumps(found.node_map, default=str),
                "edits": "; ".join(map(str, found.edit_path)),
            }


def whole_rows(path: Path, names: Sequence[str]) -> int:
    """How many rows of pairs ``path`` has; cuts off what comes after the last whole one.

    Raises:
        SystemExit: they are not the first rows of these graphs.
    """
    if not path.exists():
        return 0
    content = path.read_bytes()
    whole = content[: content.rfind(b"\n") + 1]
    rows = list(csv.DictReader(whole.decode().splitlines()))
    expected = ((a, b) for i, a in enumerate(names) for b in names[i:])
    if whole and (set(rows[0] if rows else COLUMNS) != set(COLUMNS)):
        raise SystemExit(f"{path} has other columns: give another file.")
    for place, row in enumerate(rows):
        if (row["a"], row["b"]) != next(expected, None):
            raise SystemExit(f"row {place} of {path} is about {row['a']} and {row['b']}: it is of another set.")
    if len(whole) < len(content):
        with path.open("r+b") as file:
            file.truncate(len(whole))
    return len(rows)


def main(argv: Sequence[str] | None = None) -> int:
    """Writes the rows that are missing; 1 if some pairs are not proved."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("graphs", type=Path, help="file or folder, as read_graph_files reads it")
    parser.add_argument("table", type=Path, help="the table to write, .csv or .parquet")
    parser.add_argument("--max-nodes", type=int, help="leave out larger graphs")
    parser.add_argument("--budget", type=int, default=10_000_000, help="search nodes for each pair")
    arguments = parser.parse_args(argv)
    if arguments.table.suffix not in (".csv", ".parquet"):
        parser.error(f"{arguments.table} must end in .csv or .parquet.")
    try:
        graphs = read_graph_files(arguments.graphs)
    except DagnnError as error:
        parser.error(str(error))
    if arguments.max_nodes is not None:
        graphs = {name: each for name, each in graphs.items() if _nodes(each) <= arguments.max_nodes}
    pairs = len(graphs) * (len(graphs) + 1) // 2

    table = arguments.table.with_suffix(".csv")
    done = whole_rows(table, list(graphs))
    print(f"{len(graphs):,} graphs, {pairs:,} pairs, {done:,} of them are in {table} already", flush=True)
    with table.open("a", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        if file.tell() == 0:
            writer.writeheader()
        for number, row in enumerate(rows_of(graphs, done, arguments.budget), start=done + 1):
            writer.writerow(row)
            if number % 1000 == 0:
                file.flush()
                os.fsync(file.fileno())
                print(f"{number:,} of {pairs:,}", flush=True)
    with table.open(newline="") as file:
        open_ = [(row["a"], row["b"]) for row in csv.DictReader(file) if row["proved"] != "True"]
    if arguments.table.suffix == ".parquet":
        import pandas

        pandas.read_csv(table).to_parquet(arguments.table, index=False)
    print(f"{pairs - len(open_):,} of {pairs:,} pairs are proved in {arguments.table}")
    return 1 if open_ else 0


def _nodes(graph: Any) -> int:
    count: int = graph.number_of_nodes() if hasattr(graph, "number_of_nodes") else graph.num_nodes
    return count


if __name__ == "__main__":
    sys.exit(main())
