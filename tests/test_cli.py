"""The command line: what each command calls and prints, and one line for everything that goes wrong."""

import errno
import json
import os
import subprocess
import sys
import types
from pathlib import Path

import pytest

from dagnn.cli import COMMANDS, main
from dagnn.commands import say
from dagnn.curriculum.config import CurriculumConfig
from dagnn.curriculum.evaluation_file import Evaluation, LevelResult
from dagnn.curriculum.solving import Solution, SolvedStep
from dagnn.data import Dataset
from dagnn.training.run.directory import RunDirectory
from dagnn.training.signals import TrainingInterrupted

EVALUATION = Evaluation({1: LevelResult(0.998, 500)}, cpu_seconds=1.5, wall_seconds=2.0, parameters=10, step=7)


@pytest.fixture
def fails(capsys):
    """Runs the command and returns its one line on stderr, after exit code 2."""

    def run(*arguments):
        assert main(arguments) == 2
        output = capsys.readouterr()
        assert output.out == ""
        assert output.err.startswith("dagnn: ") and output.err.endswith("\n") and output.err.count("\n") == 1
        return output.err.removeprefix("dagnn: ").rstrip("\n")

    return run


@pytest.fixture
def run(tmp_path):
    """An evaluated run that has not made a step."""
    path = tmp_path / "run"
    RunDirectory.create(path, CurriculumConfig(run_directory=str(path))).close()
    EVALUATION.write(path)
    return str(path)


@pytest.fixture
def called(monkeypatch):
    """Stands in for training and evaluation, which take minutes: notes the calls and returns what `results` says."""
    calls, results = [], {"train": None, "evaluate": EVALUATION, "solve": None}

    def stand_in(name):
        def call(*arguments, **options):
            calls.append((name, arguments, options))
            if isinstance(results[name], BaseException):
                raise results[name]
            return results[name]

        return call

    for module, name in {"run": "train", "accuracy": "evaluate", "solving": "solve"}.items():
        monkeypatch.setattr(f"dagnn.curriculum.{module}.{name}", stand_in(name))
    return types.SimpleNamespace(calls=calls, results=results)


# ---- help ----


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"], ["help"]])
def test_help_lists_the_commands(arguments, capsys):
    assert main(arguments) == 0

    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "usage: dagnn COMMAND [OPTIONS]"
    assert [line.split()[0] for line in lines if line.startswith("  ")] == list(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_its_help(command, capsys):
    assert main([command, "--help"]) == 0

    assert capsys.readouterr().out.startswith(f"usage: dagnn {command} ")


def test_version_is_printed(capsys):
    assert main(["--version"]) == 0

    assert capsys.readouterr().out == "dagnn 0.1.0\n"


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["train", "--help"], ["train", "--dry-run"]])
def test_help_and_dry_run_do_not_load_torch(arguments):
    code = f"import sys; from dagnn.cli import main; main({arguments}); print('torch' in sys.modules, file=sys.stderr)"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stderr == "False\n"


# ---- wrong arguments ----


def test_unknown_command_gets_a_suggestion(fails):
    assert fails("trian") == "unknown command 'trian': did you mean train?"
    assert fails("zzz").startswith("unknown command 'zzz': the commands are train, evaluate, ")


def test_unknown_flag_is_one_line_with_the_place_to_look(fails):
    assert fails("report", "--foo") == "Unrecognized options: --foo; see dagnn report --help."
    assert fails("train", "--lr", "3", "--dry-run") == "unknown setting lr: did you mean optimizer.lr?"
    assert fails("train", "--resme", "auto") == "unknown flag --resme: did you mean --resume?"
    assert fails("train", "all") == (
        "unexpected argument 'all': `dagnn train` takes flags only; see dagnn train --help."
    )


def test_unknown_flags_are_told_together_with_wrong_settings(fails, tmp_path):
    (tmp_path / "wrong.toml").write_text("max_stepz = 3")
    told = fails("train", "--config", str(tmp_path / "wrong.toml"), "--bach-size", "3", "--optimizer.lr", "nan")
    assert told.startswith("3 settings are wrong: unknown setting max_stepz: did you mean max_steps? ")
    assert "optimizer.lr = nan" in told and told.endswith("unknown setting bach_size: did you mean batch_size?")


def test_a_yes_or_no_setting_may_stand_alone(capsys):
    for arguments, said in ((["--compile"], "true"), (["--compile", "false"], "false"), ([], "false")):
        assert main(["train", "--dry-run", *arguments]) == 0
        assert f"\ncompile = {said}\n" in capsys.readouterr().out


