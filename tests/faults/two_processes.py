"""What test_processes.py runs in two processes: `torchrun --nproc-per-node=2 two_processes.py FOLDER [case ...]`.

Each case gets the rank and a folder that both see, and returns JSON values: ``FOLDER/rank<r>.json`` holds them all.
"""

import errno
import hashlib
import json
import os
import signal
import sys
import time
import warnings
from pathlib import Path

import torch
from small_training import begin_or_go_on, outcome, small_config, small_trainer
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from dagnn.data import BatchIterator
from dagnn.errors import RunError
from dagnn.training import MappedLoader, Trainer, TrainingInterrupted
from dagnn.training.processes import Processes, process_group
from dagnn.training.run.directory import open_run

sys.path.append(str(Path(__file__).parents[2] / "examples"))
import sharded_training

CASES = {}
ITEMS = 21
FEATURES = torch.randn(ITEMS, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


def case(function):
    CASES[function.__name__] = function
    return function


def digest(directory):
    """`outcome` with the files' hashes, as JSON values to be compared between runs and ranks."""
    name, score, files, rows = outcome(directory)
    return [name, score, {file: hashlib.sha256(content).hexdigest() for file, content in files.items()}, rows]


@case
def uninterrupted(rank, folder):
    begin_or_go_on(folder / "whole")
    return digest(folder / "whole")


@case
def wrapped_in_ddp(rank, folder):
    config = small_config(run_directory=str(folder / "ddp"))
    with open_run(config, False, Processes()) as run:
        small_trainer(run, config, wrap=DistributedDataParallel).fit()
    return digest(folder / "ddp")


@case
def stopped_on_one_rank_only(rank, folder):
    """A signal to rank 1, in a step and in an evaluation: both leave at the same step, and the bytes are the same."""

    def in_step(trainer):
        if rank == 1 and trainer.step == 9 and trainer.stop.signal_number is None:
            os.kill(os.getpid(), signal.SIGTERM)

    def in_evaluation(trainer):
        if rank == 1 and trainer.step == 16:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(60)

    left = []
    for hooks in ({"during_step": in_step}, {"during_evaluation": in_evaluation}):
        try:
            begin_or_go_on(folder / "stopped", **hooks)
        except TrainingInterrupted as interrupted:
            left.append([interrupted.step, interrupted.exit_code, interrupted.checkpoint.name])
    begin_or_go_on(folder / "stopped")
    return left, digest(folder / "stopped")


@case
def full_disk_of_the_one_that_writes(rank, folder):
    fsync, calls = os.fsync, []

    def full(descriptor):
        calls.append(descriptor)
        if len(calls) > 12:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(descriptor)

    os.fsync = full
    try:
        begin_or_go_on(folder / "full")
    except RunError as error:
        return str(error), len(calls) > 0
    finally:
        os.fsync = fsync


@case
def loss_that_is_not_finite_on_one_rank(rank, folder):
    def loss_fn(model, batch):
        return model(batch).square().mean() * (float("nan") if rank == 1 and trainer.step == 3 and not seen else 1.0)

    seen = []
    trainer = plain_trainer(loss_fn)
    refuse = trainer._refuse
    trainer._refuse = lambda values, reason: (seen.append([trainer.step, reason]), refuse(values, reason))
    result = trainer.fit()
    return seen, result.step, trainer.model.weight.tolist()


@case
def same_as_one_process(rank, folder):
    trainer = plain_trainer(lambda model, batch: model(batch).square().mean())
    lrs = []
    make = trainer._train_step
    trainer._train_step = lambda: (lrs.append(trainer.optimizer.param_groups[0]["lr"]), make())
    result = trainer.fit()
    return trainer.model.weight.tolist(), lrs, result.loss


@case
def weights_that_begin_apart_are_those_of_the_first(rank, folder):
    trainer = plain_trainer(lambda model, batch: model(batch).square().mean(), start=float(rank + 1))
    trainer.fit()
    return trainer.model.weight.tolist()


@case
def sharded_model_goes_on_from_dcp(rank, folder):
    """examples/sharded_training.py: FSDP2 on the CPU, its checkpoints through torch.distributed.checkpoint."""

    def weights(folder, max_steps):
        model = sharded_training.train(folder, max_steps)
        return [parameter.full_tensor().tolist() for parameter in model.parameters()]

    whole = weights(folder / "sharded-whole", 6)
    weights(folder / "sharded", 3)
    return whole, weights(folder / "sharded", 6)


@case
def begun_by_one_process(rank, folder):
    """The run in "grown" was stopped by one process; two go on with it."""
    drawn = []

    def loss_fn(model, batch):
        drawn.append(torch.rand(1).item())
        return square(model, batch)

    config = plain_config(run_directory=str(folder / "grown"))
    with open_run(config, True, Processes()) as run, warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        trainer = plain_trainer(loss_fn, run=run)
        trainer.resume()
        trainer.fit()
    return [str(each.message) for each in told], trainer.model.weight.tolist(), drawn[0]


@case
def begun_for_one_process(rank, folder):
    """Two processes stop the run in "shrunk", which the test then goes on with alone."""
    config = plain_config(run_directory=str(folder / "shrunk"))
    with open_run(config, False, Processes()) as run:
        trainer = plain_trainer(stopping(lambda: trainer), run=run)
        try:
            trainer.fit()
        except TrainingInterrupted as interrupted:
            return interrupted.step


def square(model, batch):
    return model(batch).square().mean()


def stopping(trainer):
    """A loss that asks for a stop at step 4."""

    def loss_fn(model, batch):
        if trainer().step == 3:
            trainer().stop.request()
        return square(model, batch)

    return loss_fn


def plain_config(**flags):
    plain = {"max_steps": 8, "eval_every": 0, "curriculum.order": "mixed", "ema_decay": 0.0, "max_norm": 0.0}
    return small_config(**{**plain, "checkpoint.save_every": 0, **flags})


def plain_trainer(loss_fn, start=1.0, run=None):
    """21 items in batches of 4, two of them a window, so that batches, shares and windows are all ragged."""
    processes = Processes()
    order = BatchIterator([1] * ITEMS, batch_size=4, seed=3, rank=processes.rank, world_size=processes.size)
    model = nn.Linear(3, 1, bias=False).double()
    nn.init.constant_(model.weight, start)
    source = MappedLoader(order, lambda items: FEATURES[items])
    return Trainer(model, loss_fn, source, plain_config(), run=run, show_progress=False)


def main(folder, names):
    torch.set_num_threads(1)
    warnings.simplefilter("error")
    with process_group() as processes:
        found = {name: CASES[name](processes.rank, folder) for name in names or CASES}
        (folder / f"rank{processes.rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
