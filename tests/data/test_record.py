"""Records as lines of JSON: round trips, and a reason for every broken line."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagnn.data.records import MalformedLine, Record, record_from_line, record_to_line
from dagnn.graph import Dag

RECORDS = st.builds(
    Record,
    id=st.text(),
    level=st.integers(1, 99),
    input=st.text(),
    answer=st.text(),
    split=st.sampled_from(["", "train", "test"]),
)
LINE = {"id": "a", "level": 1, "input": "(+ 2 3)", "answer": "5"}


@given(RECORDS)
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
