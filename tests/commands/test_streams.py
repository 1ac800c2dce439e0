"""The command with closed streams, odd encodings and widths, readers that go away, and on other systems."""

import os
import subprocess
import sys

import pytest
from small_curriculum import config_of

SMALLEST = {
    "max_steps": 6,
    "eval_every": 0,
    "test_samples": 1,
    "curriculum__levels": (1,),
    "curriculum__samples": (20,),
}

COMMANDS = {
    "help": ["--help"],
    "version": ["--version"],
    "unknown": ["nonsense"],
    "train": ["train", "--dry-run"],
    "train --help": ["train", "--help"],
    "wrong": ["train", "--bach-size", "3"],
    "evaluate": ["evaluate", "none"],
    "solve": ["solve", "(+ 1 2)", "--run", "none"],
    "generate": ["generate", "--level", "1", "--count", "2"],
    "report": ["report", "none"],
    "info": ["info", "none"],
    "check": ["check", "none.py:loop"],
    "ged": ["ged", "none.json", "none.json"],
    "checkpoint": ["checkpoint", "verify", "none"],
    "metrics": ["metrics", "none"],
}
# All in one process, as each takes half a second to start: every command, with its streams as the process has them.
ALL = """
import os, sys
from dagnn.cli import main
odd = os.fsdecode(b"n\\xc3\\xbcn\\xff")
for closed in "stdout", "stderr":
    stream = getattr(sys, closed)
    for name in sys.argv[1:]:
        arguments = [each.replace("none", odd) for each in name.split(" ")]
        setattr(sys, closed, None)
        code = main(arguments)
        assert code in (0, 1, 2), (arguments, code)
    setattr(sys, closed, stream)
"""


def run(arguments, redirections="", **environment):
    line = " ".join([sys.executable, "-m", "dagnn", *arguments, redirections])
    return subprocess.run(
        ["bash", "-c", line], capture_output=True, text=True, errors="replace", env={**os.environ, **environment}
    )


@pytest.mark.fault("training_and_command", 7)
@pytest.mark.parametrize("encoding", ["ascii", pytest.param("cp1252", marks=pytest.mark.slow)])
def test_no_command_has_a_traceback(tmp_path, encoding):
    commands = [" ".join(each) for name, each in COMMANDS.items() if name not in ("solve",)]
    done = subprocess.run(
        [sys.executable, "-c", ALL, *commands], cwd=tmp_path, capture_output=True, text=True, errors="replace",
        env={**os.environ, "PYTHONIOENCODING": encoding}, check=False,
    )  # fmt: skip
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr


@pytest.mark.fault("training_and_command", 7)
@pytest.mark.parametrize("redirections", [">&-", "2>&-", "<&-", ">&- 2>&- <&-"])
def test_closed_descriptors(tmp_path, redirections):
    done = run(["--version"], redirections)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.fault("training_and_command", 7)
def test_arguments_of_other_bytes():
    done = run(["train", "--run-directory", "$'run\\xff'", "--dry-run"])
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "dagnn: run_directory = 'run\\udcff': allowed is a path, in UTF-8.\n"
    done = run(["info", "ünï"], PYTHONIOENCODING="ascii")
    assert done.returncode == 2 and done.stderr.startswith("dagnn: \\xfcn\\xef holds no run")


@pytest.mark.fault("training_and_command", 10)
@pytest.mark.parametrize("columns", ["1", "5", "0", "-3", "abc", "1000000000"])
def test_help_fits_any_terminal(columns):
    from dagnn.cli import main

    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = columns
    try:
        assert main(["solve", "--help"]) == 0
        assert os.environ["COLUMNS"] == columns
    finally:
        os.environ.pop("COLUMNS")
        if before is not None:
            os.environ["COLUMNS"] = before


@pytest.mark.slow
@pytest.mark.fault("training_and_command", 6)
def test_training_goes_on_when_nobody_reads(tmp_path):
    """``dagnn train 2>&1 | head -1``, and a report that nobody reads either: all is saved."""
    config_of(tmp_path / "run")  # a small one
    settings = tmp_path / "small.toml"
    settings.write_text(config_of(tmp_path / "run", **SMALLEST).to_toml())
    line = f"{sys.executable} -m dagnn train --config {settings} 2>&1 | head -1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode in (0, 141) and len(done.stdout.splitlines()) == 1 and done.stderr == ""
    assert (tmp_path / "run" / "evaluation.json").exists()
    assert (tmp_path / "run" / "checkpoints" / "step-00000006").exists()

    again = run(["train", "--resume", str(tmp_path / "run")])
    assert again.returncode == 0
    assert again.stdout.splitlines()[0] == ("no step was left: the run ended at step 6; --max-steps with more goes on")
    assert "asking" not in again.stdout


# What Windows, and in part macOS, lack; a module that is None cannot be imported.
ELSEWHERE = """
import os, signal, sys
import torch, numba, matplotlib  # which know their systems
for name in ("resource", "fcntl", "pwd", "grp", "termios"):
    sys.modules[name] = None
for name in ("sched_getaffinity", "register_at_fork", "fork", "setpgid", "getpgid", "O_NOFOLLOW", "O_NONBLOCK",
             "O_DIRECTORY", "getuid", "geteuid", "killpg"):
    if hasattr(os, name):
        delattr(os, name)
for name in ("SIGHUP", "SIGUSR1", "SIGUSR2", "SIGALRM", "SIGKILL", "SIGPIPE", "SIGQUIT"):
    if hasattr(signal, name):
        delattr(signal, name)
real_open = os.open
def windows_open(path, flags, *rest, **more):
    if os.path.isdir(path):
        raise PermissionError(13, "Permission denied", path)
    return real_open(path, flags, *rest, **more)
os.open = windows_open
import dagnn.files as durable
class Windows:
    name = "nt"
    def __getattr__(self, name):
        return getattr(os, name)
durable.os = Windows()
from dagnn.cli import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.fault("docs_and_packaging", 5)
def test_training_starts_on_other_systems(tmp_path):
    settings = tmp_path / "small.toml"
    settings.write_text(config_of(tmp_path / "run", **SMALLEST).to_toml())
    done = subprocess.run(
        [sys.executable, "-c", ELSEWHERE, "train", "--config", str(settings)],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "checkpoints" / "step-00000006").exists()
