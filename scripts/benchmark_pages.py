"""Plots and tables of the pages from the rows that benchmarks print; nobody types a number.

    python -m benchmarks.dagnn --json docs/benchmarks/rows/dagnn.json
    python scripts/benchmark_pages.py            # writes docs/benchmarks/*.svg and the marked parts of docs/**/*.md
    python scripts/benchmark_pages.py --check    # exits with 1 where they are not what the rows say

A page marks where a file of rows is shown with ``<!-- rows dagnn -->`` and ``<!-- /rows -->``. Rows have a ratio (how
many times longer the peer took), or a percentage, or they are a table as it stands.
"""

import argparse
import html
import json
import math
import os
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent.parent / "docs"
ROWS = DOCS / "benchmarks" / "rows"
_MARKED = re.compile(r"(<!-- rows (\w+) -->\n).*?(<!-- /rows -->)", re.DOTALL)
WIDTH, BAR, LINE = 480, 12, 17  # of a plot, in the unit of its letters, which are 13 high
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")  # Okabe and Ito: for every kind of eye
HOME = (
    ("dagnn", "random, 200,000 edges, B=256", "DagNN: a random DAG, 200,000 edges, B=256"),
    ("dagnn_reactome", "B=256", "DagNN: the human Reactome hierarchy, B=256"),
    ("visible", "2,000 terms, 55,400 edges, B=32", "WideDagNN: DrugCell's shape, B=32"),
    ("batch", "d=64", "DagSweep: TreeLSTM over 512 small DAGs, d=64"),
)
PLAIN = {"visible": "module per term"}
# Alone it follows the system's colours, within a page those of the page.
STYLE = """<style>
.chart { --ink: #222; --faint: #8884; font: 13px system-ui, sans-serif; fill: var(--md-typeset-color, var(--ink)) }
.chart .faint { stroke: var(--faint); fill: none } .chart .head { font-weight: 600 } .chart .whisker { stroke: \
var(--md-typeset-color, var(--ink)); stroke-width: 1.5 } .chart .small { font-size: 11px }
@media (prefers-color-scheme: dark) { .chart { --ink: #ddd } }
</style>"""


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; say which files are not up to date")
    check = parser.parse_args().check
    stale = [path for path, text in made() if not path.exists() or path.read_text() != text]
    for path in stale:
        print(f"{'not up to date' if check else 'written'}: {path.relative_to(DOCS.parent)}")
    if not check:
        for path, text in made():
            path.write_text(text)
    return 1 if check and stale else 0


def made() -> Iterator[tuple[Path, str]]:
    """Every file that comes from rows, with the text that it must have."""
    for path in sorted(ROWS.glob("*.json")):
        found = json.loads(path.read_text())
        if kind_of(found) != "table":
            yield ROWS.parent / f"{path.stem}.svg", plot(found)
    yield ROWS.parent / "home.svg", home()
    for page in sorted(DOCS.rglob("*.md")):
        text = page.read_text()
        if _MARKED.search(text):
            yield page, _MARKED.sub(lambda m, folder=page.parent: m[1] + shown(m[2], folder) + m[3], text)


def home() -> str:
    """The picture of the home page: of some cases the peer that comes closest, and plain autograd."""
    rows = []
    for name, case, words in HOME:
        of_case = [row for row in json.loads((ROWS / f"{name}.json").read_text())["rows"] if row["case"] == case]
        plain = [row for row in of_case if row["against"] == PLAIN.get(name, "autograd, level by level")]
        nearest = min(of_case, key=lambda row: row["ratio"])
        rows += [row | {"case": words} for row in (*plain, *([] if nearest in plain else [nearest]))]
    return plot({"kind": "ratio", "claim": "how many times longer others take than dagnn", "rows": rows})


def kind_of(found: dict[str, Any]) -> str:
    """What rows hold: "ratio" (what `benchmarks.harness` writes), "percent", or a "table"."""
    return str(found.get("kind", "ratio"))


def shown(name: str, folder: Path) -> str:
    """A plot, a table, and where both come from, as Markdown for a page in ``folder``."""
    found = json.loads((ROWS / f"{name}.json").read_text())
    lines = []
    if kind_of(found) != "table":
        lines += [f"![{found['claim']}]({os.path.relpath(ROWS.parent / f'{name}.svg', folder)})", ""]
    threads = f", threads: {found['threads']}" if "threads" in found else ""
    quick = "; the quick form" if found.get("quick") else ""
    lines += table(found)
    lines += ["", f"`{found['command']}`, {found['date']}{quick}; {machine_of(found)}{threads}."]
    return "\n".join(["", *lines, "", ""])


def machine_of(found: dict[str, Any]) -> str:
    """The machine in words; the harness writes it as a mapping."""
    machine = found["machine"]
    if isinstance(machine, str):
        return machine
    versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    return f"{machine['cores']} cores of {machine['processor']}, {versions}"


