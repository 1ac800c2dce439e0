"""Python sources and notebooks as the linter reads them: the tree, its functions, comments that ignore rules."""

import ast
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

from dagnn.errors import DataError

_IGNORE = re.compile(r"#\s*dagnn:\s*ignore(?:\[([\w\-, ]*)\])?")
_SKIPPED = {"venv", "env", "node_modules", "__pycache__", "site-packages", "build", "dist"}
_STOPS = (ast.Break, ast.Continue, ast.Return, ast.Raise)
_MAGIC = re.compile(r"^\s*[%!?]|^\s*\w+\?\s*$")
AnyFunction = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass
class Source:
    """One file.

    Attributes:
        path: as it was given.
        tree: what it says.
        lines: its text.
        cells: of a notebook, the number of the cell and the line in it of every line of ``lines``.
        functions: all functions and methods by name.
        classes: all classes by name.
        counters: names that the file adds to.
        backward: names of functions that run a backward pass, themselves or through other functions of the file.
        called: names of functions that the file calls.
        optimizers: what the file calls ``zero_grad`` or ``param_groups`` of and ``step`` too.
    """

    path: str
    tree: ast.Module
    lines: list[str]
    cells: list[tuple[int, int]] = field(default_factory=list)
    functions: dict[str, list[AnyFunction]] = field(default_factory=dict)
    classes: dict[str, ast.ClassDef] = field(default_factory=dict)
    counters: set[str] = field(default_factory=set)
    backward: set[str] = field(default_factory=set)
    eventful: set[str] = field(default_factory=set)
    called: set[str] = field(default_factory=set)
    optimizers: set[str] = field(default_factory=set)
    _texts: dict[int, str] = field(default_factory=dict)
    found: dict[tuple[str, int], bool] = field(default_factory=dict)  # what was worked out about nodes

    def text(self, node: ast.AST) -> str:
        """``node`` as code."""
        if id(node) not in self._texts:
            self._texts[id(node)] = ast.unparse(node)
        return self._texts[id(node)]

    def place(self, line: int) -> tuple[int | None, int]:
        """The cell, of a notebook, and the line in it."""
        return self.cells[line - 1] if self.cells else (None, line)

    def ignores(self, line: int, last: int, rule: str) -> bool:
        """Whether a comment on one of the lines, or alone on the line before, says to ignore ``rule``."""
        above = self.lines[line - 2].strip() if line > 1 else ""
        texts = [*self.lines[line - 1 : last], *([above] if above.startswith("#") else [])]
        found = filter(None, map(_IGNORE.search, texts))
        return any(each[1] is None or rule in [name.strip() for name in each[1].split(",")] for each in found)

    def runs_backward(self, node: ast.AST) -> bool:
        return self._contains(node, "backward", self.backward, (".backward", ".manual_backward"))

    def has_events(self, node: ast.AST) -> bool:
        """Whether gradients may be made, used or zeroed in ``node``."""
        names = (".backward", ".manual_backward", ".step", ".zero_grad", ".optimizer_step")
        return self._contains(node, "events", self.eventful, names) or self._once("grad", node, _mentions_grad)

    def yields(self, function: ast.AST) -> bool:
        """Whether it is a generator."""
        kinds = (ast.Yield, ast.YieldFrom)
        return self._once("yields", function, lambda node: any(isinstance(n, kinds) for n in ast.walk(node)))

    def has_loop(self, node: ast.AST) -> bool:
        """Whether a backward pass runs in a loop inside of ``node``, also in a function that it calls."""
        return self._once("loop", node, self._finds_loop)

    def _finds_loop(self, node: ast.AST) -> bool:
        waiting, done = [*ast.iter_child_nodes(node)], set[str]()
        while waiting:
            for inner in ast.walk(waiting.pop()):
                if isinstance(inner, (ast.For, ast.AsyncFor, ast.While)) and self.runs_backward(inner):
                    return True
                if isinstance(inner, ast.Call):
                    new = (self.backward & set(called_names(inner))) - done
                    done |= new
                    waiting += [function for name in new for function in self.functions[name]]
        return False

    def may_matter(self, statements: Sequence[ast.stmt]) -> bool:
        """Whether it makes a difference to the analysis that ``statements`` run."""
        return any(self._once("matters", statement, self._matters) for statement in statements)

    def _matters(self, statement: ast.AST) -> bool:
        kinds = (ast.Assign, ast.AugAssign, ast.AnnAssign, *_STOPS)
        assigns = any(isinstance(node, kinds) for node in ast.walk(statement))
        clips = any("clip" in name or "unscale" in name for name in called_names(statement))
        return assigns or clips or self.has_events(statement)

    def _contains(self, node: ast.AST, what: str, functions: set[str], methods: Sequence[str]) -> bool:
        return self._once(what, node, lambda n: any(name in functions or name in methods for name in called_names(n)))

    def _once(self, what: str, node: ast.AST, compute: Callable[[ast.AST], bool]) -> bool:
        key = (what, id(node))
        if key not in self.found:
            self.found[key] = compute(node)
        return self.found[key]


