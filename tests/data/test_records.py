"""Records as lines of JSON, and files of them: round trips, a reason for every broken line, nothing half-written."""

import errno
import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagnn.data.dataset import MalformedLine, Record, read_records, record_from_line, record_to_line, write_records
from dagnn.errors import DataError
from dagnn.graph import Dag

any_record = st.builds(
    Record,
    id=st.text(),
    level=st.integers(1, 99),
    input=st.text(),
    answer=st.text(),
    split=st.sampled_from(["", "train", "test"]),
)
LINE = {"id": "a", "level": 1, "input": "(+ 2 3)", "answer": "5"}


@given(any_record)
def test_line_gives_back_the_record(record):
    line = record_to_line(record)

    assert "\n" not in line
    assert record_from_line(line) == record


def test_line_is_the_documented_json():
    record = Record("1/train/0", 1, "(+ 2 3)", "5", "train")

    assert record_to_line(record) == (
        '{"id": "1/train/0", "level": 1, "input": "(+ 2 3)", "answer": "5", "split": "train"}'
    )


def test_graphs_come_back_equal():
    graphs = {"input": Dag.from_polish("(+ 2 3)"), "answer": Dag.from_polish("5")}
    record = Record("a", 1, "(+ 2 3)", "5", graphs=graphs)

    again = record_from_line(record_to_line(record))

    assert again.graphs == graphs


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"level": None}, "'level' must be an integer from 1, got None"),
        ({"level": 0}, "'level' must be an integer from 1, got 0"),
        ({"level": True}, "'level' must be an integer from 1, got True"),
        ({"level": 1.0}, "'level' must be an integer from 1, got 1.0"),
        ({"input": 3}, "'input' must be text, got a number"),
        ({"answer": None}, "'answer' must be text, got null"),
        ({"split": []}, "'split' must be text, got a list"),
        ({"anwser": "5"}, "unknown key 'anwser': a line has id, level, input, answer, split, graphs"),
        ({"graphs": []}, "'graphs' must map names to graphs, got a list"),
    ],
)
def test_wrong_field_is_named(change, reason):
    with pytest.raises(ValueError) as caught:
        record_from_line(json.dumps(LINE | change))
    assert str(caught.value) == reason


@pytest.mark.parametrize("key", ["id", "level", "input", "answer"])
def test_missing_key_is_named(key):
    line = json.dumps({name: value for name, value in LINE.items() if name != key})

    with pytest.raises(ValueError, match=f"no '{key}': a line has id, level, input, answer"):
        record_from_line(line)


def test_broken_graph_is_named():
    line = json.dumps(LINE | {"graphs": {"input": {"edges": "none"}}})

    with pytest.raises(ValueError, match="graph 'input': "):
        record_from_line(line)


@pytest.mark.parametrize("line", ['{"id": "a", "lev', "plain text", '{"id": "a"} {"id": "b"}'])
def test_text_that_is_not_json_is_malformed(line):
    with pytest.raises(MalformedLine, match=r"not valid JSON \(.+ at column \d+\)"):
        record_from_line(line)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("[1, 2]", "expected a JSON object, got a list"),
        ("3", "expected a JSON object, got a number"),
        ('{"id": NaN}', "NaN is not a JSON number"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_json_that_is_no_record_is_refused(line, reason):
    with pytest.raises(ValueError) as caught:
        record_from_line(line)
    assert str(caught.value) == reason


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
