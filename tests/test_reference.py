"""The reference holds every public name, one page a package, in a form that its reader takes."""

import ast
import importlib
import importlib.util
import re
import sys
import types
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
    shown = extensions._with_trees("All.\n\nRoot\n├── leaf\n\nAs::\n\n    code\n\n::\n\n    more")
    assert shown == "All.\n\n```text\nRoot\n├── leaf\n```\n\nAs:\n\n    code\n\n    more"


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


@pytest.fixture
def hooks(monkeypatch):
    converter = types.ModuleType("latex2mathml.converter")
    converter.convert = lambda text, display: f"<math {display}>{text}</math>"
    monkeypatch.setitem(sys.modules, "latex2mathml", types.ModuleType("latex2mathml"))
    monkeypatch.setitem(sys.modules, "latex2mathml.converter", converter)
    spec = importlib.util.spec_from_file_location("site_hooks", ROOT / "docs" / "site_hooks.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.fault("docs_and_packaging", 12)
def test_a_cell_knows_the_head_of_its_column_and_a_formula_is_drawn_without_a_script(hooks, tmp_path):
    page = types.SimpleNamespace(file=types.SimpleNamespace(abs_src_path=str(tmp_path / "page.md")))
    table = (
        "<table>\n<thead>\n<tr>\n<th></th>\n<th><code>a</code> &amp; b</th>\n</tr>\n</thead>\n"
        "<tbody>\n<tr>\n<td>1</td>\n<td>2</td>\n</tr>\n</tbody>\n</table>"
    )
    shown = hooks.on_page_content(table, page=page)
    assert shown.startswith('<table class="cards">')
    assert '<td data-head="">1</td>' in shown and '<td data-head="a &amp; b">2</td>' in shown
    formula = '<span class="arithmatex">\\(a &lt; b\\)</span><div class="arithmatex">\\[c\\]</div>'
    assert hooks.on_page_content(formula, page=page) == (
        '<span class="formula"><math inline>a < b</math></span><div class="formula"><math block>c</math></div>'
    )


@pytest.mark.fault("docs_and_packaging", 12)
def test_a_plot_of_ours_stands_in_the_page_and_another_picture_stays_outside(hooks, tmp_path):
    page = types.SimpleNamespace(file=types.SimpleNamespace(abs_src_path=str(tmp_path / "page.md")))
    (tmp_path / "ours.svg").write_text('<svg class="chart"></svg>')
    (tmp_path / "other.svg").write_text("<svg></svg>")
    other = '<p><img alt="b" src="other.svg" /></p>'
    shown = hooks.on_page_content(f'<p><img alt="a" src="ours.svg" /></p>{other}', page=page)
    assert shown == f'<figure><svg class="chart"></svg></figure>{other}'
