"""Runs the pages of docs/tutorials, and writes what they print, their pictures, and the same pages as notebooks.

    python scripts/tutorials.py                        # all of them
    python scripts/tutorials.py docs/tutorials/cell.md # one
    python scripts/tutorials.py --notebooks            # the notebooks alone, from the pages as they are

A block begins with `# goes on from above` if it uses names of the blocks above it, and with `# needs NAME, NAME` if it
runs only where these packages or programs are. What it prints is the ```text block behind it. A picture is shown by
`![words](name.svg)`, and a block wrote that file. Blocks that cannot run here keep what they printed elsewhere.
"""

import argparse
import contextlib
import importlib.util
import io
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "tutorials"
# Package -> its module, where they differ.
MODULES = {"scikit-learn": "sklearn", "neat-python": "neat", "scvega": "vega"}
PROGRAMS = ("cc",)
_CODE = re.compile(r"^```python\n(?P<code>.*?)^```\n(?:\n```text\n(?P<printed>.*?)^```\n)?", re.DOTALL | re.MULTILINE)
_PICTURE = re.compile(r"!\[[^\]]*\]\(([^/)]+\.(?:svg|png))\)")
_GOES_ON = "# goes on from above\n"
_NEEDS = re.compile(r"# needs (.*)\n")


@dataclass(frozen=True)
class Block:
    """Code of a page.

    Attributes:
        code: as it is printed.
        start, end: where it is in the page, with what it prints.
        line: of the page, on which the code begins.
        goes_on: it uses names of the blocks above.
        needs: packages and programs.
        printed: what the page says that it prints.
    """

    code: str
    start: int
    end: int
    line: int
    goes_on: bool
    needs: tuple[str, ...]
    printed: str

    @property
    def missing(self) -> list[str]:
        """What it needs and this machine lacks."""
        return [name for name in self.needs if not _is_here(name)]


def blocks(text: str) -> list[Block]:
    """The code of a page."""
    found = []
    for match in _CODE.finditer(text):
        code = match["code"]
        rest = code.removeprefix(_GOES_ON)
        needs = _NEEDS.match(rest)
        names = tuple(needs[1].split(", ")) if needs else ()
        line = text.count("\n", 0, match.start("code"))
        found.append(Block(code, *match.span(), line, rest != code, names, match["printed"] or ""))
    return found


def pictures(text: str) -> list[str]:
    """The names of the pictures that a page shows."""
    return _PICTURE.findall(text)


def run(page: Path, folder: Path) -> tuple[list[str | None], list[str]]:
    """Run a page in a folder: what each block printed, None for one that cannot run here, and what was missing."""
    printed: list[str | None] = []
    missing: dict[str, None] = {}
    above: dict[str, Any] = {"__name__": "__main__"}
    with contextlib.chdir(folder):
        for block in blocks(page.read_text()):
            if block.missing:
                missing |= dict.fromkeys(block.missing)
                printed.append(None)
                continue
            names = above if block.goes_on else {"__name__": "__main__"}
            # Blank lines before it, so that a traceback names the line of the page.
            with contextlib.redirect_stdout(io.StringIO()) as out:
                exec(compile("\n" * block.line + block.code, str(page), "exec"), names)
            above |= names
            printed.append(out.getvalue())
    return printed, list(missing)


def rendered(text: str, printed: Sequence[str | None]) -> str:
    """The page with what its blocks printed behind them; where that is None, what it says already."""
    parts, last = [], 0
    for block, output in zip(blocks(text), printed, strict=True):
        output = block.printed if output is None else output
        parts += [text[last : block.start], f"```python\n{block.code}```\n"]
        parts += [f"\n```text\n{output}```\n"] if output else []
        last = block.end
    return "".join([*parts, text[last:]])


def notebook(text: str) -> str:
    """The same page as a notebook, with what its blocks print."""
    cells = [_cell(number, *part) for number, part in enumerate(_parts(text))]
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    content = {
        "cells": cells,
        "metadata": {"kernelspec": kernel, "language_info": {"name": "python"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def _parts(text: str) -> Iterator[tuple[str, str]]:
    """Text, and code with what it prints, in their order."""
    last = 0
    for block in blocks(text):
        yield text[last : block.start].strip(), ""
        yield block.code.removeprefix(_GOES_ON).strip(), block.printed or "\n"
        last = block.end
    if text[last:].strip():
        yield text[last:].strip(), ""


def _cell(number: int, source: str, printed: str) -> Mapping[str, Any]:
    cell: dict[str, Any] = {"id": f"cell-{number}", "metadata": {}, "source": source.splitlines(keepends=True)}
    if not printed:
        return {"cell_type": "markdown", **cell}
    lines = printed.splitlines(keepends=True) if printed.strip() else []
    outputs = [{"name": "stdout", "output_type": "stream", "text": lines}] if lines else []
    return {"cell_type": "code", "execution_count": None, **cell, "outputs": outputs}


def _is_here(name: str) -> bool:
    if name in PROGRAMS:
        return shutil.which(name) is not None
    return importlib.util.find_spec(MODULES.get(name, name)) is not None


def main(arguments: Sequence[str] | None = None) -> int:
    """Renew pages, pictures and notebooks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="*", type=Path, help="files; all by default")
    parser.add_argument("--notebooks", action="store_true", help="run nothing")
    given = parser.parse_args(arguments)
    if not given.notebooks:
        import matplotlib

        matplotlib.rcParams["svg.hashsalt"] = "dagnn"  # the same picture gives the same bytes
    for page in given.pages or sorted(FOLDER.glob("*.md")):
        page = page.resolve()
        text = page.read_text()
        if not blocks(text):
            continue
        if not given.notebooks:
            with tempfile.TemporaryDirectory() as folder:
                printed, missing = run(page, Path(folder))
                page.write_text(text := rendered(text, printed))
                for name in pictures(text):
                    if (made := Path(folder) / name).exists():
                        shutil.copy(made, page.parent / name)
            note = f", but for the blocks that need {', '.join(missing)}" if missing else ""
            print(f"{page.name}: has run{note}", file=sys.stderr)
        page.with_suffix(".ipynb").write_text(notebook(text))
    return 0


if __name__ == "__main__":
    os.environ |= {"OMP_NUM_THREADS": "1", "SOURCE_DATE_EPOCH": "0"}  # pictures without a date
    sys.exit(main())