def _mentions_grad(node: ast.AST) -> bool:
    return any(isinstance(n, ast.Attribute) and n.attr == "grad" for n in ast.walk(node))


def called_names(node: ast.AST) -> Iterator[str]:
    """Names of all functions that ``node`` calls or passes on, and with a dot before them those of methods."""
    for inner in ast.walk(node):
        if isinstance(inner, ast.Call):
            if isinstance(inner.func, ast.Name):
                yield inner.func.id
            elif isinstance(inner.func, ast.Attribute) and not _is_of_module(inner.func):
                yield f".{inner.func.attr}"
            yield from (a.id for a in inner.args if isinstance(a, ast.Name))
            yield from (f".{a.attr}" for a in inner.args if isinstance(a, ast.Attribute))


def _is_of_module(func: ast.Attribute) -> bool:
    """Whether it is torch's ``model.train()``, which has nothing to do with a trainer's ``train``."""
    owner = ast.unparse(func.value).split(".")[-1].lower()
    return func.attr in ("train", "eval") and owner != "self" and "train" not in owner


def stops(statements: Sequence[ast.stmt]) -> bool:
    """Whether ``statements`` end by leaving a loop or a function."""
    return bool(statements) and isinstance(statements[-1], _STOPS)


def read_source(path: str, text: str) -> Source:
    """The source of a Python file, or a notebook if ``path`` ends in ``.ipynb``; a DataError has path and line."""
    cells: list[tuple[int, int]] = []
    if path.endswith(".ipynb"):
        text, cells = _from_notebook(path, text)
    try:
        tree = ast.parse(text.removeprefix("\ufeff"))
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None) or 1
        cell, line = cells[min(line, len(cells)) - 1] if cells else (None, line)
        where = f"{path}:{line}" if cell is None else f"{path}:cell {cell}:{line}"
        raise DataError(f"{where}: no valid Python: {getattr(error, 'msg', None) or error}.") from None
    except (RecursionError, MemoryError):
        raise DataError(f"{path}:1: too deeply nested to read.") from None
    source = Source(path, tree, text.splitlines(), cells)
    _note_facts(source)
    return source


def _note_facts(source: Source) -> None:
    zeroed, stepped = set(), set()
    methods: set[int] = set()  # a class comes before its methods in the walk
    for node in ast.walk(source.tree):
        if isinstance(node, AnyFunction):
            name = f".{node.name}" if id(node) in methods else node.name
            source.functions.setdefault(name, []).append(node)
        elif isinstance(node, ast.ClassDef):
            source.classes[node.name] = node
            methods |= {id(each) for each in node.body}
        elif isinstance(node, ast.AugAssign):
            source.counters.add(ast.unparse(node.target))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr == "zero_grad":
                zeroed.add(ast.unparse(node.func.value))
            elif node.func.attr == "step":
                stepped.add(ast.unparse(node.func.value))
    source.optimizers = zeroed & stepped
    source.called = set(called_names(source.tree))
    reached = {name: {*chain.from_iterable(map(called_names, nodes))} for name, nodes in source.functions.items()}
    source.backward = _reaching(reached, {".backward", ".manual_backward"})
    source.eventful = _reaching(reached, {".backward", ".manual_backward", ".zero_grad", ".optimizer_step"})


