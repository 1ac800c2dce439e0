"""Files of the command `dagnn visible`: what it reads, and what it writes.

It reads a graph of any kind, a table of samples, a fitted network with what new samples need. It writes tables as CSV,
and a report of tables and pictures as one HTML file.
"""

import base64
import csv
import html
import io
import json
import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dagnn.drawing.picture import picture_bytes
from dagnn.errors import CheckpointError, ConfigError, DataError, GraphError, library
from dagnn.files import replace_file
from dagnn.graph import Dag
from dagnn.nn import DagNN
from dagnn.visible.columns import alike
from dagnn.visible.edge_files import csv_rows, ending_of, open_text, read_edges, read_sif
from dagnn.visible.explaining import Explanation
from dagnn.visible.gene_sets import read_gmt, read_obo, read_reactome
from dagnn.visible.graph_files import read_graph
from dagnn.visible.reading import Reading, ReadReport, listed

_GRAPHS = ".csv, .tsv, .txt, .parquet (edges), .sif, .gmt, .obo, .graphml, .gml, .dot, .json (Dag.to_json)"
_TEXT_TABLES = (".csv", ".tsv", ".tab", ".txt")
_TAKEN_BY = {"members": (".obo", *_TEXT_TABLES), "hierarchy": (".gmt",), "columns": (*_TEXT_TABLES, ".parquet")}
_TASKS = ("classification", "regression", "survival")
_NETWORK, _SETTINGS = "network.safetensors", "model.json"


def read_any(
    graph: str | Path,
    *,
    members: str | None = None,
    hierarchy: str | None = None,
    columns: Sequence[str] | None = None,
    root: str | None = None,
    reverse: bool = False,
) -> Reading:
    """The graph of a file of any kind that `dagnn.visible` reads, by its ending.

    Args:
        graph: the file. With ``members`` and no ontology, Reactome's file of relations.
        members: genes of terms, for an ontology; Reactome's file of genes of pathways.
        hierarchy: of gene sets: "containment", or a file of edges.
        columns: the two columns of a table of edges, by name, or by number from 0.
        root, reverse: as of the readers.

    Raises:
        ConfigError: an ending that no reader knows, or an argument that its reader does not take.
        DataError, GraphError, CycleError: as of the readers.
    """
    path = Path(graph)
    ending = ending_of(path)
    more: dict[str, Any] = {"root": root, "reverse": reverse}
    for option, value in (("members", members), ("hierarchy", hierarchy), ("columns", columns)):
        if value is not None and ending not in _TAKEN_BY[option]:
            raise ConfigError(
                f"{path.name}: --{option} is for {', '.join(_TAKEN_BY[option])}, and not for {ending or 'this file'}: "
                "leave it out."
            )
    if members is not None and columns is not None:
        raise ConfigError("--columns is for a table of edges, and with --members the graph is one of Reactome.")
    if members is not None and ending != ".obo":
        return read_reactome(path, members, **more)
    match ending:
        case ".csv" | ".tsv" | ".tab" | ".txt" | ".parquet":
            chosen: Sequence[str | int] = ("source", "target") if columns is None else columns
            if columns is not None and all(map(str.isdecimal, columns)):
                chosen = list(map(int, columns))
            return read_edges(path, columns=chosen, **more)
        case ".sif":
            return read_sif(path, **more)
        case ".gmt":
            return read_gmt(path, hierarchy=hierarchy, **more)
        case ".obo":
            return read_obo(path, members=members, **more)
        case ".graphml" | ".gml" | ".dot" | ".gv":
            return read_graph(path, **more)
        case ".json":
            return _read_json(path, root, reverse)
    raise ConfigError(f"{path}: the ending {ending!r} tells no kind of graph: give one of {_GRAPHS}.")


def _read_json(path: Path, root: str | None, reverse: bool) -> Reading:
    if root is not None or reverse:
        raise ConfigError(f"{path}: a Dag in JSON is taken as it is: leave --root and --reverse out.")
    try:
        dag = Dag.from_json(open_text(path).read())
    except GraphError as error:
        raise GraphError(f"{path}: {error}") from None
    return Reading(dag, ReadReport(str(path), dag.num_nodes, dag.num_edges, dag.num_nodes, dag.num_edges))


