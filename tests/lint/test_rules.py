"""The rules of the linter: on loops with planted mistakes and their right twins, in whatever form they are written."""

import ast
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.lint.written import MISTAKES, loops
from dagnn.errors import DataError
from dagnn.lint import RULES, lint_source

LOOPS = {loop.name: loop for loop in loops()}
BUILT_HERE = [name for name in LOOPS if name.split(",")[0] in ("script", "while", "counter", "scaler")]
EXAMPLES = Path(__file__).parents[2] / "examples"


def rules_of(source: str) -> set[str]:
    return {finding.rule for finding in lint_source(source)}


@pytest.mark.parametrize("name", LOOPS)
def test_verdict_on_a_written_loop(name):
    assert rules_of(LOOPS[name].source) == LOOPS[name].rules


def test_every_rule_has_a_wrong_loop():
    assert {rule for loop in LOOPS.values() for rule in loop.rules} == set(RULES) == set(MISTAKES)


def names_made_here(tree: ast.AST) -> list[str]:
    """Names that the source assigns or takes as arguments, in their order."""
    stored = [n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
    arguments = [n.arg for n in ast.walk(tree) if isinstance(n, ast.arg)]
    # Of these, only the name says what they are.
    return [name for name in dict.fromkeys(stored + arguments) if name not in ("loader", "accumulate", "loss")]


class Renamed(ast.NodeTransformer):
    def __init__(self, names: dict[str, str]) -> None:
        self.names = names

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.copy_location(ast.Name(self.names.get(node.id, node.id), node.ctx), node)

    def visit_arg(self, node: ast.arg) -> ast.AST:
        return ast.copy_location(ast.arg(self.names.get(node.arg, node.arg)), node)


class Wrapped(ast.NodeTransformer):
    """Every loop over ``enumerate(...)`` runs under a progress bar."""

    def visit_For(self, node: ast.For) -> ast.AST:
        self.generic_visit(node)
        if ast.unparse(node.iter).startswith("enumerate("):
            node.iter = ast.parse(f"progress({ast.unparse(node.iter)}, total=7)", mode="eval").body
        return node


class AsWhile(ast.NodeTransformer):
    """Every loop ``for i, x in enumerate(loader)`` counts by itself."""

    def visit_For(self, node: ast.For) -> ast.AST | list[ast.stmt]:
        self.generic_visit(node)
        if ast.unparse(node.iter) != "enumerate(loader)" or any(isinstance(n, ast.Continue) for n in ast.walk(node)):
            return node
        i, item = (ast.unparse(e) for e in node.target.elts)
        text = f"{i} = 0\nwhile {i} < len(loader):\n    {item} = loader[{i}]\n    pass\n    {i} += 1"
        start, loop = ast.parse(text).body
        loop.body[1:2] = node.body
        return [start, loop]


def in_function(source: str) -> str:
    return "def main(loader):\n" + "".join(f"    {line}\n" for line in source.splitlines())


def in_method(source: str) -> str:
    return "class Job:\n    def go(self, loader):\n" + "".join(f"        {line}\n" for line in source.splitlines())


@settings(max_examples=20, deadline=None)
@given(st.sampled_from(BUILT_HERE), st.data())
def test_a_verdict_does_not_depend_on_the_form(name, data):
    loop = LOOPS[name]
    tree = ast.parse(loop.source)
    names = names_made_here(tree)
    words = st.from_regex(r"[b-y]{3,8}_v", fullmatch=True)
    drawn = data.draw(st.lists(words, min_size=len(names), max_size=len(names), unique=True))
    tree = Renamed(dict(zip(names, drawn, strict=True))).visit(tree)
    for change in data.draw(st.lists(st.sampled_from([Wrapped, AsWhile]), max_size=1)):
        tree = change().visit(tree)
    source = ast.unparse(ast.fix_missing_locations(tree))
    if name.startswith("script"):
        source = data.draw(st.sampled_from([str, in_function, in_method]))(source)

    assert rules_of(source) == loop.rules


def test_a_finding_names_line_and_column():
    source = "opt = torch.optim.SGD(p, 0.1)\nfor x in loader:\n    f(x).backward()\n    opt.step()\n"
    (finding,) = lint_source(source, "train.py")

    assert (finding.path, finding.line, finding.column, finding.rule) == ("train.py", 4, 5, "not-zeroed")
    assert finding.place == "train.py:4:5"


@pytest.mark.parametrize(
    ("comment", "left"),
    [
        ("# dagnn: ignore", set()),
        ("# dagnn: ignore[not-zeroed]", set()),
        ("# dagnn: ignore[lost-remainder, not-zeroed]", set()),
        ("# dagnn: ignore[lost-remainder]", {"not-zeroed"}),
        ("# ignore", {"not-zeroed"}),
    ],
)
def test_a_comment_ignores_rules(comment, left):
    source = "opt = torch.optim.SGD(p, 0.1)\nfor x in loader:\n    f(x).backward()\n"

    assert rules_of(f"{source}    opt.step()  {comment}\n") == left
    assert rules_of(f"{source}    {comment}\n    opt.step()\n") == left


@pytest.mark.parametrize(
    "body",
    [
        "trainer.update(opt, loss)",  # what gets the optimizer may do anything
        "opt.step()\n    helper(opt)",
        "if ready():\n        opt.step()",  # only running would tell when
        "engine.backward(loss)\n    engine.step()",
    ],
)
def test_what_cannot_be_seen_is_no_finding(body):
    source = f"opt = torch.optim.SGD(p, 0.1)\nfor x in loader:\n    loss = f(x)\n    loss.backward()\n    {body}\n"

    assert rules_of(source) <= ({"not-zeroed"} if body.startswith("if") else set())


def test_a_function_without_a_loop_may_be_zeroed_by_its_caller():
    assert rules_of("def step(model, opt, x):\n    model(x).backward()\n    opt.step()\n") == set()


def test_two_optimizers_that_take_turns_are_no_window():
    source = """
for real in loader:
    opt_d.zero_grad()
    d(real).backward()
    opt_d.step()
    opt_g.zero_grad()
    d(g(z)).backward()
    opt_g.step()
"""
    assert rules_of(source) == set()


@pytest.mark.parametrize(
    "source",
    [
        # Distributed optimizers hold gradients in a context.
        "opt = DistributedOptimizer(SGD, p)\nfor x in loader:\n    with context() as c:\n        "
        "dist_autograd.backward(c, [f(x)])\n        opt.step(c)\n",
        # Gradients are divided by what the file cannot see.
        "for i, x in enumerate(loader):\n    loss = f(x) * tokens(x)\n    loss.backward()\n    if (i + 1) % 4 == 0:\n"
        "        scale_grads(model, 1 / n)\n        opt.step()\n        opt.zero_grad()\n",
        # A share that no name tells.
        "for _ in range(9):\n    for i in range(1, 99):\n        value = entropy(get(data)) / k\n        "
        "fabric.backward(value)\n        if i % k == 0:\n            opt.step()\n            opt.zero_grad()\n",
        # Accelerate passes over what stands behind its block, too.
        "accelerator = Accelerator(gradient_accumulation_steps=4)\nfor x in loader:\n    opt.zero_grad()\n"
        "    with accelerator.accumulate(model):\n        accelerator.backward(f(x))\n        opt.step()\n",
    ],
)
def test_false_alarms_that_public_loops_showed(source):
    assert rules_of(source) == set()


@pytest.mark.parametrize("text", ["", "\n", "x = 1", "for x in y: pass", "\ufeffx = 1", "match x:\n    case 1: pass"])
def test_sources_without_loops_are_clean(text):
    assert lint_source(text) == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = (\n", r"^a\.py:1: no valid Python: '\(' was never closed\.$"),
        ("x = 1\ny = = 2\n", r"^a\.py:2: no valid Python: invalid syntax\.$"),
        ("x\0", r"^a\.py:1: no valid Python: "),
        ("x = " + "(" * 500 + ")" * 500, r"^a\.py:1: "),
    ],
)
def test_no_python_is_said_with_its_line(text, message):
    with pytest.raises(DataError, match=message):
        lint_source(text, "a.py")