def test_missing_argument_is_named(fails):
    assert fails("generate").startswith("Missing from dagnn generate: --level INT")
    assert fails("solve").startswith("Missing from dagnn solve: EXPRESSION")


def test_value_of_the_wrong_type_is_named(fails):
    assert fails("generate", "--level", "abc").startswith("Error parsing --level: invalid literal for int()")
    assert fails("generate", "--level", "2", "--depth", "x").startswith(
        "Error parsing --depth: 'x' is not of the kind INT; see"
    )


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["generate", "--level", "9"], "level 9 does not exist: the levels are 1, 2, 3, 4, 5, 6, 7."),
        (["generate", "--level", "2", "--count", "-1"], "count must be a whole number of at least 0, got -1"),
        (["generate", "--level", "2", "--split", "exam"], "'exam'"),
        (["train", "--dry-run", "--batch-size", "0"], "batch_size = 0: allowed is a whole number of at least 1."),
        (["train", "--dry-run", "--batch-size", "-4"], "batch_size = -4"),
        (["train", "--dry-run", "--optimizer.lr", "nan"], "optimizer.lr = nan: allowed is a number above 0.0."),
        (["train", "--dry-run", "--curriculum.levels", "8"], "curriculum.levels = "),
        (["train", "--dry-run", "--config", "none.toml"], "none.toml"),
        (["train", "--config", "a", "--resume", "b"], "--config and --resume exclude each other"),
        (
            ["train", "--resume", "none"],
            "none holds no run: none/run.json is missing; name the directory of a trained run, or train one: "
            "dagnn train.",
        ),
        (["report", "none"], "none holds no run"),
        (["info", "none"], "none holds no run"),
        (["ged", "none.json", "none.json"], "No such file or directory: none.json"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(arguments, text, fails):
    assert text in fails(*arguments)


def test_several_wrong_settings_are_one_line(fails):
    told = fails("train", "--dry-run", "--batch-size", "0", "--optimizer.lr=-1")

    assert told.startswith("2 settings are wrong: batch_size = 0")
    assert "optimizer.lr = -1" in told


# ---- commands ----


def test_dry_run_prints_the_settings_and_trains_nothing(capsys, called, tmp_path):
    (tmp_path / "my.toml").write_text("seed = 3\nbatch_size = 64\n")

    assert main(["train", "--dry-run", "--config", str(tmp_path / "my.toml"), "--batch-size", "32"]) == 0

    config = CurriculumConfig.from_toml(capsys.readouterr().out)
    assert (config.seed, config.batch_size) == (3, 32)
    assert called.calls == []


def test_train_trains_and_shows_the_report(capsys, called, run):
    assert main(["train", "--run-directory", run]) == 0

    assert called.calls == [
        (
            "train",
            (CurriculumConfig(run_directory=run),),
            {"resume": False, "step": None, "reschedule": None, "note": say},
        )
    ]
    assert capsys.readouterr().out.startswith("level  accuracy  expressions")


def test_resume_takes_the_settings_of_the_run(called, run):
    assert main(["train", "--resume", f"{run}/checkpoints/step-00000500", "--threads", "1"]) == 0

    config = CurriculumConfig(run_directory=run, threads=1)
    assert called.calls == [("train", (config,), {"resume": True, "step": 500, "reschedule": None, "note": say})]


def test_resume_refuses_another_training(called, run, fails):
    assert fails("train", "--resume", run, "--optimizer.lr", "1").startswith("optimizer.lr = 1.0: the run has 0.001")
    assert called.calls == []


def trained_with(called):
    ((_, (config,), options),) = called.calls
    called.calls.clear()
    return config, options["resume"], options["step"], options["reschedule"]


def test_resume_auto_begins_or_goes_on_with_the_same_line(called, tmp_path):
    line = ["train", "--resume", "auto", "--run-directory", str(tmp_path / "run"), "--seed", "3"]
    assert main(line) == 0
    config, *rest = trained_with(called)
    assert (config.seed, rest) == (3, [False, None, None])

    RunDirectory.create(tmp_path / "run", config).close()
    assert main(line) == 0
    assert trained_with(called) == (config, True, None, None)


def test_resume_latest_takes_what_was_said_and_the_rest_of_the_run(called, tmp_path, fails, capsys):
    (tmp_path / "c.toml").write_text(f'run_directory = "{tmp_path}/run"\nseed = 3\n')
    line = ["train", "--resume", "latest", "--config", str(tmp_path / "c.toml")]
    assert "holds no run" in fails(*line)

    stored = CurriculumConfig(seed=3, batch_size=64, run_directory=f"{tmp_path}/run")
    RunDirectory.create(tmp_path / "run", stored).close()
    assert main([*line, "--threads", "2"]) == 0
    assert trained_with(called)[0] == stored.changed({"threads": 2})
    capsys.readouterr()
    assert fails(*line, "--seed", "4").startswith("seed = 4: the run has 3")


def test_environment_is_not_silently_passed_over_at_a_resume(called, run, fails, monkeypatch):
    monkeypatch.setenv("DAGNN_OPTIMIZER_LR", "0.5")
    assert fails("train", "--resume", run).startswith("optimizer.lr = 0.5: the run has 0.001")
    assert called.calls == []


def test_restart_by_torchrun_goes_on_by_itself(called, run, monkeypatch, fails):
    assert main(["train", "--run-directory", run]) == 0
    assert trained_with(called)[1] is False
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert main(["train", "--run-directory", run]) == 0
    assert trained_with(called)[1] is True


def test_reschedule_is_passed_on_and_belongs_to_a_resume(called, run, fails):
    assert "--reschedule keep: it applies to a resumed run" in fails("train", "--reschedule", "keep")
    assert "--reschedule keep to stay on that curve" in fails("train", "--resume", run, "--max-steps", "9000")
    assert main(["train", "--resume", run, "--max-steps", "9000", "--reschedule", "keep"]) == 0
    config, _, _, reschedule = trained_with(called)
    assert (config.max_steps, config.schedule.steps, reschedule) == (9000, CurriculumConfig().max_steps, "keep")


@pytest.mark.parametrize(("number", "code"), [(2, 130), (15, 143)])
def test_stopped_training_is_told_with_its_exit_code(number, code, capsys, called, run):
    called.results["train"] = TrainingInterrupted(number, 12, Path("there"))

    assert main(["train", "--run-directory", run]) == code

    assert "at step 12; saved in there" in capsys.readouterr().err


def test_run_whose_report_fails_is_still_trained(capsys, called, tmp_path):
    assert main(["train", "--run-directory", str(tmp_path)]) == 0

    assert capsys.readouterr().err.startswith("dagnn: no report: ")


def test_evaluate_prints_a_table_or_json(capsys, called):
    assert main(["evaluate", "my-run", "--expressions", "9", "--seed", "4"]) == 0
    asked = {"expressions": 9, "split": "test", "seed": 4, "depth": None, "digits": None, "finer": False}
    assert called.calls == [("evaluate", ("my-run",), asked)]
    assert capsys.readouterr().out.splitlines()[1].split() == ["1", "99.80", "%", "500", "0", "0"]

    level = LevelResult(0.5, 2, errors={"tan": {"other value (engine's steps too)": 1}}, engine_misses=1)
    called.results["evaluate"] = Evaluation({4: level}, None, None, None, step=7)
    assert main(["evaluate"]) == 0
    assert capsys.readouterr().out.splitlines()[2:] == [
        "1 wrong, of which 1 the engine's own steps miss too",
        "step 7",
        "",
        "wrong answers by operator  other value (engine's steps too)",
        "tan                                                       1",
    ]
    called.results["evaluate"] = EVALUATION
    called.calls.pop()

    assert main(["evaluate", "--depth", "5", "--digits", "4", "--json"]) == 0
    assert (called.calls[1][2]["depth"], called.calls[1][2]["digits"]) == (5, 4)
    assert called.calls[1][1] == ("runs/curriculum",)
    assert json.loads(capsys.readouterr().out) == EVALUATION.summary()


@pytest.mark.parametrize(
    ("right", "reason", "has_answer", "verdict"),
    [
        (True, "equivalent to (* 2 x)", True, "right, equivalent to (* 2 x)"),
        (False, "other value", True, "wrong, other value"),
        (False, "division by zero at (/ 5 0)", False, "the engine has no answer: division by zero at (/ 5 0)"),
    ],
)
def test_solve_prints_answer_verdict_and_seconds(right, reason, has_answer, verdict, capsys, called):
    called.results["solve"] = Solution("(* 2 x)", right, reason, 0.25, 12, has_answer)

    assert main(["solve", "(derive (^ x 2) x)", "--run", "my-run"]) == 0

    options = {"budget": 200_000, "seconds": 60.0, "trace": False}
    assert called.calls == [("solve", ("my-run", "(derive (^ x 2) x)"), options)]
    out = capsys.readouterr().out.splitlines()
    answer = "(* 2 x)" if has_answer else "none, the network ended with (* 2 x)"
    assert out == [f"answer      {answer}", f"verdict     {verdict}", "seconds     0.250 for 12 steps"]


@pytest.mark.parametrize("text", ["-x^2", "- x = 2", "−5 + 3"])
def test_solve_takes_an_expression_that_begins_with_a_minus(text, capsys, called):
    called.results["solve"] = Solution("2", True, "equal", 0.25, 3)
    assert main(["solve", text, "--run", "my-run"]) == 0 and called.calls[0][1][1].strip() == text


def test_solve_prints_every_step_where_it_is_asked_to(capsys, called):
    step = SolvedStep(2, "(+ 1 1)", "2", 0.75)
    called.results["solve"] = Solution("2", True, "equal", 0.25, 3, least_certain=step, trace=(step,))
    assert main(["solve", "(+ 1 1)", "--steps", "--budget", "90", "--seconds", "2"]) == 0
    assert called.calls[0][2] == {"budget": 90, "seconds": 2.0, "trace": True}
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "2  0.7500  (+ 1 1) -> 2"
    assert out[3] == "confidence  0.7500 or more, least at step 2: (+ 1 1) -> 2"


def test_check_says_whether_a_loop_is_right(capsys, tmp_path):
    assert main(["check", "examples/accumulation_check.py:right"]) == 0
    assert "EQUAL" in capsys.readouterr().out
    assert main(["check", "examples/accumulation_check.py:wrong"]) == 1
    assert "mean of means" in capsys.readouterr().out
    assert main(["check", str(tmp_path / "none.py:loop")]) == 2
    assert "there is no file" in capsys.readouterr().err


def test_report_prints_text_or_json(capsys, run, tmp_path):
    assert main(["report", run, "--picture", str(tmp_path / "p.png")]) == 0
    assert capsys.readouterr().out.splitlines()[-2] == f"curves: {tmp_path / 'p.png'}"

    assert main(["report", run, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == EVALUATION.summary()


def test_report_without_a_picture_keeps_its_json_clean(capsys, run, tmp_path):
    assert main(["report", run, "--json", "--picture", str(tmp_path / "none" / "p.png")]) == 0

    output = capsys.readouterr()
    assert json.loads(output.out) == EVALUATION.summary()
    assert output.err.startswith("dagnn: no picture: ")


def test_info_describes_the_run(capsys, run):
    assert main(["info", run]) == 0

    assert "\nno checkpoint yet\n\nvectors of our kernels: " in capsys.readouterr().out


def test_generated_file_is_a_dataset_and_the_same_every_time(capsys, tmp_path):
    for name in ("a", "b"):
        assert main(["generate", "--level", "2", "--count", "20", "--seed", "5", "--output", str(tmp_path / name)]) == 0
        output = capsys.readouterr()
        assert output.out == ""
        assert output.err.startswith("20 samples of ")

    dataset = Dataset.read(tmp_path / "a")
    assert len(dataset) == 20 and dataset.levels == [2] and dataset[0].split == "train"
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_generated_lines_go_to_stdout(capsys):
    assert main(["generate", "--level", "1", "--count", "3", "--split", "test"]) == 0

    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(record["level"], record["split"]) for record in records] == [(1, "test")] * 3


# ---- the world around it ----


def test_ctrl_c_is_130_without_a_traceback(capsys, called):
    called.results["evaluate"] = KeyboardInterrupt()

    assert main(["evaluate"]) == 130

    assert capsys.readouterr().err == "dagnn: interrupted\n"


def test_full_disk_is_one_line(called, fails):
    called.results["evaluate"] = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "file.bin")

    assert fails("evaluate") == "No space left on device: file.bin"


def test_warnings_are_one_line_without_our_code(capsys, called, monkeypatch):
    import warnings

    def evaluate(*_, **__):
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.warn("passing over\ncheckpoint 3", stacklevel=1)
        return EVALUATION

    monkeypatch.setattr(sys.modules["dagnn.curriculum.accuracy"], "evaluate", evaluate)
    assert main(["evaluate"]) == 0

    assert capsys.readouterr().err == "dagnn: warning: passing over checkpoint 3\n"


def test_reader_that_goes_away_is_no_traceback():
    process = subprocess.Popen(
        [sys.executable, "-m", "dagnn.cli", "generate", "--level", "1", "--count", "5000"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    process.stdout.readline()
    process.stdout.close()

    assert process.stderr.read() == ""
    assert process.wait() == 141
    process.stderr.close()


def test_full_output_is_one_line():
    with open("/dev/full", "w") as full:  # noqa: PTH123
        done = subprocess.run(
            [sys.executable, "-m", "dagnn.cli", "--help"], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )

    assert done.returncode == 2
    assert done.stderr == "dagnn: No space left on device\n"
