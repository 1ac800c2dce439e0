"""Datasets: a sequence of records with an index by level."""

import numpy as np
import pytest

from dagnn.data import Dataset, Record
from dagnn.errors import DataError

DATASET = Dataset(Record(str(i), 1 + i % 3, f"(+ {i} 1)", str(i + 1)) for i in range(10))


def test_dataset_is_a_sequence():
    assert len(DATASET) == 10
    assert DATASET[3].input == "(+ 3 1)"
    assert DATASET[-1].id == "9"
    assert [record.id for record in DATASET[2:4]] == ["2", "3"]
    assert isinstance(DATASET[2:4], Dataset)
    assert DATASET[4] in DATASET
    with pytest.raises(IndexError):
        DATASET[10]


def test_levels_are_indexed():
    assert DATASET.levels == [1, 2, 3]
    assert DATASET.level_of_item.tolist() == [1, 2, 3, 1, 2, 3, 1, 2, 3, 1]
    assert [record.id for record in DATASET.at_level(2)] == ["1", "4", "7"]
    assert len(DATASET.at_level(9)) == 0
    with pytest.raises(ValueError, match="read-only"):
        DATASET.level_of_item[0] = 5


def test_select_takes_an_array_of_indices():
    assert [record.id for record in DATASET.select(np.array([5, 0]))] == ["5", "0"]
    assert DATASET.pairs(np.array([5, 0])) == [("(+ 5 1)", "6"), ("(+ 0 1)", "1")]
    assert len(DATASET.pairs()) == 10


def test_file_gives_back_the_dataset(tmp_path):
    DATASET.write(tmp_path / "set.jsonl")

    assert Dataset.read(tmp_path / "set.jsonl") == DATASET


def test_text_pairs_are_read(tmp_path):
    path = tmp_path / "pairs.tsv"
    path.write_bytes("(+ 2 3)\t5\r\nnaïve 😀\tyes\n".encode())

    dataset = Dataset.read_text_pairs(path, level=2, split="train")

    assert dataset.pairs() == [("(+ 2 3)", "5"), ("naïve 😀", "yes")]
    assert dataset[1] == Record("1", 2, "naïve 😀", "yes", "train")


def test_empty_file_of_text_pairs_is_an_empty_dataset(tmp_path):
    (tmp_path / "pairs.tsv").write_bytes(b"")

    assert len(Dataset.read_text_pairs(tmp_path / "pairs.tsv")) == 0


@pytest.mark.parametrize(("bad", "tabs"), [("no tab", 0), ("a\tb\tc", 2), ("", 0)])
def test_text_pair_without_exactly_one_tab_is_named(tmp_path, bad, tabs):
    path = tmp_path / "pairs.tsv"
    path.write_text(f"a\tb\n{bad}\nc\td\n")

    with pytest.raises(DataError) as caught:
        Dataset.read_text_pairs(path)
    assert str(caught.value) == f"{path}, line 2: expected an input, one tab and an answer, found {tabs} tabs."


def test_unreadable_text_pairs_are_named(tmp_path):
    (tmp_path / "pairs.tsv").write_bytes(b"a\tb\nc\t\xff\n")

    with pytest.raises(DataError, match=r"pairs\.tsv, line 2: not UTF-8"):
        Dataset.read_text_pairs(tmp_path / "pairs.tsv")
    with pytest.raises(DataError, match=r"cannot read the text pairs .*none\.tsv: No such file"):
        Dataset.read_text_pairs(tmp_path / "none.tsv")