# ---- samples ----


@dataclass(frozen=True)
class Samples:
    """A table with a row for every sample, cells as they are written.

    Attributes:
        source: the name of the file.
        names: of the samples: those of the first column where that has no header, else their numbers from 1.
        cells: column -> a cell for every sample.
    """

    source: str
    names: list[str]
    cells: Mapping[str, list[str]]

    def numbers(self, column: str) -> NDArray[np.float64]:
        """A column as numbers; DataError for no such column, and for a cell that is empty or no finite number."""
        values = np.empty(len(self.names))
        for row, cell in enumerate(self.column(column)):
            try:
                values[row] = float(cell)
            except ValueError:
                values[row] = math.nan
            if not math.isfinite(values[row]):
                found = repr(cell) if cell else "an empty cell"
                raise DataError(
                    f"{self.source}: sample {self.names[row]!r}, column {column!r} has {found}, expected a finite "
                    "number: fill it, or drop the sample or the column."
                )
        return values

    def column(self, column: str) -> list[str]:
        """The cells of a column; DataError if there is none."""
        if column not in self.cells:
            known = listed(list(self.cells), shown=8)
            raise DataError(f"{self.source} has no column {column!r}: its columns are {known}.")
        return self.cells[column]


def read_samples(path: str | Path) -> Samples:
    """The samples of a CSV, TSV or Parquet file with a header.

    Raises:
        DataError: a file that cannot be read, a column twice, a line with too few or too many cells, no samples.
        ConfigError: another ending.
    """
    path = Path(path)
    ending = ending_of(path)
    if ending == ".parquet":
        header, rows = _parquet_rows(path)
    elif ending in _TEXT_TABLES:
        header, rows = _text_rows(path, "," if ending == ".csv" else "\t")
    else:
        raise ConfigError(f"{path}: the ending {ending!r} tells no table: give .csv, .tsv, .txt or .parquet.")
    twice = [name for name, count in Counter(header).items() if count > 1]
    if twice:
        raise DataError(f"{path.name} has more than one column {twice[0]!r}: keep one of them.")
    if not rows:
        raise DataError(f"{path.name} has no samples below its header.")
    cells = {name: [row[place] for row in rows] for place, name in enumerate(header)}
    named = cells.pop("", None)
    return Samples(path.name, named or [str(place + 1) for place in range(len(rows))], cells)


def matrix_of(samples: Samples, inputs: Iterable[Hashable]) -> NDArray[np.float64]:
    """The columns of these inputs, ``[samples, inputs]``; a GraphError for one that the samples lack."""
    names = [str(name) for name in inputs]
    lacking = [name for name in names if name not in samples.cells]
    if lacking:
        hint = alike(lacking, [name for name in samples.cells if name not in {*names}])
        raise GraphError(
            f"{samples.source} lacks {len(lacking)} of {len(names)} inputs: {listed(lacking, shown=8)}{hint}: add "
            "these columns."
        )
    return np.stack([samples.numbers(name) for name in names], axis=1)


def _text_rows(path: Path, delimiter: str) -> tuple[list[str], list[list[str]]]:
    header: list[str] | None = None
    rows = []
    for line, row in csv_rows(path, delimiter):
        cells = [cell.strip() for cell in row]
        if not any(cells):
            continue
        if header is None:
            header = cells
            continue
        if len(cells) != len(header):
            raise DataError(
                f"{path.name}, line {line}: expected {len(header)} cells, as in the header, got {len(cells)}."
            )
        rows.append(cells)
    if header is None:
        raise DataError(f"{path.name} is empty: expected a header and a line for every sample.")
    return header, rows


