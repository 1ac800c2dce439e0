"""The main job: collect the windows of all levels, train a GraphRewriter on them, judge it by the exact engine."""

import functools
import os
import resource
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from dagnn.curriculum.rules import SIGNATURE
from dagnn.curriculum.traces import WindowSet, collect_windows
from dagnn.errors import RunError
from dagnn.graph.rewriting import RewritingMachine
from dagnn.nn import GraphRewriter
from dagnn.training.config import TrainingConfig
from dagnn.training.evaluate import ask, description_of, evaluate, samples_of
from dagnn.training.evaluation import Evaluation
from dagnn.training.processes import Processes
from dagnn.training.promotion import LevelPromotion
from dagnn.training.rng import seed_everything
from dagnn.training.run_directory import RunDirectory, open_run
from dagnn.training.tally import Tally
from dagnn.training.trainer import Trainer
from dagnn.training.window_file import Cost, read_windows, write_windows
from dagnn.training.window_source import WindowBatch, WindowSource

# An expression takes tens to thousands of right steps. While more windows than this are wrong, none comes out
# right, and a network that knows so little may never stop writing.
_WRONG_WINDOWS_AT_MOST = 0.03
_WINDOWS_AT_ONCE = 4096


def train(
    config: TrainingConfig,
    *,
    resume: bool = False,
    step: int | None = None,
    reschedule: str | None = None,
    note: Callable[[str], object] = print,
) -> Evaluation:
    """Trains the curriculum in ``config.run_directory`` and evaluates the result on the test split.

    Args:
        config: every setting.
        resume: go on with the run that is there, from its newest whole checkpoint, or that of `step`.
        reschedule: "keep" or "stretch", where a resume changes ``max_steps`` under a cosine.
        note: called with a line about what is being done.

    Several processes, joined by torch.distributed, all call it: they share every batch and every evaluation; the
    first one traces, writes and judges the result, which all get.

    Raises:
        TrainingInterrupted: by a signal; everything is saved.
        RunError: the directory is in use, holds another run, or cannot be written.
    """
    processes = Processes()
    with open_run(config, resume, processes) as run:
        windows = _windows(run, config, processes, note)
        trainer = make_trainer(run, config, windows)
        if resume:
            trainer.resume(step, reschedule=reschedule)
        trainer.fit()
        note(f"asking {config.test_samples} test expressions of each level")
        return processes.by_first(lambda: _judged(run, config))


def make_trainer(run: RunDirectory, config: TrainingConfig, windows: WindowSet) -> Trainer:
    """The trainer of a curriculum run, ready for `resume` or `fit`."""
    # The network's first weights are drawn here, before the trainer seeds its own draws.
    seed_everything(config.seed)
    model = GraphRewriter.from_windows(
        SIGNATURE,
        windows.windows,
        width=config.model.width,
        blocks=config.model.blocks,
        slot_width=config.model.slot_width,
        num_slots=config.model.num_slots,
    )
    processes = Processes()
    source = WindowSource(windows, model, config, rank=processes.rank, num_ranks=processes.size)
    loss = config.loss

    def batch_loss(network: nn.Module, batch: WindowBatch) -> Tensor:
        assert isinstance(network, GraphRewriter)
        return network.loss(batch.rows, batch.targets, alpha=loss.alpha, beta=loss.beta, gamma=loss.gamma)

    def evaluate_network(network: nn.Module, step: int) -> Mapping[str, Any]:
        assert isinstance(network, GraphRewriter)
        return _progress_of(network, source, config, promotion.active, processes)

    promotion = LevelPromotion.from_config(config.curriculum)
    return Trainer(
        model,
        batch_loss,
        source,
        config,
        run=run,
        evaluate=evaluate_network,
        promotion=promotion,
        on_promotion=source.open_levels,
        description=description_of(model),
    )


def _judged(run: RunDirectory, config: TrainingConfig) -> Evaluation:
    found = evaluate(run.path, expressions=config.test_samples)
    found.write(run.path)
    return found


def _windows(
    run: RunDirectory, config: TrainingConfig, processes: Processes, note: Callable[[str], object]
) -> WindowSet:
    """The windows of the run: those that it has, or all traced now by the first process."""
    traced: list[WindowSet] = []
    processes.by_first(lambda: traced.append(_traced(run, config, note)))
    if traced:
        return traced[0]
    kept = read_windows(run.path)
    if kept is None:
        raise RunError(f"{run.path} has no windows: all processes must see the directory of the run.")
    return kept[0]


def _traced(run: RunDirectory, config: TrainingConfig, note: Callable[[str], object]) -> WindowSet:
    kept = read_windows(run.path)
    if kept is not None:
        return kept[0]
    samples = {level: config.curriculum.samples_of(level) for level in config.curriculum.levels}
    processes = min(_cores(), 8) if sum(samples.values()) > 20_000 else 1
    note(f"tracing {sum(samples.values()):,} expressions of the levels {', '.join(map(str, samples))}")
    start, cpu_start = time.perf_counter(), _cpu_seconds()
    windows = collect_windows(samples, seed=config.seed, preset=config.curriculum.preset, processes=processes)
    cost = Cost(time.perf_counter() - start, _cpu_seconds() - cpu_start)
    write_windows(run.path, windows, cost)
    note(f"{len(windows):,} distinct windows in {cost.seconds:.0f} s")
    return windows


def _cores() -> int:
    """Cores that this process may use: a container may own 2 of 64."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _cpu_seconds() -> float:
    """CPU time of this process and of its children that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def _progress_of(
    model: GraphRewriter,
    source: WindowSource,
    config: TrainingConfig,
    levels: tuple[int, ...],
    processes: Processes,
) -> dict[str, Any]:
    """Part of the open levels' windows that are wrong, and the accuracy by level on fresh validation expressions.

    While too many windows are wrong nothing is asked: then there is no accuracy by level, and ``accuracy``, which ranks
    checkpoints, is 0. Every process looks at all windows, which takes little and decides alike, and asks its share of
    the expressions.
    """
    wrong = _wrong_windows(model, source, levels)
    if wrong > _WRONG_WINDOWS_AT_MOST:
        return {"windows_wrong": wrong, "accuracy": Tally.of([0.0])}
    machine = RewritingMachine(SIGNATURE, model)
    accuracy = {}
    for level in levels:
        samples = samples_of(level, config.eval_samples, config, split="validation", seed=config.seed)
        examples, _ = ask(machine, samples[processes.rank :: processes.size])
        accuracy[level] = Tally.of(float(example.right) for example in examples)
    # Every level asks as many expressions, so that the mean over all of them is the mean of the levels' means.
    return {
        "windows_wrong": wrong,
        "accuracy": functools.reduce(Tally.merged, accuracy.values()),
        **{f"accuracy/{level}": value for level, value in accuracy.items()},
    }


def _wrong_windows(model: GraphRewriter, source: WindowSource, levels: tuple[int, ...]) -> float:
    """Part of the windows of these levels whose replacement is not exactly right."""
    wrong = 0
    windows = source.windows_of(levels)
    for items in torch.split(windows, _WINDOWS_AT_ONCE):
        targets = source.targets[items]
        num_slots = int((targets >= 0).any(0).any(0).sum())
        targets = targets[..., :num_slots]
        predicted = model(source.rows[items], num_slots).argmax(-1)[:, None]
        right_orders = ((predicted == targets) | (targets < 0)).all(2)
        wrong += len(targets) - int(right_orders.any(1).sum())
    return wrong / max(1, len(windows))