def _reaching(reached: dict[str, set[str]], wanted: set[str]) -> set[str]:
    """Names of the functions that call one of ``wanted``, directly or not."""
    found: set[str] = set()
    while new := {name for name, calls in reached.items() if name not in found and calls & (wanted | found)}:
        found |= new
    return found - wanted


class Root:
    """Where a run starts: a function that nothing in the file calls, or the module itself (``function`` is None)."""

    def __init__(self, function: AnyFunction | None, cls: ast.ClassDef | None = None) -> None:
        self.function, self.cls = function, cls


def roots(source: Source) -> list[Root]:
    """Where to start so that every backward pass of the file is seen with as much around it as the file has."""
    found = [Root(None)] if any(source.runs_backward(s) for s in source.tree.body if not defines(s)) else []
    for function, cls in _functions(source.tree):
        name = function.name if cls is None else f".{function.name}"
        called = name in source.called and function.name != "training_step"
        if source.runs_backward(function) and not called:
            found.append(Root(function, cls))
    return found


def others(source: Source, seen: set[int]) -> list[Root]:
    """Functions with a backward pass that no run has entered, also such as are defined in functions."""
    named = {id(function): cls for function, cls in _functions(source.tree)}
    found = []
    for function in (each for functions in source.functions.values() for each in functions):
        direct = any(isinstance(n, ast.Attribute) and n.attr in ("backward", "manual_backward") for n in _own(function))
        if direct and id(function) not in seen:
            found.append(Root(function, named.get(id(function))))
    return found


def _own(function: AnyFunction) -> Iterator[ast.AST]:
    """The nodes of a function without those of functions that it defines."""
    waiting: list[ast.AST] = list(function.body)
    while waiting:
        node = waiting.pop()
        yield node
        waiting += [child for child in ast.iter_child_nodes(node) if not isinstance(child, AnyFunction)]


def _functions(tree: ast.Module) -> Iterator[tuple[AnyFunction, ast.ClassDef | None]]:
    """Functions and methods, without those inside of functions."""
    waiting: list[tuple[ast.AST, ast.ClassDef | None]] = [(tree, None)]
    while waiting:
        node, cls = waiting.pop(0)
        for child in ast.iter_child_nodes(node):
            if isinstance(child, AnyFunction):
                yield child, cls
            elif isinstance(child, ast.ClassDef):
                waiting.append((child, child))
            elif isinstance(child, (ast.If, ast.Try, ast.With)):
                waiting.append((child, cls))


def defines(statement: ast.stmt) -> bool:
    return isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom))


def _from_notebook(path: str, text: str) -> tuple[str, list[tuple[int, int]]]:
    """The code cells as one text, and the cell and line of each of its lines."""
    try:
        cells = json.loads(text)["cells"]
        codes = [(i, cell["source"]) for i, cell in enumerate(cells, 1) if cell["cell_type"] == "code"]
        joined_cells = [(i, code if isinstance(code, str) else "".join(code)) for i, code in codes]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise DataError(f"{path}:1: no notebook: it must be JSON with a list of cells.") from None
    lines, places = [], []
    for number, joined in joined_cells:
        skipped = joined.lstrip().startswith("%%")
        for line, each in enumerate(joined.splitlines(), 1):
            if skipped:
                each = ""
            elif _MAGIC.match(each):
                each = f"{each[: len(each) - len(each.lstrip())]}pass"
            lines.append(each)
            places.append((number, line))
    return "\n".join(lines) + "\n", places or [(1, 1)]


def find_files(paths: Sequence[str]) -> Iterator[str]:
    """The Python files and notebooks at ``paths``, folders walked in order without hidden ones and environments.

    DataError where there is nothing at a path.
    """
    for given in paths:
        path = Path(given)
        if given == "-" or path.is_file():
            yield given
        elif path.is_dir():
            yield from _walk(path)
        else:
            raise DataError(f"{given}: there is no such file or folder.")


def _walk(folder: Path) -> Iterator[str]:
    for path in sorted(folder.iterdir()):
        if path.name.startswith("."):
            continue
        if path.is_dir():
            if path.name not in _SKIPPED and not (path / "pyvenv.cfg").exists() and not path.is_symlink():
                yield from _walk(path)
        elif path.suffix in (".py", ".ipynb"):
            yield str(path)