def _parquet_rows(path: Path) -> tuple[list[str], list[list[str]]]:
    parquet = library("pyarrow.parquet", "a Parquet file", "dagnn[visible]")
    if not path.exists():
        raise DataError(f"cannot read {path}: No such file or directory.")
    try:
        table = parquet.read_table(path)
    except Exception as error:  # pyarrow has its own classes
        raise DataError(f"{path.name}: no Parquet file: {error}") from error
    columns = [["" if cell is None else str(cell) for cell in column.to_pylist()] for column in table.columns]
    header = ["" if str(name).startswith("__index_level_") else str(name) for name in table.column_names]
    return header, [list(row) for row in zip(*columns, strict=True)]


# ---- a fitted network ----


@dataclass(frozen=True)
class Model:
    """A fitted network and what new samples need.

    Attributes:
        net: on inputs that are standardized.
        task: "classification", "regression" or "survival".
        target: the column that was learned; of survival, the time.
        classes: of a classification, in the order of ``scores``.
        mean, scale: of every input, in the order of ``net.input_names``.
        labels: node -> a text for people.
    """

    net: DagNN
    task: str
    target: str
    classes: list[str]
    mean: NDArray[np.float64]
    scale: NDArray[np.float64]
    labels: Mapping[str, str]

    def inputs(self, samples: Samples) -> Tensor:
        """``x [samples, inputs]``, by name and standardized. Columns that are no inputs are ignored.

        Raises:
            GraphError: an input without a column.
            DataError: a cell that is no finite number.
        """
        x = matrix_of(samples, self.net.input_names)
        return torch.from_numpy((x - self.mean) / self.scale).to(self.net.edge_weight.dtype)

    def save(self, folder: Path) -> None:
        """Write two files into a folder that exists."""
        self.net.save(folder / _NETWORK)
        content = {
            "format": "dagnn visible model",
            "version": 1,
            "task": self.task,
            "target": self.target,
            "classes": self.classes,
            "mean": self.mean.tolist(),
            "scale": self.scale.tolist(),
            "labels": dict(self.labels),
        }
        replace_file(folder / _SETTINGS, json.dumps(content, indent=1).encode())

    @staticmethod
    def load(folder: Path) -> "Model":
        """What `save` wrote; CheckpointError for a folder without it, or one that is damaged, foreign or newer."""
        path = folder / _SETTINGS
        try:
            content = json.loads(path.read_bytes())
        except OSError as error:
            raise CheckpointError(
                f"{folder} holds no fitted network ({_SETTINGS}: {error.strerror}): make one with dagnn visible fit."
            ) from None
        except (ValueError, RecursionError) as error:
            raise CheckpointError(f"{path}: damaged, no JSON: {error}.") from None
        if not isinstance(content, dict) or content.get("format") != "dagnn visible model":
            raise CheckpointError(f"{path}: not written by dagnn visible fit.")
        if content.get("version") != 1:
            raise CheckpointError(f"{path}: has version {content.get('version')!r}, this dagnn reads version 1.")
        for name, (is_right, expected) in _PARTS.items():
            if not is_right(content.get(name)):
                found = repr(content.get(name))
                shown = found if len(found) <= 60 else f"{found[:60]}..."
                raise CheckpointError(f"{path}: damaged: {name!r} must be {expected}, got {shown}.")
        net = DagNN.load(folder / _NETWORK)
        mean, scale = np.array(content["mean"], np.float64), np.array(content["scale"], np.float64)
        task, target, classes = content["task"], content["target"], content["classes"]
        model = Model(net, task, target, classes, mean, scale, content["labels"])
        if mean.shape != scale.shape or mean.shape != (len(net.input_names),):
            raise CheckpointError(f"{path}: belongs to a network of {mean.size} inputs, not {len(net.input_names)}.")
        net.eval()
        return model


def _are(kind: type, values: Any) -> bool:
    return isinstance(values, list) and all(isinstance(value, kind) for value in values)


def _are_numbers(values: Any, least: float = -math.inf) -> bool:
    if not isinstance(values, list):
        return False
    return all(type(value) in (int, float) and value > least and abs(value) < 1e308 for value in values)


