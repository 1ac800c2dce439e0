"""A step of the trainer takes at most 3 % longer than one of a bare loop with AdamW as it comes; memory does not grow.

The bare loop is what one writes by hand for the same work: next batch, forward, backward, clip, optimizer, schedule,
averaged weights, loss and norm as numbers. The trainer does that too, and beside it agrees with other processes,
checks that all is finite, joins weights, writes a row of metrics for every step, and can stop anywhere.

It also takes the fused form of AdamW, which saves more than all of this costs; so a second bare loop takes that too,
and shows what is added.
"""

import argparse
import gc
import json
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.harness import QUICK_ROUNDS, ROUNDS, Row, as_json, table
from dagnn.data import BatchIterator
from dagnn.training import MappedLoader, MetricsLog, RunDirectory, Trainer, TrainingConfig
from dagnn.training.averages import WeightAverage
from dagnn.training.optimizers import make_schedule

STEPS, QUICK_STEPS = 500, 100
REQUIRED = {"a bare loop": 0.97, "with fused AdamW": 0.95}
_LOOPS: dict[str, bool | None] = {"a bare loop": None, "with fused AdamW": True}
_TURN = 10  # steps that a contestant makes before the next one has its turn
MAX_ROW_SECONDS = 1e-4
ITEMS, FEATURES = 4096, 64
MEMORY_STEPS = 10_000
_MAY_GROW = 4 << 20  # bytes over 10,000 steps: one malloc arena; a row kept per step would be ten times that


def model_of(width: int, depth: int = 3) -> nn.Module:
    torch.manual_seed(0)
    layers: list[nn.Module] = [nn.Linear(FEATURES, width), nn.Tanh()]
    for _ in range(depth - 2):
        layers += [nn.Linear(width, width), nn.Tanh()]
    return nn.Sequential(*layers, nn.Linear(width, 1))


def config_of(steps: int, directory: str = "run") -> TrainingConfig:
    flags = {
        "max_steps": steps,
        "batch_size": 128,
        "micro_batches": 1,
        "eval_every": 0,
        "schedule.warmup_steps": 10,
        "run_directory": directory,
        "checkpoint.save_every": 0,
        "checkpoint.keep_best": 0,
        "ema_decay": 0.9,
    }
    return TrainingConfig.resolve(environment={}, flags=flags)


def source_of(batch_size: int) -> MappedLoader:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(ITEMS, FEATURES, generator=generator)
    targets = inputs[:, :1].tanh()
    order = BatchIterator([1] * ITEMS, batch_size=batch_size, seed=0)
    return MappedLoader(order, lambda items: (inputs[items], targets[items]))


