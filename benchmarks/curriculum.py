"""Ours beats a Transformer on answers, one on the engine's steps and a TreeLSTM on every level, at equal CPU time.

The same training expressions (seed and index), the same CPU time in one thread, drawing and tracing included; the exact
engine judges every answer. See docs/benchmarks/curriculum.md for the contestants and for the settings that were tried.

    python -m benchmarks.curriculum                          # all rivals and ours, three seeds, 5 CPU minutes each
    python -m benchmarks.curriculum --quick                  # half a CPU minute each, few expressions
    python -m benchmarks.curriculum --only A --seed 1 --json a1.json      # one piece of it, in this process
    python -m benchmarks.curriculum --only C C2 C3           # ours beside its graph backbone and its GedLoss
    python -m benchmarks.curriculum --join *.json            # the table of all pieces
    python -m benchmarks.curriculum --samples --plot samples.png          # ours by the number of training expressions

The exit code is 1 when a rival (A, A2, A3, B) is better than ours (C) anywhere; C2 and C3 decide nothing.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks.curriculum_table import NAMES, OURS, RIVALS, Result, comparison, curve_plot, curve_table, lost

SEEDS, CPU_MINUTES, ASKED = 3, 5.0, 500
QUICK_MINUTES, QUICK_ASKED, QUICK_EXPRESSIONS = 0.5, 40, 600
SAMPLES, QUICK_SAMPLES = (1_000, 3_000, 10_000, 30_000), (30, 100, 300)
STEPS, QUICK_STEPS = 3_000, 300  # with --samples; 3,000 are those of dagnn train


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the comparison from the command line and returns the exit code."""
    given = _parsed(argv)
    if given.join:
        results = [result for path in given.join for result in read(path)]
    elif given.samples:
        results = [
            result
            for count in (QUICK_SAMPLES if given.quick else SAMPLES)
            for seed in range(given.seeds)
            for result in in_process(OURS, seed, given, expressions=count, max_steps=given.max_steps)
        ]
    elif given.seed is not None and len(given.only) == 1:
        results = [measured(given.only[0], given.seed, given)]
    else:
        seeds = range(given.seeds) if given.seed is None else [given.seed]
        results = [result for seed in seeds for name in given.only for result in in_process(name, seed, given)]
    if given.json:
        write(given.json, results)

    print((__doc__ or "").splitlines()[0])
    print()
    if given.samples:
        print(curve_table(results))
        if given.plot:
            curve_plot(results, given.plot)
        return 0
    print(comparison(results))
    beaten = lost(results)
    for line in beaten:
        print(f"missed: {line}", file=sys.stderr)
    return 1 if beaten else 0


