"""`dagnn answers`: learned from a file or random answers, judged, saved and asked; one line for what goes wrong."""

from pathlib import Path

import pytest

from dagnn.answers import ARITHMETIC, Learned
from dagnn.cli import main

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture(scope="module")
def sums(tmp_path_factory):
    """Sums in a file, and what was learned from them."""
    folder = tmp_path_factory.mktemp("sums")
    lines = [",".join((*question, answer)) for question, answer in ARITHMETIC["+"].pairs(6000, longest=3, seed=2)]
    (folder / "sums.csv").write_text("\n".join(lines) + "\n\n")
    return folder


def test_learned_from_a_file_it_is_certified_judged_and_asked(sums, capsys):
    out = sums / "plus.safetensors"
    code = main(["answers", "learn", "add", str(out), "--pairs", str(sums / "sums.csv"), "--lengths", "10", "50"])
    text = capsys.readouterr().out
    assert code == 0
    assert "6,000 answers used" in text
    assert "right for every length" in text
    assert "length 50: 100 of 100 right" in text

    assert main(["answers", "ask", str(out), "98765432109876543210", "5"]) == 0
    assert capsys.readouterr().out == "98765432109876543215\n"

    learned = Learned.load(out, ARITHMETIC["+"].operation)
    assert learned.certificate().holds
    assert learned.certificate().answers == 6000


def test_too_few_answers_give_exit_code_1_and_no_claim(sums, capsys):
    out = str(sums / "few.safetensors")
    assert main(["answers", "learn", "add", out, "--count", "20", "--lengths", "4"]) == 1
    assert "no claim" in capsys.readouterr().out


def test_an_operation_in_a_file_is_learned_and_asked(tmp_path, capsys):
    out, example = str(tmp_path / "binary.safetensors"), str(EXAMPLES / "answers_binary.py")
    assert main(["answers", "learn", example, out, "--count", "400", "--lengths", "100"]) == 0
    assert "8 cell inputs" in capsys.readouterr().out
    assert main(["answers", "ask", out, "yy", "y", "--operation", example]) == 0
    assert capsys.readouterr().out == "ynn\n"
    assert main(["answers", "ask", out, "yy", "y"]) == 2
    assert "holds 'binary +'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["learn", "power", "out"], "no operation 'power': give one of add, subtract, multiply, divide, gcd"),
        (["learn", "add", "out", "--pairs", "none.csv"], "none.csv cannot be read as CSV"),
        (["learn", "add", "out", "--pairs", "bad.csv"], "bad.csv, line 2 has 2 columns, expected 2 for the question"),
        (["learn", "add", "out", "--wrong", "2"], "a part from 0 to 1"),
        (["learn", "empty.py", "out"], "empty.py has no OPERATION"),
        (["ask", "bad.csv", "1", "2"], "is no learned operation that Learned.save wrote"),
    ],
)
def test_what_is_wrong_is_one_line(arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("bad.csv").write_text("1,2,03\n1,2\n")
    Path("empty.py").write_text("")
    assert main(["answers", *arguments]) == 2
    assert message in capsys.readouterr().err
