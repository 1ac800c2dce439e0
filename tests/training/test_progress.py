"""Progress: a bar on a terminal that starts where the run stands, plain lines elsewhere."""

import io

from dagnn.training.progress import Progress


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


def test_hidden_progress_writes_nothing():
    for stream in (Terminal(), io.StringIO()):
        progress = Progress(1, stream=stream, shown=False)
        progress.step(1, {"loss": 1.0})
        progress.note("x")
        progress.close()
        assert stream.getvalue() == ""
