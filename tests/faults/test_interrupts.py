"""SIGINT and SIGTERM in every phase of `dagnn train`: one save, exit code 130 or 143, and nothing lost."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from dagnn.training.run.checkpoint_commands import verify
from dagnn.training.run.checkpoints import CheckpointStore
from dagnn.training.run.directory import RunDirectory

SCRIPT = Path(__file__).parent / "interrupted.py"
EXIT = {"SIGINT": 130, "SIGTERM": 143}

# phase -> the step that is saved when a signal comes there; None: no run yet, or none with a checkpoint
SAVED = {
    "start-up": None,
    "tracing": None,
    "training": 7,
    "evaluation": 10,
    "saving": 5,
    "judging": 24,
    "plotting": 24,
}


def case(phase, *signals, **more):
    return {"name": " ".join([phase, *signals, *more]).replace(" ", "-"), "phase": phase, "signals": signals, **more}


# What no other quick test has; a signal while it trains or evaluates: tests/training/run/test_exact_resume.py. The full
# suite has all pairs, to the process and to its group.
SHORT = [
    case("start-up", "SIGTERM"),
    case("saving", "SIGTERM"),
    case("a long save", "SIGINT", "SIGTERM", group=True),
]
FULL = [
    *(case(phase, name, **more) for phase in SAVED for name in EXIT for more in ({}, {"group": True})),
    *(case("tracing by two processes", name, wait=3.0, **more) for name in EXIT for more in ({}, {"group": True})),
    *(
        case(phase, first, second, **more)
        for phase in ("a long step", "a long save")
        for first in EXIT
        for second in EXIT
        for more in ({}, {"group": True})
    ),
]


def interrupt(folder, cases):
    done = subprocess.run(
        [sys.executable, SCRIPT, folder], input=json.dumps(cases), capture_output=True, text=True, timeout=3600
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads((folder / "found.json").read_text())


def check(folder, cases, found):
    for each in cases:
        phase, result = each["phase"], found[each["name"]]
        where = (each["name"], result)
        assert result["code"] == EXIT[each["signals"][-1]], where
        assert not result["left"], where
        assert "Traceback" not in result["said"], where
        # The phase itself would take a minute. Not a speed: whether it was waited for. A second signal does not wait.
        assert result["seconds"] < (40 if len(each["signals"]) == 1 else 10), where
        saved = SAVED.get(phase)
        if len(each["signals"]) == 2:
            saved = 5  # the last one before the signals: nothing was saved any more
        path = folder / each["name"]
        if not (path / "run.json").exists():
            assert phase == "start-up"
            continue
        run = RunDirectory.read(path)
        newest = CheckpointStore(run.checkpoints_path, run.run_id).latest()
        assert (newest.step if newest else None) == saved, where
        if saved:
            assert all("is whole" in line for line in verify(path))
        assert ("stopped by" in result["said"]) == (phase in ("training", "evaluation", "saving")), where
        if len(each["signals"]) == 2:
            assert sorted(run.checkpoints_path.glob("step-*")) == [run.checkpoints_path / "step-00000005"], where


def test_signal_in_phases_of_every_kind(tmp_path):
    check(tmp_path, SHORT, interrupt(tmp_path, SHORT))


@pytest.mark.slow
def test_every_signal_in_every_phase_to_the_process_and_its_group(tmp_path):
    check(tmp_path, FULL, interrupt(tmp_path, FULL))