# The parts of model.json: what is right, and in words.
_PARTS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "task": (lambda value: value in _TASKS, f"one of {', '.join(_TASKS)}"),
    "target": (lambda value: isinstance(value, str), "a text"),
    "classes": (lambda value: _are(str, value), "a list of texts"),
    "mean": (_are_numbers, "a list of finite numbers"),
    "scale": (lambda value: _are_numbers(value, 0), "a list of finite numbers above 0"),
    "labels": (lambda value: isinstance(value, dict) and _are(str, [*value.values()]), "a text for each node"),
}


def write(path: Path, content: str | bytes) -> None:
    """Write the whole file or none of it."""
    replace_file(path, content if isinstance(content, bytes) else content.encode())


def table_text(columns: Mapping[str, Iterable[Any]]) -> str:
    """Columns as CSV: numbers with all their digits, nothing for None.

    >>> table_text({"node": ["a", ("class", "ill")], "value": [0.5, None]})
    'node,value\\na,0.5\\nclass ill,\\n'
    """
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([plain_name(cell) for cell in row] for row in zip(*columns.values(), strict=True))
    return buffer.getvalue()


def plain_name(name: Hashable) -> Any:
    """A name for a table: that of a head, ("class", "ill"), with a blank between."""
    return " ".join(map(str, name)) if isinstance(name, tuple) else name


def edges_table(found: Explanation) -> dict[str, list[Any]]:
    """The edges of an explanation, those with the largest mean conductance first."""
    means = found.edge_means.numpy()
    order = np.argsort(-np.abs(means), kind="stable")
    pairs = [found.edge_names[place] for place in order.tolist()]
    return {
        "source": [u for u, _ in pairs],
        "target": [v for _, v in pairs],
        "mean conductance": means[order].tolist(),
        "share": found.edge_shares.numpy()[order].tolist(),
    }


def write_report(path: Path, title: str, *sections: Sequence[str]) -> None:
    """One HTML file: a heading and sections, each of a heading and parts of HTML."""
    style = (
        "body{font:16px/1.5 system-ui,sans-serif;max-width:1100px;margin:24px auto;padding:0 16px;background:#fbfbfa;"
        "color:#18212b}table{border-collapse:collapse;display:block;overflow-x:auto}td,th{padding:4px 12px;text-align:"
        "left;border-bottom:1px solid #d9dee4;font-variant-numeric:tabular-nums}pre{overflow-x:auto;font-size:13px}"
        "img{max-width:100%;background:#fff}a{color:#0067ac}@media(prefers-color-scheme:dark){body{background:#12171d;"
        "color:#e8edf2}td,th{border-color:#33404d}a{color:#6db7ee}}"
    )
    body = "".join(f"<h2>{html.escape(heading)}</h2>{''.join(parts)}" for heading, *parts in sections)
    name = html.escape(title)
    write(
        path,
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width,'
        f'initial-scale=1"><title>{name}</title><style>{style}</style></head><body><h1>{name}</h1>{body}</body></html>\n',
    )


def html_table(columns: Mapping[str, Iterable[Any]]) -> str:
    """Columns as a table; numbers to four digits."""

    def cell(value: Any) -> str:
        text = f"{value:.4g}" if isinstance(value, float) else "" if value is None else str(plain_name(value))
        return f"<td>{html.escape(text)}</td>"

    head = "".join(f"<th>{html.escape(name)}</th>" for name in columns)
    rows = "".join(f"<tr>{''.join(map(cell, row))}</tr>" for row in zip(*columns.values(), strict=True))
    return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


def preformatted(text: str) -> str:
    """Text as it is."""
    return f"<pre>{html.escape(text)}</pre>"


def link(target: str, text: str) -> str:
    """A link to a file beside the report."""
    return f'<p><a href="{target}">{html.escape(text)}</a></p>'


def joined_rows(rows: Sequence[Mapping[str, float]]) -> dict[str, list[Any]]:
    """Rows as columns, None where a row lacks one."""
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in names}


def picture(model: Model, importance: Any, top: int = 30) -> str:
    """The most important nodes of a network, as an element of HTML."""
    figure = model.net.draw(importance=importance, top=top, labels=model.labels)
    content = base64.b64encode(picture_bytes(figure, "svg")).decode()
    return f'<img alt="The network, its most important nodes" src="data:image/svg+xml;base64,{content}">'