def loss_fn(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    return nn.functional.mse_loss(model(batch[0]), batch[1])


def by_hand(model: nn.Module, config: TrainingConfig, *, fused: bool | None = None) -> Iterator[tuple[float, float]]:
    """The bare loop: loss and norm of every step. ``fused`` as in AdamW: None is what PyTorch takes."""
    source, given = source_of(config.batch_size), config.optimizer
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=given.lr, betas=given.betas, weight_decay=given.weight_decay, fused=fused
    )
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, make_schedule(config.schedule, config.max_steps))
    average = WeightAverage(model, config.ema_decay)
    model.train()
    for step in range(1, config.max_steps + 1):
        batch = source.next_batch()
        loss = loss_fn(model, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        norm = nn.utils.clip_grad_norm_(model.parameters(), config.max_norm)
        optimizer.step()
        scheduler.step()
        average.update(step)
        optimizer.zero_grad()
        yield loss.item(), norm.item()


def by_trainer(model: nn.Module, config: TrainingConfig, *, on_step: Callable[[int], None] | None = None) -> Trainer:
    """The same with the trainer, in a run directory of its own."""
    with tempfile.TemporaryDirectory() as folder, RunDirectory.create(Path(folder) / "run", config) as run:
        trainer = Trainer(
            model, loss_fn if on_step is None else _told(on_step), source_of(config.batch_size), config, run=run,
            show_progress=False,
        )  # fmt: skip
        trainer.fit()
    return trainer


def _told(on_step: Callable[[int], None]) -> Callable[[nn.Module, Any], torch.Tensor]:
    steps = iter(range(sys.maxsize))

    def told(model: nn.Module, batch: Any) -> torch.Tensor:
        on_step(next(steps))
        return loss_fn(model, batch)

    return told


def same_weights(width: int, depth: int) -> None:
    """Both end with the same weights, or what is compared is not the same work."""
    config = config_of(20)
    hand, trained = model_of(width, depth), model_of(width, depth)
    for _ in by_hand(hand, config):
        pass
    by_trainer(trained, config)
    for mine, theirs in zip(trained.parameters(), hand.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-6)


def flat_memory(steps: int) -> bool:
    """Whether resident memory after a tenth of the steps and at the end differs by no more than an arena."""
    sizes: dict[int, int] = {}

    def look(step: int) -> None:
        if step in (steps // 10, steps - 1):
            gc.collect()
            sizes[step] = _resident()

    by_trainer(model_of(16), config_of(steps), on_step=look)
    grown = sizes[steps - 1] - sizes[steps // 10]
    print(f"memory after {steps // 10:,} steps {sizes[steps // 10] >> 20} MB, after {steps:,} {grown / 2**20:+.2f} MB")
    return grown <= _MAY_GROW


def _resident() -> int:
    pages = Path("/proc/self/statm")
    if pages.exists():
        return int(pages.read_text().split()[1]) * resource.getpagesize()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def seconds_of_steps(width: int, depth: int, steps: int) -> dict[str, list[float]]:
    """Seconds of single steps of each contestant, in turns of a few: what slows the machine down slows all of them.

    The trainer is timed from one forward pass to the next, so what a run costs once is not in it; the bare loops run
    inside its forward pass, between two turns, which are not counted.
    """
    config = config_of(steps)
    loops = [by_hand(model_of(width, depth), config, fused=fused) for fused in _LOOPS.values()]
    times: dict[str, list[float]] = {who: [] for who in ("ours", *_LOOPS)}
    last: float | None = None

    def look(step: int) -> None:
        nonlocal last
        if last is not None:
            times["ours"].append(time.perf_counter() - last)
        last = None
        if step % _TURN:
            last = time.perf_counter()
            return
        for who, loop in zip(_LOOPS, loops, strict=True):
            next(loop)  # the first step of a turn finds the caches full of another's
            for _ in range(_TURN - 1):
                begin = time.perf_counter()
                next(loop)
                times[who].append(time.perf_counter() - begin)

    by_trainer(model_of(width, depth), config, on_step=look)
    return times


def measured(name: str, width: int, depth: int, *, steps: int, rounds: int) -> list[Row]:
    """Trainer against bare loops: the ratios of their median steps, and what the trainer adds to the fused one."""
    same_weights(width, depth)
    medians: dict[str, list[float]] = {}
    for _ in range(rounds):
        for who, times in seconds_of_steps(width, depth, steps).items():
            medians.setdefault(who, []).append(statistics.median(times))
    ours = medians.pop("ours")
    rows = []
    for who, theirs in medians.items():
        ratios = [their / mine for their, mine in zip(theirs, ours, strict=True)]
        ratio, seconds, required = statistics.median(ratios), statistics.median(ours), REQUIRED[who]
        rows.append(
            Row(name, who, statistics.median(theirs), seconds, ratio, min(ratios), max(ratios), required,
                ratio >= required, threads=1)
        )  # fmt: skip
    added = statistics.median(mine - their for their, mine in zip(medians["with fused AdamW"], ours, strict=True))
    print(f"{name}: {added * 1e6:+.0f} microseconds to the loop with fused AdamW")
    return rows


def _limit(name: str, limit: float, seconds: Sequence[float]) -> Row:
    ratio = limit / statistics.median(seconds)
    lowest, highest = limit / max(seconds), limit / min(seconds)
    return Row(name, "0.1 ms", limit, statistics.median(seconds), ratio, lowest, highest, 1.0, ratio >= 1, threads=1)


def metrics_rows(count: int) -> float:
    """Seconds that a row of metrics takes."""
    row = {"loss": 0.123456789, "grad_norm": 1.5, "lr": 1e-3, "weight": 128.0, "micro_batches": 1, "seconds": 12.345}
    with tempfile.TemporaryDirectory() as folder, MetricsLog(Path(folder) / "metrics.jsonl") as log:
        begin = time.perf_counter()
        for step in range(count):
            log.write("step", step, row)
        return (time.perf_counter() - begin) / count


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the benchmark from the command line, with the arguments of `benchmarks.harness`; returns the exit code."""
    headline = (__doc__ or "").splitlines()[0]
    parser = argparse.ArgumentParser(description=headline)
    parser.add_argument("--quick", action="store_true", help="fewer steps and rounds")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the rows to this file")
    given = parser.parse_args(argv)
    print(headline)
    torch.set_num_threads(1)
    flat = flat_memory(1_000 if given.quick else MEMORY_STEPS)
    steps, rounds = (QUICK_STEPS, QUICK_ROUNDS) if given.quick else (STEPS, ROUNDS)
    rows = [
        *measured("a step of about 1 ms", 160, 4, steps=steps, rounds=rounds),
        *measured("a step of about 4 ms", 384, 4, steps=steps, rounds=rounds),
        _limit("a row of metrics", MAX_ROW_SECONDS, [metrics_rows(2_000) for _ in range(rounds)]),
    ]
    print(table(rows))
    if given.json:
        given.json.write_text(json.dumps(as_json(headline, rows, quick=given.quick), indent=1) + "\n")
    return 0 if flat and all(row.ok for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
