"""The picture of an edit path: both graphs side by side, matched nodes at the same place, edits in colour."""

import math
from collections import Counter
from collections.abc import Hashable, Sequence
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import numpy as np
import torch

from dagnn.drawing.picture import empty_figure, picture_bytes, spelled
from dagnn.drawing.scene import Layout, layered
from dagnn.ged.distance import GedResult
from dagnn.ged.labelled import LabelledGraph, label_key
from dagnn.ged.targets import acyclic_edges
from dagnn.graph.levels import topological_levels

Point = tuple[float, float]

INCHES = 0.9  # per unit of the layout
LARGEST = 60.0  # inches; a larger graph is drawn smaller
BETWEEN, MARGIN = 1.3, 0.5  # units, between the graphs and around them
HEIGHT, LETTER = 0.46, 0.1  # units, of a node and of a letter in it
SHOWN = 16  # letters of a name or label


class Style(NamedTuple):
    """The look of the nodes and edges of one fate. Dashes and widths differ too, for print without colours."""

    title: str
    face: str
    line: str
    dashes: Any
    width: float


# Colours after Okabe and Ito, which colour-blind readers can distinguish.
STYLES = {
    "kept": Style("kept", "#eaeff4", "#5b6b7f", "solid", 1.2),
    "substitute": Style("relabelled", "#fde6b3", "#c27a00", "solid", 2.0),
    "delete": Style("deleted", "#fadcd0", "#c8401a", (0, (4, 2)), 1.8),
    "insert": Style("inserted", "#cfeee1", "#00805c", "solid", 2.4),
}


class _Side(NamedTuple):
    """One graph in the picture."""

    graph: LabelledGraph
    title: str
    place_of: list[int]  # node -> place in the layout
    node_fate: list[str]
    edge_fate: list[str]
    shift: float  # of x


def draw_edits(
    a: LabelledGraph, b: LabelledGraph, result: GedResult, *, titles: tuple[str, str], kind: Literal["svg", "png"]
) -> bytes:
    """The content of a picture file.

    Both graphs share one layout, of everything that is in either: a matched node stands at the same place in both,
    joined by a dotted line, and what was deleted or inserted leaves a gap in the other. Edges go up; those of ``b``
    that close a cycle together with edges of ``a`` go down.

    Args:
        a, b: directed graphs without self-loops.
        result: what `graph_edit_distance` found for them.
        titles: of the two graphs.
    """
    left, right, layout = _sides(a, b, result, titles)
    width, height = 2 * layout.width + BETWEEN + 2 * MARGIN, layout.height + 2 * MARGIN
    scale = min(1.0, LARGEST / (INCHES * max(width, height)))
    size = (max(6.5, INCHES * scale * width), max(2.0, INCHES * scale * height) + 1.3)
    figure = empty_figure(*size)
    axes = figure.add_axes((0.0, 0.55 / size[1], 1.0, 1 - 1.3 / size[1]))
    axes.set_axis_off()
    axes.set_aspect("equal")
    axes.set_xlim(-MARGIN, width - MARGIN)
    axes.set_ylim(-MARGIN, height - MARGIN)
    _draw_alignment(axes, left, right, layout)
    for side in (left, right):
        _draw_edges(axes, side, layout, scale)
        _draw_nodes(axes, side, layout, scale)
    _draw_words(figure, axes, left, right, layout, result)
    return picture_bytes(figure, kind)


def _sides(
    a: LabelledGraph, b: LabelledGraph, result: GedResult, titles: tuple[str, str]
) -> tuple[_Side, _Side, Layout]:
    """Both graphs with the fate of their parts, and the layout of what is in either."""
    number_a = {name: u for u, name in enumerate(a.names)}
    number_b = {name: v for v, name in enumerate(b.names)}
    place_a, place_b = [0] * a.num_nodes, [0] * b.num_nodes
    widths = []
    # In the node map None means "no node", but a node may be called None, so order decides: the pairs of a's nodes come
    # first, in a's order.
    for place, (u, v) in enumerate(result.node_map):
        letters = 0.0
        if place < a.num_nodes:
            place_a[number_a[u]] = place
            letters = _letters(a, number_a[u])
        if v is not None or place >= a.num_nodes:
            place_b[number_b[v]] = place
            letters = max(letters, _letters(b, number_b[v]))
        widths.append(max(HEIGHT, LETTER * letters + 0.2))

    strength = np.zeros((len(widths), len(widths)))
    for graph, places, value in ((b, place_b, 1.0), (a, place_a, 2.0)):
        for source, target in graph.edges:
            strength[places[source], places[target]] = value
    together = acyclic_edges(strength, 0.5)  # the stronger first: all edges of a, then of b what closes no cycle
    levels = topological_levels(torch.as_tensor(together).reshape(-1, 2), len(widths)).tolist()
    layout = layered([(u, v) for u, v in together.tolist()], widths, levels)
    fates = [_fates(a, result, "source"), _fates(b, result, "target")]
    return (
        _Side(a, titles[0], place_a, *fates[0], shift=0.0),
        _Side(b, titles[1], place_b, *fates[1], shift=layout.width + BETWEEN),
        layout,
    )


