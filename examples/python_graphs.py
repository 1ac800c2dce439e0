"""The functions of Python's own standard library as graphs: syntax trees, shared trees, and who defines what is used.

All three are Dags whose edges go from a part to the whole, operands in their order, with a label on every node:

- `syntax_tree`: one node per node of the syntax tree;
- `shared_tree`: the same, but equal subtrees are one node ("hash-consed"), so a node has many parents;
- `def_use`: the syntax tree, and an edge from the value of a local variable to every place that reads it.

The function's name, docstring, decorators and return annotation are left out, and its name is hidden wherever the body
uses it: what is left can be asked for the name. Run as a script it counts them.
"""

import ast
import statistics
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch

from dagnn.graph import Dag

HIDDEN = "<name>"
Definition = ast.FunctionDef | ast.AsyncFunctionDef


class Function(NamedTuple):
    """A function and the file, relative to the library, that holds it."""

    file: str
    tree: Definition

    @property
    def name(self) -> str:
        return self.tree.name


def standard_library(*, packages: bool = False) -> list[Function]:
    """All functions, methods and inner functions of the library's modules, file by file.

    Args:
        packages: those in its packages too (more than twice as many). Files with "test" in their path are left out.
    """
    root = Path(sysconfig.get_path("stdlib"))
    paths = root.rglob("*.py") if packages else root.glob("*.py")
    found = list[Function]()
    for path in sorted(paths):
        file = path.relative_to(root).as_posix()
        if "test" in file or "site-packages" in file:
            continue
        try:
            module = ast.parse(path.read_bytes())
        except SyntaxError:  # templates and files of another version
            continue
        found += [Function(file, node) for node in ast.walk(module) if isinstance(node, Definition)]
    return found


def syntax_tree(function: Function) -> Dag:
    """One node per node of the syntax tree, the whole body last."""
    return _Builder(function, share=False, define=False).dag()


def shared_tree(function: Function) -> Dag:
    """The syntax tree with equal subtrees as one node."""
    return _Builder(function, share=True, define=False).dag()


def def_use(function: Function) -> Dag:
    """The syntax tree, with an edge of type 1 from each definition to the places that read it.

    The definition of a name is the last one before it in the text: the value assigned, the iterable of a loop, the
    parameter. So every edge goes forward in the text, and there is no cycle.
    """
    return _Builder(function, share=False, define=True).dag()


