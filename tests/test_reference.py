"""The reference holds every public name, one page a package, in a form that its reader takes."""

import ast
import importlib
import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = ROOT / "docs" / "reference"
PACKAGES = (
    "accumulation",
    "answers",
    "curriculum",
    "data",
    "errors",
    "export",
    "ged",
    "graph",
    "lint",
    "nn",
    "rewriting",
    "training",
    "visible",
)
_ENTRY = re.compile(r"^::: ([\w.]+)$", re.MULTILINE)


def entries():
    return {entry for page in PAGES.glob("*.md") for entry in _ENTRY.findall(page.read_text())}


@pytest.mark.fault("docs_and_packaging", 11)
@pytest.mark.parametrize("name", PACKAGES)
def test_every_public_name_is_in_the_reference(name):
    """Of a package with a literal ``__all__`` all of it is shown; the others are listed name by name."""
    package = importlib.import_module(f"dagnn.{name}")
    if f"dagnn.{name}" in entries():
        tree = ast.parse(Path(package.__file__).read_text())
        written = [
            ast.literal_eval(node.value)
            for node in tree.body
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
        ]
        assert name == "errors" or written == [package.__all__]
        return
    listed = {entry.rpartition(".")[2]: entry for entry in entries() if entry.startswith(f"dagnn.{name}.")}
    assert sorted(listed) == sorted(package.__all__)
    for public, entry in listed.items():
        module = importlib.import_module(entry.rpartition(".")[0])
        assert getattr(module, public) is getattr(package, public)


@pytest.mark.fault("docs_and_packaging", 11)
def test_every_name_of_dagnn_comes_from_a_package_of_the_reference():
    import dagnn

    assert {module.removeprefix("dagnn.") for module in dagnn._NAMES_IN} <= set(PACKAGES)
    pages = {page.relative_to(ROOT / "docs").as_posix() for page in PAGES.glob("*.md")}
    listed = set(re.findall(r"reference/\w+\.md", (ROOT / "mkdocs.yml").read_text()))
    assert pages == listed


@pytest.mark.fault("docs_and_packaging", 11)
def test_examples_become_code_and_shared_entries_one_each(monkeypatch):
    import sys
    import types

    fake = types.ModuleType("griffe")
    fake.Extension, fake.Object = object, object
    monkeypatch.setitem(sys.modules, "griffe", fake)
    spec = importlib.util.spec_from_file_location("extensions", ROOT / "docs" / "extensions.py")
    extensions = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(extensions)
    text = "What it is.\n>>> 1 + 1\n2\n\nArgs:\n    a, *b: both\n        of them.\n    c: one, two: three."
    shown = extensions._with_code(extensions._with_single_entries(text))
    assert shown == (
        "What it is.\n\n```pycon\n>>> 1 + 1\n2\n```\n\nArgs:\n    a: both\n        of them.\n"
        "    *b: both\n        of them.\n    c: one, two: three."
    )


@pytest.mark.fault("docs_and_packaging", 12)
def test_the_site_has_a_theme_whose_tables_fit():
    settings = (ROOT / "mkdocs.yml").read_text()
    assert "name: material" in settings and "extra_css: [site.css]" in settings
    assert "overflow-wrap" in (ROOT / "docs" / "site.css").read_text()
    assert "mkdocs-material" in (ROOT / "docs" / "requirements.txt").read_text()


@pytest.mark.fault("docs_and_packaging", 11)
@pytest.mark.parametrize("page", sorted((ROOT / "docs" / "guides").glob("*.md")), ids=lambda path: path.name)
def test_every_guide_leads_to_its_reference(page):
    assert re.search(r"\]\(\.\./reference/\w+\.md\)", page.read_text())
