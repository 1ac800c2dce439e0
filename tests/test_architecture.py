"""The shape of the project: imports go one way, files stay small, public names are the listed ones."""

import ast
import importlib
import runpy
from collections.abc import Iterator
from pathlib import Path

import pytest

import dagnn
import dagnn.errors

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "dagnn"
MAX_LINES = 450
MAX_FILES = 265  # of the library
MAX_IN_A_FOLDER = 20
MAX_MEDIAN, MAX_NINETIETH = 300, 430  # lines of the library's files: half of them, and nine in ten, have no more

# Part -> the parts that it may import, as CONTRIBUTING.md draws them. what is in FREE may be imported by all.
ARROWS = {
    "errors": set(),
    "files": set(),
    "numba_jit": set(),
    "drawing": set(),
    "graph": {"drawing"},
    "kernels": {"graph"},
    "accumulation": set(),
    "lint": set(),
    "answers": {"numba_jit"},
    "ged": {"numba_jit", "graph", "drawing"},
    "export": {"kernels", "graph"},
    "nn": {"export", "kernels", "graph", "drawing"},
    "data": {"graph"},
    "training": {"data", "accumulation"},
    "integrations": {"accumulation"},
    "rewriting": {"numba_jit", "data", "ged", "nn", "kernels", "graph"},
    "curriculum": {"rewriting", "training", "data", "ged", "accumulation", "nn", "kernels", "graph"},
    "visible": {"training", "data", "accumulation", "nn", "kernels", "graph", "drawing"},
    "commands": {
        "answers",
        "visible",
        "drawing",
        "integrations",
        "lint",
        "curriculum",
        "rewriting",
        "training",
        "data",
        "ged",
        "accumulation",
        "nn",
        "kernels",
        "graph",
    },
    "__main__": {"cli"},
    "cli": {
        "answers",
        "commands",
        "lint",
        "curriculum",
        "rewriting",
        "training",
        "data",
        "ged",
        "accumulation",
        "nn",
        "kernels",
        "graph",
    },
}
FREE = {"errors", "files", "__version__", "_loaded_on_first_use"}
PACKAGES = sorted(path.parent.name for path in SOURCE.glob("*/__init__.py"))


def modules() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def part_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def package_of(path: Path) -> str:
    return ".".join(("dagnn", *path.parent.relative_to(SOURCE).parts))