class _Builder:
    """Walks a body in the order of evaluation and numbers nodes when they are complete, so operands come first."""

    def __init__(self, function: Function, *, share: bool, define: bool) -> None:
        self.name = function.name
        self.labels = list[str]()
        self.edges = list[tuple[int, int]]()
        self.position = list[int]()
        self.type = list[int]()
        self.known: dict[tuple[str, tuple[int, ...]], int] | None = {} if share else None
        self.defined: dict[str, int] | None = {} if define else None
        body = function.tree.body
        if ast.get_docstring(function.tree, clean=False) is not None:
            body = body[1:]
        arguments = self.visit(function.tree.args)
        self.node("function", [arguments, *map(self.visit, body)])

    def dag(self) -> Dag:
        edge_attributes = {"position": torch.tensor(self.position, dtype=torch.int64)}
        if self.defined is not None:
            edge_attributes["type"] = torch.tensor(self.type, dtype=torch.int64)
        return Dag(
            torch.tensor(self.edges, dtype=torch.int64).reshape(-1, 2),
            len(self.labels),
            node_attributes={"label": self.labels},
            edge_attributes=edge_attributes,
        )

    def visit(self, tree: ast.AST) -> int:
        if self.defined is not None and isinstance(tree, ast.Name) and isinstance(tree.ctx, ast.Load):
            value = self.defined.get(tree.id)
            if value is not None:
                return self.node(self.label(tree), [value], type=1)
        if isinstance(tree, ast.Assign | ast.AnnAssign | ast.AugAssign | ast.NamedExpr) and tree.value is not None:
            value = self.visit(tree.value)
            targets = tree.targets if isinstance(tree, ast.Assign) else [tree.target]
            return self.node(self.label(tree), [value, *(self.bind(target, value) for target in targets)])
        if isinstance(tree, ast.For | ast.AsyncFor | ast.comprehension):
            value = self.visit(tree.iter)
            rest = [*tree.ifs] if isinstance(tree, ast.comprehension) else [*tree.body, *tree.orelse]
            return self.node(self.label(tree), [value, self.bind(tree.target, value), *map(self.visit, rest)])
        if isinstance(tree, ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp):
            results = [tree.key, tree.value] if isinstance(tree, ast.DictComp) else [tree.elt]
            return self.node(self.label(tree), [*map(self.visit, tree.generators), *map(self.visit, results)])
        outer = dict(self.defined) if self.defined is not None and isinstance(tree, _SCOPES) else None
        children = [self.visit(child) for child in ast.iter_child_nodes(tree) if not isinstance(child, _LEFT_OUT)]
        node = self.node(self.label(tree), children)
        if outer is not None:
            self.defined = outer  # what an inner function defines ends with it
        if self.defined is not None and isinstance(tree, ast.arg):
            self.defined[tree.arg] = node
        return node

    def bind(self, target: ast.AST, value: int) -> int:
        """The node of what is assigned to; its names stand for ``value`` from now on."""
        node = self.visit(target)
        if self.defined is not None:
            for name in ast.walk(target):
                if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store):
                    self.defined[name.id] = value
        return node

    def node(self, label: str, operands: list[int], type: int = 0) -> int:
        key = (label, tuple(operands))
        if self.known is not None and key in self.known:
            return self.known[key]
        number = len(self.labels)
        self.labels.append(label)
        self.edges += [(operand, number) for operand in operands]
        self.position += range(len(operands))
        self.type += [type] * len(operands)
        if self.known is not None:
            self.known[key] = number
        return number

    def label(self, tree: ast.AST) -> str:
        kind = type(tree).__name__
        match tree:
            case ast.Name(id=word) | ast.arg(arg=word) | ast.keyword(arg=word) | ast.Attribute(attr=word):
                return f"{kind} {HIDDEN if word == self.name else word}"
            case ast.FunctionDef(name=word) | ast.AsyncFunctionDef(name=word) | ast.ClassDef(name=word):
                return f"{kind} {HIDDEN if word == self.name else word}"
            case ast.Constant(value=bool() | None as value):
                return f"{kind} {value}"
            case ast.Constant(value=int() as value) if -2 <= value <= 2:
                return f"{kind} {value}"
            case ast.Constant(value=value):  # what a text says is left out: it may hold the name
                return f"{kind} {type(value).__name__}"
            case ast.BinOp(op=operator) | ast.UnaryOp(op=operator) | ast.BoolOp(op=operator):
                return f"{kind} {type(operator).__name__}"
            case ast.AugAssign(op=operator):
                return f"{kind} {type(operator).__name__}"
            case ast.Compare(ops=operators):
                return f"{kind} {' '.join(type(operator).__name__ for operator in operators)}"
        return kind


_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
_LEFT_OUT = (ast.expr_context, ast.operator, ast.boolop, ast.unaryop, ast.cmpop)


def _rows(functions: list[Function]) -> Iterator[str]:
    for build in (syntax_tree, shared_tree, def_use):
        graphs = [build(function) for function in functions]
        nodes = [graph.num_nodes for graph in graphs]
        levels = [int(graph.levels.max()) + 1 for graph in graphs]
        many = sum(int((graph.out_degree > 1).sum()) for graph in graphs)
        of_nodes = f"{sum(nodes):8,d} nodes, median {statistics.median(nodes):2.0f}, most {max(nodes):5,d}"
        of_levels = f"{statistics.median(levels):2.0f} levels, at most {max(levels):2d}"
        yield f"{build.__name__:11s} {of_nodes}; {of_levels}; {many / sum(nodes):5.1%} have several parents"


def main() -> None:
    functions = standard_library()
    files = len({function.file for function in functions})
    print(f"{len(functions):,} functions in {files} files of Python {sys.version.split()[0]}; every tenth of them:")
    functions = functions[::10]
    for row in _rows(functions):
        print(row)


if __name__ == "__main__":
    main()
