"""Readers of edges: tables in any form, SIF and sparse matrices, each to a `Reading`."""

import csv
import gzip
import io
import math
import os
import zlib
from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from dagnn.errors import ConfigError, DataError, DtypeError, library
from dagnn.graph.names import canonical
from dagnn.visible.reading import EdgeList, Reading, checked_list, listed

PathLike: TypeAlias = str | os.PathLike[str]
_DELIMITERS = {".csv": ",", ".tsv": "\t", ".tab": "\t", ".txt": "\t"}


def read_edges(
    table: Any,
    *,
    columns: Sequence[str | int] = ("source", "target"),
    weight: str | int | None = None,
    delimiter: str | None = None,
    comment: str | None = None,
    root: Hashable | None = None,
    reverse: bool = False,
) -> Reading:
    """A Dag from a table with an edge in each row: CSV, TSV, Parquet, a data frame, or a list of pairs.

    Values flow from the first column to the second: children, such as genes, in the first, what they feed in the
    second. Repeated edges are dropped and reported. From a text file all names are str, as they are written, without
    blanks around them.

    Args:
        table: the path of a ``.csv``, ``.tsv``, ``.tab``, ``.txt`` (tabs) or ``.parquet`` file, text also with ``.gz``
            after it; a frame of pandas, polars or pyarrow; or a list of pairs (of triples with a weight).
        columns: the two columns to read, by name; or by number, from 0, for a file without a header (``weight`` then
            too). A list of pairs has no columns.
        weight: a column of numbers, which become ``Reading.weights``; for triples any value but None.
        delimiter: between the cells of a text file, where its suffix does not tell.
        comment: lines of a text file that begin with this text are skipped.
        root: a node that everything without an outgoing edge shall feed; it is made if it is not there.
        reverse: values flow from the second column to the first, and from ``root`` down.

    Raises:
        DataError: no such file or column, an empty cell, a quote that is never closed, an edge that is no pair (a set
            has no first and second), a weight that is no finite number; it names the line (row 1 of a frame is its
            first).
        CycleError: the edges form a cycle; the message names its nodes in order.
        GraphError: ``root`` feeds another node.
        ConfigError: a suffix that tells no format, columns that are neither names nor numbers from 0, or a package that
            is missing.

    >>> reading = read_edges([("gene A", "repair"), ("gene B", "growth")], root="survival")
    >>> reading.dag.edges.tolist(), reading.dag.name_of(4)
    ([[0, 1], [2, 3], [1, 4], [3, 4]], 'survival')
    """
    rows = table_rows(table, columns, weight, delimiter=delimiter, comment=comment)
    found = EdgeList(rows.source)
    for place, (u, v, number) in rows.cells:
        found.add(u, v, None if weight is None else number_of(number, f"{rows.source}, {rows.unit} {place}"))
    return found.reading(root=root, reverse=reverse)


class TableRows(NamedTuple):
    """Rows of two names and a further value; not public.

    Attributes:
        source: what errors call the table.
        unit: what a row is called there, "line" or "row".
        cells: number of the row, and (first, second, value).
    """

    source: str
    unit: str
    cells: Iterator[tuple[int, tuple[Hashable, Hashable, Any]]]


def table_rows(
    table: Any,
    columns: Sequence[str | int],
    extra: str | int | None = None,
    *,
    delimiter: str | None = None,
    comment: str | None = None,
) -> TableRows:
    """The rows of a table in any of the forms that `read_edges` takes; names are checked and in their one form."""
    is_list = isinstance(columns, Sequence) and not isinstance(columns, str)
    if not is_list or len(columns) != 2 or len({type(name) for name in columns}) != 1:
        raise ConfigError(f"columns must be two names, or two numbers, got {columns!r}.")
    if not isinstance(extra, Hashable):
        raise ConfigError(f"weight must be the name or the number of a column, got {extra!r}.")
    wanted = [*columns] if extra is None else [*columns, extra]
    if isinstance(table, str | os.PathLike):
        path = Path(table)
        if path.suffix.lower() == ".parquet":
            frame = _parquet(path)
            return _checked(path.name, "row", zip(*_columns_of(frame, wanted, path.name), strict=True))
        lines = _text_rows(path, wanted, delimiter, comment)
        return TableRows(path.name, "line", _checked_cells(path.name, "line", lines))
    if hasattr(table, "columns") or hasattr(table, "column_names"):
        source = f"a {type(table).__name__}"
        return _checked(source, "row", zip(*_columns_of(table, wanted, source), strict=True))
    if isinstance(table, np.ndarray):
        table = table.tolist()
    if not isinstance(table, Iterable) or isinstance(table, bytes):
        raise DtypeError(
            f"an edge table must be a path, a data frame or a list of pairs, got a {type(table).__name__}."
        )
    return _checked("a list of edges", "row", _pairs(table, 2 if extra is None else 3))


