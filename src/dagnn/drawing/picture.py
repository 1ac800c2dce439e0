"""How a scene is shown: a picture with a box for every node and numbers as colours, or an HTML page to explore it."""

import io
import json
import math
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from dagnn.drawing.scene import Layout, Numbers, Part, Scene, layered, part_of, strengths
from dagnn.errors import ConfigError, GraphError, check_installed

Point = tuple[float, float]

MOST_NODES = 2000  # in one picture
LARGEST = 60.0  # inches; a higher or wider picture is drawn smaller
SMALLEST_LETTERS = 3.5  # points; smaller names are left out
SHOWN = 36  # letters of a name
MARGIN, FOOT, HEAD = 0.2, 0.75, 0.4  # inches: around, for the colour bars, for the title
MOST_ARROWS = 150  # edges with a head: more of them hide the nodes, and edges go right anyway

# Blue and vermilion of Okabe and Ito, which colour-blind readers can distinguish; the middle of nodes is nearly white,
# that of edges a grey that white paper still shows. Negative edges are dashed too, for print without colours.
_SIGNED_NODES = ("#0067ac", "#8fbfe0", "#f4f4f2", "#f0a878", "#c94f00")
_SIGNED_EDGES = ("#0067ac", "#7fa9c9", "#c4c4c4", "#dc9a6d", "#c94f00")
_AMOUNTS_NODES = ("#f7f3e8", "#f3c98b", "#e2863c", "#a8420d", "#5c1d04")
_AMOUNTS_EDGES = ("#cfcac0", "#e0b98a", "#d9853f", "#a8420d", "#5c1d04")
_PLAIN, _MISSING, _BORDER, _LINE, _DETOUR = "#e8eef5", "#ffffff", "#4d5b6b", "#8593a3", "#4d5b6b"


class _Scale(NamedTuple):
    """Numbers as colours and, from 0 to 1, as strengths."""

    title: str
    colours: Any
    low: float
    high: float
    values: Numbers

    def colour(self, place: int, missing: str) -> str:
        from matplotlib.colors import to_hex

        value = self.values[place]
        if math.isnan(value):
            return missing
        return str(to_hex(self.colours((np.clip(value, self.low, self.high) - self.low) / (self.high - self.low))))

    def strength(self, place: int) -> float:
        value = self.values[place]
        return 0.0 if math.isnan(value) else float(min(abs(value), self.high) / self.high)


class _Sizes(NamedTuple):
    """Lengths in inches, letters in points."""

    letters: float
    row: float  # from the middle of a node to that of the next
    box: float  # height of a node
    left: Numbers  # of the boxes of every level
    right: Numbers
    scale: float


def draw_scene(scene: Scene, *, top: int | None = None, title: str | None = None) -> Any:
    """A matplotlib figure of the scene: its first column of nodes as the colours of boxes, the first of edges of lines.

    Boxes of a level share one width, and no two overlap. An edge that skips levels passes between the boxes.

    Args:
        top: show so many nodes, the most important, and dotted lines for paths through nodes that are not shown.
        title: a line at the top.

    GraphError for more nodes than a picture can hold, and a ``top`` that is no whole number of at least 1.
    """
    check_can_draw()
    part = part_of(scene, top)
    if len(part.nodes) > MOST_NODES:
        raise GraphError(
            f"a picture of {len(part.nodes):,} nodes cannot be read, at most {MOST_NODES:,} are drawn: show the most "
            "important with top=100, or write a page to search in with write_page."
        )
    names = [spelled(scene.names[node], SHOWN) for node in part.nodes.tolist()]
    number_of = {node: place for place, node in enumerate(part.nodes.tolist())}
    pairs = [(number_of[u], number_of[v]) for u, v in scene.edges[part.edges].tolist()]
    detours = [(number_of[u], number_of[v]) for u, v in part.detours]
    levels = part.levels.tolist()
    layout = layered([*pairs, *detours], [1.0] * len(names), levels, lane=0.0, gap=0.3)
    sizes = _sizes(names, levels, layout, len(pairs) + len(detours))

    width, height = float(sizes.right[-1]) if len(sizes.right) else 0.0, layout.width * sizes.row / 1.3
    of_nodes = _scale(scene.of_nodes, part.nodes, _SIGNED_NODES, _AMOUNTS_NODES)
    of_edges = _scale(scene.of_edges, part.edges, _SIGNED_EDGES, _AMOUNTS_EDGES)
    notes = _notes(scene, part, sizes, (of_nodes, of_edges), bool(detours))
    foot = FOOT * bool(of_nodes or of_edges) + 0.2 * len(notes) + 0.1 * bool(notes)
    head = HEAD if title else 0.0
    across, down = max(6.5, width + 2 * MARGIN), max(1.0, height + 2 * MARGIN) + foot + head
    figure = empty_figure(across, down)
    axes = figure.add_axes((0.0, foot / down, 1.0, 1 - (foot + head) / down))
    axes.set_axis_off()
    extra, tall = (across - width) / 2, (down - foot - head - height) / 2
    axes.set_xlim(-extra, width + extra)
    axes.set_ylim(height + tall, -tall)  # the first node of a level is at the top

    _draw_edges(axes, layout, sizes, levels, pairs, of_edges, dotted=False)
    _draw_edges(axes, layout, sizes, levels, detours, None, dotted=True)
    for place, name in enumerate(names):
        is_output = bool(scene.is_output[part.nodes[place]])
        _draw_node(axes, _middle(layout, sizes, place), sizes, levels[place], name, of_nodes, place, is_output)
    if title:
        figure.text(0.5, 1 - 0.18 / down, spelled(title), fontsize=12, ha="center", va="center", parse_math=False)
    for place, note in enumerate(reversed(notes)):
        figure.text(0.5, (0.14 + 0.2 * place) / down, note, fontsize=8, color="#333f4d", ha="center", parse_math=False)
    bars = [scale for scale in (of_nodes, of_edges) if scale is not None]
    for place, scale in enumerate(bars):
        _draw_bar(figure, scale, place, len(bars), 0.2 * len(notes) + 0.4)
    return figure


