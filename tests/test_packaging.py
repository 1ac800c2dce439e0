"""`make` on a machine that it has not met: the Python is looked at first, and torch for the CPU is found."""

import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="needs make")


@pytest.fixture
def checkout(tmp_path):
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    return tmp_path


def make(folder, *arguments):
    return subprocess.run(["make", *arguments], cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.fault("docs_and_packaging", 9)
def test_an_old_python_is_told_at_once_and_leaves_nothing_behind(checkout):
    old = checkout / "old-python"
    patch = "import sys; sys.version_info = (3, 10, 1); sys.version = '3.10.1 (main)'; exec(sys.argv[1])"
    old.write_text(f'#!/bin/sh\nshift\nexec {sys.executable} -c "{patch}" "$@"\n')
    old.chmod(old.stat().st_mode | stat.S_IXUSR)

    done = make(checkout, "install", f"PYTHON={old}")

    assert done.returncode != 0 and not (checkout / ".venv").exists()
    assert done.stderr.startswith(f"dagnn needs Python 3.11 or newer, and {old} is 3.10.1: name another, such as make")


@pytest.mark.fault("docs_and_packaging", 8)
@pytest.mark.parametrize(
    ("arguments", "told"), [([], sys.platform == "linux"), (["TORCH_INDEX="], False), (["TORCH_INDEX=here"], True)]
)
def test_torch_for_the_cpu_is_looked_for_where_it_is(checkout, arguments, told):
    done = make(checkout, "-n", "install", f"PYTHON={sys.executable}", *arguments)

    assert done.returncode == 0, done.stderr
    assert ("--extra-index-url" in done.stdout) == told
    assert "CUDA" in (ROOT / "docs" / "index.md").read_text()
