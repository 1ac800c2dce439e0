"""Pictures of DAGs and networks: boxes that do not overlap, colours that mean numbers, files of the same bytes."""

import re
from itertools import combinations

import numpy as np
import pytest
import torch
from matplotlib.colors import to_rgb
from matplotlib.patches import FancyBboxPatch

from dagnn import ConfigError, Dag, DagNN, DtypeError, GraphError
from dagnn.drawing.picture import SHOWN, _luminance


def layers(sizes, seed=0):
    """A graph with so many nodes a level, two edges out of every node, some of which skip a level."""
    random = np.random.default_rng(seed)
    edges = set()
    for level in range(len(sizes) - 1):
        for node in range(sizes[level]):
            for step in (1, min(int(random.integers(1, 3)), len(sizes) - 1 - level)):
                edges.add((f"{level} {node}", f"{level + step} {random.integers(sizes[level + step])}"))
    return Dag(sorted(edges))


def boxes(figure):
    return [patch for patch in figure.axes[0].patches if isinstance(patch, FancyBboxPatch)]


def words(figure):
    return [text.get_text() for text in figure.texts]


def edge_lines(figure):
    """The collections of lines, without the heads of arrows, which are filled."""
    return [each for each in figure.axes[0].collections if not len(each.get_facecolor())]


@pytest.mark.parametrize("sizes", [[4, 3, 1], [120, 100, 60, 20, 1]])
def test_no_box_or_name_covers_another(sizes):
    dag = layers(sizes)
    figure = dag.draw()

    figure.canvas.draw()
    areas = [patch.get_window_extent() for patch in boxes(figure)]
    texts = [text.get_window_extent() for text in figure.axes[0].texts]
    assert len(areas) == len(texts) == dag.num_nodes
    for some in (areas, texts):
        x0, y0, x1, y1 = np.array([[box.x0, box.y0, box.x1, box.y1] for box in some]).T
        overlap = (np.minimum.outer(x1, x1) > np.maximum.outer(x0, x0)) & (
            np.minimum.outer(y1, y1) > np.maximum.outer(y0, y0)
        )
        assert int(overlap.sum()) == dag.num_nodes  # each itself
    for box, text in zip(areas, texts, strict=True):
        assert box.x0 <= text.x0 and text.x1 <= box.x1 and box.y0 <= text.y0 and text.y1 <= box.y1
    window = figure.bbox
    assert min(box.x0 for box in areas) >= 0 and max(box.x1 for box in areas) <= window.x1
    assert figure.axes[0].texts[0].get_fontsize() >= 7


def test_edges_go_right_and_pass_between_the_boxes():
    dag = layers([12, 9, 6, 3, 1])
    figure = dag.draw()

    rectangles = [patch.get_bbox().bounds for patch in boxes(figure)]
    (lines,) = edge_lines(figure)
    assert len(lines.get_paths()) == dag.num_edges
    for path in lines.get_paths():
        points = path.interpolated(1).to_polygons(closed_only=False)[0]
        assert (np.diff(points[:, 0]) >= -1e-9).all()
        for x, y, width, height in rectangles:
            inside = (points[:, 0] > x + 1e-9) & (points[:, 0] < x + width - 1e-9)
            assert not (inside & (points[:, 1] > y) & (points[:, 1] < y + height)).any()


def crossings(dag, order):
    """Pairs of edges between neighbouring levels that cross, for a place of every node."""
    pairs = [(order[u], order[v]) for u, v in dag.edges.tolist() if dag.levels[v] - dag.levels[u] == 1]
    levels = [int(dag.levels[u]) for u, v in dag.edges.tolist() if dag.levels[v] - dag.levels[u] == 1]
    both = combinations(zip(pairs, levels, strict=True), 2)
    return sum(m == n and (a - c) * (b - d) < 0 for ((a, b), m), ((c, d), n) in both)


