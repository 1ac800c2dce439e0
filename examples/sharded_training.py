"""A model sharded over processes (FSDP2), with checkpoints that no kill can break.

    python examples/sharded_training.py                                       # one process
    torchrun --nproc-per-node=2 --max-restarts=3 examples/sharded_training.py  # two; started again after a failure

Run again, it goes on where it stopped, with any number of processes: torch.distributed.checkpoint gives each its part.
"""

import os
import shutil
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import checkpoint
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard

from dagnn import GradientAccumulator
from dagnn.data import BatchIterator
from dagnn.training import process_group

MICRO_BATCHES = 2
SAVE_EVERY = 2
INPUTS = torch.randn(200, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
TARGETS = INPUTS.sum(1, keepdim=True).tanh()


def train(folder: Path, max_steps: int) -> nn.Module:
    """Trains until step `max_steps`, from the newest checkpoint in `folder`, if it has one."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 1)).double()
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    step = load_newest(folder, model, optimizer)

    # Batch number n is a pure function of n, for any number of processes: the step is all that the data must remember.
    batches = BatchIterator(
        [1] * len(INPUTS), batch_size=8, seed=0, rank=dist.get_rank(), world_size=dist.get_world_size()
    )
    batches.seek(step * MICRO_BATCHES)
    accumulator = GradientAccumulator(model, optimizer, max_norm=1.0)
    while step < max_steps:
        micro_batches = [batches.next_batch() for _ in range(MICRO_BATCHES)]
        for window in accumulator.windows(micro_batches, micro_batches=MICRO_BATCHES):
            for items in window:
                window.backward(nn.functional.mse_loss(model(INPUTS[items]), TARGETS[items]))
            update = window.step()
        step += 1
        if dist.get_rank() == 0:
            print(f"step {step} loss {update.loss:.6f}")
        if step % SAVE_EVERY == 0 or step == max_steps:
            save(folder, step, model, optimizer)
    return model


def save(folder: Path, step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Written beside its place and moved there in one step: killed at any moment, only whole checkpoints have the name.

    torch waits for the disk with every file, and writes the metadata last; the rename is waited for here.
    """
    temporary, target = folder / f".writing-{step:08d}", folder / f"step-{step:08d}"
    if dist.get_rank() == 0:
        shutil.rmtree(temporary, ignore_errors=True)  # what a killed save has left
        temporary.mkdir(parents=True)
    dist.barrier()
    weights, moments = get_state_dict(model, optimizer)
    checkpoint.save({"model": weights, "optimizer": moments}, checkpoint_id=temporary)
    if dist.get_rank() == 0:
        temporary.rename(target)
        descriptor = os.open(folder, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)
    dist.barrier()


def load_newest(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Puts back the newest checkpoint and returns its step; 0 when there is none."""
    found = sorted(folder.glob("step-*"))
    if not found:
        return 0
    weights, moments = get_state_dict(model, optimizer)
    state = {"model": weights, "optimizer": moments}
    checkpoint.load(state, checkpoint_id=found[-1])
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    return int(found[-1].name.removeprefix("step-"))


def main() -> None:
    with process_group():  # those that torchrun has started
        alone = not dist.is_initialized()
        if alone:
            dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        train(Path(sys.argv[1] if len(sys.argv) > 1 else "sharded"), max_steps=10)
        if alone:
            dist.destroy_process_group()


if __name__ == "__main__":
    main()
