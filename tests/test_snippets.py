"""Examples run as they are printed: those in docstrings, in README.md and on the pages of docs/."""

import doctest
import importlib
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src"
MODULES = sorted(
    ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")
    for path in SOURCE.rglob("*.py")
    if ">>>" in path.read_text()
)
_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_GOES_ON = "# goes on from above\n"
PAGES = [
    path
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
    if path.exists() and _BLOCK.search(path.read_text()) and path.parent.name != "tutorials"
]  # the tutorials: test_tutorials.py
# Other tests run them whole or in a short form, and look at what comes out: tests/answers, tests/nn, tests/nn/dag_nn,
# tests/faults and tests/rewriting.
RUN_ELSEWHERE = {
    "answers_binary.py",
    "answers_sort.py",
    "answers_transducer.py",
    "dagnn_digits.py",
    "dagnn_network.py",
    "dagnn_reactome.py",
    "dagnn_sweep.py",
    "python_functions.py",
    "python_graphs.py",
    "rewriter_boolean.py",
    "rewriter_lambda.py",
    "rewriter_ski.py",
    "rewriter_stack.py",
    "rewriter_types.py",
    "sharded_training.py",
}
# Examples that read a format through a package which few need.
NEEDED = {"dagnn.visible.gene_sets": "obonet"}
# Whether it runs, not how well it learns.
ARGUMENTS = {"ged_decoder.py": ["--seconds", "0.2", "--held-out", "16"]}
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_hold(name):
    if name in NEEDED:
        pytest.importorskip(NEEDED[name])
    result = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)

    assert result.failed == 0
    assert result.attempted > 0


@pytest.mark.fault("docs_and_packaging", 10)
@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_python_on_a_page_runs_as_the_page_says(page, tmp_path, monkeypatch):
    """A snippet runs alone when it is copied, unless its first line says that it goes on from those above."""
    monkeypatch.chdir(tmp_path)
    text = page.read_text()
    above: dict[str, object] = {"__name__": "__main__"}

    for match in _BLOCK.finditer(text):
        # Blank lines before it, so that a traceback names the line of the page.
        lines_before = text.count("\n", 0, match.start(1))
        names = above if match[1].startswith(_GOES_ON) else {"__name__": "__main__"}
        exec(compile("\n" * lines_before + match[1], str(page), "exec"), names)
        above |= names


@pytest.mark.parametrize(
    "example", [path for path in EXAMPLES if path.name not in RUN_ELSEWHERE], ids=lambda path: path.name
)
def test_example_runs(example, tmp_path, monkeypatch):
    """In this process: to import torch takes longer than most of them."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(example.parent))
    monkeypatch.setattr(sys, "argv", [str(example), *ARGUMENTS.get(example.name, [])])
    with torch.random.fork_rng():
        runpy.run_path(str(example), run_name="__main__")


@pytest.mark.slow
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_example_runs_in_a_process_of_its_own(example, tmp_path):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, example, *ARGUMENTS.get(example.name, [])]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