def imported_modules(tree: ast.AST, package: str) -> Iterator[str]:
    """Every dagnn module that a file imports, at its top or inside a function, by statement or by name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*parents, *filter(None, [node.module])])
            # `from dagnn import graph` imports dagnn.graph; `from dagnn.graph import Dag` imports a name of it.
            yield from (f"dagnn.{alias.name}" for alias in node.names) if base == "dagnn" else [base]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in ("import_module", "__import__"):
            yield from (arg.value for arg in node.args if isinstance(arg, ast.Constant))


def wrong_arrows(part: str, text: str, package: str = "dagnn") -> list[str]:
    allowed = ARROWS[part] | FREE | {part}
    targets = {name.split(".")[1] for name in imported_modules(ast.parse(text), package) if name.startswith("dagnn.")}
    return sorted(targets - allowed)


def test_imports_go_one_way():
    wrong = [
        f"{path.relative_to(ROOT)} imports dagnn.{target}; {part_of(path)} may import {sorted(ARROWS[part_of(path)])}"
        for path in modules()
        if path != SOURCE / "__init__.py"
        for target in wrong_arrows(part_of(path), path.read_text(), package_of(path))
    ]

    assert wrong == []


@pytest.mark.parametrize(
    "text",
    [
        "import dagnn.training",
        "import dagnn.training.config as config",
        "from dagnn.training import Trainer",
        "from dagnn import training",
        "from ..training.config import TrainingConfig",
        "from .. import training",
        "def late():\n    from dagnn.training.config import TrainingConfig",
        "import importlib\nimportlib.import_module('dagnn.training')",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import dagnn.training",
    ],
)
def test_every_form_of_a_wrong_import_is_found(text):
    assert wrong_arrows("graph", text, "dagnn.graph") == ["training"]


@pytest.mark.parametrize("text", ["from dagnn.errors import GraphError", "from . import levels", "import numpy"])
def test_a_right_import_passes(text):
    assert wrong_arrows("graph", text, "dagnn.graph") == []


def module_of(path: Path) -> str:
    return ".".join(("dagnn", *path.relative_to(SOURCE).with_suffix("").parts)).removesuffix(".__init__")


def imports_between_modules() -> dict[str, set[str]]:
    """Module -> the modules that it imports, for types or inside functions too."""
    names = {module_of(path) for path in modules()}
    found: dict[str, set[str]] = {}
    for path in modules():
        targets = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                targets |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                inner = {f"{node.module}.{alias.name}" for alias in node.names}
                targets |= (inner & names) or {node.module}
        found[module_of(path)] = targets & names - {module_of(path)}
    return found


def circles(arrows: dict[str, set[str]]) -> list[list[str]]:
    """Groups of nodes that reach each other."""
    reached: dict[str, set[str]] = {}
    for start in arrows:
        waiting, seen = [start], set()
        while waiting:
            new = arrows.get(waiting.pop(), set()) - seen
            seen |= new
            waiting += new
        reached[start] = seen
    groups = {tuple(sorted(b for b in reached[a] if a in reached[b])) for a in arrows if a in reached[a]}
    return sorted(map(list, groups))


def test_no_module_imports_itself_by_a_detour():
    """Not for types and not inside functions either. `__init__` files collect their package: they are left out."""
    packages = {module_of(path) for path in modules() if path.name == "__init__.py"}
    arrows = {name: targets - packages for name, targets in imports_between_modules().items() if name not in packages}

    assert circles(arrows) == []


def test_a_circle_is_found():
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}) == [["b", "c"]]


def test_the_library_stays_small_enough_to_find_one_s_way():
    folders = [path.parent.relative_to(SOURCE.parent).as_posix() for path in modules()]

    assert len(folders) <= MAX_FILES
    assert {folder: folders.count(folder) for folder in folders if folders.count(folder) > MAX_IN_A_FOLDER} == {}


def test_most_files_are_read_at_one_sitting():
    lengths = sorted(len(path.read_text().splitlines()) for path in modules())

    assert lengths[len(lengths) // 2] <= MAX_MEDIAN
    assert lengths[len(lengths) * 9 // 10] <= MAX_NINETIETH


def test_every_part_has_its_arrows():
    parts = {part_of(path) for path in modules()} - {"__init__"}

    assert parts <= set(ARROWS)


def test_every_folder_of_modules_is_a_package():
    folders = {path.parent for path in modules()}

    assert [folder for folder in folders if not (folder / "__init__.py").exists()] == []


def test_every_module_begins_with_its_docstring():
    files = [*modules(), *(ROOT / "benchmarks").rglob("*.py"), *(ROOT / "examples").rglob("*.py")]

    assert [str(path.relative_to(ROOT)) for path in files if not path.read_text().startswith('"""')] == []


def test_no_file_is_asking_to_be_two():
    files = [path for folder in ("src", "tests", "benchmarks", "examples") for path in (ROOT / folder).rglob("*.py")]
    lines = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in files}

    assert {name: count for name, count in lines.items() if count > MAX_LINES} == {}


def public_names(text: str, package: str) -> set[str]:
    """What a package's ``__init__.py`` defines or takes from its modules, without what starts with an underscore."""
    tree = ast.parse(text)
    names: set[str] = set()
    guarded = [node for node in tree.body if isinstance(node, ast.If)]
    for node in [*tree.body, *(inner for branch in guarded for inner in branch.body)]:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(f"{package}."):
            names |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
    return {name for name in names if not name.startswith("_")}


@pytest.mark.parametrize("package", PACKAGES)
def test_package_lists_exactly_its_public_names(package):
    module = importlib.import_module(f"dagnn.{package}")

    # A warning of the package may be offered here as well as in dagnn.errors.
    listed = set(module.__all__) - set(vars(dagnn.errors))
    assert listed == public_names((SOURCE / package / "__init__.py").read_text(), module.__name__)
    assert len(set(module.__all__)) == len(module.__all__)
    assert [name for name in module.__all__ if not hasattr(module, name)] == []


def test_every_public_name_of_dagnn_is_there():
    assert [name for name in dagnn.__all__ if not hasattr(dagnn, name)] == []
    assert set(dagnn.__all__) <= set(dir(dagnn))


def test_types_of_dagnn_are_those_that_it_loads():
    """Type checkers read the guarded imports, users get the table: they must name the same objects."""
    assert public_names((SOURCE / "__init__.py").read_text(), "dagnn") == set(dagnn.__all__) - {"__version__"}


def test_unknown_name_of_dagnn_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'dagnn' has no attribute 'nothing'"):
        _ = dagnn.nothing


def test_every_guard_that_remove_guards_takes_out_is_there_once():
    guards = runpy.run_path(str(ROOT / "scripts" / "remove_guards.py"))["GUARDS"]
    found = {guard.name: (SOURCE / guard.file).read_text().count(guard.text) for guard in guards}
    assert found == dict.fromkeys(found, 1)
    assert all((ROOT / "tests" / guard.test.partition("::")[0]).exists() for guard in guards)
