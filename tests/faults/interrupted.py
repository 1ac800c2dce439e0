"""`dagnn train` under signals, for test_interrupts.py: trains once, then forks a child for each case and interrupts it.

    python tests/faults/interrupted.py FOLDER < CASES.json

A case names a phase, and the signals to send when the child has come to it. The child's phase is made long, so
that the signal meets it. Prints, per case: exit code, seconds from the last signal to the end, and what it said.
"""

import functools
import json
import os
import signal
import sys
import time
from pathlib import Path

import torch

from dagnn import cli
from dagnn import files as durable
from dagnn.curriculum import report
from dagnn.curriculum import run as curriculum_run
from dagnn.rewriting import GraphRewriter
from dagnn.training.run import checkpoints as checkpoint_store

SMALL = [
    *("--max-steps", "24", "--batch-size", "32", "--micro-batches", "2", "--threads", "1", "--model.width", "32"),
    *("--eval-every", "10", "--eval-samples", "2", "--test-samples", "3", "--optimizer.lr", "0.01"),
    *("--curriculum.preset", "small", "--curriculum.samples", "30 20 20 2 20 20 20"),
    *("--curriculum.certify", "false"),
    *("--schedule.warmup-steps", "5", "--checkpoint.save-every", "5"),
]
LONG = 60.0


def hooked(owner, name, ready, *, number=1, seconds=LONG):
    """Let call ``number`` of a function tell that the phase was reached, and then take long."""
    real, calls = getattr(owner, name), []

    @functools.wraps(real)
    def slow(*args, **kwargs):
        calls.append(name)
        if len(calls) >= number:
            if len(calls) == number:
                ready()
            time.sleep(seconds)
        return real(*args, **kwargs)

    setattr(owner, name, slow)


def enter(phase, ready):
    if phase == "start-up":
        hooked(curriculum_run, "open_run", ready)
    elif phase == "tracing":
        hooked(curriculum_run, "collect_neighbourhoods", ready)
    elif phase == "tracing by two processes":
        # Long enough to be met; the children say nothing, so that it is the pool that is waited for.
        real = curriculum_run.collect_neighbourhoods
        many = dict.fromkeys((2, 3, 5), 50_000)
        slow = lambda samples, **given: (ready(), real(many, **{**given, "processes": 2}))[1]  # noqa: E731
        curriculum_run.collect_neighbourhoods = slow
    elif phase == "training":
        hooked(GraphRewriter, "loss", ready, number=14, seconds=0.3)
    elif phase == "a long step":
        hooked(GraphRewriter, "loss", ready, number=14)
    elif phase == "evaluation":
        hooked(curriculum_run, "_progress_of", ready)
    elif phase == "saving":
        hooked(durable.os, "fsync", ready, number=9, seconds=0.2)
    elif phase == "a long save":
        real = checkpoint_store.write_checkpoint

        def write(path, checkpoint):
            if checkpoint.step == 10:
                (path.parent / f".writing-{path.name}").mkdir(exist_ok=True)
                ready()
                time.sleep(LONG)
            real(path, checkpoint)

        checkpoint_store.write_checkpoint = write
    elif phase == "judging":
        hooked(curriculum_run, "evaluate", ready)
    elif phase == "plotting":
        hooked(report, "draw_curves", ready)


def interrupt(folder, case):
    reached, told = os.pipe()
    said = folder / f"{case['name']}.txt"
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)
        os.close(reached)
        descriptor = os.open(said, os.O_WRONLY | os.O_CREAT)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        enter(case["phase"], lambda: os.write(told, b"!"))
        code = 1
        try:
            code = cli.main(["train", "--run-directory", str(folder / case["name"]), *SMALL])
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code)
    os.close(told)
    assert os.read(reached, 1) == b"!", f"{case['name']} was not reached: {said.read_text()}"
    os.close(reached)
    time.sleep(case.get("wait", 0.1))
    for number, given in enumerate(case["signals"]):
        if number:
            time.sleep(0.3)
        (os.killpg if case.get("group") else os.kill)(child, getattr(signal, given))
    began = time.monotonic()
    _, status = os.waitpid(child, 0)
    seconds = time.monotonic() - began
    try:  # nobody of the group may be left behind
        for _ in range(50):
            os.killpg(child, 0)
            time.sleep(0.1)
        os.killpg(child, signal.SIGKILL)
        left = True
    except ProcessLookupError:
        left = False
    return {"code": os.waitstatus_to_exitcode(status), "seconds": seconds, "said": said.read_text(), "left": left}


def main(folder):
    torch.set_num_threads(1)
    # What is loaded on first use, the children then have.
    assert cli.main(["train", "--run-directory", str(folder / "unharmed"), *SMALL]) == 0
    cases = json.load(sys.stdin)
    (folder / "found.json").write_text(json.dumps({case["name"]: interrupt(folder, case) for case in cases}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
