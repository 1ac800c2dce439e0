"""`dagnn train --task`: tasks of the user's own, as docs/how_to/your_own_task.md shows them."""

import json
import random
import re
import sys
from pathlib import Path

import pytest
import torch

from dagnn.cli import main
from dagnn.commands import users_errors
from dagnn.data import Record, write_records
from dagnn.training import read_metrics
from dagnn.training.run.checkpoint_commands import checkpoint_of

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "how_to" / "your_own_task.md").read_text()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with the files of the page, and what the page's table might hold."""
    for name, text in re.findall(r"```\w+\n# (\S+)\n(.*?)```", PAGE, re.DOTALL):
        (tmp_path / name).write_text(text)
    x = torch.randn(128, 3, generator=torch.Generator().manual_seed(0))
    rows = torch.cat([x, x @ torch.tensor([[1.0], [-2.0], [0.5]])], 1).tolist()
    (tmp_path / "table.csv").write_text("".join(",".join(map(str, row)) + "\n" for row in rows))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "my_tasks", raising=False)
    yield tmp_path
    sys.modules.pop("my_tasks", None)


@pytest.fixture
def fails(capsys):
    def run(*arguments):
        assert main(arguments) == 2
        err = capsys.readouterr().err.strip().splitlines()
        return err[-1].removeprefix("dagnn: ")

    return run


def weights(run):
    return checkpoint_of(run).tensors["model"]


