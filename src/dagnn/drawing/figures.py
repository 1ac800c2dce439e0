"""What all pictures share: names on one line, files by their ending, the same bytes for the same graph."""

import io
from pathlib import Path
from typing import Any, Literal

from dagnn.errors import ConfigError

Kind = Literal["svg", "png", "pdf"]


def spelled(value: Any, letters: int | None = None) -> str:
    """A name or label on one line, without control characters, cut to ``letters``.

    >>> spelled("tab\\there"), spelled(("a", 1)), spelled("long enough", 6)
    ('tab\\\\there', "('a', 1)", 'long …')
    """
    text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(value))
    return text if letters is None or len(text) <= letters else text[: letters - 1] + "…"


def picture_kind(path: Path) -> Kind:
    """The kind of a picture by the ending of its file.

    Raises:
        ConfigError: another ending.

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


def empty_figure(width: float, height: float) -> Any:
    """A figure of so many inches. Not pyplot's, which looks for a display and keeps every figure."""
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
