"""The picture of an edit path: what is drawn, in which colour; files that are what they say."""

import random
from collections import Counter

import pytest

from dagnn.ged import graph_edit_distance
from dagnn.ged.labelled import read_pair
from dagnn.ged.picture import STYLES, draw_edits
from dagnn.graph import Dag


def draw(a, b, kind="svg", titles=("a", "b"), **options):
    result = graph_edit_distance(a, b, **options)
    graphs = read_pair(a, b, directed=True, node_label="label", edge_label="label")
    picture = draw_edits(*graphs, result, titles=titles, kind=kind)
    return picture.decode() if kind == "svg" else picture


def arrows(svg):
    """Edges by fate: only the head of an arrow is filled with the colour of a line."""
    found = Counter()
    for group in svg.split('<g id="')[1:]:
        if not group.startswith("patch_"):
            continue
        for fate, style in STYLES.items():
            if f"fill: {style.line}" in group:
                found[fate] += 1
    return found


def test_every_node_and_edge_has_the_colour_of_its_fate():
    labels = {"label": ("x", "y", "z")}
    a = Dag([(0, 1), (1, 2)], node_attributes=labels)
    b = Dag([(0, 1), (0, 2), (2, 3)], node_attributes={"label": ("x", "y", "w", "n")})
    result = graph_edit_distance(a, b)
    kinds = Counter(edit.kind for edit in result.edit_path)

    svg = draw(a, b)

    legend = draw(Dag([]), Dag([]))
    drawn = {fate: svg.count(f"fill: {s.face}") - legend.count(f"fill: {s.face}") for fate, s in STYLES.items()}
    kept = a.num_nodes - kinds["substitute node"] - kinds["delete node"]
    assert drawn == {
        "kept": 2 * kept,
        "substitute": 2 * kinds["substitute node"],
        "delete": kinds["delete node"],
        "insert": kinds["insert node"],
    }
    assert arrows(svg) == Counter(
        kept=2 * (a.num_edges - kinds["delete edge"]), delete=kinds["delete edge"], insert=kinds["insert edge"]
    )


def test_words_are_on_the_picture():
    svg = draw(
        Dag([("from", "to")], edge_attributes={"label": ("old",)}),
        Dag([("from", "to")], edge_attributes={"label": ("new",)}),
        titles=("left.json", "right.json"),
    )

    for text in ("from", "to", "old", "new", "left.json", "right.json", "graph edit distance 1", "2 nodes, 1 edge"):
        assert f"<!-- {text}" in svg


def test_unproved_distance_is_told_as_bounds(oracle):
    rng = random.Random(0)
    a, b = (oracle.to_networkx(oracle.random_dag(rng, 14)) for _ in range(2))

    assert "<!-- graph edit distance between " in draw(Dag.from_networkx(a), Dag.from_networkx(b), budget=0)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (Dag([]), Dag([])),
        (Dag([]), Dag([(0, 1)])),
        (
            Dag([(0, 1), (1, 2)], node_attributes={"label": tuple("abc")}),
            Dag([(2, 1), (1, 0)], 3, node_attributes={"label": tuple("abc")}),
        ),
        (Dag.from_polish("(* x x)", share=True), Dag.from_polish("(* (sin x) x)", share=True)),
        (Dag([("$x_1$", "a\tb"), ("a\tb", "<&>-->")]), Dag([("q" * 200, "b")])),
        (Dag([], 3), Dag([(0, i) for i in range(1, 120)])),
    ],
    ids=["empty", "one empty", "reversed", "parallel edges", "hard names", "wide"],
)
def test_any_pair_can_be_drawn(a, b):
    assert draw(a, b).startswith("<?xml")
    assert draw(a, b, kind="png").startswith(b"\x89PNG\r\n")


def test_same_graphs_give_the_same_bytes():
    a, b = Dag.from_polish("(+ x 1)"), Dag.from_polish("(+ 1 (sin y))")

    assert draw(a, b) == draw(a, b)
