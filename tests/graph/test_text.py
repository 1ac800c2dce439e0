"""Text: one node per character as a reader sees it."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dagnn.errors import DtypeError
from dagnn.graph import Dag


@given(st.text())
def test_labels_join_to_the_text_and_form_a_chain(text):
    dag = Dag.from_text(text)
    labels = dag.node_attributes["label"]
    assert "".join(labels) == text
    assert dag == Dag([(i, i + 1) for i in range(len(labels) - 1)], len(labels), node_attributes={"label": labels})
    assert torch.equal(dag.levels, torch.arange(len(labels)))


@pytest.mark.parametrize(
    ("text", "labels"),
    [
        ("", ()),
        ("a", ("a",)),
        ("e\u0301x", ("e\u0301", "x")),
        ("👨‍👩‍👧🇩🇪🇫🇷", ("👨‍👩‍👧", "🇩🇪", "🇫🇷")),
        ("👍🏽", ("👍🏽",)),
        ("각", ("각",)),
        ("नि", ("नि",)),
        ("\r\n\n", ("\r\n", "\n")),
    ],
)
def test_grapheme_clusters_stay_together(text, labels):
    assert Dag.from_text(text).node_attributes["label"] == labels


def test_something_else_than_text_is_refused():
    with pytest.raises(DtypeError, match="the text must be a str, got bytes"):
        Dag.from_text(b"abc")
