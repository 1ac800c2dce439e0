"""Results of `dagnn visible` as files: tables as CSV, and a report of tables and pictures as one HTML file."""

import base64
import csv
import html
import io
from collections.abc import Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dagnn.drawing.picture import picture_bytes
from dagnn.files import replace_file
from dagnn.visible.explanation import Explanation
from dagnn.visible.on_disk import Model


def write(path: Path, content: str | bytes) -> None:
    """Write the whole file or none of it."""
    replace_file(path, content if isinstance(content, bytes) else content.encode())


def table_text(columns: Mapping[str, Iterable[Any]]) -> str:
    """Columns as CSV: numbers with all their digits, nothing for None.

    >>> table_text({"node": ["a", ("class", "ill")], "value": [0.5, None]})
    'node,value\\na,0.5\\nclass ill,\\n'
    """
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([plain_name(cell) for cell in row] for row in zip(*columns.values(), strict=True))
    return buffer.getvalue()


def plain_name(name: Hashable) -> Any:
    """A name for a table: that of a head, ("class", "ill"), with a blank between."""
    return " ".join(map(str, name)) if isinstance(name, tuple) else name


def edges_table(found: Explanation) -> dict[str, list[Any]]:
    """The edges of an explanation, those with the largest mean conductance first."""
    means = found.edge_means.numpy()
    order = np.argsort(-np.abs(means), kind="stable")
    pairs = [found.edge_names[place] for place in order.tolist()]
    return {
        "source": [u for u, _ in pairs],
        "target": [v for _, v in pairs],
        "mean conductance": means[order].tolist(),
        "share": found.edge_shares.numpy()[order].tolist(),
    }


def write_report(path: Path, title: str, *sections: Sequence[str]) -> None:
    """One HTML file: a heading and sections, each of a heading and parts of HTML."""
    style = (
        "body{font:16px/1.5 system-ui,sans-serif;max-width:1100px;margin:24px auto;padding:0 16px;background:#fbfbfa;"
        "color:#18212b}table{border-collapse:collapse;display:block;overflow-x:auto}td,th{padding:4px 12px;text-align:"
        "left;border-bottom:1px solid #d9dee4;font-variant-numeric:tabular-nums}pre{overflow-x:auto;font-size:13px}"
        "img{max-width:100%;background:#fff}a{color:#0067ac}@media(prefers-color-scheme:dark){body{background:#12171d;"
        "color:#e8edf2}td,th{border-color:#33404d}a{color:#6db7ee}}"
    )
    body = "".join(f"<h2>{html.escape(heading)}</h2>{''.join(parts)}" for heading, *parts in sections)
    name = html.escape(title)
    write(
        path,
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width,'
        f'initial-scale=1"><title>{name}</title><style>{style}</style></head><body><h1>{name}</h1>{body}</body></html>\n',
    )


def html_table(columns: Mapping[str, Iterable[Any]]) -> str:
    """Columns as a table; numbers to four digits."""

    def cell(value: Any) -> str:
        text = f"{value:.4g}" if isinstance(value, float) else "" if value is None else str(plain_name(value))
        return f"<td>{html.escape(text)}</td>"

    head = "".join(f"<th>{html.escape(name)}</th>" for name in columns)
    rows = "".join(f"<tr>{''.join(map(cell, row))}</tr>" for row in zip(*columns.values(), strict=True))
    return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


def preformatted(text: str) -> str:
    """Text as it is."""
    return f"<pre>{html.escape(text)}</pre>"


def link(target: str, text: str) -> str:
    """A link to a file beside the report."""
    return f'<p><a href="{target}">{html.escape(text)}</a></p>'


def joined_rows(rows: Sequence[Mapping[str, float]]) -> dict[str, list[Any]]:
    """Rows as columns, None where a row lacks one."""
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in names}


def picture(model: Model, importance: Any, top: int = 30) -> str:
    """The most important nodes of a network, as an element of HTML."""
    figure = model.net.draw(importance=importance, top=top, labels=model.labels)
    content = base64.b64encode(picture_bytes(figure, "svg")).decode()
    return f'<img alt="The network, its most important nodes" src="data:image/svg+xml;base64,{content}">'
