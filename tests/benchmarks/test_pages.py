"""What pages say of benchmarks comes from rows: plots, tables, commands and dates."""

import importlib.util
import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def pages():
    spec = importlib.util.spec_from_file_location("benchmark_pages", ROOT / "scripts" / "benchmark_pages.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_plots_and_tables_are_what_the_rows_say(pages):
    assert [path.relative_to(ROOT).as_posix() for path, text in pages.made() if path.read_text() != text] == []


@pytest.mark.fault("docs_and_packaging", 21)
def test_every_file_of_rows_has_its_command_and_date_and_is_on_a_page(pages):
    shown = {name for page in pages.DOCS.rglob("*.md") for name in re.findall(r"<!-- rows (\w+) -->", page.read_text())}
    for path in pages.ROWS.glob("*.json"):
        found = json.loads(path.read_text())
        assert re.fullmatch(r"20\d\d-\d\d-\d\d", found["date"])
        program, *words = found["command"].split()
        if program == "python":
            named = words[1].replace(".", "/") if words[0] == "-m" else words[0].removesuffix(".py")
            assert (ROOT / f"{named}.py").exists() or (ROOT / named / "__main__.py").exists()
        else:
            assert program == "dagnn"
    assert shown == {path.stem for path in pages.ROWS.glob("*.json")}


def test_a_bar_ends_where_its_ratio_is(pages):
    row = {"against": "a", "lowest": None, "highest": None, "required": None}
    text = pages.plot({"claim": "c", "rows": [row | {"case": "x", "ratio": r} for r in (10.0, 100.0, 0.1)]})
    bars = re.findall(r'<rect x="([\d.]+)" y="[\d.]+" width="([\d.]+)" .* fill="(.*)"', text)
    (ten, hundred, tenth) = [(float(x), float(width), colour) for x, width, colour in bars]
    assert ten[0] == hundred[0] and hundred[1] == pytest.approx(2 * ten[1], abs=0.2)
    assert tenth[0] + tenth[1] == pytest.approx(ten[0], abs=0.2) and tenth[2] != ten[2]


def test_a_table_has_three_digits_and_leaves_out_what_is_not_known(pages):
    row = {"case": "x", "against": "a", "ratio": 1234.5, "lowest": 0.9876, "highest": 12.345, "required": None}
    assert pages.table({"rows": [row]})[2:] == ["| x | a | 1,234 | 0.988 .. 12.3 |  |"]
