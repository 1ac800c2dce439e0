"""Reports: the table, examples and errors, the picture, and that no fault of a report spoils a run."""

import os
import re
import struct
import subprocess
import sys
from pathlib import Path

import pytest

import dagnn
from dagnn.curriculum import report as module
from dagnn.curriculum.config import CurriculumConfig
from dagnn.curriculum.evaluation_file import Evaluation, Example, KindCount, LevelResult, NeighbourhoodCounts
from dagnn.curriculum.report import errors_table, report, report_after_training, results_table
from dagnn.errors import DataError, RunError
from dagnn.training.log import MetricsLog
from dagnn.training.run.directory import RunDirectory

PNG = b"\x89PNG\r\n\x1a\n"


def row(step):
    loss = float("nan") if step == 20 else 3.0 / step
    return {"loss": loss, "grad_norm": 1.0, "lr": 1e-3 / step, "level": 2, "seconds": step / 2}


@pytest.fixture
def run(tmp_path):
    """A run of 120 steps with two evaluations, not evaluated at the end."""
    path = tmp_path / "run"
    config = CurriculumConfig(run_directory=str(path), eval_samples=80)
    with RunDirectory.create(path, config) as directory, MetricsLog(directory.metrics_path) as log:
        for step in range(1, 121):
            log.write("step", step, row(step))
            if step % 60 == 0:
                log.write("evaluation", step, {"accuracy": 0.5, "accuracy/1": step / 120, "accuracy/2": 0.25})
    return path


@pytest.fixture
def evaluated(run):
    wrong = Example("(derive (^ x 2) x)", "x", "(* 2 x)", False, "other value")
    right = [Example(f"(+ {i} 1)", str(i + 1), str(i + 1), True) for i in range(399)]
    levels = {1: LevelResult.of([*right, wrong], samples_seen=60_000, seconds=0.1), 2: LevelResult(1.0, 400)}
    Evaluation(levels, cpu_seconds=301.5, wall_seconds=290.2, parameters=2_371_200, step=120).write(run)
    return run


def test_report_shows_levels_examples_and_errors(evaluated):
    assert report(evaluated).text.splitlines() == [
        "level  accuracy  expressions  samples seen  samples/s",
        "1       99.75 %          400        60,000      4,000",
        "2      100.00 %          400             0          0",
        "1 wrong, of which 0 the engine's own steps miss too",
        "step 120, 2,371,200 parameters, 302 CPU seconds, 290 wall seconds",
        "",
        "level 1",
        "  right  (+ 0 1) -> 1",
        "  right  (+ 1 1) -> 2",
        "  right  (+ 2 1) -> 3",
        "  right  (+ 3 1) -> 4",
        "  WRONG  (derive (^ x 2) x) -> x",
        "         expected (* 2 x): other value",
        "",
        "wrong answers by operator  other value",
        "derive ^                             1",
        "",
        f"curves: {evaluated / 'report.png'}",
        f"page:   {evaluated / 'report.html'}",
    ]


def test_what_the_engine_misses_too_and_neighbourhoods_kept_from_training_are_tables_of_their_own():
    wrong = [
        Example("(* 2 3)", "5", "6", False, "other value"),
        *[Example("(tan 1.5)", "14", "14.1", False, "other value", engine_misses=True)] * 2,
    ]
    level = LevelResult.of(wrong, samples_seen=0, seconds=0)
    held_out = {"symbolic": KindCount(1_199, 1_200, 1_199, 0.00517), "digit products": KindCount(1, 3, 3)}
    counts = NeighbourhoodCounts(9, 0, 0, held_out, calibration_error=0.00517)
    found = Evaluation({4: level}, None, None, None, step=1, neighbourhoods=counts)

    assert results_table(found)[2:] == [
        "3 wrong, of which 2 the engine's own steps miss too",
        "9 distinct neighbourhoods asked, 0 of them never trained on",
        "kept from training    right  by smaller steps  calibration error  neighbourhoods",
        "symbolic            99.92 %           99.92 %             0.0052           1,200",
        "digit products      33.33 %          100.00 %                                  3",
        "expected calibration error of all confidences there: 0.0052",
        "step 1",
    ]
    assert errors_table(found) == [
        "wrong answers by operator  other value  other value (engine's steps too)",
        "tan                                                                    2",
        "*                                    1",
    ]
    assert errors_table(Evaluation({1: LevelResult(1.0, 3)}, None, None, None, step=1)) == []


def test_an_example_that_the_engine_misses_too_is_marked(run):
    missed = Example("(tan 1.5)", "14", "14.1", False, "other value", engine_misses=True)
    level = LevelResult.of([missed], samples_seen=0, seconds=0)
    Evaluation({4: level}, None, None, None, step=120).write(run)

    assert "         expected 14.1: other value (engine's steps too)" in report(run).text.splitlines()


def test_picture_is_a_png_of_a_readable_size(evaluated):
    picture = report(evaluated).picture

    content = picture.read_bytes()
    assert content.startswith(PNG)
    width, height = struct.unpack(">II", content[16:24])
    assert width >= 1000 and height >= 700


def test_picture_goes_where_the_user_says(run, tmp_path):
    found = report(run, picture=tmp_path / "here.png", html=tmp_path / "here.html")

    assert found.page == tmp_path / "here.html" and found.page.read_bytes().startswith(b"<!DOCTYPE html>")
    assert found.picture == tmp_path / "here.png"
    assert found.picture.read_bytes().startswith(PNG)
    assert not (run / "report.png").exists()