def table(found: dict[str, Any]) -> list[str]:
    """The rows as lines of a Markdown table."""
    rows: list[Sequence[Any]]
    if kind_of(found) == "table":
        columns, rows = found["columns"], found["rows"]
    elif kind_of(found) == "percent":
        columns = ["", *dict.fromkeys(row["against"] for row in found["rows"])]
        cells = {(row["case"], row["against"]): _percent(row) for row in found["rows"]}
        cases = dict.fromkeys(row["case"] for row in found["rows"])
        rows = [[case, *(cells.get((case, name), "") for name in columns[1:])] for case in cases]
    else:
        columns = ["case", "against", "times as long", "lowest .. highest", "required"]
        rows = [
            [
                row["case"],
                row["against"],
                number(row["ratio"]),
                "" if row["lowest"] is None else f"{number(row['lowest'])} .. {number(row['highest'])}",
                "" if row["required"] is None else number(row["required"]),
            ]
            for row in found["rows"]
        ]
    lines = [columns, ["---"] * len(columns), *rows]
    return ["| " + " | ".join(str(cell) for cell in line) + " |" for line in lines]


def number(value: float) -> str:
    """Three significant digits, as people write them."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def plot(found: dict[str, Any]) -> str:
    """The rows as an SVG picture that fits a phone."""
    body, height = _dots(found["rows"]) if kind_of(found) == "percent" else _bars(found["rows"])
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="chart" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'aria-label="{html.escape(found["claim"])}">\n{STYLE}\n' + "\n".join(body) + "\n</svg>\n"
    )


def _percent(row: dict[str, Any]) -> str:
    return f"{row['percent']:.1f} ({row['lowest']:.1f} .. {row['highest']:.1f})"


def _text(x: float, y: float, text: str, style: str = "", anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{style}" text-anchor="{anchor}">{html.escape(text)}</text>'


def _bars(rows: Sequence[dict[str, Any]]) -> tuple[list[str], float]:
    """A bar for each row on a logarithmic axis, with its range and a tick where the claim begins."""
    highest = max(max(row["ratio"], row["highest"] or 0, row["required"] or 0) for row in rows)
    lowest = min(1.0, *(min(row["ratio"], row["required"] or row["ratio"]) for row in rows))
    low, high = math.log10(lowest) - (0.05 if lowest < 1 else 0), math.log10(highest) + 0.05

    def at(value: float) -> float:
        return (math.log10(value) - low) / (high - low) * WIDTH

    body, y, case = [_text(0, 13, "times as long as dagnn takes; | is what the claim requires", "small")], 20.0, None
    top = y
    for row in rows:
        if row["case"] != case:
            case, y = row["case"], y + 26
            body.append(_text(0, y - 4, case, "head"))
        value = number(row["ratio"])
        body.append(_text(0, y + 12, row["against"]))
        body.append(_text(WIDTH, y + 12, value, "head", "end"))
        y += LINE
        begin, end = sorted((at(1.0), at(row["ratio"])))
        colour = COLOURS[0] if row["ratio"] >= 1 else COLOURS[1]
        body.append(f'<rect x="{begin:.1f}" y="{y}" width="{max(end - begin, 1):.1f}" height="{BAR}" fill="{colour}"/>')
        middle = y + BAR / 2
        if row["lowest"] is not None:
            body.append(f'<path class="whisker" d="M{at(row["lowest"]):.1f} {middle}H{at(row["highest"]):.1f}"/>')
        if row["required"] is not None:
            body.append(f'<path class="whisker" d="M{at(row["required"]):.1f} {y - 2}v{BAR + 4}"/>')
        y += BAR + 7
    powers = [10**p for p in range(math.ceil(low), math.floor(high) + 1)]
    grid = [f'<path class="faint" d="M{at(p):.1f} {top}V{y}"/>' for p in powers]
    labels = [
        _text(min(max(at(p), 8), WIDTH - 16), y + 14, f"{p:,g}", "small", "start" if p == powers[0] else "middle")
        for p in powers
    ]
    return [*grid, *body, *labels], y + 22


def _dots(rows: Sequence[dict[str, Any]]) -> tuple[list[str], float]:
    """A line for each case from 0 to 100 %, a dot with its range for each contestant."""
    names = list(dict.fromkeys(row["against"] for row in rows))
    left, right = 176.0, WIDTH - 14.0
    body, y = [], 0.0
    for name, colour in zip(names, COLOURS, strict=False):
        y += LINE
        body += [f'<circle cx="6" cy="{y - 4}" r="5" fill="{colour}"/>', _text(16, y, name)]
    y += 12
    top = y
    for case in dict.fromkeys(row["case"] for row in rows):
        y += LINE
        body += [_text(0, y, case, "small"), f'<path class="faint" d="M{left} {y - 4}H{right}"/>']
        for row in rows:
            if row["case"] == case:
                colour = COLOURS[names.index(row["against"])]
                begin, middle, end = (
                    left + row[part] / 100 * (right - left) for part in ("lowest", "percent", "highest")
                )
                body.append(f'<path d="M{begin:.1f} {y - 4}H{end:.1f}" stroke="{colour}" stroke-width="2"/>')
                body.append(f'<circle cx="{middle:.1f}" cy="{y - 4}" r="4.5" fill="{colour}"/>')
    for share, anchor in ((0, "middle"), (50, "middle"), (100, "end")):
        x = left + share / 100 * (right - left)
        body.append(f'<path class="faint" d="M{x} {top}V{y + 4}"/>')
        body.append(_text(x, y + 18, f"{share} %", "small", anchor))
    return body, y + 26


if __name__ == "__main__":
    sys.exit(main())