def _pairs(table: Iterable[Any], width: int) -> Iterator[tuple[Any, ...]]:
    for number, row in enumerate(table, start=1):
        if isinstance(row, str | bytes | Set | Mapping) or not hasattr(row, "__len__") or len(row) != width:
            what = "a pair (source, target)" if width == 2 else "a triple (source, target, weight)"
            raise DataError(f"a list of edges, row {number}: expected {what}, got {row!r}.")
        yield tuple(row)


def _checked(source: str, unit: str, rows: Iterable[tuple[Any, ...]]) -> TableRows:
    return TableRows(source, unit, _checked_cells(source, unit, enumerate(rows, start=1)))


def _checked_cells(
    source: str, unit: str, rows: Iterable[tuple[int, tuple[Any, ...]]]
) -> Iterator[tuple[int, tuple[Hashable, Hashable, Any]]]:
    for place, row in rows:
        yield (
            place,
            (_name(row[0], source, unit, place), _name(row[1], source, unit, place), row[2] if len(row) > 2 else None),
        )


def _name(value: Any, source: str, unit: str, place: int) -> Hashable:
    if type(value) is str:
        name: Hashable = value.strip()
        if name:
            return name
    elif value is not None and value == value and str(value) != "<NA>":
        try:
            return canonical(value)
        except DtypeError as error:
            raise DataError(f"{source}, {unit} {place}: the node is {error}") from None
    raise DataError(f"{source}, {unit} {place}: a node without a name, got {value!r}: fill the cell or drop the row.")


def number_of(value: Any, where: str) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise DataError(f"{where}: a weight must be a finite number, got {value!r}.")
    return number


def path_of(argument: str, path: Any) -> Path:
    """``path`` as one; a DtypeError for what is none."""
    if not isinstance(path, str | os.PathLike):
        raise DtypeError(f"{argument} must be the path of a file, got {path!r}.")
    return Path(path)


def ending_of(path: Path) -> str:
    """The suffix of a file in small letters, that before ``.gz``.

    >>> ending_of(Path("sets.GMT.gz"))
    '.gmt'
    """
    return Path(path.name.lower().removesuffix(".gz")).suffix


def open_text(path: Path) -> io.StringIO:
    """The text of a file, with ``.gz`` decompressed; DataError where it cannot be read."""
    try:
        content = path.read_bytes()
        if path.suffix.lower() == ".gz":
            content = gzip.decompress(content)
        return io.StringIO(content.decode("utf-8-sig"), newline="")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise DataError(f"{path.name}, line {line}: not UTF-8: save the file as UTF-8.") from error
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}.") from error


def lines_of(path: Path) -> list[str]:
    """The lines of a file, which end at LF, CR or both: str.splitlines() also ends them inside names, at U+0085 say."""
    return [line.rstrip("\r\n") for line in open_text(path)]


