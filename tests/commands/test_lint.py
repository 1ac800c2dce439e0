"""``dagnn lint``: paths, forms of output and exit codes."""

import io
import json
import sys

import pytest

from dagnn.cli import main
from dagnn.lint import RULES

WRONG = "opt = torch.optim.SGD(p, 0.1)\nfor x in loader:\n    f(x).backward()\n    opt.step()\n"
RIGHT = WRONG + "    opt.zero_grad()\n"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def lint(capsys, *arguments):
    code = main(["lint", *arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_a_clean_file_is_0(folder, capsys):
    (folder / "a.py").write_text(RIGHT)

    assert lint(capsys, "a.py") == (0, "Nothing found.\n", "")


def test_a_finding_is_1_with_place_reason_and_fix(folder, capsys):
    (folder / "a.py").write_text(WRONG)
    code, out, err = lint(capsys, "a.py")

    assert (code, err) == (1, "")
    assert out.splitlines() == [
        "a.py:4:5: not-zeroed: gradients are never zeroed",
        f"  why  {RULES['not-zeroed'].why}",
        f"  fix  {RULES['not-zeroed'].fix}",
        "1 found in 1 file.",
    ]


def test_a_syntax_error_is_2_and_the_other_files_are_read(folder, capsys):
    (folder / "a.py").write_text("def f(:\n")
    (folder / "b.py").write_text(WRONG)
    code, out, err = lint(capsys, "a.py", "b.py")

    assert code == 2
    assert err == "dagnn lint: a.py:1: no valid Python: invalid syntax.\n"
    assert out.startswith("b.py:4:5: not-zeroed")


def test_bytes_that_are_no_text_are_2(folder, capsys):
    (folder / "a.py").write_bytes(b"x = '\xff'\n")
    code, _, err = lint(capsys, "a.py")

    assert code == 2
    assert err.startswith("dagnn lint: a.py:1: no valid Python: ")


def test_another_encoding_is_read(folder, capsys):
    (folder / "a.py").write_bytes("# coding: latin-1\n# ä\n".encode("latin-1") + WRONG.encode())

    assert lint(capsys, "a.py")[0] == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing.py"], "nothing.py: there is no such file or folder."),
        (["--select", "not-zerod", "--", "."], "there is no rule 'not-zerod': did you mean not-zeroed?"),
        (["--json", "--sarif", "."], "give --json or --sarif, not both."),
        ([], "dagnn lint needs a path: a Python file, a notebook, a folder, or - for standard input."),
    ],
)
def test_wrong_arguments_are_2(folder, capsys, arguments, message):
    code, out, err = lint(capsys, *arguments)

    assert (code, out) == (2, "")
    assert message in err


def test_folders_are_walked_without_hidden_ones_and_environments(folder, capsys):
    for name in ("src/deep/a.py", ".hidden/b.py", ".venv/c.py", "env/d.py", "mine/e.py", "note.txt", "f.py"):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(WRONG)
    (folder / "mine" / "pyvenv.cfg").write_text("")
    _, out, _ = lint(capsys, ".", "--json")

    assert [found["path"] for found in json.loads(out)] == ["f.py", "src/deep/a.py"]


def test_standard_input(folder, capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(WRONG.encode())))
    code, out, _ = lint(capsys, "-")

    assert code == 1
    assert out.startswith("<stdin>:4:5: not-zeroed")


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--select", "not-zeroed"], 1),
        (["--select", "not-scaled", "lost-remainder"], 0),
        (["--ignore", "not-scaled,not-zeroed"], 0),
        (["--select", "not-zeroed", "--ignore", "not-zeroed"], 0),
    ],
)
def test_rules_can_be_chosen(folder, capsys, arguments, code):
    (folder / "a.py").write_text(WRONG)

    assert lint(capsys, "a.py", *arguments)[0] == code


def test_a_notebook_names_cell_and_line(folder, capsys):
    cells = [
        {"cell_type": "markdown", "source": ["# Title"]},
        {"cell_type": "code", "source": ["%matplotlib inline\n", "!pip install torch\n", "import torch"]},
        {"cell_type": "code", "source": "%%bash\nls -l"},
        {"cell_type": "code", "source": WRONG},
    ]
    (folder / "a.ipynb").write_text(json.dumps({"cells": cells}))
    code, out, _ = lint(capsys, "a.ipynb")

    assert code == 1
    assert out.startswith("a.ipynb:cell 4:4:5: not-zeroed")


@pytest.mark.parametrize(
    "text",
    ["{", "[]", '{"cells": 3}', '{"cells": [{}]}', '{"cells": [{"cell_type": "code", "source": 5}]}', "[" * 100_000],
)
def test_what_is_no_notebook_is_2(folder, capsys, text):
    (folder / "a.ipynb").write_text(text)
    code, _, err = lint(capsys, "a.ipynb")

    assert (code, err) == (2, "dagnn lint: a.ipynb:1: no notebook: it must be JSON with a list of cells.\n")


def test_json_has_all_of_a_finding(folder, capsys):
    (folder / "a.py").write_text(WRONG)
    (found,) = json.loads(lint(capsys, "--json", "a.py")[1])

    rule = RULES["not-zeroed"]
    assert found == {
        "path": "a.py",
        "cell": None,
        "line": 4,
        "column": 5,
        "end_line": 4,
        "rule": "not-zeroed",
        "summary": rule.summary,
        "why": rule.why,
        "fix": rule.fix,
    }


def test_sarif_has_what_the_schema_requires(folder, capsys):
    """Of SARIF 2.1.0: version, runs, tool.driver.name, message, and rules that results point at by id and index."""
    (folder / "a.py").write_text(WRONG)
    log = json.loads(lint(capsys, "--sarif", "a.py")[1])

    assert log["version"] == "2.1.0" and log["$schema"].endswith("sarif-2.1.0.json")
    (run,) = log["runs"]
    driver = run["tool"]["driver"]
    assert driver["name"] and [rule["id"] for rule in driver["rules"]] == list(RULES)
    (result,) = run["results"]
    assert driver["rules"][result["ruleIndex"]]["id"] == result["ruleId"] == "not-zeroed"
    assert result["level"] in ("none", "note", "warning", "error") and result["message"]["text"]
    place = result["locations"][0]["physicalLocation"]
    assert place["artifactLocation"] == {"uri": "a.py"}
    assert place["region"] == {"startLine": 4, "startColumn": 5, "endLine": 4}


def test_a_folder_without_findings_is_valid_in_all_forms(folder, capsys):
    assert json.loads(lint(capsys, ".", "--json")[1]) == []
    assert json.loads(lint(capsys, ".", "--sarif")[1])["runs"][0]["results"] == []


def test_an_open_end_of_a_notebook_is_named(folder, capsys):
    cells = [{"cell_type": "code", "source": ["x = 1\n", "for x in l:"]}]
    (folder / "a.ipynb").write_text(json.dumps({"cells": cells}))
    code, _, err = lint(capsys, "a.ipynb")

    assert code == 2 and err.startswith("dagnn lint: a.ipynb:cell 1:2: no valid Python")


@pytest.mark.filterwarnings("default")
def test_code_that_is_too_long_to_follow_is_named(tmp_path, capsys):
    body = "".join(f"    a{i} = f(a{i - 1}, {i})\n" for i in range(2000))
    path = tmp_path / "long.py"
    path.write_text(
        f"opt = torch.optim.SGD(p, 0.1)\nfor x in loader:\n{body}    loss(model(x)).backward()\n    opt.step()\n"
    )
    assert main(["lint", str(path)]) == 0
    assert f"{path}: some of its code is too long to follow" in capsys.readouterr().err
