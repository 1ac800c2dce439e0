"""JSONL files: whole round trips, every broken line reported, nothing half-written."""

import errno
import os

import pytest

from dagnn.data.records import Record, read_records, write_records
from dagnn.errors import DataError

RECORDS = [Record(str(i), 1 + i % 3, f"(+ {i} é)", str(i), "train") for i in range(20)]


def write_lines(path, *lines):
    path.write_bytes(b"\n".join(line if isinstance(line, bytes) else line.encode() for line in lines))


def line(identifier):
    return f'{{"id": "{identifier}", "level": 1, "input": "1", "answer": "1"}}'


def test_file_gives_back_the_records(tmp_path):
    path = tmp_path / "set.jsonl"

    assert write_records(path, iter(RECORDS)) == 20

    assert read_records(path) == RECORDS
    assert path.read_bytes().count(b"\n") == 20
    assert [p.name for p in tmp_path.iterdir()] == ["set.jsonl"]


def test_no_records_make_an_empty_file(tmp_path):
    write_records(tmp_path / "set.jsonl", [])

    assert read_records(tmp_path / "set.jsonl") == []


def test_last_line_may_lack_its_newline(tmp_path):
    write_lines(tmp_path / "set.jsonl", line("a"), line("b"))

    assert [record.id for record in read_records(tmp_path / "set.jsonl")] == ["a", "b"]


def test_windows_line_ends_are_read(tmp_path):
    write_lines(tmp_path / "set.jsonl", line("a") + "\r", line("b") + "\r", b"")

    assert [record.id for record in read_records(tmp_path / "set.jsonl")] == ["a", "b"]


def test_broken_line_is_named_with_file_number_and_reason(tmp_path):
    path = tmp_path / "set.jsonl"
    write_lines(path, line("a"), '{"id": "b", "level": 1}', line("c"), b"")

    with pytest.raises(DataError) as caught:
        read_records(path)

    assert str(caught.value) == (
        f"{path}, line 2: no 'input': a line has id, level, input, answer: repair or delete the line."
    )


def test_all_lines_are_checked_and_the_others_listed(tmp_path):
    path = tmp_path / "set.jsonl"
    write_lines(path, *["x"] * 3, line("a"), *["x"] * 5, b"")

    with pytest.raises(DataError, match=r"line 1: .* 8 lines are broken; the others: 2, 3, 5, 6, 7, \.\.\.\.$"):
        read_records(path)


@pytest.mark.parametrize("cut", range(1, len(line("b"))))
def test_truncated_last_line_is_named(tmp_path, cut):
    path = tmp_path / "set.jsonl"
    write_lines(path, line("a"), line("b")[:cut])

    with pytest.raises(DataError, match="line 2: the file ends in the middle of this line, it was cut off"):
        read_records(path)


def test_last_line_without_newline_that_is_json_keeps_its_own_reason(tmp_path):
    path = tmp_path / "set.jsonl"
    write_lines(path, line("a"), line("a"))

    with pytest.raises(DataError, match="line 2: the id 'a' is already on line 1"):
        read_records(path)


@pytest.mark.parametrize(
    ("bad", "reason"),
    [("", "the line is empty"), ("  ", "the line is empty"), (b'{"id": "\xff"}', "byte 9 is not UTF-8")],
)
def test_empty_and_undecodable_lines_are_broken(tmp_path, bad, reason):
    path = tmp_path / "set.jsonl"
    write_lines(path, line("a"), bad, line("b"), b"")

    with pytest.raises(DataError, match=f"line 2: {reason}"):
        read_records(path)


def test_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(DataError, match=r"cannot read the dataset .*none\.jsonl: No such file or directory\."):
        read_records(tmp_path / "none.jsonl")
    with pytest.raises(DataError, match=r"cannot read the dataset .*: Is a directory"):
        read_records(tmp_path)


def test_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(DataError, match=r"cannot write the dataset .*: No such file or directory\."):
        write_records(tmp_path / "none" / "set.jsonl", RECORDS)


def test_repeated_id_is_refused_and_the_old_file_kept(tmp_path):
    path = tmp_path / "set.jsonl"
    write_records(path, RECORDS)

    with pytest.raises(DataError, match="two records have the id '0'"):
        write_records(path, [RECORDS[0], RECORDS[0]])

    assert read_records(path) == RECORDS
    assert [p.name for p in tmp_path.iterdir()] == ["set.jsonl"]


@pytest.mark.parametrize("failing", ["fsync", "replace"])
def test_full_disk_keeps_the_old_file(tmp_path, monkeypatch, failing):
    path = tmp_path / "set.jsonl"
    write_records(path, RECORDS)

    def fail(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, failing, fail)
    with pytest.raises(DataError, match="No space left on device; nothing was changed"):
        write_records(path, RECORDS[:1])
    monkeypatch.undo()

    assert read_records(path) == RECORDS
    assert [p.name for p in tmp_path.iterdir()] == ["set.jsonl"]


def test_error_while_records_are_made_keeps_the_old_file(tmp_path):
    path = tmp_path / "set.jsonl"
    write_records(path, RECORDS)

    def records():
        yield RECORDS[0]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_records(path, records())

    assert read_records(path) == RECORDS
    assert [p.name for p in tmp_path.iterdir()] == ["set.jsonl"]