def measured(name: str, seed: int, given: argparse.Namespace) -> Result:
    """Trains one contestant in this process, asks it, and says what came out."""
    import torch

    from benchmarks.curriculum_expressions import LEVELS, accuracies, questions
    from benchmarks.curriculum_ours import train_ours
    from benchmarks.curriculum_rivals import train
    from benchmarks.curriculum_settings import OUR_FLAGS, SETTINGS, rival_of

    torch.set_num_threads(1)
    cpu_seconds = 60 * given.cpu_minutes
    windows = None
    print(f"{name}: {NAMES[name]}, seed {seed}, {given.cpu_minutes:g} CPU minutes", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        if name in OUR_FLAGS:
            ours = train_ours(
                Path(folder) / "run",
                cpu_seconds=cpu_seconds,
                seed=seed,
                expressions=given.expressions,
                max_steps=given.max_steps,
                flags=OUR_FLAGS[name],
                told=_said,
            )
            told = " ".join(["dagnn train", *(f"--{key} {value}" for key, value in OUR_FLAGS[name].items())])
            contestant, trained = ours, ours.trained
            windows = ours.neighbourhoods(given.questions)
        else:
            sizes = None if given.expressions is None else dict.fromkeys(LEVELS, given.expressions)
            begun = time.process_time()
            contestant = rival_of(name, seed, sizes)
            trained = train(
                contestant,
                SETTINGS[name],
                cpu_seconds=cpu_seconds,
                seed=seed,
                asked=min(60, given.questions),
                told=_said,
                already=time.process_time() - begun,
            )
            contestant.model.eval()
            told = str(asdict(SETTINGS[name]))
        answering, answered = 0.0, 0

        def timed(samples):  # type: ignore[no-untyped-def]
            nonlocal answering, answered
            start = time.process_time()
            answers = contestant.solve(samples)
            answering += time.process_time() - start
            answered += len(samples)
            return answers

        accuracy = accuracies(timed, questions(given.questions, seed=seed), told=_said)
    return Result(
        contestant=name,
        seed=seed,
        cpu_minutes=given.cpu_minutes,
        cpu_seconds=trained.cpu_seconds,
        parameters=sum(each.numel() for each in contestant.model.parameters()),
        steps=trained.steps,
        examples=trained.examples,
        answers_per_second=answered / answering,
        asked=given.questions,
        accuracy=accuracy,
        curve=trained.curve,
        windows=None if windows is None else asdict(windows),
        expressions=given.expressions,
        settings=told,
        machine=_machine(),
        versions={"torch": torch.__version__},
    )


def in_process(
    name: str, seed: int, given: argparse.Namespace, expressions: int | None = None, max_steps: int | None = None
) -> list[Result]:
    """The same in a process of its own with one thread, so that its CPU time is its own."""
    expressions = expressions or given.expressions
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "result.json"
        command = [sys.executable, "-m", "benchmarks.curriculum", "--only", name, "--seed", str(seed)]
        command += ["--cpu-minutes", str(given.cpu_minutes), "--questions", str(given.questions), "--json", str(path)]
        command += [] if expressions is None else ["--expressions", str(expressions)]
        command += [] if max_steps is None else ["--max-steps", str(max_steps)]
        threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"), "1")
        subprocess.run(command, env={**os.environ, **threads}, stdout=sys.stderr, check=False)
        if not path.exists():
            raise SystemExit(f"{' '.join(command)} has left no result.")
        return read(path)


def read(path: Path) -> list[Result]:
    """Results that `write` wrote."""
    return [Result.from_json(values) for values in json.loads(path.read_text())["results"]]


def write(path: Path, results: Sequence[Result]) -> None:
    """Keeps results as JSON."""
    claim = (__doc__ or "").splitlines()[0]
    path.write_text(json.dumps({"claim": claim, "results": [result.to_json() for result in results]}, indent=1) + "\n")


def _parsed(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one seed, half a CPU minute, few expressions")
    parser.add_argument("--cpu-minutes", type=float, help=f"of each contestant and seed ({CPU_MINUTES:g})")
    parser.add_argument("--seeds", type=int, help=f"how many, from 0 ({SEEDS})")
    told = "; ".join(f"{name}: {words}" for name, words in NAMES.items())
    usual = [*RIVALS, OURS]
    parser.add_argument("--only", nargs="+", choices=list(NAMES), default=usual, help=f"({' '.join(usual)}) {told}")
    parser.add_argument("--seed", type=int, help="this seed only; with one contestant, in this process")
    parser.add_argument("--questions", type=int, help=f"test expressions of each kind ({ASKED})")
    parser.add_argument("--expressions", type=int, help="training expressions per level (those of dagnn train)")
    parser.add_argument("--samples", action="store_true", help="ours by the number of training expressions")
    parser.add_argument("--max-steps", type=int, help="ours: so many steps, whatever time they take (--samples: 3000)")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="with --samples, also a picture")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the results to this file")
    parser.add_argument("--join", nargs="+", type=Path, metavar="FILE", help="the table of results written before")
    given = parser.parse_args(argv)
    given.cpu_minutes = given.cpu_minutes or (QUICK_MINUTES if given.quick else CPU_MINUTES)
    given.seeds = given.seeds or (1 if given.quick else SEEDS)
    given.questions = given.questions or (QUICK_ASKED if given.quick else ASKED)
    given.expressions = given.expressions or (QUICK_EXPRESSIONS if given.quick else None)
    if given.samples:
        # Not by the clock: tracing 30,000 expressions of level 4 takes longer than the training.
        given.max_steps = given.max_steps or (QUICK_STEPS if given.quick else STEPS)
    return given


def _said(line: str) -> None:
    print(f"  {line}", flush=True)


def _machine() -> str:
    from benchmarks.harness import _processor

    return f"{_processor()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"


if __name__ == "__main__":
    sys.exit(main())