def test_few_edges_cross():
    """Two trees, their leaves mixed: in the right order no edge crosses another."""
    dag = Dag(
        [(f"leaf {i}", f"inner {i % 4}") for i in range(16)] + [(f"inner {i}", f"root {i % 2}") for i in range(4)]
    )
    place = {
        text.get_text(): patch.get_bbox().y0
        for text, patch in zip(dag.draw().axes[0].texts, boxes(dag.draw()), strict=True)
    }

    assert crossings(dag, [place[name] for name in dag.names]) == 0
    assert crossings(dag, list(range(dag.num_nodes))) > 0


def test_colours_and_dashes_mean_numbers():
    dag = Dag([("a", "c"), ("b", "c"), ("c", "d")])
    edges = {("a", "c"): -2.0, ("b", "c"): 0.0, ("c", "d"): 2.0}
    figure = dag.draw(nodes={"a": 3.0, "b": -3.0, "c": 0.0}, edges=edges)

    faces = dict(zip(dag.names, (patch.get_facecolor()[:3] for patch in boxes(figure)), strict=True))
    blue, vermilion = to_rgb("#0067ac"), to_rgb("#c94f00")
    assert faces["a"] == pytest.approx(vermilion, abs=0.01) and faces["b"] == pytest.approx(blue, abs=0.01)
    assert faces["c"] == pytest.approx(to_rgb("#f4f4f2"), abs=0.01) and faces["d"] == (1.0, 1.0, 1.0)
    (lines,) = edge_lines(figure)
    found = {
        tuple(np.round(colour[:3], 2)): (dash[1] is not None, width)
        for colour, dash, width in zip(lines.get_edgecolor(), lines.get_linestyle(), lines.get_linewidth(), strict=True)
    }
    dashed, wide = found[tuple(np.round(blue, 2))]
    assert dashed and wide == pytest.approx(2.5)
    assert found[tuple(np.round(vermilion, 2))] == (False, pytest.approx(2.5))
    assert found[tuple(np.round(to_rgb("#c4c4c4"), 2))] == (False, pytest.approx(0.5))
    assert [axes.get_title() for axes in figure.axes[1:]] == ["nodes", "edges"]
    assert words(figure) == ["white: nodes without a number"]


@pytest.mark.parametrize("colours", ["_SIGNED_NODES", "_AMOUNTS_NODES"])
def test_names_stand_out_on_every_colour(colours):
    from matplotlib.colors import LinearSegmentedColormap, to_hex

    import dagnn.drawing.picture as picture

    scale = LinearSegmentedColormap.from_list("test", list(getattr(picture, colours)))
    for share in np.linspace(0, 1, 60):
        light = _luminance(to_hex(scale(share)))
        ink = 1.0 if light < 0.36 else _luminance("#10161d")
        assert (max(light, ink) + 0.05) / (min(light, ink) + 0.05) > 2.5


def test_top_shows_the_most_important_and_says_what_is_hidden():
    dag = Dag([("a", "b"), ("b", "c"), ("c", "d"), ("e", "d")])
    figure = dag.draw(nodes={"a": 5, "b": 0.1, "c": 0.2, "d": -4, "e": 3}, top=3)

    assert [text.get_text() for text in figure.axes[0].texts] == ["a", "d", "e"]
    solid, dotted = edge_lines(figure)
    assert len(solid.get_paths()) == len(dotted.get_paths()) == 1
    assert set(words(figure)) == {
        "2 of 5 nodes and 3 edges are not shown",
        "dotted: only paths through nodes that are not shown",
    }


@pytest.mark.parametrize("ending", ["svg", "png", "pdf"])
def test_the_same_graph_gives_the_same_file(tmp_path, ending):
    dag, files = layers([5, 4, 2]), []
    for name in ("one", "two"):
        path = tmp_path / f"{name}.{ending}"
        dag.draw(path, nodes=torch.linspace(-1, 1, dag.num_nodes), top=8, title="the same")
        files.append(path.read_bytes())

    assert files[0] == files[1]
    assert files[0].startswith({"svg": b"<?xml", "png": b"\x89PNG", "pdf": b"%PDF"}[ending])


