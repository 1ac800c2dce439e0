"""The pages about other people's trainers: their blocks run as printed, where the library is installed."""

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
BLOCK = re.compile(r"^```py\n(.*?)^```$", re.DOTALL | re.MULTILINE)
PAGES = [
    ("how_to/your_trainer.md", ("transformers", "accelerate")),
    ("how_to/your_lightning_module.md", ("lightning", "accelerate")),
]


@pytest.mark.parametrize(("page", "needs"), PAGES)
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning", "ignore::FutureWarning")
def test_blocks_run_as_the_page_says(page, needs, tmp_path, monkeypatch):
    for library in needs:
        pytest.importorskip(library, reason=f"needs {library}")
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "__main__"}

    blocks = BLOCK.findall((DOCS / page).read_text())
    for block in blocks:
        exec(compile(block, page, "exec"), names)

    assert blocks
