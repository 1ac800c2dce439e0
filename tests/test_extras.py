"""What is not installed: `import dagnn` and accumulation need torch and NumPy alone, and the rest names its extra."""

import ast
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import dagnn
from dagnn.errors import MissingPackageError, check_installed, library

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
MODULE = {"python-flint": "flint", "scikit-learn": "sklearn"}  # where it has another name than the package
# What torch itself requires is there whenever torch is.
OF_TORCH = {"networkx"}


def modules_of(requirements):
    """The modules of the packages that these lines require; an extra of our own stands for what it lists."""
    found = set()
    for line in requirements:
        name, extras = re.match(r"([\w-]+)(?:\[([\w,]+)\])?", line).groups()
        if name == "dagnn":
            found.update(*(modules_of(PROJECT["optional-dependencies"][extra]) for extra in extras.split(",")))
        else:
            found.add(MODULE.get(name, name))
    return found


BASE = modules_of(PROJECT["dependencies"])
EXTRAS = {extra: modules_of(lines) for extra, lines in PROJECT["optional-dependencies"].items()}


BLOCK = """
import sys
from importlib.machinery import PathFinder
missing, find = set(), PathFinder.find_spec
PathFinder.find_spec = lambda name, *rest: None if name.partition(".")[0] in missing else find(name, *rest)
def hide(*modules):
    missing.clear()
    missing.update(modules)
    for name in [name for name in sys.modules if name.partition(".")[0] in missing]:
        del sys.modules[name]
"""


def run_without(missing, code):
    """What a new process prints that runs ``code`` where these modules cannot be imported, and its errors."""
    text = f"{BLOCK}hide(*{sorted(missing)!r})\n{code}"
    done = subprocess.run([sys.executable, "-W", "error", "-c", text], capture_output=True, text=True, check=False)
    return done.stdout.strip(), done.stderr.strip()


ACCUMULATE = """
import torch
import dagnn, dagnn.accumulation, dagnn.lint
assert all(getattr(dagnn.accumulation, name) for name in dagnn.accumulation.__all__)
model = torch.nn.Linear(3, 2, dtype=torch.float64)
batch = torch.randn(7, 3, dtype=torch.float64), torch.randint(2, (7,))
loss_fn = lambda model, batch: torch.nn.functional.cross_entropy(model(batch[0]), batch[1])
assert dagnn.check_equivalence(model, loss_fn, batch).equal
accumulator = dagnn.GradientAccumulator(model, torch.optim.SGD(model.parameters(), lr=0.1), max_norm=1.0)
for window in accumulator.windows([batch] * 3, micro_batches=2):
    for micro in window:
        window.backward(loss_fn(model, micro))
    update = window.step()
dagnn.accumulate(model, loss_fn, batch, micro_batch_size=2)
print("steps", update.step)
"""


NETWORKS = """
import importlib, torch, dagnn, dagnn.cli
for package in "accumulation data drawing export graph kernels lint nn training visible".split():
    module = importlib.import_module("dagnn." + package)
    for name in getattr(module, "__all__", ()):
        if name not in ("DagClassifier", "DagRegressor", "DagSurvival"):
            getattr(module, name)
net = dagnn.DagNN(dagnn.Dag([("a", "c"), ("b", "c")]))
net(torch.ones(1, 2)).sum().backward()
dagnn.cli.main(["--version"])
"""


FILES = "import tempfile, pathlib; folder = pathlib.Path(tempfile.mkdtemp()); "
NET = "import dagnn; net = dagnn.DagNN(dagnn.Dag([('a', 'b')])); "
NEEDS = [
    ("ged", "numba", "import dagnn.ged"),
    ("ged", "scipy", "from dagnn import graph_edit_distance"),
    ("answers", "numba", "import dagnn.answers"),
    ("rewriting", "numba", "from dagnn import GraphRewriter"),
    ("rewriting", "scipy", "import dagnn.rewriting"),
    ("curriculum", "flint", "from dagnn.curriculum import parse"),
    ("curriculum", "numba", "import dagnn.curriculum"),
    ("plot", "matplotlib", FILES + NET + "net.draw(folder / 'net.png')"),
    ("text", "regex", "import dagnn; dagnn.Dag.from_text('ab')"),
    ("export", "onnx", FILES + NET + "net.export(folder / 'net.onnx')"),
    ("export", "flint", FILES + NET + "net.export(folder / 'net.c', weights='int8', within=(-1, 1))"),
    ("tensorboard", "tensorboard", FILES + "from dagnn.training.log import write_tensorboard as w; w([], folder)"),
    ("visible", "sklearn", "from dagnn.visible import DagClassifier"),
    ("visible", "obonet", FILES + "f = folder / 'a.obo'; f.write_text(''); import dagnn.visible as v; v.read_obo(f)"),
    ("visible", "pydot", FILES + "f = folder / 'a.dot'; f.write_text(''); import dagnn.visible as v; v.read_graph(f)"),
    ("visible", "pyarrow", FILES + "f = folder / 'a.parquet'; f.touch(); import dagnn.visible as v; v.read_edges(f)"),
    ("visible", "scipy", "import dagnn.visible as v; v.read_sparse([[1]], ['a'], ['b'])"),
    ("transformers", "transformers", "import dagnn.integrations.transformers"),
    ("lightning", "lightning", "import dagnn.integrations.lightning"),
]