def _fates(graph: LabelledGraph, result: GedResult, end: Literal["source", "target"]) -> tuple[list[str], list[str]]:
    """The fate of every node and edge; ``end`` is the side of an edit that is in this graph."""
    other = "insert" if end == "source" else "delete"
    fates: dict[str, dict[str, Counter[Hashable]]] = {"node": {}, "edge": {}}
    for edit in result.edit_path:
        verb, of = edit.kind.split()
        if verb != other:
            key = (getattr(edit, end), label_key(getattr(edit, f"{end}_label")))
            fates[of].setdefault(verb, Counter())[key] += 1

    def fate(of: str, item: Hashable, label: Any) -> str:
        for verb, counts in fates[of].items():
            if counts[item, label_key(label)]:
                counts[item, label_key(label)] -= 1  # of parallel edges with one label, as many as there are edits
                return verb
        return "kept"

    node_labels = graph.node_labels or (None,) * graph.num_nodes
    edge_labels = graph.edge_labels or (None,) * len(graph.edges)
    ends = [(graph.names[u], graph.names[v]) for u, v in graph.edges]
    return (
        [fate("node", name, label) for name, label in zip(graph.names, node_labels, strict=True)],
        [fate("edge", pair, label) for pair, label in zip(ends, edge_labels, strict=True)],
    )


def _letters(graph: LabelledGraph, node: int) -> float:
    """Width of a node's text, in letters; a name below a label is smaller."""
    name = len(spelled(graph.names[node], SHOWN))
    if graph.node_labels is None:
        return name
    return max(len(spelled(graph.node_labels[node], SHOWN)), 0.7 * name)


def _draw_alignment(axes: Any, left: _Side, right: _Side, layout: Layout) -> None:
    """A faint arc from every matched node to its image; arcs of one level would hide each other if straight."""
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    image = {place: v for v, place in enumerate(right.place_of)}
    for place in left.place_of:
        if place in image:
            x, y = layout.place[place]
            start, end = (x + left.shift, y), (x + right.shift, y)
            path = Path([start, ((start[0] + end[0]) / 2, y + 0.38), end], [Path.MOVETO, Path.CURVE3, Path.CURVE3])
            axes.add_patch(PathPatch(path, fill=False, edgecolor="#b9c4d0", linewidth=0.8, linestyle=":", zorder=0))


def _draw_nodes(axes: Any, side: _Side, layout: Layout, scale: float) -> None:
    from matplotlib.patches import FancyBboxPatch

    graph = side.graph
    for node, fate in enumerate(side.node_fate):
        style = STYLES[fate]
        (x, y), width = _middle(side, layout, node), _width(graph, node)
        axes.add_patch(
            FancyBboxPatch(
                (x - width / 2, y - HEIGHT / 2),
                width,
                HEIGHT,
                boxstyle="round,pad=0,rounding_size=0.14",
                facecolor=style.face,
                edgecolor=style.line,
                linestyle=style.dashes,
                linewidth=style.width,
                zorder=3,
            )
        )
        words = {"ha": "center", "va": "center", "zorder": 4, "parse_math": False}
        name = spelled(graph.names[node], SHOWN)
        if graph.node_labels is None:
            axes.text(x, y, name, fontsize=10 * scale, **words)
            continue
        axes.text(x, y + 0.06, spelled(graph.node_labels[node], SHOWN), fontsize=10 * scale, **words)
        axes.text(x, y - 0.13, name, fontsize=6.5 * scale, color="#5b6b7f", **words)


def _draw_edges(axes: Any, side: _Side, layout: Layout, scale: float) -> None:
    from matplotlib.patches import FancyArrowPatch

    graph = side.graph
    total, drawn = Counter(graph.edges), Counter[tuple[int, int]]()
    for edge, (source, target) in enumerate(graph.edges):
        style = STYLES[side.edge_fate[edge]]
        bow = 0.28 * (drawn[source, target] - (total[source, target] - 1) / 2)  # parallel edges bow apart
        drawn[source, target] += 1
        points = _way(side, layout, source, target, bow)
        path = _curve(points)
        axes.add_patch(
            FancyArrowPatch(
                path=path,
                arrowstyle="-|>",
                mutation_scale=11 * scale,
                color=style.line,
                linestyle=style.dashes,
                linewidth=style.width,
                zorder=2,
                fill=True,
            )
        )
        if graph.edge_labels is not None:
            axes.text(
                *_halfway(points),
                spelled(graph.edge_labels[edge], SHOWN),
                fontsize=8 * scale,
                color=style.line,
                ha="center",
                va="center",
                zorder=2.5,
                parse_math=False,
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.0},
            )