def _sizes(names: Sequence[str], levels: Sequence[int], layout: Layout, num_edges: int) -> _Sizes:
    """Letters as large as the rows allow, and the columns that the names of every level need."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import TextToPath

    rows = layout.width / 1.3
    letters = 10.0 if rows <= 12 else 8.5 if rows <= 40 else 7.0
    row = letters / 72 * (2.2 if rows <= 40 else 1.8)
    count = max(levels, default=-1) + 1
    between = min(0.8 + 0.25 * math.log1p(num_edges), 2.6)
    measure, font = TextToPath(), FontProperties(size=100)  # hinted at small sizes, so measured large
    widths = np.full(count, 0.0)
    for name, level in zip(names, levels, strict=True):
        text = measure.get_text_width_height_descent(name, font, False)[0] / 100 * letters / 72
        widths[level] = max(widths[level], text + 0.16)
    widths = np.maximum(widths, row * 1.2)
    right = np.cumsum(widths + between) - between
    scale = min(1.0, LARGEST / max(rows * row, float(right[-1]) if count else 0.0, 1e-9))
    return _Sizes(letters * scale, row * scale, 0.8 * row * scale, (right - widths) * scale, right * scale, scale)


def _scale(columns: Any, chosen: Any, signed: Sequence[str], amounts: Sequence[str]) -> _Scale | None:
    """The scale of the first column: from 0 to the largest, or as far below 0 as above it."""
    from matplotlib.colors import LinearSegmentedColormap

    for title, column in columns.items():
        values = np.asarray(column, dtype=np.float64)[chosen]
        finite = values[np.isfinite(values)]
        high = float(np.abs(finite).max(initial=0.0)) or 1.0
        below = bool((finite < 0).any())
        colours = LinearSegmentedColormap.from_list("dagnn", list(signed if below else amounts), N=257)
        return _Scale(title, colours, -high if below else 0.0, high, values)
    return None


def _notes(scene: Scene, part: Part, sizes: _Sizes, scales: Sequence[_Scale | None], has_detours: bool) -> list[str]:
    notes = list(scene.notes)
    hidden = len(scene.names) - len(part.nodes)
    if hidden:
        lost = len(scene.edges) - len(part.edges)
        notes.append(f"{hidden:,} of {len(scene.names):,} nodes and {lost:,} edges are not shown")
    if has_detours:
        notes.append("dotted: only paths through nodes that are not shown")
    if sizes.letters < SMALLEST_LETTERS and len(part.nodes):
        notes.append("names are left out, since they would be too small to read: show fewer nodes with top=")
    for what, scale in zip(("nodes", "edges"), scales, strict=True):
        if scale is not None:
            missing, infinite = int(np.isnan(scale.values).sum()), int(np.isinf(scale.values).sum())
            if missing:
                notes.append(f"white: {what} without a number" if what == "nodes" else f"thin: {what} without a number")
            if infinite:
                notes.append(f"infinite {what} ({infinite:,}) have the colour of the largest number")
    if not len(scene.names):
        notes.append("the graph has no nodes")
    return notes


def _middle(layout: Layout, sizes: _Sizes, place: int) -> Point:
    """The middle of a node's left side; the layout's levels go up, ours to the right."""
    down, level = layout.place[place]
    return float(sizes.left[int(level)]), down * sizes.row / 1.3


def _draw_edges(
    axes: Any,
    layout: Layout,
    sizes: _Sizes,
    levels: Sequence[int],
    pairs: Sequence[tuple[int, int]],
    scale: _Scale | None,
    *,
    dotted: bool,
) -> None:
    from matplotlib.collections import PathCollection, PolyCollection

    if not pairs:
        return
    strength = [0.25 if scale is None else scale.strength(place) for place in range(len(pairs))]
    colours = [
        _DETOUR if dotted else _LINE if scale is None else scale.colour(place, _LINE) for place in range(len(pairs))
    ]
    widths = [(0.5 + 2.0 * each) * sizes.letters / 10 for each in strength]
    dashes: list[Any] = ["solid"] * len(pairs)
    if dotted:
        dashes = [(0, (1, 2.5))] * len(pairs)
    elif scale is not None:
        dashes = [(0, (4, 1.5)) if scale.values[place] < 0 else "solid" for place in range(len(pairs))]
    order = sorted(range(len(pairs)), key=lambda place: strength[place])  # the strong ones on top
    has_heads = len(pairs) <= MOST_ARROWS
    head = sizes.letters / 72 * 0.7 * has_heads
    paths = [_path(layout, sizes, levels, pairs[place], head) for place in order]
    axes.add_collection(
        PathCollection(
            paths,
            facecolors="none",
            edgecolors=[colours[place] for place in order],
            linewidths=[widths[place] for place in order],
            linestyles=[dashes[place] for place in order],
            zorder=1,
        ),
        autolim=False,
    )
    if has_heads:
        tips = [_middle(layout, sizes, pairs[place][1]) for place in order]
        half = head * 0.45
        heads = [[(x, y), (x - head, y - half), (x - head, y + half)] for x, y in tips]
        colour = [colours[place] for place in order]
        axes.add_collection(PolyCollection(heads, facecolors=colour, edgecolors="none", zorder=2), autolim=False)


def _path(layout: Layout, sizes: _Sizes, levels: Sequence[int], pair: tuple[int, int], head: float) -> Any:
    """From the right side of the source to the left side of the target, level between the boxes of every level."""
    from matplotlib.path import Path

    source, target = pair
    x, y = float(sizes.right[levels[source]]), _middle(layout, sizes, source)[1]
    points, codes = [(x, y)], [Path.MOVETO]
    bends = [(int(level), down * sizes.row / 1.3) for down, level in layout.bends[pair]]
    for level, down in [*bends, (levels[target], _middle(layout, sizes, target)[1])]:
        left = float(sizes.left[level]) - head * (level == levels[target])
        middle = (x + left) / 2
        points += [(middle, y), (middle, down), (left, down)]
        codes += [Path.CURVE4] * 3
        if level != levels[target]:
            points.append((float(sizes.right[level]), down))
            codes.append(Path.LINETO)
        x, y = float(sizes.right[level]), down
    return Path(points, codes)


def _draw_node(
    axes: Any, place_at: Point, sizes: _Sizes, level: int, name: str, scale: _Scale | None, place: int, is_output: bool
) -> None:
    from matplotlib.patches import FancyBboxPatch

    x, y = place_at
    width = float(sizes.right[level] - sizes.left[level])
    face = _PLAIN if scale is None else scale.colour(place, _MISSING)
    axes.add_patch(
        FancyBboxPatch(
            (x, y - sizes.box / 2),
            width,
            sizes.box,
            boxstyle=f"round,pad=0,rounding_size={0.25 * sizes.box}",
            facecolor=face,
            edgecolor=_BORDER,
            linewidth=(2.2 if is_output else 0.7) * sizes.letters / 10,
            zorder=3,
        )
    )
    if sizes.letters >= SMALLEST_LETTERS:
        ink = "#ffffff" if _luminance(face) < 0.36 else "#10161d"
        words = {"ha": "center", "va": "center", "zorder": 4, "parse_math": False}
        axes.text(x + width / 2, y, name, fontsize=sizes.letters, color=ink, **words)


def _luminance(colour: str) -> float:
    """Between 0 (black) and 1, as WCAG 2 defines it; white text needs less than 0.36 to stand out."""
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _draw_bar(figure: Any, scale: _Scale, place: int, count: int, bottom: float) -> None:
    """One of ``count`` colour bars, side by side."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    width, height = figure.get_size_inches()
    length = min(2.6, width / count - 0.6)
    middle = width / 2 + (place - (count - 1) / 2) * (length + 0.5)
    bar = figure.add_axes(((middle - length / 2) / width, bottom / height, length / width, 0.13 / height))
    colours = ScalarMappable(Normalize(scale.low, scale.high), scale.colours)
    figure.colorbar(colours, cax=bar, orientation="horizontal")
    bar.xaxis.set_ticks([scale.low, 0.0, scale.high] if scale.low < 0 else [0.0, scale.high / 2, scale.high])
    bar.xaxis.set_major_formatter(lambda value, _: f"{value:.3g}")
    bar.tick_params(labelsize=8)
    bar.set_title(spelled(scale.title), fontsize=8.5, pad=3, parse_math=False)