def test_our_own_examples_have_no_findings():
    found = []
    for path in sorted(EXAMPLES.glob("*.py")):
        found += map(str, lint_source(path.read_text(), path.name))

    assert found == []


@settings(max_examples=20, deadline=None)
@given(st.sampled_from([*LOOPS]), st.data())
def test_no_source_breaks_the_linter(name, data):
    """Statements dropped and swapped at random."""
    tree = ast.parse(LOOPS[name].source)
    blocks = [n.body for n in ast.walk(tree) if isinstance(getattr(n, "body", None), list) and n.body]
    for _ in range(data.draw(st.integers(1, 4))):
        block = data.draw(st.sampled_from(blocks))
        if len(block) > 1:
            i, j = (data.draw(st.integers(0, len(block) - 1)) for _ in range(2))
            block[i], block[j] = block[j], block[i]
            if data.draw(st.booleans()):
                del block[i]
    findings = lint_source(ast.unparse(ast.fix_missing_locations(tree)))

    assert all(finding.rule in RULES and finding.line > 0 and finding.column > 0 for finding in findings)


def test_rules_are_words_with_hyphens():
    assert all(re.fullmatch(r"[a-z]+(-[a-z]+)+", name) for name in RULES)


@pytest.mark.parametrize(
    "line",
    [
        "n = 10 ** 10 ** 10",
        "n = 3\n    for _ in range(100): n = n * n",
        "a = [1]\n    for _ in range(100): a = a + a",
        "n = (-1) ** 0.5",
        "loss = loss / 1" + "0" * 400,
        "for _ in range(10 ** 19): pass",
        "for _ in range(0, 10, 0): pass",
        "for _ in range(1, 2, 3, 4): pass",
        "for i, _ in enumerate(l, 1e999): print(i)",
        "n = int(1e999)",
    ],
)
def test_numbers_that_no_loop_counts_with(line):
    """Each would take forever, all memory, or raise."""
    assert rules_of(f"for x in loader:\n    {line}\n    f(x).backward()\n    optimizer.step()\n") <= {"not-zeroed"}
