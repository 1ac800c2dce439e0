"""`make` on a machine that it has not met: Python is looked at first, torch for the CPU is found; what is uploaded."""

import os
import re
import shutil
import stat
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import dagnn

ROOT = Path(__file__).resolve().parent.parent
needs_make = pytest.mark.skipif(shutil.which("make") is None, reason="needs make")


@pytest.fixture
def checkout(tmp_path):
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    return tmp_path


def make(folder, *arguments):
    return subprocess.run(["make", *arguments], cwd=folder, capture_output=True, text=True, check=False)


@needs_make
@pytest.mark.fault("docs_and_packaging", 9)
def test_an_old_python_is_told_at_once_and_leaves_nothing_behind(checkout):
    old = checkout / "old-python"
    patch = "import sys; sys.version_info = (3, 10, 1); sys.version = '3.10.1 (main)'; exec(sys.argv[1])"
    old.write_text(f'#!/bin/sh\nshift\nexec {sys.executable} -c "{patch}" "$@"\n')
    old.chmod(old.stat().st_mode | stat.S_IXUSR)

    done = make(checkout, "install", f"PYTHON={old}")

    assert done.returncode != 0 and not (checkout / ".venv").exists()
    assert done.stderr.startswith(f"dagnn needs Python 3.11 or newer, and {old} is 3.10.1: name another, such as make")


@needs_make
@pytest.mark.fault("docs_and_packaging", 8)
@pytest.mark.parametrize(
    ("arguments", "told"), [([], sys.platform == "linux"), (["TORCH_INDEX="], False), (["TORCH_INDEX=here"], True)]
)
def test_torch_for_the_cpu_is_looked_for_where_it_is(checkout, arguments, told):
    done = make(checkout, "-n", "install", f"PYTHON={sys.executable}", *arguments)

    assert done.returncode == 0, done.stderr
    assert ("--extra-index-url" in done.stdout) == told
    assert "CUDA" in (ROOT / "docs" / "index.md").read_text()


@pytest.mark.fault("docs_and_packaging", 13)
def test_the_readme_reads_the_same_anywhere():
    links = re.findall(r"\]\(([^)]+)\)", (ROOT / "README.md").read_text())

    assert [link for link in links if not link.startswith("https://")] == []


def test_the_citation_has_the_version():
    assert f"\nversion: {dagnn.__version__}\n" in (ROOT / "CITATION.cff").read_text()


def test_two_builds_give_the_same_wheel(tmp_path):
    pytest.importorskip("setuptools", minversion="77", reason="builds the wheel")
    wheels = []
    for build in ("first", "second"):
        folder = tmp_path / build
        shutil.copytree(ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        for name in ("pyproject.toml", "README.md", "LICENSE", "MANIFEST.in"):
            shutil.copy(ROOT / name, folder)
        done = subprocess.run(
            [sys.executable, "-c", "import setuptools.build_meta as backend; print(backend.build_wheel('.'))"],
            cwd=folder,
            env={**os.environ, "SOURCE_DATE_EPOCH": "1600000000"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        wheels.append(folder / done.stdout.splitlines()[-1])

    assert wheels[0].read_bytes() == wheels[1].read_bytes()
    with zipfile.ZipFile(wheels[0]) as archive:
        names = archive.namelist()
    assert {"dagnn/py.typed", "dagnn/cli.py", "dagnn/drawing/page.html"} <= set(names)
    assert not any(part in name for name in names for part in ("__pycache__", "tests/", ".git"))