def page_text(scene: Scene, *, title: str) -> str:
    """The whole page, for a file or a frame; it shows all columns of the scene, not only the first."""
    strength = strengths(scene)
    data = {
        "title": title,
        "names": list(scene.names),
        "levels": scene.levels.tolist(),
        "source": scene.edges[:, 0].tolist(),
        "target": scene.edges[:, 1].tolist(),
        "inputs": scene.is_input.nonzero()[0].tolist(),
        "outputs": scene.is_output.nonzero()[0].tolist(),
        "strength": _plain(strength),
        "nodes": {name: _plain(values) for name, values in scene.of_nodes.items()},
        "edges": {name: _plain(values) for name, values in scene.of_edges.items()},
        "texts": {name: list(values) for name, values in scene.texts.items()},
        "notes": list(scene.notes),
    }
    folder = files("dagnn.drawing")
    page = (folder / "page.html").read_text(encoding="utf-8")
    parts = {"STYLE": "page.css", "SCRIPT": "page.js"}
    for mark, name in parts.items():
        page = page.replace(f"/*{mark}*/", (folder / name).read_text(encoding="utf-8"))
    return page.replace("/*DATA*/", _json(data))


def _json(data: Any) -> str:
    """JSON that cannot end the element it is in, or begin another one, whatever the names are."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    # A lone surrogate, which a name may hold, has no UTF-8: it stays escaped.
    text = "".join(f"\\u{ord(c):04x}" if 0xD800 <= ord(c) <= 0xDFFF or c in "<>&\u2028\u2029" else c for c in text)
    return text


def _plain(values: Numbers) -> list[float | str | None]:
    """Numbers to six digits, None for NaN, texts for infinity."""
    return [
        None if math.isnan(value) else float(f"{value:.6g}") if math.isfinite(value) else str(value)
        for value in values.tolist()
    ]


Kind = Literal["svg", "png", "pdf"]


def spelled(value: Any, letters: int | None = None) -> str:
    """A name or label on one line, without control characters, cut to ``letters``.

    >>> spelled("tab\\there"), spelled(("a", 1)), spelled("long enough", 6)
    ('tab\\\\there', "('a', 1)", 'long …')
    """
    text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(value))
    return text if letters is None or len(text) <= letters else text[: letters - 1] + "…"


def picture_kind(path: Path) -> Kind:
    """The kind of a picture by the ending of its file; ConfigError for another.

    >>> picture_kind(Path("net.SVG"))
    'svg'
    """
    match path.suffix.lower():
        case ".svg":
            return "svg"
        case ".png":
            return "png"
        case ".pdf":
            return "pdf"
    raise ConfigError(f"the picture {path} must end in .svg, .png or .pdf.")


def check_can_draw() -> None:
    """MissingPackageError where matplotlib is not installed."""
    check_installed("a picture", "dagnn[plot]", "matplotlib")


def empty_figure(width: float, height: float) -> Any:
    """A figure of so many inches. Not pyplot's, which looks for a display and keeps every figure."""
    check_can_draw()
    # Imported here, since it takes half a second.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=130)
    FigureCanvasAgg(figure)
    return figure


def picture_bytes(figure: Any, kind: Kind) -> bytes:
    """The content of a picture file. The same figure gives the same bytes: no random ids, no date."""
    import matplotlib

    dates = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": None}
    buffer = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "dagnn"}):
        figure.savefig(buffer, format=kind, metadata=dates[kind])
    return buffer.getvalue()
