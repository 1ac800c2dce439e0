"""Builds what is uploaded, twice, and looks at it: the same bytes, the right files, metadata that an index takes.

    python scripts/check_release.py [--tag v0.1.0]      needs `pip install build twine`; leaves dist/

The wheel of one commit has the same bytes on every machine: its times are that of the commit (SOURCE_DATE_EPOCH).
"""

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
IN_SOURCE = ("LICENSE", "README.md", "CHANGELOG.md", "CITATION.cff", "Makefile", "docs/index.md", "tests/conftest.py")
IN_WHEEL = ("dagnn/py.typed", "dagnn/drawing/page.html", "dagnn/drawing/page.js", "dagnn/drawing/page.css")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--tag", help="must be v and the version")
    tag = parser.parse_args().tag
    version = re.findall(r'^__version__ = "(.+)"', (ROOT / "src/dagnn/__init__.py").read_text(), re.MULTILINE)[0]
    _require(tag in (None, f"v{version}"), f"the tag is {tag}, the version {version}")
    cited = re.findall(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    _require(cited == [version], f"CITATION.cff has version {cited}, not {version}")
    if tag is not None:
        _require(f"## [{version}]" in (ROOT / "CHANGELOG.md").read_text(), f"CHANGELOG.md has no section [{version}]")

    commit = subprocess.run(["git", "log", "-1", "--format=%ct"], cwd=ROOT, capture_output=True, text=True, check=True)
    os.environ["SOURCE_DATE_EPOCH"] = commit.stdout.strip()
    dist = ROOT / "dist"
    shutil.rmtree(dist, ignore_errors=True)
    built = [_build(dist), _build(Path(tempfile.mkdtemp()))]
    wheels = [next(folder.glob("*.whl")) for folder in built]
    sums = [hashlib.sha256(wheel.read_bytes()).hexdigest() for wheel in wheels]
    _require(sums[0] == sums[1], "two builds gave two wheels")

    (source,) = dist.glob("*.tar.gz")
    with tarfile.open(source) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    for name in IN_SOURCE:
        _require(name in names, f"{source.name} has no {name}")
    with zipfile.ZipFile(wheels[0]) as archive:
        inside = set(archive.namelist())
    code = {str(path.relative_to(ROOT / "src")) for path in (ROOT / "src").rglob("*.py")}
    for name in sorted({*IN_WHEEL, *(each.replace(os.sep, "/") for each in code)}):
        _require(name in inside, f"{wheels[0].name} has no {name}")
    _require(not any("__pycache__" in name for name in (*names, *inside)), "compiled files are in what is uploaded")
    subprocess.run([sys.executable, "-m", "twine", "check", "--strict", source, wheels[0]], check=True)
    for path, digest in ((wheels[0], sums[0]), (source, hashlib.sha256(source.read_bytes()).hexdigest())):
        print(f"{path.relative_to(ROOT)}  {path.stat().st_size:,} bytes  sha256 {digest}")


def _build(out: Path) -> Path:
    # In a copy of what git tracks: what lies around is in no release.
    with tempfile.TemporaryDirectory() as folder:
        tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
        for name in filter(None, tracked.stdout.split("\0")):
            target = Path(folder) / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, target)
        subprocess.run([sys.executable, "-m", "build", "--outdir", out, folder], check=True, stdout=subprocess.DEVNULL)
    return out


def _require(holds: bool, problem: str) -> None:
    if not holds:
        sys.exit(f"check_release: {problem}.")


if __name__ == "__main__":
    main()
