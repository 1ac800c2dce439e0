"""Reading and writing datasets as JSON lines: every line is checked, and a file is replaced whole or not at all."""

import os
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

from dagnn.data.record import MalformedLine, Record, record_from_line, record_to_line
from dagnn.errors import DataError

_LISTED = 5  # further broken lines that an error names


def read_records(path: str | Path) -> list[Record]:
    """All records of a JSONL file, in the file's order.

    Raises:
        DataError: the file cannot be read, or a line is broken: not JSON, a key missing, unknown or of the wrong
            type, an id used before, an empty line, bytes that are not UTF-8, a last line that was cut off. All
            lines are checked; the message gives the first broken one with its reason, and the numbers of others.
    """
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise DataError(f"cannot read the dataset {path}: {_reason(error)}.") from error

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


def write_records(path: str | Path, records: Iterable[Record]) -> int:
    """Writes one line per record and returns how many.

    The file appears under its name only when it is complete and on disk: after an error, or a crash at any moment,
    ``path`` holds what it held before.

    Raises:
        DataError: two records share an id, or the file cannot be written (no such folder, disk full).
    """
    target = Path(path)
    try:
        # A name of its own for every writer, so that two at once cannot write into each other's file.
        descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".partial")
    except OSError as error:
        raise DataError(f"cannot write the dataset {path}: {_reason(error)}.") from error

    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", newline="\n") as file:
            count = _write_lines(file.write, records)
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(0o666 & ~_umask())  # mkstemp gives 0600; a dataset is shared like any file
        temporary.replace(target)
        _sync_folder(target.parent)
    except OSError as error:
        raise DataError(f"cannot write the dataset {path}: {_reason(error)}; nothing was changed.") from error
    finally:
        temporary.unlink(missing_ok=True)
    return count


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


def _write_lines(write: Callable[[str], object], records: Iterable[Record]) -> int:
    seen: set[str] = set()
    for record in records:
        if record.id in seen:
            raise DataError(f"two records have the id {record.id!r}: give every record its own.")
        seen.add(record.id)
        write(record_to_line(record) + "\n")
    return len(seen)


def _sync_folder(folder: Path) -> None:
    """Makes the rename itself durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _reason(error: OSError) -> str:
    return error.strerror or str(error)
