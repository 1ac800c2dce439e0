"""Flags for tyro: only what was typed comes back, whatever the order."""

import contextlib
import os
import subprocess
import sys

import pytest
import tyro

from dagnn.cli import main
from dagnn.commands.train import given_flags, training_flags
from dagnn.curriculum.config import CurriculumConfig
from dagnn.training.settings import settings_of


def parse(*arguments):
    return given_flags(tyro.cli(training_flags(CurriculumConfig), args=arguments))


def test_only_what_was_typed_is_given():
    assert parse() == {}
    assert parse("--optimizer.lr", "1e-4", "--curriculum.levels", "1", "2", "--max-steps=7") == {
        "optimizer.lr": "1e-4",
        "curriculum.levels": "1 2",
        "max_steps": "7",
    }


def test_flags_resolve_to_a_configuration():
    given = parse("--optimizer.betas", "0.5", "0.6", "--curriculum.order", "progressive", "--seed", "0")
    config = CurriculumConfig.resolve(environment={"DAGNN_SEED": "4"}, flags=given)
    assert (config.optimizer.betas, config.curriculum.order, config.seed) == ((0.5, 0.6), "progressive", 0)


def test_wrong_values_are_left_for_the_configuration_to_report_at_once():
    assert parse("--batch-size", "zero", "--optimizer.lr", "nan") == {"batch_size": "zero", "optimizer.lr": "nan"}


def test_help_tells_meaning_range_and_default(capsys):
    with pytest.raises(SystemExit):
        parse("--help")
    told = " ".join(capsys.readouterr().out.replace("│", " ").split())
    for setting in settings_of(CurriculumConfig).values():
        assert setting.help in told
    assert "base learning rate, before the schedule (a number above 0.0; default 0.001)" in told


@pytest.mark.fault("docs_and_packaging", 18)
@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
@pytest.mark.parametrize("setting", [{}, {"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_help_on_a_terminal_has_colours_unless_somebody_minds(setting):
    import pty

    outer, inner = pty.openpty()
    environment = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    environment |= {"TERM": "xterm", "COLUMNS": "80", **setting}
    command = [sys.executable, "-m", "dagnn", "report", "--help"]
    with subprocess.Popen(command, stdout=inner, stderr=inner, env=environment, close_fds=True) as process:
        os.close(inner)
        shown = b""
        with contextlib.suppress(OSError):  # the end of a pseudo-terminal
            while part := os.read(outer, 65536):
                shown += part
    os.close(outer)
    assert process.returncode == 0 and b"--picture" in shown
    assert (b"\x1b[" in shown) == (not setting)


@pytest.mark.fault("docs_and_packaging", 18)
@pytest.mark.parametrize("command", ["train", "report", "evaluate", "ged", "solve"])
def test_help_has_no_raw_words_of_types(command, capsys):
    with contextlib.suppress(SystemExit):
        main([command, "--help"])
    shown = capsys.readouterr().out
    assert "usage: dagnn" in shown and "{None}" not in shown and "default )" not in shown
    assert "default: None" not in " ".join(shown.split())
