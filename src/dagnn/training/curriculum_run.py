"""The main job: collect the windows of all levels, train a GraphRewriter on them, judge it by the exact engine."""

import os
import resource
import time
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from dagnn.curriculum.rules import SIGNATURE
from dagnn.curriculum.traces import WindowSet, collect_windows
from dagnn.graph.rewriting import RewritingMachine
from dagnn.nn import GraphRewriter
from dagnn.training.config import TrainingConfig
from dagnn.training.evaluate import ask, description_of, evaluate, samples_of
from dagnn.training.evaluation import Evaluation
from dagnn.training.promotion import LevelPromotion
from dagnn.training.rng import seed_everything
from dagnn.training.run_directory import RunDirectory
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
    note: Callable[[str], object] = print,
) -> Evaluation:
    """Trains the curriculum in ``config.run_directory`` and evaluates the result on the test split.

    Args:
        config: every setting.
        resume: go on with the run that is there, from its newest whole checkpoint, or that of `step`.
        note: called with a line about what is being done.

    Raises:
        TrainingInterrupted: by a signal; everything is saved.
        RunError: the directory is in use, holds another run, or cannot be written.
    """
    path = config.run_directory
    with RunDirectory.open(path) if resume else RunDirectory.create(path, config) as run:
        windows = _windows(run, config, note)
        trainer = make_trainer(run, config, windows)
        if resume:
            trainer.resume(step)
        trainer.fit()
        note(f"asking {config.test_samples} test expressions of each level")
        found = evaluate(run.path, expressions=config.test_samples)
        found.write(run.path)
    return found


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
    source = WindowSource(windows, model, config)
    loss = config.loss

    def batch_loss(network: nn.Module, batch: WindowBatch) -> Tensor:
        assert isinstance(network, GraphRewriter)
        return network.loss(batch.rows, batch.targets, alpha=loss.alpha, beta=loss.beta, gamma=loss.gamma)

    def evaluate_network(network: nn.Module, step: int) -> Mapping[str, Any]:
        assert isinstance(network, GraphRewriter)
        return _progress_of(network, source, config, promotion.active)

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


def _windows(run: RunDirectory, config: TrainingConfig, note: Callable[[str], object]) -> WindowSet:
    """The windows of the run: those that it has, or all traced now."""
    kept = read_windows(run.path)
    if kept is not None:
        return kept[0]
    samples = {level: config.curriculum.samples_of(level) for level in config.curriculum.levels}
    processes = min(os.cpu_count() or 1, 8) if sum(samples.values()) > 20_000 else 1
    note(f"tracing {sum(samples.values()):,} expressions of the levels {', '.join(map(str, samples))}")
    start, cpu_start = time.perf_counter(), _cpu_seconds()
    windows = collect_windows(samples, seed=config.seed, preset=config.curriculum.preset, processes=processes)
    cost = Cost(time.perf_counter() - start, _cpu_seconds() - cpu_start)
    write_windows(run.path, windows, cost)
    note(f"{len(windows):,} distinct windows in {cost.seconds:.0f} s")
    return windows


def _cpu_seconds() -> float:
    """CPU time of this process and of its children that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def _progress_of(
    model: GraphRewriter, source: WindowSource, config: TrainingConfig, levels: tuple[int, ...]
) -> dict[str, Any]:
    """Part of the windows that are wrong, and the accuracy by level on fresh validation expressions."""
    wrong = _wrong_windows(model, source)
    accuracy = dict.fromkeys(levels, 0.0)
    if wrong <= _WRONG_WINDOWS_AT_MOST:
        machine = RewritingMachine(SIGNATURE, model)
        for level in levels:
            samples = samples_of(level, config.eval_samples, config, split="validation", seed=config.seed)
            examples, _ = ask(machine, samples)
            accuracy[level] = sum(example.right for example in examples) / len(examples)
    return {
        "windows_wrong": wrong,
        "accuracy": sum(accuracy.values()) / len(accuracy),
        **{f"accuracy/{level}": value for level, value in accuracy.items()},
    }


def _wrong_windows(model: GraphRewriter, source: WindowSource) -> float:
    """Part of the training windows whose replacement is not exactly right."""
    wrong = 0
    for first in range(0, len(source.rows), _WINDOWS_AT_ONCE):
        targets = source.targets[first : first + _WINDOWS_AT_ONCE]
        num_slots = int((targets >= 0).any(0).any(0).sum())
        targets = targets[..., :num_slots]
        predicted = model(source.rows[first : first + _WINDOWS_AT_ONCE], num_slots).argmax(-1)[:, None]
        right_orders = ((predicted == targets) | (targets < 0)).all(2)
        wrong += len(targets) - int(right_orders.any(1).sum())
    return wrong / max(1, len(source.rows))
