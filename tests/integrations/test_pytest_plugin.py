"""The fixtures of the pytest plug-in, in a pytest of their own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FILE = """
import torch
from torch.nn.functional import cross_entropy, mse_loss

BATCH = (torch.randn(32, 40), torch.randn(32, 2))

def mean(model, batch):
    return mse_loss(model(batch[0]), batch[1])

def test_mean(assert_equal_gradients):
    assert assert_equal_gradients(torch.nn.Linear(40, 2), mean, BATCH).equal

def test_sum(assert_equal_gradients):
    assert_equal_gradients(torch.nn.Linear(40, 2), lambda m, b: mse_loss(m(b[0]), b[1], reduction="sum"), BATCH)

def test_tokens(assert_equal_gradients):
    batch = (torch.randn(8, 3), torch.tensor([0, 1, -100, -100, -100, 1, 0, 1]))
    loss_fn = lambda m, b: cross_entropy(m(b[0]), b[1])
    assert_equal_gradients(torch.nn.Linear(3, 2), loss_fn, batch, weight=lambda b: (b[1] >= 0).sum())

def test_loop(assert_loop):
    def undivided(model, optimizer, micro_batches):
        for i, batch in enumerate(micro_batches):
            mean(model, batch).backward()
            if (i + 1) % 4 == 0 or i + 1 == len(micro_batches):
                optimizer.step()
                optimizer.zero_grad()

    assert_loop(undivided, torch.nn.Linear(40, 2), BATCH, loss_fn=mean)
"""


@pytest.fixture
def run(tmp_path):
    def call(text):
        (tmp_path / "test_it.py").write_text(text)
        # Blocked by its name and loaded by its module: installed or not, it is there once.
        plugin = ["-p", "no:dagnn", "-p", "dagnn.integrations.pytest_plugin", "-p", "no:cacheprovider"]
        return subprocess.run(
            [sys.executable, "-m", "pytest", "-q", *plugin, "test_it.py"],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
            capture_output=True,
            text=True,
            check=False,
        )

    return call


def test_a_wrong_gradient_fails_with_the_report(run):
    done = run(FILE)

    assert "2 failed, 2 passed" in done.stdout, done.stdout + done.stderr
    assert "NOT EQUAL to the full batch: sum loss." in done.stdout
    assert "NOT EQUAL to the full batch: not scaled." in done.stdout
    assert "change  " in done.stdout and "Traceback" not in done.stdout


def test_nothing_is_imported_for_tests_that_do_not_use_it(run):
    done = run(
        "import sys\n\ndef test_it():\n    assert not {'torch', 'numpy', 'dagnn.accumulation'} & set(sys.modules)\n"
    )

    assert "1 passed" in done.stdout, done.stdout + done.stderr


def test_the_entry_point_names_the_plugin():
    import tomllib

    points = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["pytest11"]

    assert points == {"dagnn": "dagnn.integrations.pytest_plugin"}