@pytest.fixture(scope="module")
def told():
    """The lines that a new process prints, and its errors, that hides fewer and fewer modules; one: each takes seconds.

    What stands first has less, so no later part finds imported what it may not import itself.
    """
    extras = set().union(*EXTRAS.values())
    alone = sorted((BASE | extras) - {"torch", "numpy"} - OF_TORCH)
    code = f"""
exec({ACCUMULATE!r}, {{}})
hide(*{sorted(extras - BASE)!r})
exec({NETWORKS!r}, {{}})
import json
for extra, module, code in {NEEDS!r}:
    hide(module)
    try:
        exec(code, {{}})
        told = "nothing"
    except Exception as error:
        told = f"{{type(error).__name__}}: {{error}}"
    print(json.dumps([extra, module, told]))
"""
    out, errors = run_without(alone, code)
    return out.splitlines(), errors


@pytest.mark.fault("docs_and_packaging", 14)
def test_accumulation_needs_torch_and_numpy_alone(told):
    lines, errors = told
    assert lines[:1] == ["steps 2"], errors


def test_networks_trainer_and_command_need_the_base_alone(told):
    lines, errors = told
    assert lines[1:2] == [f"dagnn {dagnn.__version__}"], errors


@pytest.mark.fault("docs_and_packaging", 14)
@pytest.mark.parametrize(("extra", "module"), [need[:2] for need in NEEDS])
def test_a_missing_package_is_named_with_its_extra(told, extra, module):
    lines, errors = told
    assert len(lines) == 2 + len(NEEDS), errors
    text = {(extra, module): text for extra, module, text in map(json.loads, lines[2:])}[extra, module]

    assert re.match(rf"MissingPackageError: .* needs? {module} \(No module named '{module}", text), text
    assert text.endswith(f'pip install "dagnn[{extra}]".')
    assert module in EXTRAS[extra]


def test_every_package_of_an_extra_is_missed_by_name():
    tested = {(extra, module) for extra, module, _ in NEEDS}
    not_missed = {"all", "triton"}  # other extras; without triton, networks on a GPU run as plain PyTorch
    of_others = {("curriculum", "matplotlib"), ("curriculum", "scipy"), ("transformers", "accelerate")}

    listed = {(extra, module) for extra, modules in EXTRAS.items() if extra not in not_missed for module in modules}

    assert listed == tested | of_others
    assert EXTRAS["all"] == set().union(
        *(EXTRAS[extra] for extra in EXTRAS.keys() - {"transformers", "lightning", "triton"})
    )


def test_the_command_names_the_extra_on_one_line():
    code = "import dagnn.cli; sys.exit(dagnn.cli.main(['generate', '--level', '1']))"

    _, told = run_without({"flint"}, code)

    assert told.startswith("dagnn: dagnn.curriculum needs flint (No module named 'flint'): pip install")


def test_everything_imported_is_required_somewhere():
    required = BASE | set().union(*EXTRAS.values())
    ours_or_pythons = {"dagnn", *sys.stdlib_module_names}
    asked_for_by_name = {"pytest", "torch_geometric", "pandas", "rdkit"}  # what only their users meet
    imported = set()
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                imported |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                imported.add(node.module.partition(".")[0])
            elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("library", "importlib.import_module"):
                imported |= {str(arg.value).partition(".")[0] for arg in node.args[:1] if isinstance(arg, ast.Constant)}

    assert imported - ours_or_pythons - asked_for_by_name - required == set()
    assert required - imported == {"accelerate", "tensorboard"}  # which transformers and torch import


def test_a_missing_package_is_an_import_error_too():
    with pytest.raises(ImportError, match=r'^a tea needs pot \(No module named .pot.\): pip install "dagnn\[t\]"\.$'):
        check_installed("a tea", "dagnn[t]", "torch", "pot")
    with pytest.raises(MissingPackageError) as caught:
        library("teapot.spout", "a tea", "teapot")
    assert caught.value.name == "teapot"


def test_the_page_lists_every_extra_and_the_floors():
    page = (ROOT / "docs" / "how_to" / "install.md").read_text()
    table = page.partition("## What is in which extra")[2].partition("##")[0]
    listed = {name for row in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)}
    floors = dict(re.findall(r"(torch|numpy)>=([\d.]+)", " ".join(PROJECT["dependencies"])))

    assert listed == EXTRAS.keys()
    assert f"Python {PROJECT['requires-python'].removeprefix('>=')} or newer" in page
    assert f"PyTorch {floors['torch']} or newer, NumPy {floors['numpy']} or newer" in page