def test_names_are_cut_and_never_read_as_formulas_or_lines():
    dag = Dag([("$x^2$\n<b>", "y" * 100)])
    first, second = (text.get_text() for text in dag.draw(title="$y$ \\frac").axes[0].texts)

    assert first == "$x^2$\\n<b>" and second == "y" * (SHOWN - 1) + "…"


@pytest.mark.parametrize("dag", [Dag([]), Dag([], 3), Dag([("a", "b")])])
def test_the_smallest_graphs_are_drawn(dag):
    figure = dag.draw()
    figure.canvas.draw()

    assert len(boxes(figure)) == dag.num_nodes
    assert words(figure) == ([] if dag.num_nodes else ["the graph has no nodes"])


def test_parallel_edges_are_drawn_as_one_with_their_sum():
    dag = Dag([(0, 1), (0, 1)], edge_attributes={"position": torch.tensor([0, 1])})
    figure = dag.draw(edges=[1.0, 2.0])

    (lines,) = edge_lines(figure)
    assert len(lines.get_paths()) == 1 and figure.axes[1].get_xlim() == (0, 3)
    assert words(figure) == ["1 parallel edges are joined with others, their numbers summed"]


def test_names_too_small_to_read_are_left_out_with_a_note():
    dag = Dag([(f"a{i}", "sink") for i in range(700)])
    figure = dag.draw()

    assert len(boxes(figure)) == 701 and not figure.axes[0].texts
    assert "names are left out" in words(figure)[0]


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"nodes": {"z": 1.0}}, GraphError, "unknown node 'z'"),
        ({"nodes": [1.0]}, GraphError, "nodes must have one number for each of 2 nodes, got the shape [1]"),
        ({"nodes": {"a": "red"}}, DtypeError, "nodes: 'a' must have one real number, got 'red'."),
        ({"nodes": ["x", "y"]}, DtypeError, "nodes must hold real numbers"),
        ({"edges": {("b", "a"): 1.0}}, GraphError, "edges: there is no edge 'b' -> 'a': give the source first."),
        ({"edges": {"ab": 1.0}}, GraphError, "edges: an edge is a pair of names (source, target), got 'ab'."),
        ({"path": "p.gif"}, ConfigError, "the picture p.gif must end in .svg, .png or .pdf."),
    ],
)
def test_what_cannot_be_drawn_is_refused(arguments, error, text):
    with pytest.raises(error, match=re.escape(text)):
        Dag([("a", "b")]).draw(**arguments)


def test_a_graph_that_no_picture_holds_is_refused_with_what_to_do():
    with pytest.raises(GraphError, match=r"a picture of 2,001 nodes cannot be read.*top=100.*write_page"):
        Dag([], 2001).draw()

    assert len(boxes(Dag([], 2001).draw(top=4))) == 4


def test_infinite_numbers_have_the_strongest_colour():
    figure = Dag([("a", "b")]).draw(nodes={"a": float("inf"), "b": 1.0})

    assert boxes(figure)[0].get_facecolor() == boxes(figure)[1].get_facecolor()
    assert words(figure) == ["infinite nodes (1) have the colour of the largest number"]


@pytest.mark.fault("docs_and_packaging", 15)
def test_a_network_is_drawn_by_weight():
    net = DagNN(Dag([("a", "c"), ("b", "c")]))
    net.set_weights({("a", "c"): 4.0, ("b", "c"): -1.0})

    figure = net.draw()

    assert figure.axes[1].get_title() == "weight" and figure.axes[1].get_xlim() == (-4, 4)


def test_labels_take_the_place_of_names():
    figure = DagNN(Dag([("R-1", "R-2")])).draw(labels={"R-1": "cell cycle"})

    assert [text.get_text() for text in figure.axes[0].texts] == ["cell cycle", "R-2"]
