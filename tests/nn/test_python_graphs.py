"""The graphs of examples/python_graphs.py: what a function becomes, by hand."""

import ast
import re
import runpy
import sys
from pathlib import Path

import pytest

from examples import python_graphs
from examples.python_graphs import Function, def_use, shared_tree, standard_library, syntax_tree

EXAMPLES = Path(python_graphs.__file__).parent
SOURCE = '''
@decorator
def area(self, x: int, y=2) -> int:
    """The area: strings are left out."""
    x = x * y
    for x in other.area(x):
        y += len("text")
    return [x for x in range(x) if x]
'''


def function_of(source: str) -> Function:
    return Function("file.py", ast.parse(source).body[0])


def test_a_body_becomes_a_tree_with_ordered_operands():
    dag = syntax_tree(function_of("def f(a):\n    return g(a - 1, None)"))
    labels = dag.node_attributes["label"]
    assert labels == (
        "arg a", "arguments", "Name g", "Name a", "Constant 1", "BinOp Sub", "Constant None", "Call", "Return",
        "function",
    )  # fmt: skip
    operands = {labels[v]: [labels[u] for u, w in dag.edges.tolist() if w == v] for v in range(dag.num_nodes)}
    assert operands["Call"] == ["Name g", "BinOp Sub", "Constant None"]
    assert operands["BinOp Sub"] == ["Name a", "Constant 1"]
    assert operands["function"] == ["arguments", "Return"]
    assert dag.outputs.tolist() == [dag.num_nodes - 1]


def test_nothing_says_how_the_function_is_called():
    for build in (syntax_tree, shared_tree, def_use):
        labels = build(function_of(SOURCE)).node_attributes["label"]
        assert "Attribute <name>" in labels
        assert not any("area" in label or "strings" in label or "decorator" in label for label in labels)
        assert "Constant str" in labels  # the text, not the docstring


def test_equal_subtrees_are_one_node():
    function = function_of("def f(a):\n    return (a + 1) * (a + 1)")
    tree, shared = syntax_tree(function), shared_tree(function)
    assert tree.node_attributes["label"].count("BinOp Add") == 2
    assert shared.node_attributes["label"].count("BinOp Add") == 1
    product = shared.node_attributes["label"].index("BinOp Mult")
    assert shared.in_degree[product] == 2  # the same operand twice
    assert shared.num_nodes == tree.num_nodes - 3


def defined_by(dag) -> list[tuple[str, str]]:
    labels = dag.node_attributes["label"]
    edges = zip(dag.edges.tolist(), dag.edge_attributes["type"].tolist(), strict=True)
    return sorted((labels[u], labels[v]) for (u, v), kind in edges if kind)


def test_a_use_hangs_on_the_last_definition_before_it():
    function = function_of("def f(a):\n    b = a + 1\n    b = b * 2\n    return b, c")
    dag = def_use(function)
    assert defined_by(dag) == [("BinOp Add", "Name b"), ("BinOp Mult", "Name b"), ("arg a", "Name a")]
    assert dag.num_nodes == syntax_tree(function).num_nodes


def test_loops_and_comprehensions_define_and_inner_functions_keep_theirs():
    source = "def f(x):\n    g = lambda y: y + x\n    for i in x:\n        y(i)\n    return [i for i in g]"
    assert defined_by(def_use(function_of(source))) == [
        ("Lambda", "Name g"), ("Name g", "Name i"), ("Name x", "Name i"), ("arg x", "Name x"), ("arg x", "Name x"),
        ("arg y", "Name y"),
    ]  # fmt: skip


def test_the_library_is_read_whole(tmp_path, monkeypatch):
    (tmp_path / "package" / "test").mkdir(parents=True)
    (tmp_path / "a.py").write_text("def one():\n    def two(): pass\nclass C:\n    async def three(self): pass")
    (tmp_path / "broken.py").write_text("def (")
    (tmp_path / "package" / "b.py").write_text("def four(): pass")
    (tmp_path / "package" / "test" / "c.py").write_text("def five(): pass")
    monkeypatch.setattr(python_graphs.sysconfig, "get_path", lambda name: str(tmp_path))
    assert sorted(function.name for function in standard_library()) == ["one", "three", "two"]
    assert [f.file for f in standard_library(packages=True) if f.name == "four"] == ["package/b.py"]
    assert len(standard_library(packages=True)) == 4


@pytest.mark.slow
def test_every_function_of_the_library_becomes_three_dags():
    for function in standard_library()[::5]:
        tree, shared = syntax_tree(function), shared_tree(function)
        assert def_use(function).num_nodes == tree.num_nodes >= shared.num_nodes
        assert shared.levels.max() == tree.levels.max()


def test_the_example_tells_how_large_its_graphs_are(monkeypatch, capsys):
    made = [Function("a.py", ast.parse("def f(x):\n    y = x + x\n    return y").body[0])] * 20
    monkeypatch.setattr(python_graphs, "standard_library", lambda: made)
    python_graphs.main()
    first, *rows = capsys.readouterr().out.splitlines()
    assert first.startswith("20 functions in 1 files of Python ")
    assert [row.split()[0] for row in rows] == ["syntax_tree", "shared_tree", "def_use"]
    nodes = syntax_tree(made[0]).num_nodes
    assert rows[0].split()[1:4] == [f"{2 * nodes}", "nodes,", "median"]


def test_the_example_tells_getters_from_setters_of_files_never_seen(monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    main = runpy.run_path(str(EXAMPLES / "python_functions.py"))["main"]
    made = []
    for i in range(80):
        made.append(Function(f"{i % 10}.py", ast.parse(f"def get_{i}(self): return self.x{i} + {i}").body[0]))
        made.append(Function(f"{i % 10}.py", ast.parse(f"def set_{i}(self, y): self.x{i} = y, {i}, None").body[0]))
        made.append(Function(f"{i % 10}.py", ast.parse(f"def _setAgain{i}(self, y): self.x{i} = y, {i}, None").body[0]))
    monkeypatch.setattr(sys.modules["python_graphs"], "standard_library", lambda packages: made)
    results = main()
    assert results["the network"] == 1.0
    assert results["the most frequent verb"] < 0.6
    out = capsys.readouterr().out
    assert "set, get" in out
    learnt, held_out = re.search(r"([0-9]+) functions to learn from, ([0-9]+) in files never seen", out).groups()
    assert int(learnt) + int(held_out) == 160  # bodies that occur twice are used once
    assert int(held_out) > 0


@pytest.mark.slow
def test_the_example_reads_functions_of_files_never_seen(monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    results = runpy.run_path(str(EXAMPLES / "python_functions.py"))["main"](full=True)
    assert results["the network"] > results["the most frequent verb"] + 0.25
    assert results["the network"] > results["logistic regression on the counts"]
    assert "in files never seen" in capsys.readouterr().out