def csv_rows(path: Path, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """The cells of every row, with its last line; a DataError for quotes that do not match."""
    rows = csv.reader(open_text(path), delimiter=delimiter, strict=True)
    first = 1
    problem = ""
    try:
        for row in rows:
            # In a file of tabs a cell over several of them and several lines is two quotes that are part of names.
            if delimiter == "\t" and rows.line_num > first and any("\t" in cell and "\n" in cell for cell in row):
                problem = f"it goes on to line {rows.line_num}"
                break
            yield rows.line_num, row
            first = rows.line_num + 1
    except csv.Error as error:
        problem = str(error)
    if problem:
        raise DataError(
            f'{path.name}, line {first}: a cell that begins with " must end with the next one ({problem}): close it; '
            'where the " is part of the text, quote the cell and write it twice, """5 prime".'
        )


def _text_rows(
    path: Path, wanted: list[Any], delimiter: str | None, comment: str | None
) -> Iterator[tuple[int, tuple[Any, ...]]]:
    suffix = ending_of(path)
    if delimiter is None and suffix not in _DELIMITERS:
        raise ConfigError(
            f"{path.name}: the suffix {suffix!r} tells no format ({', '.join(_DELIMITERS)} and .parquet do): "
            "give delimiter=','."
        )
    if delimiter is not None and (not isinstance(delimiter, str) or len(delimiter) != 1 or delimiter in '\r\n"'):
        raise ConfigError(f"delimiter must be one character, and no quote or end of a line, got {delimiter!r}.")
    if not isinstance(comment, str | None):
        raise ConfigError(f"comment must be a text, got {comment!r}.")
    places: list[int] | None = [*wanted] if _are_numbers(wanted) else None
    for line, row in csv_rows(path, delimiter or _DELIMITERS[suffix]):
        if not any(map(str.strip, row)) or (comment and row[0].startswith(comment)):
            continue
        if places is None:
            places = _places(path.name, [cell.strip() for cell in row], wanted)
            continue
        if max(places) >= len(row):
            raise DataError(f"{path.name}, line {line}: expected at least {max(places) + 1} cells, got {len(row)}.")
        yield line, tuple(row[place] for place in places)


def _are_numbers(wanted: Sequence[Any]) -> bool:
    """Whether columns are given by number; a ConfigError where only some are, or one is negative."""
    numbers = [isinstance(name, int) and not isinstance(name, bool) for name in wanted]
    if any(numbers) and not (all(numbers) and min(wanted) >= 0):
        raise ConfigError(f"columns, and that of weights, must be all names, or all numbers from 0, got {wanted}.")
    return all(numbers)


def _places(source: str, header: Sequence[Any], wanted: Sequence[Any]) -> list[int]:
    for name in wanted:
        if header.count(name) != 1:
            how = "no column" if name not in header else "more than one column"
            raise DataError(
                f"{source}: {how} {name!r}; the columns are {listed(header, shown=8)}: choose with columns=(source, "
                "target), by number (from 0) if there is no header."
            )
    return [header.index(name) for name in wanted]


def _columns_of(frame: Any, wanted: list[Any], source: str) -> list[list[Any]]:
    """Columns of a frame as lists of Python values."""
    names = getattr(frame, "column_names", None)  # pyarrow; its `columns` are the data
    header = list(frame.columns if names is None else names)
    if not set(wanted) <= set(header) and _are_numbers(wanted):  # by position
        beyond = [place for place in wanted if place >= len(header)]
        if beyond:
            raise DataError(f"{source}: there is no column {beyond[0]}, only {len(header)} columns.")
        wanted = [header[place] for place in wanted]
    _places(source, header, wanted)
    columns = [frame[name] for name in wanted]
    return [
        column.to_pylist() if hasattr(column, "to_pylist") else np.asarray(column, dtype=object).tolist()
        for column in columns
    ]


def _parquet(path: Path) -> Any:
    parquet = library("pyarrow.parquet", "a Parquet file", "dagnn[visible]")
    try:
        return parquet.read_table(path)
    except Exception as error:  # pyarrow has its own classes
        raise DataError(f"cannot read {path}: {error}.") from error


def read_sif(
    path: PathLike, *, relations: Collection[str] | None = None, root: Hashable | None = None, reverse: bool = False
) -> Reading:
    """A Dag from a SIF file (simple interaction format): lines ``a relation b [c ...]``; a line ``a`` is a lone node.

    Values flow from the first node of a line to those after the relation. Cells are separated by tabs if the file has
    any, else by blanks.

    Args:
        path: a file, also with ``.gz``.
        relations: those to read; by default all. Edges of others are dropped and reported.
        root: a node that everything without an outgoing edge shall feed; it is made if it is not there.
        reverse: turn every edge round.

    Raises:
        DataError: a file that cannot be read, a line of two cells.
        CycleError: the edges form a cycle; the message names its nodes in order.

    Source: Cytoscape's manual, "Supported network file formats".

    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "small.sif"
    >>> _ = path.write_text("a activates c d\\nb binds c\\n")
    >>> reading = read_sif(path, relations=["activates"])
    >>> print(reading.report)
    small.sif: 4 nodes, 3 edges read; the Dag has 3 nodes, 2 edges
      1 edge dropped, relation 'binds': 'b' -> 'c'
      1 node dropped, none of their edges was kept: 'b'
    """
    path = path_of("path", path)
    relations = None if relations is None else checked_list("relations", relations)
    lines = lines_of(path)
    by_tabs = any("\t" in line for line in lines)
    found = EdgeList(path.name)
    for number, line in enumerate(lines, start=1):
        cells = [cell.strip() for cell in line.split("\t")] if by_tabs else line.split(" ")
        cells = cells if by_tabs else list(filter(None, cells))
        while cells and not cells[-1]:
            cells.pop()
        if not cells:
            continue
        if len(cells) == 2 or not all(cells):
            raise DataError(f"{path.name}, line {number}: expected a node, a relation and nodes, got {line!r}.")
        if len(cells) == 1:
            found.nodes[cells[0]] = None
        for target in cells[2:]:
            if relations is None or cells[1] in relations:
                found.add(cells[0], target)
            else:
                found.skip(cells[0], target, f"relation {cells[1]!r}")
    return found.reading(root=root, reverse=reverse)


def read_sparse(
    matrix: Any,
    names: Sequence[Hashable],
    target_names: Sequence[Hashable] | None = None,
    *,
    root: Hashable | None = None,
    reverse: bool = False,
) -> Reading:
    """A Dag from a sparse or dense matrix: entry [i, j] that is stored and not 0 is the edge i -> j, and its weight.

    Args:
        matrix: of SciPy, or an array, ``[n, n]`` with one list of names, or ``[rows, columns]`` with two: a bipartite
            step, such as genes by pathways. A layer's weight matrix ``[outputs, inputs]`` wants ``reverse=True`` or
            its transpose.
        names: of the nodes; with ``target_names``, those of the rows.
        target_names: those of the columns, where they are other nodes.
        root: a node that everything without an outgoing edge shall feed; it is made if it is not there.
        reverse: entry [i, j] is the edge j -> i.

    Raises:
        DataError: another shape, a name twice, NaN or infinite entries. Zeros that are stored are dropped and reported;
            entries that a matrix of SciPy stores twice are added, as in SciPy.
        DtypeError: no matrix of real numbers.
        CycleError: the edges form a cycle; the message names its nodes in order.

    >>> import scipy.sparse
    >>> reading = read_sparse(scipy.sparse.csr_array([[0.5, 0], [2, 1]]), ["g1", "g2"], ["p", "q"])
    >>> reading.weights
    {('g1', 'p'): 0.5, ('g2', 'p'): 2.0, ('g2', 'q'): 1.0}
    """
    sparse = library("scipy.sparse", "read_sparse", "dagnn[visible]")
    try:
        coo = sparse.coo_array(matrix)
        if coo.dtype.kind not in "biuf":
            raise ValueError(f"its dtype is {coo.dtype}")
        values = coo.data.astype(np.float64)
    except (TypeError, ValueError) as error:
        what = type(matrix).__name__
        raise DtypeError(
            f"matrix must hold real numbers, in two dimensions, got a {what}: {str(error).rstrip('.')}."
        ) from None
    sources = list(map(canonical, checked_list("names", names)))
    sinks = sources if target_names is None else list(map(canonical, checked_list("target_names", target_names)))
    if coo.ndim != 2 or coo.shape != (len(sources), len(sinks)):
        raise DataError(f"a matrix: {len(sources)} by {len(sinks)} names, but the shape is {list(coo.shape)}.")
    every = sources if target_names is None else [*sources, *sinks]
    if len(set(every)) < len(every):
        twice = next(name for name, count in Counter(every).items() if count > 1)
        raise DataError(f"a matrix: {twice!r} is listed twice among the names: every node needs its own.")
    total: dict[tuple[int, int], float] = {}
    for i, j, value in zip(*(part.tolist() for part in coo.coords), values.tolist(), strict=True):
        total[i, j] = total.get((i, j), 0.0) + value
    found = EdgeList("a matrix")
    found.nodes.update(dict.fromkeys(every))
    for (i, j), value in total.items():
        if not math.isfinite(value):
            raise DataError(f"a matrix: an entry must be a finite number, got {value}.")
        if value == 0:
            found.skip(sources[i], sinks[j], "a stored zero")
        else:
            found.add(sources[i], sinks[j], value)
    return found.reading(root=root, reverse=reverse)
