"""``dagnn check``: exit codes and output."""

import pytest

from dagnn.commands.check import run_check

FILE = """
import torch
from dagnn.accumulation.check import check_equivalence

def mean(model, batch):
    return torch.nn.functional.mse_loss(model(batch[0]), batch[1])

def arguments(reduction="mean"):
    torch.manual_seed(0)
    return {
        "model": torch.nn.Linear(40, 2),
        "batch": (torch.randn(32, 40), torch.randn(32, 2)),
        "loss_fn": lambda model, batch: torch.nn.functional.mse_loss(model(batch[0]), batch[1], reduction=reduction),
    }

def right():
    return arguments()

def wrong():
    return arguments("sum")

def as_report():
    return check_equivalence(**arguments())

def loop():
    def train_step(model, optimizer, micro_batches):
        for i, (x, y) in enumerate(micro_batches):
            torch.nn.functional.mse_loss(model(x), y).backward()
            if (i + 1) % 4 == 0 or i + 1 == len(micro_batches):
                optimizer.step()
                optimizer.zero_grad()
    return arguments() | {"train_step": train_step}

def one_item():
    return arguments() | {"batch": (torch.randn(1, 40), torch.randn(1, 2))}

def broken():
    raise KeyError("x")

def nothing():
    return None
"""


@pytest.fixture
def run(tmp_path, capsys):
    file = tmp_path / "loops.py"
    file.write_text(FILE)

    def call(function):
        code = run_check(f"{file}:{function}")
        return code, *capsys.readouterr()

    return call


def test_equal_is_0(run):
    for function in ("right", "as_report"):
        code, out, err = run(function)
        assert (code, err) == (0, "")
        assert out.startswith("EQUAL")


def test_not_equal_is_1_and_names_cause_and_line(run):
    code, out, _ = run("wrong")
    assert code == 1 and "NOT EQUAL to the full batch: sum loss." in out
    code, out, _ = run("loop")
    assert code == 1 and "not scaled" in out
    backward = "torch.nn.functional.mse_loss(model(x), y).backward()"
    number = 1 + [line.strip() for line in FILE.splitlines()].index(backward)
    assert f"loops.py:{number}: {backward}" in out


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("one_item", "dagnn check: the batch has 1 item"),
        ("broken", "raised KeyError: 'x'"),
        ("nothing", "it returned NoneType"),
        ("missing", "has no function 'missing'"),
        ("not a name", "give the check as path/to/file.py:function"),
    ],
)
def test_could_not_run_is_2_with_one_line(run, function, message):
    code, out, err = run(function)
    assert (code, out) == (2, "")
    assert message in err and err.count("\n") == 1


@pytest.mark.parametrize("body", ["raise SystemExit(7)", "def f():\n    raise SystemExit(7)"])
def test_file_that_ends_the_program_is_2(body, tmp_path, capsys):
    file = tmp_path / "b.py"
    file.write_text(body)
    assert run_check(f"{file}:f") == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1
    assert "b.py:f ended the program with SystemExit(7): put what runs the script below if __name__" in err


def test_missing_file_is_2(capsys):
    assert run_check("nowhere.py:f") == 2
    assert "there is no file nowhere.py" in capsys.readouterr().err
