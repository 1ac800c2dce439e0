"""What the site's builder does besides: formulas without a script, and tables that a phone can show."""

import html
import re
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert

_FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)
_TABLE = re.compile(r"<table>\n<thead>(.*?)</thead>(.*?)</table>", re.DOTALL)
_PLOT = re.compile(r'<p><img alt="[^"]*" src="([\w/.]+\.svg)" ?/?></p>')


def on_page_content(page_html: str, page: Any, **_: object) -> str:
    """``$...$`` as MathML, which every browser draws; cells that know the head of their column; plots in the page.

    A plot of ours has the colours of the page it stands in, and follows its switch from light to dark.
    """
    folder = Path(page.file.abs_src_path).parent
    page_html = _PLOT.sub(lambda match: _plot(match, folder), page_html)
    return _TABLE.sub(_with_heads, _FORMULA.sub(_mathml, page_html))


def _plot(match: re.Match[str], folder: Path) -> str:
    text = (folder / match[1]).read_text()
    return f"<figure>{text}</figure>" if 'class="chart"' in text else match[0]


def _mathml(match: re.Match[str]) -> str:
    display = "block" if match[1] == "div" else "inline"
    return f'<{match[1]} class="formula">{convert(html.unescape(match[2]).strip(), display=display)}</{match[1]}>'


def _with_heads(match: re.Match[str]) -> str:
    """A table whose rows ``site.css`` can show as cards."""
    heads = [re.sub("<.*?>", "", head).strip() for head in re.findall(r"<th[^>]*>(.*?)</th>", match[1], re.DOTALL)]
    body = re.sub(r"<tr>(.*?)</tr>", lambda row: f"<tr>{_row(row[1], heads)}</tr>", match[2], flags=re.DOTALL)
    return f'<table class="cards">\n<thead>{match[1]}</thead>{body}</table>'


def _row(cells: str, heads: list[str]) -> str:
    rest = iter(heads)
    return re.sub(r"<td(?=[ >])", lambda _: f'<td data-head="{html.escape(html.unescape(next(rest)))}"', cells)
