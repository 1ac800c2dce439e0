"""Progress: a bar on a terminal that starts where the run stands, plain lines elsewhere."""

import io
import sys

import pytest
from plain_training import Cycle, config, data, linear, mse

from dagnn.training import RunDirectory, Trainer
from dagnn.training.log import Progress, evaluation_lines


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_elsewhere_one_plain_line_per_interval_and_the_last():
    stream = io.StringIO()
    progress = Progress(1003, stream=stream)
    for step in range(1, 1004):
        progress.step(step, {"level": None, "loss": 0.123456, "lr": 1e-3})
    progress.close()
    lines = stream.getvalue().splitlines()
    assert 1 <= len(lines) <= 51
    assert lines[0].startswith("step 21/1003 loss 0.1235 lr 0.001 left ")
    assert lines[-1].startswith("step 1003/1003 ")
    assert "\r" not in stream.getvalue() and "\x1b" not in stream.getvalue()


def test_short_runs_show_every_step_and_notes():
    stream = io.StringIO()
    progress = Progress(2, stream=stream)
    progress.step(1, {"loss": 1.0})
    progress.note("evaluation at step 1: accuracy 0.5")
    progress.step(2, {"level": 3, "loss": 1.0})
    lines = stream.getvalue().splitlines()
    assert [line.rpartition(" left")[0] for line in lines] == ["step 1/2 loss 1", "", "step 2/2 level 3 loss 1"]
    assert lines[1] == "evaluation at step 1: accuracy 0.5"


def test_terminal_bar_starts_at_the_step_resumed_from():
    stream = Terminal()
    progress = Progress(100, step=40, stream=stream)
    progress.step(41, {"loss": 0.5})
    progress.note("a note")
    progress.close()
    told = stream.getvalue()
    assert "40/100" in told and "a note" in told and "loss 0.5" in told
    assert " 0/100" not in told


@pytest.mark.fault("docs_and_packaging", 18)
@pytest.mark.parametrize("columns", [60, 80, 120])
def test_a_bar_leaves_room_for_itself_and_what_matters_most(monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    stream = Terminal()
    progress = Progress(3000, stream=stream)
    progress._started -= 0.5  # else a rate of millions
    for step in (1, 3000):
        progress.step(step, {"level": 7, "loss": 0.012345, "lr": 0.00123456}, items=256)
    progress.close()
    last = stream.getvalue().split("\r")[-1].rstrip("\n")
    assert len(last) <= columns
    assert len(last.split("|")[1]) >= 5
    assert "loss 0.01235" in last and "3000/3000" in last and ("samples/s" in last) == (columns >= 80)
    assert ("lr" in last) == (columns >= 120)


@pytest.mark.fault("docs_and_packaging", 18)
def test_an_evaluation_of_many_levels_is_two_lines_that_fit():
    by_level = {f"accuracy/{level}": 0.9502 for level in range(1, 8)}
    lines = evaluation_lines(3000, {"accuracy": 0.9751, **by_level, "note": "text"})
    assert lines[0] == "evaluation at step 3000: accuracy 0.9751"
    assert lines[1].startswith("  accuracy  1: 0.95  2: 0.95") and len(lines) == 2
    assert max(map(len, lines)) <= 80


def test_hidden_progress_writes_nothing():
    for stream in (Terminal(), io.StringIO()):
        progress = Progress(1, stream=stream, shown=False)
        progress.step(1, {"loss": 1.0})
        progress.note("x")
        progress.close()
        assert stream.getvalue() == ""


class Broken(io.StringIO):
    """A stream whose reader goes away after some writes."""

    def __init__(self, after=0, error=BrokenPipeError, terminal=False):
        super().__init__()
        self.left, self.error, self.terminal = after, error, terminal

    def isatty(self):
        return self.terminal

    def write(self, text):
        self.left -= 1
        if self.left < 0:
            raise self.error
        return super().write(text)

    def flush(self):
        if self.left < 0:
            raise self.error


@pytest.mark.fault("training_and_command", 6)
@pytest.mark.parametrize("terminal", [False, True])
@pytest.mark.parametrize("error", [BrokenPipeError, OSError(5, "Input/output error"), ValueError("closed")])
@pytest.mark.parametrize("after", [0, 1, 3])
def test_a_reader_that_goes_away_stops_nothing(monkeypatch, tmp_path, after, error, terminal):
    monkeypatch.setattr(sys, "stderr", Broken(after, error, terminal))
    settings = config(max_steps=6, eval_every=2)
    with RunDirectory.create(tmp_path / "run", settings) as run:
        evaluate = lambda model, step: {"accuracy": 0.5}  # noqa: E731
        result = Trainer(linear(), mse, Cycle(data(4)), settings, run=run, evaluate=evaluate).fit()
    assert result.step == 6 and result.checkpoint.exists()


@pytest.mark.fault("training_and_command", 7)
def test_training_without_streams_and_in_any_encoding(monkeypatch):
    def trained():
        evaluate = lambda model, step: {"accuracy": 0.5, "ünïcode\udcff": 0.25}  # noqa: E731
        settings = config(max_steps=2, eval_every=1)
        assert Trainer(linear(), mse, Cycle(data(4)), settings, evaluate=evaluate).fit().step == 2

    monkeypatch.setattr(sys, "stderr", None)
    trained()
    for encoding in ("ascii", "latin-1", "utf-8", "utf-16"):
        written = io.BytesIO()
        monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(written, encoding=encoding, errors="strict"))
        trained()
        sys.stderr.flush()
        assert "step 2/2" in written.getvalue().decode(encoding)
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr(sys, "stderr", closed)
    trained()


def test_a_stream_that_cannot_say_what_it_is_gets_plain_lines():
    class Odd(io.StringIO):
        def isatty(self):
            raise ValueError("half a file")

    progress = Progress(3, stream=(stream := Odd()))
    progress.step(1, {"loss": 0.5})
    progress.close()
    assert stream.getvalue().startswith("step 1/3 loss 0.5")
