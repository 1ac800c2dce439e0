"""An HTML page to explore a DAG: one file without anything from elsewhere, the data as JSON inside."""

import json
import math
from importlib.resources import files
from typing import Any

from dagnn.drawing.scene import Numbers, Scene, strengths


def page_text(scene: Scene, *, title: str) -> str:
    """The whole page, for a file or a frame.

    Args:
        scene: what it shows; all columns, not only the first.
        title: of the page.
    """
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
