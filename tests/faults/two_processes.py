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
from torch.distributed import checkpoint
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from dagnn.accumulation import GradientAccumulator
from dagnn.data import BatchIterator
from dagnn.errors import RunError
from dagnn.training import MappedSource, Trainer, TrainingInterrupted
from dagnn.training.processes import Processes, joined
from dagnn.training.run_directory import open_run

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
    """FSDP2 on the CPU, its checkpoint through torch.distributed.checkpoint: the same weights as without a stop."""

    def begin(seed):
        torch.manual_seed(seed)
        model = fully_shard(nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1)).double())
        return model, torch.optim.AdamW(model.parameters(), lr=0.05)

    def train(model, optimizer, batches):
        accumulator = GradientAccumulator(model, optimizer, max_norm=1.0)
        for window in accumulator.windows(batches, micro_batches=2):
            for batch in window:
                window.backward(model(batch).square().mean())
            window.step()

    def state_of(model, optimizer):
        weights, moments = get_state_dict(model, optimizer)
        return {"model": weights, "optimizer": moments}

    batches = [FEATURES[rank + 2 * i : rank + 2 * i + 3] for i in range(8)]
    whole = begin(0)
    train(*whole, batches)
    first = begin(0)
    train(*first, batches[:4])
    checkpoint.save(state_of(*first), checkpoint_id=folder / "sharded")

    again = begin(1)  # other weights, and moments that are not there yet
    state = state_of(*again)
    checkpoint.load(state, checkpoint_id=folder / "sharded")
    set_state_dict(*again, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    train(*again, batches[4:])
    return [[parameter.full_tensor().tolist() for parameter in model.parameters()] for model in (whole[0], again[0])]


def plain_trainer(loss_fn, start=1.0):
    """21 items in batches of 4, two of them a window, so that batches, shares and windows are all ragged."""
    processes = Processes()
    order = BatchIterator([1] * ITEMS, batch_size=4, seed=3, rank=processes.rank, world_size=processes.size)
    model = nn.Linear(3, 1, bias=False).double()
    nn.init.constant_(model.weight, start)
    config = small_config(max_steps=8, eval_every=0, curriculum__order="mixed", ema_decay=0.0, max_norm=0.0)
    return Trainer(model, loss_fn, MappedSource(order, lambda items: FEATURES[items]), config, show_progress=False)


def main(folder, names):
    torch.set_num_threads(1)
    warnings.simplefilter("error")
    with joined() as processes:
        found = {name: CASES[name](processes.rank, folder) for name in names or CASES}
        (folder / f"rank{processes.rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
