"""A dataset in memory: records by position and by level, read from and written to JSON lines."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import overload

import numpy as np
from numpy.typing import NDArray

from dagnn.data.records import Record, read_records, write_records
from dagnn.errors import DataError


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
