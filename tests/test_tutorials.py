"""The tutorials run as printed, print and draw what they show, and are the same as notebooks."""

import json
import re
from pathlib import Path

import pytest

from scripts import tutorials

PAGES = [page for page in sorted(tutorials.FOLDER.glob("*.md")) if tutorials.blocks(page.read_text())]
NAVIGATION = (tutorials.FOLDER.parents[1] / "mkdocs.yml").read_text()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning", "ignore::FutureWarning")
def test_a_page_prints_and_draws_what_it_shows(page, tmp_path):
    text = page.read_text()

    printed, missing = tutorials.run(page, tmp_path)

    for block, output in zip(tutorials.blocks(text), printed, strict=True):
        # Numbers and Python's own sources differ from machine to machine; the number of lines does not.
        assert output is None or output.count("\n") == block.printed.count("\n"), f"line {block.line}: {output}"
    drawn = {name for name in tutorials.pictures(text) if (tmp_path / name).exists()}
    assert missing or drawn == set(tutorials.pictures(text))
    if missing:
        pytest.skip(f"ran, but for the blocks that need {', '.join(missing)}")


@pytest.mark.fault("docs_and_packaging", 16)
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_notebook_is_the_page(page):
    text = page.read_text()

    notebook = page.with_suffix(".ipynb").read_text()

    assert notebook == tutorials.notebook(text), "run python scripts/tutorials.py --notebooks"
    code = ["".join(cell["source"]) for cell in json.loads(notebook)["cells"] if cell["cell_type"] == "code"]
    assert len(code) == len(tutorials.blocks(text)) and not any("goes on from above" in cell for cell in code)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_is_in_the_navigation_and_shows_its_pictures_and_words(page):
    text = page.read_text()

    assert f"tutorials/{page.name}" in NAVIGATION
    assert page.name in (tutorials.FOLDER / "index.md").read_text()
    assert tutorials.pictures(text) and all((page.parent / name).exists() for name in tutorials.pictures(text))
    assert f"({page.stem}.ipynb)" in text, "a page links to its notebook"


def test_a_notebook_has_the_form_that_its_readers_check():
    nbformat = pytest.importorskip("nbformat", reason="needs nbformat")

    for page in PAGES:
        nbformat.validate(nbformat.read(page.with_suffix(".ipynb"), as_version=4))


def test_a_block_that_cannot_run_keeps_what_it_printed():
    text = "```python\nprint(1)\n```\n\nwords\n\n```python\n# needs no-such-package\nprint(2)\n```\n\n```text\n2\n```\n"

    blocks = tutorials.blocks(text)

    assert [block.missing for block in blocks] == [[], ["no-such-package"]]
    assert tutorials.rendered(text, ["1\n", None]) == text.replace("```\n\nwords", "```\n\n```text\n1\n```\n\nwords")


def test_no_two_pages_draw_into_one_file():
    names = [name for page in PAGES for name in set(tutorials.pictures(page.read_text()))]

    assert len(names) == len(set(names))
    stored = {path.name for path in Path(tutorials.FOLDER).iterdir() if path.suffix in (".svg", ".png")}
    assert stored == set(names)
    assert not any(re.search(r"\s", name) for name in names)