def test_run_without_a_final_evaluation_shows_the_last_one(run):
    found = report(run)

    assert found.evaluation.summary() == {
        "levels": {
            "1": {"accuracy": 1.0, "expressions": 80, "samples_seen": None, "samples_per_second": None},
            "2": {"accuracy": 0.25, "expressions": 80, "samples_seen": None, "samples_per_second": None},
        },
        "cpu_seconds": None,
        "wall_seconds": 60.0,
        "parameters": None,
        "step": 120,
        "evaluated": False,
    }
    assert found.text.splitlines()[:5] == [
        "not evaluated yet: accuracies of validation, while training",
        "level  accuracy  expressions  samples seen  samples/s",
        "1      100.00 %           80     not known  not known",
        "2       25.00 %           80     not known  not known",
        "step 120, 60 wall seconds",
    ]


@pytest.mark.fault("docs_and_packaging", 1)
def test_time_of_an_unfinished_run_is_that_of_its_clock(tmp_path):
    """``seconds`` is cumulative, over all sessions: the last is the time of the run, and the sum of all is nothing."""
    with RunDirectory.create(tmp_path / "run", CurriculumConfig()) as directory:
        for first in (1, 51):  # stopped after step 50 and resumed
            with MetricsLog(directory.metrics_path, num_rows=first - 1) as log:
                for step in range(first, first + 50):
                    log.write("step", step, {**row(step), "seconds": 0.37 * step})
    assert report(tmp_path / "run").evaluation.wall_seconds == pytest.approx(37.0)
    assert "step 100, 37 wall seconds" in report(tmp_path / "run").text


@pytest.mark.fault("docs_and_packaging", 1)
def test_picture_of_a_run_that_is_not_evaluated_says_so(run, evaluated, monkeypatch):
    drawn = []
    monkeypatch.setattr(module, "draw_curves", lambda curves, kind: drawn.append(curves.errors) or PNG)
    report(run)
    (run / "evaluation.json").unlink()
    report(run)
    assert drawn[0] == {"derive ^": {"other value": 1}} and drawn[1] is None


def test_run_that_has_just_begun_has_a_report(tmp_path):
    RunDirectory.create(tmp_path / "$x_0$ run", CurriculumConfig()).close()

    found = report(tmp_path / "$x_0$ run")

    assert found.text.splitlines()[:2] == ["not evaluated yet", "step 0"]
    assert found.problem == ""
    assert found.picture.read_bytes().startswith(PNG)


def test_missing_run_is_an_error(tmp_path):
    with pytest.raises(RunError, match="holds no run"):
        report(tmp_path)


def test_damaged_metrics_are_an_error(run):
    with (run / "metrics.jsonl").open("a") as file:
        file.write("{\n")

    with pytest.raises(DataError, match=r"metrics\.jsonl, line 123"):
        report(run)


def test_picture_that_cannot_be_drawn_is_told_and_is_no_error(evaluated, monkeypatch):
    def fail(*_):
        raise RuntimeError("no\nfonts")

    monkeypatch.setattr(module, "draw_curves", fail)
    found = report(evaluated)

    assert found.picture is None
    assert found.text.splitlines()[-2] == "no picture: no fonts"
    assert found.evaluation.levels[1].accuracy == 0.9975


def test_picture_without_a_place_is_told(evaluated, tmp_path):
    found = report(evaluated, picture=tmp_path / "none" / "picture.png")

    assert found.picture is None
    assert "No such file or directory" in found.problem


def test_report_after_training_never_fails(tmp_path, evaluated):
    notes = []

    assert report_after_training(tmp_path / "none", notes.append) is None
    assert report_after_training(evaluated, notes.append).evaluation.step == 120
    (evaluated / "metrics.jsonl").write_text("{\n")
    assert report_after_training(evaluated, notes.append) is None

    assert len(notes) == 2
    assert all(note.startswith("no report: ") and "\n" not in note for note in notes)


def test_control_characters_of_a_strange_file_do_not_reach_the_terminal(run):
    bad = Example("\x1b[2J(+ 1 1)\n", "\x07", "2", False, "\x1b]0;title")
    Evaluation({1: LevelResult.of([bad], samples_seen=0, seconds=1)}, None, None, None, 1).write(run)

    assert all(character.isprintable() or character == "\n" for character in report(run).text)


def test_pictures_are_drawn_without_pyplot():
    """It alone looks for a display, and takes the backend that the user has set."""
    source = Path(dagnn.__file__).parent
    assert [path for path in source.rglob("*.py") if re.search(r"import.*pyplot", path.read_text())] == []


@pytest.mark.slow  # five seconds; what it would find is found by the test above
def test_picture_needs_no_display(evaluated):
    code = "import sys; from dagnn.curriculum.report import report; print(report(sys.argv[1]).problem or 'drawn')"

    environment = {name: value for name, value in os.environ.items() if name != "DISPLAY"} | {"MPLBACKEND": "TkAgg"}

    done = subprocess.run(
        [sys.executable, "-c", code, str(evaluated)], capture_output=True, text=True, check=True, env=environment
    )

    assert done.stdout == "drawn\n"