@pytest.mark.fault("docs_and_packaging", 17)
def test_a_rewriting_system_is_trained_tested_and_evaluated_again(folder, capsys):
    assert main(["train", "--task", "my_tasks:addition", "--config", "addition.toml"]) == 0
    printed = capsys.readouterr().out

    assert printed == (
        "9 distinct neighbourhoods in 200 terms\nstep                60\naccuracy, depth 4   1\n"
        "accuracy, depth 8   1\naccuracy, depth 12  1\n"
    )
    rows = read_metrics("runs/addition/metrics.jsonl")
    assert [row["accuracy"] for row in rows if row["kind"] == "evaluation"] == [1.0, 1.0]
    assert [row["windows_wrong"] for row in rows if row["kind"] == "evaluation"] == [0.0, 0.0]
    kept = json.loads(Path("runs/addition/results.json").read_bytes())
    assert main(["evaluate", "runs/addition", "--task", "my_tasks:addition", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == kept
    assert list(kept) == ["step", "accuracy, depth 4", "accuracy, depth 8", "accuracy, depth 12"]


def test_a_network_that_has_learned_nothing_is_said_to_be_wrong(folder, capsys):
    flags = ["--max-steps", "1", "--schedule.warmup-steps", "0", "--optimizer.lr", "1e-6", "--task.test-terms", "20"]
    assert main(["train", "--task", "my_tasks:addition", "--config", "addition.toml", *flags]) == 0

    results = json.loads(Path("runs/addition/results.json").read_bytes())
    (row,) = (row for row in read_metrics("runs/addition/metrics.jsonl") if row["kind"] == "evaluation")
    assert results["accuracy, depth 12"] < 0.5
    assert row["accuracy"] == 0.0 and row["windows_wrong"] > 0.5


def test_a_stopped_training_goes_on_to_the_bit(folder):
    train = ["train", "--task", "my_tasks:addition"]
    # The evaluation at step 6 finds mistakes, which are drawn more often from then on.
    flags = ["--config", "addition.toml", "--schedule.name", "constant", "--eval-every", "6", "--optimizer.lr", "1e-3"]
    assert main([*train, *flags, "--max-steps", "12", "--run-directory", "whole"]) == 0
    assert main([*train, *flags, "--max-steps", "6", "--run-directory", "parts"]) == 0
    assert main([*train, "--resume", "parts", "--max-steps", "12"]) == 0

    whole, parts = weights("whole"), weights("parts")
    assert all(torch.equal(whole[name], parts[name]) for name in whole)
    results = [json.loads(Path(run, "results.json").read_bytes()) for run in ("whole", "parts")]
    assert results[0] == results[1]
    (first, _) = (row for row in read_metrics("whole/metrics.jsonl") if row["kind"] == "evaluation")
    assert first["windows_wrong"] > 0


def test_any_model_is_trained_by_a_function_that_makes_it(folder, capsys):
    assert main(["train", "--task", "my_tasks:regression", "--config", "regression.toml"]) == 0
    _, last = capsys.readouterr().out.splitlines()

    assert re.match(r"mean squared error  \S+$", last)
    assert float(last.split()[-1]) < 1e-4
    found = weights("runs/regression")["weight"]
    torch.testing.assert_close(found, torch.tensor([[1.0, -2.0, 0.5]]), atol=0.01, rtol=0)
    assert main(["train", "--task", "my_tasks:regression", "--resume", "runs/regression", "--max-steps", "220"]) == 0
    assert json.loads(Path("runs/regression/results.json").read_bytes())["step"] == 220


@pytest.mark.fault("docs_and_packaging", 17)
def test_terms_and_answers_come_from_a_dataset(folder, capsys):
    def number(n):
        return f"(next {number(n - 1)})" if n else "zero"

    draw, records = random.Random(0), []
    for place in range(120):
        a, b, split = draw.randint(0, 4), draw.randint(0, 4), ("train", "validation", "test")[place % 3]
        # The last answer of the test split is wrong, so one of 40 must be found wrong.
        answer = number(a + b + (place == 119)) if place % 2 else ""
        records.append(Record(str(place), 1, f"(plus {number(a)} {number(b)})", answer, split))
    write_records("sums.jsonl", records)
    flags = ["--task.dataset", "sums.jsonl", "--run-directory", "sums"]

    assert main(["train", "--task", "my_tasks:addition", "--config", "addition.toml", *flags]) == 0

    assert capsys.readouterr().out.splitlines()[1:] == ["step            60", "accuracy, test  0.975"]


@pytest.mark.parametrize(
    ("record", "told"),
    [
        (Record("a", 1, "(plus zero", "", "train"), r"sums.jsonl: record 'a': '\(plus zero' is no term"),
        (Record("a", 1, "(plus zero one)", "", "train"), "sums.jsonl: record 'a': .*'one'"),
        (Record("a", 1, "(plus zero zero) zero", "", "train"), "is no term: write one as"),
        (Record("a", 1, ")", "", "train"), "is no term: write one as"),
        (Record("a", 1, "zero", "", "dev"), "record 'a' has split 'dev': give one of train, validation, test"),
        (Record("a", 1, "zero", "", "train"), "sums.jsonl has no record of split 'validation'"),
    ],
)
def test_a_dataset_that_does_not_fit_is_refused(folder, fails, record, told):
    write_records("sums.jsonl", [record])

    assert re.search(told, fails("train", "--task", "my_tasks:addition", "--task.dataset", "sums.jsonl"))
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("task", "told"),
    [
        ("my_tasks.py:addition", "--task must be MODULE:NAME, such as my_tasks:arithmetic, got 'my_tasks.py:addition'"),
        ("my_tasks", "--task must be MODULE:NAME"),
        ("nothing_here:addition", "--task nothing_here:addition: there is no module 'nothing_here', neither in /"),
        ("my_tasks:subtraction", "--task my_tasks:subtraction: the module my_tasks has no 'subtraction'."),
        ("my_tasks:SIGNATURE", "expected a RewritingTask or a function that returns a TrainingTask, got a Signature"),
        ("my_tasks:number", r"--task my_tasks:number: TypeError: .* \(my_tasks.py, line \d+\)\.$"),
        ("broken:task", r"--task broken:task: ZeroDivisionError: division by zero \(broken.py, line 1\)\.$"),
        ("lacking:task", r"--task lacking:task: ModuleNotFoundError: No module named 'absent' \(.*\)\.$"),
        ("odd:task", r"--task odd:task: it must return a TrainingTask, got a int\.$"),
    ],
)
def test_a_task_that_cannot_be_used_is_refused_on_one_line(folder, fails, task, told):
    (folder / "broken.py").write_text("1 / 0\n")
    (folder / "lacking.py").write_text("import absent\n")
    (folder / "odd.py").write_text("def task(config):\n    return 3\n")

    assert re.search(told, fails("train", "--task", task))
    assert not Path("runs").exists()
    for name in ("broken", "lacking", "odd"):
        sys.modules.pop(name, None)


def test_no_file_and_no_variable_names_a_module(folder, fails, monkeypatch):
    (folder / "trap.py").write_text("open('sprung', 'w').close()\n")
    (folder / "trap.toml").write_text('task = "trap:task"\n')
    monkeypatch.setenv("DAGNN_TASK", "trap:task")

    assert "trap" not in sys.modules
    fails("train", "--config", "trap.toml")
    fails("train", "--task", "my_tasks:addition", "--config", "trap.toml")
    assert main(["train", "--task", "my_tasks:addition", "--config", "addition.toml", "--dry-run"]) == 0
    assert not Path("sprung").exists()
    assert "trap" not in sys.modules


@pytest.mark.parametrize("option", [["--finer"], ["--expressions", "9"], ["--depth", "2"], ["--split", "validation"]])
def test_an_evaluation_of_an_own_task_refuses_what_is_asked_of_levels(fails, option):
    told = fails("evaluate", "runs/x", "--task", "my_tasks:addition", *option)
    assert "--task goes with RUN and --json alone" in told


def test_a_run_without_its_task_says_what_is_missing(folder, fails):
    assert main(["train", "--task", "my_tasks:addition", "--config", "addition.toml", "--max-steps", "10"]) == 0
    needs = (
        "runs/addition is the run of a task of its user's own: dagnn train and dagnn evaluate need its --task MODULE"
    )

    assert fails("train", "--resume", "runs/addition").startswith(needs)
    assert fails("report", "runs/addition").startswith(needs)
    assert fails("evaluate", "runs/addition").startswith(needs)
    assert fails("train", "--config", "addition.toml") == (
        "[task] in the settings is of a task of your own: add --task MODULE:NAME."
    )
    assert main(["info", "runs/addition"]) == 0
    assert main(["metrics", "runs/addition"]) == 0


FAILING = """
import decimal, torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
from dagnn.rewriting import RewritingTask
from dagnn.training import TrainingTask
import my_tasks

class Broken(Dataset):
    def __len__(self):
        return 4
    def __getitem__(self, index):
        raise ValueError("no such item")  # line 12

def batches():
    yield torch.ones(2, 1)
    open("nothing_here.csv")  # line 16

def task(**parts):
    model = nn.Linear(1, 1)
    given = dict(model=model, loss_fn=lambda m, b: m(b).mean(), loader=[torch.ones(2, 1)])
    return lambda config: TrainingTask(**{**given, **parts})

def fails(*_):
    return nn.Linear(2, 1)(torch.ones(1))  # line 24

def rule(*_):
    return {}["label"]  # line 27

loss, evaluation, testing, weight = (task(**{name: fails}) for name in ("loss_fn", "evaluate", "test", "weight"))
loader, worker = task(loader=batches()), task(loader=DataLoader(Broken(), num_workers=1))
leaves = task(loss_fn=lambda *_: exit(3))  # line 31
rules = RewritingTask(my_tasks.SIGNATURE, rule, my_tasks.term, my_tasks.is_right, depth=4)
weights = task(loss_fn=lambda m, b: {"a": (m(b).mean(), "x")})
text, no_model, no_evaluation, no_test = task(loss_fn="x"), task(model="x"), task(evaluate="x"), task(test="x")
nothing, listed = task(test=lambda m: None), task(test=lambda m: [1])
word, three = task(test=lambda m: {"a": "0.5"}), task(test=lambda m: {"a": torch.ones(3)})
signaling, step = task(test=lambda m: {"a": decimal.Decimal("sNaN")}), task(test=lambda m: {"step": 5})
twice = task(test=lambda m: {1: 5, "1": 6})
"""


@pytest.mark.parametrize(
    ("task", "told"),
    [
        ("loss", r"RuntimeError: mat1 and mat2 .* \(failing.py, line 24\)\.$"),
        ("evaluation", r"RuntimeError: mat1 and mat2 .* \(failing.py, line 24\)\.$"),
        ("testing", r"RuntimeError: mat1 and mat2 .* \(failing.py, line 24\)\.$"),
        ("weight", r"RuntimeError: mat1 and mat2 .* \(failing.py, line 24\)\.$"),
        ("loader", r"FileNotFoundError: .*'nothing_here.csv' \(failing.py, line 16\)\.$"),
        ("worker", r"failing:worker: ValueError: no such item \(failing.py, line 12\)\.$"),
        ("leaves", r"SystemExit: 3 \(failing.py, line 31\)\.$"),
        ("rules", r"KeyError: 'label' \(failing.py, line 27\)\.$"),
        ("weights", "weight must be a number of items, got str: 'x'"),
        ("text", "loss_fn must be a function, got str: 'x'"),
        ("no_model", "model must be an nn.Module, got str"),
        ("no_evaluation", "evaluate must be a function, got str: 'x'"),
        ("no_test", "test must be a function, got str: 'x'"),
        ("nothing", "failing:nothing: test returned a NoneType: return numbers by name"),
        ("listed", "test returned a list: return numbers by name"),
        ("word", "failing:word: test's a is '0.5', a str: it must be a number"),
        ("three", r"test's a is tensor\(\[1., 1., 1.\]\), a Tensor: it must be a number"),
        ("signaling", r"test's a is Decimal\('sNaN'\), a Decimal: it must be a number"),
        ("step", "a number called 'step', and results.json has the step of the training under that name"),
        ("twice", "a number called '1', and results.json holds another under that name"),
    ],
)
def test_an_error_of_the_user_ends_on_one_line_with_its_place(folder, fails, task, told):
    (folder / "failing.py").write_text(FAILING.removeprefix("\n"))
    flags = ["--run-directory", "run", "--max-steps", "1", "--batch-size", "2", "--schedule.name", "constant"]

    assert re.search(told, fails("train", "--task", f"failing:{task}", *flags))
    sys.modules.pop("failing", None)


@pytest.mark.parametrize(("mistake", "kind"), [("1 / 0", ZeroDivisionError), ("exit(143)", SystemExit)])
def test_a_mistake_of_ours_keeps_its_traceback_and_a_signal_its_code(mistake, kind):
    text = f"with users_errors('--task x:y', 'x'):\n    {mistake.replace('exit', 'raise SystemExit')}"
    with pytest.raises(kind):
        exec(compile(text, checkpoint_of.__code__.co_filename, "exec"), {"users_errors": users_errors})