def _draw_words(figure: Any, axes: Any, left: _Side, right: _Side, layout: Layout, result: GedResult) -> None:
    from matplotlib.lines import Line2D

    height = figure.get_size_inches()[1]
    found = f"{result.upper:g}" if result.proved else f"between {result.lower:g} and {result.upper:g}"
    figure.suptitle(f"graph edit distance {found}", fontsize=13, y=1 - 0.12 / height)
    for side in (left, right):
        axes.text(
            side.shift + layout.width / 2,
            layout.height + MARGIN,
            f"{side.title}\n{_number(side.graph.num_nodes, 'node')}, {_number(len(side.graph.edges), 'edge')}",
            ha="center",
            va="bottom",
            fontsize=9,
            parse_math=False,
        )
    counts = Counter(edit.kind for edit in result.edit_path)
    handles = []
    for verb, style in STYLES.items():
        nodes, edges = counts[f"{verb} node"], counts[f"{verb} edge"]  # type: ignore[index]
        label = style.title if verb == "kept" else f"{style.title}: {_number(nodes, 'node')}, {_number(edges, 'edge')}"
        line = {"color": style.line, "linestyle": style.dashes, "linewidth": style.width}
        handles.append(Line2D([], [], marker="s", markerfacecolor=style.face, markersize=9, label=label, **line))
    columns = 4 if figure.get_size_inches()[0] > 8.5 else 2
    figure.legend(handles=handles, loc="lower center", ncols=columns, frameon=False, fontsize=9)


def _number(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _middle(side: _Side, layout: Layout, node: int) -> Point:
    x, y = layout.place[side.place_of[node]]
    return x + side.shift, y


def _width(graph: LabelledGraph, node: int) -> float:
    return max(HEIGHT, LETTER * _letters(graph, node) + 0.2)


def _way(side: _Side, layout: Layout, source: int, target: int, bow: float) -> list[Point]:
    """Points from border to border: along the lane of the edge if it has one, else bowed if it goes down."""
    start, end = _middle(side, layout, source), _middle(side, layout, target)
    edge = side.place_of[source], side.place_of[target]
    bends = [(x + side.shift, y) for x, y in layout.bends.get(edge, [])]
    if edge not in layout.bends:
        bow += 0.5 + 0.1 * abs(end[1] - start[1])
    if bow:
        length = math.dist(start, end)
        aside = (bow * (end[1] - start[1]) / length, -bow * (end[0] - start[0]) / length)
        bends = bends or [((start[0] + end[0]) / 2, (start[1] + end[1]) / 2)]
        bends = [(x + aside[0], y + aside[1]) for x, y in bends]
    way = [start, *bends, end]
    first = _border(way[0], way[1], _width(side.graph, source), 0.02)
    last = _border(way[-1], way[-2], _width(side.graph, target), 0.05)
    return [first, *bends, last]


def _border(middle: Point, towards: Point, width: float, space: float) -> Point:
    """Where the line from the middle of a node leaves it, and a little on."""
    dx, dy = towards[0] - middle[0], towards[1] - middle[1]
    length = math.hypot(dx, dy)
    share = min((width / 2) / abs(dx) if dx else math.inf, (HEIGHT / 2) / abs(dy) if dy else math.inf)
    share = min(share + space / length, 0.45)
    return middle[0] + share * dx, middle[1] + share * dy


def _curve(points: Sequence[Point]) -> Any:
    """A smooth path from the first point to the last, attracted by those between."""
    from matplotlib.path import Path

    if len(points) == 2:
        return Path(points, [Path.MOVETO, Path.LINETO])
    inner = points[1:-1]
    joints = [((p[0] + q[0]) / 2, (p[1] + q[1]) / 2) for p, q in pairwise(inner)]
    path = [points[0]]
    for control, joint in zip(inner, [*joints, points[-1]], strict=True):
        path += [control, joint]
    return Path(path, [Path.MOVETO] + [Path.CURVE3] * (len(path) - 1))


def _halfway(points: Sequence[Point]) -> Point:
    if len(points) == 3:  # the curve passes halfway between its control point and the chord
        (x, y), (cx, cy), (u, v) = points
        return 0.25 * x + 0.5 * cx + 0.25 * u, 0.25 * y + 0.5 * cy + 0.25 * v
    middle = len(points) // 2
    if len(points) % 2:
        return points[middle]
    p, q = points[middle - 1], points[middle]
    return (p[0] + q[0]) / 2, (p[1] + q[1]) / 2
