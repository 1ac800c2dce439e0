"""`dagnn ged` compares the Dags of two files, prints the edits and draws them; `dagnn ged search` finds the nearest."""

import json
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from torch import Tensor
from tyro.conf import Positional, arg

from dagnn.commands import parsed
from dagnn.drawing.picture import spelled
from dagnn.errors import ConfigError, GraphError
from dagnn.files import replace_file
from dagnn.ged.costs import EditCosts
from dagnn.ged.distance import DEFAULT_BUDGET, GedResult, graph_edit_distance
from dagnn.ged.files import read_graph_files
from dagnn.ged.labelled import Graph, read_pair
from dagnn.ged.picture import draw_edits
from dagnn.ged.retrieval import GedMatches, ged_range, ged_search
from dagnn.graph import Dag


@dataclass(frozen=True)
class Comparison:
    """The result of `compare_files`: bounds, map and edit path, and the file of the picture; None without one."""

    result: GedResult
    plot: Path | None

    @property
    def text(self) -> str:
        """For a terminal: lines without control characters."""
        found = self.result
        lines = [
            f"distance  {found.upper:g}, proved"
            if found.proved
            else f"distance  between {found.lower:g} and {found.upper:g}, not proved: raise --budget",
            f"lower     {found.lower:g}",
            f"upper     {found.upper:g}",
            f"search    {found.search_nodes:,} nodes",
            f"edits     {len(found.edit_path) or 'none'}",
            *(f"  {spelled(edit)}" for edit in found.edit_path),
        ]
        if self.plot is not None:
            lines.append(f"picture   {self.plot}")
        return "\n".join(lines)

    def summary(self) -> dict[str, Any]:
        """For JSON: ``distance`` is null unless it is proved; in ``node_map`` null means "no node"."""
        found = self.result
        return {
            "distance": found.upper if found.proved else None,
            "lower": found.lower,
            "upper": found.upper,
            "proved": found.proved,
            "search_nodes": found.search_nodes,
            "node_map": [[_plain(u), _plain(v)] for u, v in found.node_map],
            "edit_path": [{name: _plain(value) for name, value in vars(edit).items()} for edit in found.edit_path],
            "plot": None if self.plot is None else str(self.plot),
        }


def compare_files(
    a: str | Path,
    b: str | Path,
    costs: EditCosts | None = None,
    *,
    budget: int = DEFAULT_BUDGET,
    seconds: float | None = None,
    node_label: str | None = "label",
    edge_label: str | None = "label",
    plot: str | Path | None = None,
) -> Comparison:
    """The graph edit distance of two files that `Dag.to_json` wrote.

    Args:
        plot: the file for the picture; it must end in .svg or .png.
        The rest as in `graph_edit_distance`.

    Raises:
        OSError: a file cannot be read or written. ``plot`` keeps its old content then.
        GraphError: a file holds no Dag, or the graphs cannot be compared.
        ConfigError: another ending of ``plot``, and as in `graph_edit_distance`.
    """
    target = None if plot is None else Path(plot)
    kind = None if target is None else _kind(target)
    left, right = _read(Path(a)), _read(Path(b))
    options: dict[str, Any] = {"directed": True, "node_label": node_label, "edge_label": edge_label}
    result = graph_edit_distance(left, right, costs, budget=budget, seconds=seconds, **options)
    if target is not None and kind is not None:
        graphs = read_pair(left, right, **options)
        titles = (spelled(Path(a).name), spelled(Path(b).name))
        _write(target, draw_edits(*graphs, result, titles=titles, kind=kind))
    return Comparison(result, target)


def options_of(given: Any) -> dict[str, Any]:
    """Costs, labels and limits, as the flags of either command give them."""
    kinds = [f"{part}_{edit}" for part in ("node", "edge") for edit in ("insertion", "deletion", "substitution")]
    labels = {name: getattr(given, name) for name in ("node_label", "edge_label")}
    return {
        "costs": EditCosts(**{kind: getattr(given, kind) for kind in kinds}),
        "budget": given.budget,
        "seconds": given.seconds,
        **{name: None if label == "none" else label for name, label in labels.items()},
    }


def _kind(plot: Path) -> Literal["svg", "png"]:
    """The kind of a picture; checked before the search, which may take long."""
    kinds: dict[str, Literal["svg", "png"]] = {".svg": "svg", ".png": "png"}
    if plot.suffix.lower() not in kinds:
        raise ConfigError(f"the picture {plot} must end in .svg or .png.")
    return kinds[plot.suffix.lower()]


def _read(path: Path) -> Dag:
    document = path.read_bytes()
    try:
        return Dag.from_json(document)
    except GraphError as error:
        raise GraphError(f"{path}: {error}") from None
    except MemoryError:
        raise GraphError(f"{path}: the graph does not fit into memory.") from None


def _write(path: Path, content: bytes) -> None:
    """Write the whole file or none of it."""
    try:
        replace_file(path, content)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None  # the name that the user gave


def _plain(value: Any) -> Any:
    """A name or label as JSON can hold it: without tensors, tuples, NaN and infinity."""
    if isinstance(value, Tensor | np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, str) or not isinstance(value, Sequence):
        return str(value) if isinstance(value, float) and not math.isfinite(value) else value
    return [_plain(item) for item in value]


# ---- dagnn ged search ----


