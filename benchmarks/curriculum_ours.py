"""(C, C2, C3) Ours in the curriculum comparison: what `dagnn train` calls, in a run directory of its own."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.curriculum_rivals import Trained
from dagnn.curriculum import Sample
from dagnn.curriculum.accuracy import STEP_BUDGET, evaluate, model_of
from dagnn.curriculum.config import CurriculumConfig
from dagnn.curriculum.engine import from_term, to_term
from dagnn.curriculum.evaluation_file import NeighbourhoodCounts
from dagnn.curriculum.rules import SIGNATURE
from dagnn.curriculum.run import train
from dagnn.rewriting import GraphRewriter, RewritingMachine
from dagnn.rewriting.dataset import read_neighbourhoods
from dagnn.training import CheckpointStore, RunDirectory, read_metrics

# Enough to tell what a step costs; they are part of the training, which then goes on.
_FIRST_STEPS = 150
# Evaluations on the way are on our clock, and on no rival's: they are to fit into the time, too.
_TRAINING_SHARE = 0.9
_ROUNDS = 600


class Ours:
    """A trained `GraphRewriter` as a contestant.

    Attributes:
        trained: what it took: traces, training and evaluations on the way.
        model: the network of the last checkpoint, with its averaged weights.
    """

    def __init__(self, directory: Path, seed: int) -> None:
        run = RunDirectory.read(directory)
        config = run.config(CurriculumConfig)
        checkpoint = CheckpointStore(run.checkpoints_path, run.run_id).latest()
        traced = read_neighbourhoods(run.path, SIGNATURE)
        assert checkpoint is not None and traced is not None
        self.model: GraphRewriter = model_of(checkpoint)
        self._directory, self._seed = directory, seed
        traces, training = traced[1].cpu_seconds, checkpoint.clock["cpu_seconds"]
        self.trained = Trained(
            cpu_seconds=traces + training,
            steps=checkpoint.step,
            examples=checkpoint.step * config.batch_size,
            # The log knows the wall-clock only: steps cost about the same all the way.
            curve=[
                (
                    traces + training * row["step"] / checkpoint.step,
                    {level: float(row.get(f"accuracy/{level}", 0.0)) for level in config.curriculum.levels},
                )
                for row in read_metrics(run.metrics_path)
                if row["kind"] == "evaluation"
            ],
        )

    def solve(self, samples: Sequence[Sample]) -> list[object]:
        """The answers; every set of expressions begins with an empty memo."""
        terms = [to_term(sample.input, sample.level) for sample in samples]
        machine = RewritingMachine(SIGNATURE, self.model)
        results = machine.run([term for term, _ in terms], budget=STEP_BUDGET, rounds=_ROUNDS)
        return [
            None if result.tokens is None else from_term(result.tokens, names)
            for result, (_, names) in zip(results, terms, strict=True)
        ]

    def neighbourhoods(self, expressions: int) -> NeighbourhoodCounts | None:
        """How many neighbourhoods the test expressions of all levels ask for, and those that training never showed."""
        return evaluate(self._directory, expressions=expressions, seed=self._seed).neighbourhoods


def train_ours(
    directory: Path,
    *,
    cpu_seconds: float,
    seed: int,
    expressions: int | None = None,
    max_steps: int | None = None,
    flags: Mapping[str, Any] | None = None,
    told: Callable[[str], object] = print,
) -> Ours:
    """Trains for this much CPU time, traces included (a few steps tell how many there is time for), or so many steps.

    Args:
        directory: of the run; must not exist.
        cpu_seconds: of one thread.
        max_steps: the steps, whatever time they take; then `cpu_seconds` says nothing.
        seed: of the run.
        expressions: traced per level; None: as many as `dagnn train`.
        flags: other settings than the defaults, by dotted key.
    """
    torch.set_num_threads(1)
    settings = {
        "seed": seed,
        "run_directory": str(directory),
        "threads": 1,
        "max_steps": max_steps or _FIRST_STEPS,
        "schedule.steps": max_steps or CurriculumConfig().max_steps,
        "eval_every": 250,
        "test_samples": 1,  # the questions of this benchmark come after the training
        "checkpoint.save_every": 0,
        "checkpoint.keep_best": 0,
        "checkpoint.keep_last": 1,
        "curriculum.certify": False,  # the others are not shown what no expression led to either
        **(flags or {}),
    }
    if expressions is not None:
        settings["curriculum.samples"] = (expressions,)
    config = CurriculumConfig.resolve(environment={}, flags=settings)
    train(config, note=told)
    if max_steps is not None:
        return Ours(directory, seed)
    steps = steps_within(Ours(directory, seed).trained, directory, cpu_seconds)
    told(f"{steps:,} steps fit into {cpu_seconds / 60:.2f} CPU minutes")
    if steps > _FIRST_STEPS:
        longer = config.changed({"max_steps": steps, "schedule.steps": 0})
        train(longer, resume=True, reschedule="stretch", note=told)
    return Ours(directory, seed)


def steps_within(first: Trained, directory: Path, cpu_seconds: float) -> int:
    """Steps in all for which this CPU time is enough, after the first few have shown what one costs."""
    traced = read_neighbourhoods(directory, SIGNATURE)
    assert traced is not None
    traces = traced[1].cpu_seconds
    per_step = (first.cpu_seconds - traces) / first.steps
    return max(first.steps, int(_TRAINING_SHARE * (cpu_seconds - traces) / per_step))
