"""Datasets: records as JSON lines, every line checked, and a dataset in memory by position and by level."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np
from numpy.typing import NDArray

from dagnn.errors import DataError
from dagnn.files import replaced_file

if TYPE_CHECKING:
    from dagnn.graph import Dag


_KEYS = ("id", "level", "input", "answer", "split", "graphs")
_REQUIRED = ("id", "level", "input", "answer")
_LISTED = 5  # further broken lines that an error names


@dataclass(frozen=True, slots=True)
class Record:
    """An input with its answer.

    Attributes:
        id: the name of the record in its dataset; no two records share one.
        level: difficulty, at least 1; `BatchIterator` mixes batches by level.
        input: text of the question, such as ``(+ 2 3)``.
        answer: text of the answer, such as ``5``.
        split: ``train``, ``validation``, ``test``, or what you call it; empty if there is none.
        graphs: name -> graph, such as those of ``input`` and ``answer``; None if there are none.

    >>> Record("0", 1, "(+ 2 3)", "5").split
    ''
    """

    id: str
    level: int
    input: str
    answer: str
    split: str = ""
    graphs: "Mapping[str, Dag] | None" = None


def read_records(path: str | Path) -> list[Record]:
    """All records of a JSONL file, in the file's order.

    Raises:
        DataError: the file cannot be read, or a line is broken: not JSON, a key missing, unknown or of the wrong type,
            an id used before, an empty line, bytes that are not UTF-8, a last line that was cut off. All lines are
            checked; the message gives the first broken one with the reason, and the numbers of others.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp(), "sums.jsonl")
    >>> write_records(path, [Record("0", 1, "(+ 2 3)", "5")])
    1
    >>> read_records(path)[0].answer
    '5'
    """
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise DataError(f"cannot read the dataset {path}: {error.strerror or error}.") from error

    lines = content.split(b"\n")
    cut_off = lines.pop()  # what follows the last newline: nothing, in a whole file
    if cut_off:
        lines.append(cut_off)
    records: list[Record] = []
    line_of_id: dict[str, int] = {}
    broken: list[tuple[int, str]] = []
    for number, line in enumerate(lines, start=1):
        try:
            record = _record(line, number, line_of_id)
        except MalformedLine as error:
            truncated = cut_off and number == len(lines)
            reason = "the file ends in the middle of this line, it was cut off" if truncated else str(error)
            broken.append((number, reason))
        except ValueError as error:
            broken.append((number, str(error)))
        else:
            records.append(record)

    if broken:
        raise DataError(_broken_message(path, broken))
    return records


def _record(line: bytes, number: int, line_of_id: dict[str, int]) -> Record:
    if not line.strip():
        raise ValueError("the line is empty")
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise MalformedLine(f"byte {error.start + 1} is not UTF-8") from None
    record = record_from_line(text)
    if record.id in line_of_id:
        raise ValueError(f"the id {record.id!r} is already on line {line_of_id[record.id]}")
    line_of_id[record.id] = number
    return record


def _broken_message(path: str | Path, broken: list[tuple[int, str]]) -> str:
    number, reason = broken[0]
    message = f"{path}, line {number}: {reason}: repair or delete the line."
    if len(broken) > 1:
        listed = ", ".join(str(number) for number, _ in broken[1 : 1 + _LISTED])
        more = ", ..." if len(broken) > 1 + _LISTED else ""
        message += f" {len(broken)} lines are broken; the others: {listed}{more}."
    return message


def write_records(path: str | Path, records: Iterable[Record]) -> int:
    """Write one line per record; the number of records.

    The file gets its name only when it is complete and on the disk: after an error, or a crash at any moment, ``path``
    holds what it held before.

    Raises:
        DataError: two records share an id, or the file cannot be written (no such folder, disk full).

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_records(f"{folder}/sums.jsonl", [Record("0", 1, "(+ 2 3)", "5")])
    ...     read_records(f"{folder}/sums.jsonl")[0].answer
    1
    '5'
    """
    try:
        with replaced_file(Path(path)) as temporary, temporary.open("w", encoding="utf-8", newline="\n") as file:
            return _write_lines(file.write, records)
    except FileNotFoundError as error:
        reason = f"{error.strerror or error}. Create the folder {Path(path).parent} first"
        raise DataError(f"cannot write the dataset {path}: {reason}.") from error
    except OSError as error:
        raise DataError(f"cannot write the dataset {path}: {error.strerror or error}; nothing was changed.") from error


def _write_lines(write: Callable[[str], object], records: Iterable[Record]) -> int:
    seen: set[str] = set()
    for record in records:
        if record.id in seen:
            raise DataError(f"two records have the id {record.id!r}: give every record its own.")
        seen.add(record.id)
        write(record_to_line(record) + "\n")
    return len(seen)


def record_to_line(record: Record) -> str:
    """The record as one line of JSON, without the newline. The keys have one order: equal records give equal bytes."""
    fields: dict[str, Any] = {key: getattr(record, key) for key in _REQUIRED}
    if record.split:
        fields["split"] = record.split
    if record.graphs is not None:
        fields["graphs"] = {name: json.loads(dag.to_json()) for name, dag in record.graphs.items()}
    return json.dumps(fields, ensure_ascii=False, allow_nan=False)


def record_from_line(line: str) -> Record:
    """The record that a line of JSON holds; MalformedLine where it is not even JSON.

    Else a ValueError has the reason alone, because only the caller knows file and line number.
    """
    try:
        fields = json.loads(line, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        raise MalformedLine(f"not valid JSON ({error.msg} at column {error.colno})") from None
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(fields, dict):
        raise ValueError(f"expected a JSON object, got {_type_name(fields)}")

    _check_keys(fields)
    for key in ("id", "input", "answer", "split"):
        if not isinstance(fields.get(key, ""), str):
            raise ValueError(f"{key!r} must be text, got {_type_name(fields[key])}")
    level = fields["level"]
    if type(level) is not int or level < 1:
        raise ValueError(f"'level' must be an integer from 1, got {level!r}")

    return Record(
        fields["id"], level, fields["input"], fields["answer"], fields.get("split", ""), _graphs(fields.get("graphs"))
    )


class MalformedLine(ValueError):
    """A line that is not JSON at all, as the last line of a file that was cut off."""


def _check_keys(fields: dict[str, Any]) -> None:
    missing = [key for key in _REQUIRED if key not in fields]
    if missing:
        raise ValueError(f"no {missing[0]!r}: a line has {', '.join(_REQUIRED)}")
    unknown = [key for key in fields if key not in _KEYS]
    if unknown:
        raise ValueError(f"unknown key {unknown[0]!r}: a line has {', '.join(_KEYS)}")


def _graphs(value: Any) -> "Mapping[str, Dag] | None":
    if value is None:
        return None
    if not isinstance(value, dict):
        raise ValueError(f"'graphs' must map names to graphs, got {_type_name(value)}")
    # Here: it loads torch, which a dataset of text does not need.
    from dagnn.graph import Dag

    graphs = {}
    for name, graph in value.items():
        try:
            graphs[name] = Dag.from_json(json.dumps(graph))
        except (ValueError, TypeError) as error:
            raise ValueError(f"graph {name!r}: {error}") from None
    return graphs


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not a JSON number")


def _type_name(value: Any) -> str:
    if value is None:
        return "null"
    names = {dict: "an object", list: "a list", str: "text", bool: "true or false", int: "a number", float: "a number"}
    return names[type(value)]


class Dataset(Sequence[Record]):
    """Records in an order, with an index by level; it never changes.

    ``dataset[i]`` is a record and ``dataset[i:j]`` a dataset.

    >>> dataset = Dataset.from_pairs([("(+ 2 3)", "5"), ("(* 2 3)", "6")])
    >>> len(dataset), dataset[1].answer, dataset.level_of_item.tolist()
    (2, '6', [1, 1])
    """

    def __init__(self, records: Iterable[Record]) -> None:
        self._records = tuple(records)
        levels = np.fromiter((record.level for record in self._records), np.int64, len(self._records))
        levels.flags.writeable = False
        self._level_of_item: NDArray[np.int64] = levels

    @classmethod
    def read(cls, path: str | Path) -> "Dataset":
        """The dataset in a JSONL file.

        Raises:
            DataError: the file cannot be read or a line is broken; the message names file, line and reason.
        """
        return cls(read_records(path))

    @classmethod
    def from_pairs(cls, pairs: Iterable[tuple[str, str]], *, level: int = 1, split: str = "") -> "Dataset":
        """A dataset of text pairs (input, answer); their ids are "0", "1", "2", ..."""
        return cls(Record(str(i), level, source, answer, split) for i, (source, answer) in enumerate(pairs))

    @classmethod
    def read_text_pairs(cls, path: str | Path, *, level: int = 1, split: str = "") -> "Dataset":
        """The dataset in a text file with one pair a line: the input, a tab, the answer.

        Raises:
            DataError: the file cannot be read, or a line has not exactly one tab; names file and line.
        """
        try:
            text = Path(path).read_text(encoding="utf-8")
        except OSError as error:
            raise DataError(f"cannot read the text pairs {path}: {error.strerror or error}.") from error
        except UnicodeDecodeError as error:
            line = error.object.count(b"\n", 0, error.start) + 1
            raise DataError(f"{path}, line {line}: not UTF-8: save the file as UTF-8.") from error

        pairs = []
        for number, line_text in enumerate(text.removesuffix("\n").split("\n") if text else [], start=1):
            parts = line_text.removesuffix("\r").split("\t")
            if len(parts) != 2:
                raise DataError(
                    f"{path}, line {number}: expected an input, one tab and an answer, found {len(parts) - 1} tabs."
                )
            pairs.append((parts[0], parts[1]))
        return cls.from_pairs(pairs, level=level, split=split)

    def write(self, path: str | Path) -> None:
        """Write the dataset as JSON lines; ``path`` is replaced whole or not at all.

        Raises:
            DataError: two records share an id, or the file cannot be written.
        """
        write_records(path, self._records)

    def __len__(self) -> int:
        return len(self._records)

    @overload
    def __getitem__(self, index: int) -> Record: ...

    @overload
    def __getitem__(self, index: slice) -> "Dataset": ...

    def __getitem__(self, index: int | slice) -> "Record | Dataset":
        if isinstance(index, slice):
            return Dataset(self._records[index])
        return self._records[index]

    def __iter__(self) -> Iterator[Record]:
        return iter(self._records)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Dataset) and self._records == other._records

    __hash__ = None  # type: ignore[assignment]  # equality by content over a list that may be huge

    def __repr__(self) -> str:
        return f"Dataset({len(self)} records, levels {self.levels})"

    @property
    def level_of_item(self) -> NDArray[np.int64]:
        """Level of every record: int64 ``[len(dataset)]``, read-only; what `BatchIterator` takes."""
        return self._level_of_item

    @property
    def levels(self) -> list[int]:
        """The levels that occur, ascending."""
        return [int(level) for level in np.unique(self._level_of_item)]

    def at_level(self, level: int) -> "Dataset":
        """The records of one level, in this dataset's order; empty when there are none."""
        return self.select(np.flatnonzero(self._level_of_item == level))

    def select(self, indices: Iterable[int]) -> "Dataset":
        """The records at the given positions, in the given order."""
        return Dataset(self._records[i] for i in indices)

    def pairs(self, indices: Iterable[int] | None = None) -> list[tuple[str, str]]:
        """(input, answer) of the records at ``indices``; of all, when None."""
        records = self._records if indices is None else [self._records[i] for i in indices]
        return [(record.input, record.answer) for record in records]