@dataclass(frozen=True)
class Search:
    """The graphs of files and folders that are nearest to one graph, exactly.

    Reads JSON (Dag.to_json, NetworkX node-link data, public sets), JSON lines, GraphML, GEXF, GML, and SMILES by RDKit.
    """

    query: Positional[Annotated[str, arg(metavar="QUERY")]]
    """file of one graph, or FILE:NAME for one of several, NAME as the answer shows it: set.jsonl:12"""
    database: Positional[Annotated[tuple[str, ...], arg(metavar="DATABASE")]]
    """files and folders to search in"""
    k: int = 10
    """how many graphs to find"""
    radius: float | None = None
    """find all graphs within this distance instead"""
    budget: int = DEFAULT_BUDGET
    """nodes of the search tree at most, for each graph"""
    seconds: float | None = None
    """stop after that long, with what is known by then"""
    workers: int | None = None
    """threads; by default one for each core"""
    node_insertion: float = 1.0
    """cost of a node that only the other graph has"""
    node_deletion: float = 1.0
    """cost of a node that only the query has"""
    node_substitution: float = 1.0
    """cost of another label"""
    edge_insertion: float = 1.0
    """cost of an edge that only the other graph has"""
    edge_deletion: float = 1.0
    """cost of an edge that only the query has"""
    edge_substitution: float = 1.0
    """cost of another label"""
    node_label: str = "label"
    """node attribute that holds the labels; names: what nodes are called; none: no labels"""
    edge_label: str = "label"
    """edge attribute that holds the labels; none: no labels"""
    undirected: bool = False
    """ignore the directions of edges"""
    json: bool = False
    """print JSON"""


@dataclass(frozen=True)
class Found:
    """The result of `search_files`: the matches, and the names of all graphs by number."""

    matches: GedMatches
    names: tuple[str, ...]

    @property
    def text(self) -> str:
        """For a terminal: a line for every graph, and what is known about the rest."""
        found, settled = self.matches, self.matches.settled
        how = "exact"
        if not found.complete:
            how = f"not exact, {len(found.undecided):,} undecided: raise --budget or --seconds"
        lines = [f"{len(found.index):,} of {len(self.names):,} graphs, {how}"]
        for place, lower, upper in zip(found.index.tolist(), found.lower.tolist(), found.upper.tolist(), strict=True):
            distance = f"{upper:g}" if lower == upper else f"{lower:g} .. {upper:g}"
            lines.append(f"  {distance:<10}  {spelled(self.names[place])}")
        lines += [f"  undecided   {spelled(self.names[place])}" for place in found.undecided.tolist()[:10]]
        lines.append(
            f"settled by counts {settled.counts:,}, by branch match {settled.branches:,}, by search {settled.search:,}"
        )
        return "\n".join(lines)

    def summary(self) -> dict[str, Any]:
        """For JSON; ``distance`` is null unless it is proved."""
        found = self.matches
        rows = zip(found.index.tolist(), found.lower.tolist(), found.upper.tolist(), strict=True)
        return {
            "complete": found.complete,
            "matches": [
                {
                    "name": self.names[place],
                    "distance": _plain(upper) if lower == upper else None,
                    "lower": lower,
                    "upper": _plain(upper),
                }
                for place, lower, upper in rows
            ],
            "undecided": [self.names[place] for place in found.undecided.tolist()],
            "settled": found.settled._asdict(),
        }


def search_files(
    query: str | Path,
    database: Sequence[str | Path],
    costs: EditCosts | None = None,
    *,
    k: int = 10,
    radius: float | None = None,
    **options: Any,
) -> Found:
    """`ged_search`, or with ``radius`` `ged_range`, over files; ``options`` are theirs.

    Raises:
        OSError: a file cannot be read.
        GraphError: a file that `read_graph_files` cannot read, a query of several graphs, or as in `ged_search`.
        ConfigError, DtypeError: as in `ged_search`.
    """
    graph = _query(str(query))
    named: dict[str, Graph] = {}
    for path in database:
        prefix = "" if len(database) == 1 or not Path(path).is_dir() else f"{path}/"
        named.update({prefix + name: each for name, each in read_graph_files(path).items()})
    graphs, names = list(named.values()), tuple(named)
    if radius is None:
        return Found(ged_search(graph, graphs, k, costs, **options), names)
    return Found(ged_range(graph, graphs, radius, costs, **options), names)


def _query(query: str) -> Graph:
    """The one graph of a file, or that of FILE:NAME."""
    file, _, name = query.rpartition(":")
    if file and not Path(query).exists() and Path(file).exists():
        found = read_graph_files(file)
        ending = name if Path(file).is_dir() else query
        if ending in found:
            return found[ending]
        raise GraphError(f"{file} holds no graph {name!r}; its first ones are {', '.join(list(found)[:3])}.")
    found = read_graph_files(query)
    if len(found) != 1:
        raise GraphError(f"{query} holds {len(found):,} graphs: name one of them, such as {next(iter(found), '')!r}.")
    return next(iter(found.values()))


def run_search(arguments: Sequence[str]) -> int:
    """`dagnn ged search`."""
    given = parsed(Search, "ged search", arguments)
    if not given.database:
        raise ConfigError("no files or folders to search in; see dagnn ged search --help.")
    found = search_files(
        given.query, given.database, k=given.k, radius=given.radius, workers=given.workers,
        progress=sys.stderr.isatty(), directed=False if given.undirected else None, **options_of(given),
    )  # fmt: skip
    print(json.dumps(found.summary()) if given.json else found.text)
    return 0
