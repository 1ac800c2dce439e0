"""Batches loaded by worker processes: the same for any number of them, after any stop, and under Ctrl-C."""

import random
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
import torch
from small_training import outcome, small_config
from torch import nn

from dagnn.accumulation.random_states import rng_state
from dagnn.data import BatchIterator
from dagnn.errors import CheckpointError, ConfigError
from dagnn.training import DatasetLoader, RunDirectory, Trainer, TrainingInterrupted

FEATURES = torch.randn(13, 3, generator=torch.Generator().manual_seed(1))


class Augmented:
    """Items with noise from all generators that user code draws from."""

    def __getitem__(self, index):
        noise = random.random() + np.random.rand() + torch.rand(1).item()  # noqa: NPY002
        return index, FEATURES[index] + noise


def source_of(num_workers, *, seed=0, **order):
    return DatasetLoader(
        Augmented(), BatchIterator([1] * 13, batch_size=4, seed=0, **order), num_workers=num_workers, seed=seed
    )


def batches(source, count):
    return [source.next_batch() for _ in range(count)]


def equal(mine, theirs):
    return all(
        torch.equal(a, b) for batch, other in zip(mine, theirs, strict=True) for a, b in zip(batch, other, strict=True)
    )


def test_number_of_workers_changes_no_byte_and_a_position_is_exact():
    whole = batches(source_of(0), 11)
    ahead = source_of(2)
    assert equal(batches(ahead, 5), whole[:5])
    assert (ahead.epoch, ahead.state_dict()["position"]) == (1, 5)
    again = source_of(1)
    again.load_state_dict(ahead.state_dict())
    assert equal(batches(again, 6), whole[5:])
    again.load_state_dict(ahead.state_dict())
    assert equal(batches(again, 2), whole[5:7])


def test_draws_differ_between_items_epochs_and_seeds():
    noise = {}
    for seed in (0, 1):
        for number, (items, features) in enumerate(batches(source_of(0, seed=seed), 8)):
            for index, row in zip(items.tolist(), features, strict=True):
                noise[seed, number // 4, index] = round(float((row - FEATURES[index])[0]), 5)
    assert len(noise) == len(set(noise.values())) == 2 * 2 * 13


def test_an_item_drawn_twice_into_a_batch_draws_anew():
    source = DatasetLoader(Augmented(), BatchIterator([1], batch_size=3, seed=0, item_weights=[1.0], epoch_size=3))
    assert len({float(row[0]) for row in source.next_batch()[1]}) == 3


@pytest.mark.parametrize("num_workers", [0, 2])
def test_loading_and_collating_touch_no_generator_of_the_training(num_workers):
    before = rng_state()
    source = DatasetLoader(
        Augmented(),
        BatchIterator([1] * 13, batch_size=4, seed=0),
        num_workers=num_workers,
        collate=lambda items: (torch.rand(2), len(items)),
    )
    drawn = [batch[0] for batch in batches(source, 3)]
    assert rng_state() == before
    assert not torch.equal(drawn[0], drawn[1])


def test_shares_of_processes_and_empty_ones():
    whole = [sorted(items.tolist()) for items, _ in batches(source_of(0), 4)]
    shares = [[batch[0].tolist() for batch in batches(source_of(0, rank=rank, world_size=2), 3)] for rank in (0, 1)]
    assert [sorted(a + b) for a, b in zip(*shares, strict=True)] == whole[:3]


def test_wrong_number_of_workers_and_another_order_are_refused():
    with pytest.raises(ConfigError, match="num_workers must be at least 0, got -1"):
        source_of(-1)
    state = source_of(0).state_dict()
    with pytest.raises(CheckpointError, match="another dataset"):
        source_of(0, drop_last=True).load_state_dict(state)


def train(directory, num_workers, *, stop_at=None):
    """Train, or go on, in ``directory``, with dropout, so that a generator that was touched would be noticed."""
    flags = {"eval_every": 0, "curriculum.order": "mixed", "max_steps": 9, "checkpoint.save_every": 0}
    config = small_config(**flags)
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.3), nn.Linear(4, 1))
    begun = (directory / "run.json").exists()
    with RunDirectory.open(directory) if begun else RunDirectory.create(directory, config) as run:

        def loss_fn(model, batch):
            if trainer.step + 1 == stop_at:
                trainer.stop.request()
            return model(batch[1]).square().mean()

        trainer = Trainer(model, loss_fn, source_of(num_workers), config, run=run, show_progress=False)
        trainer.resume()
        trainer.fit()


def test_stopped_in_the_middle_of_an_epoch_and_resumed_with_other_workers(tmp_path):
    train(tmp_path / "whole", 0)
    for step, num_workers in ((2, 2), (5, 0), (7, 1)):
        with pytest.raises(TrainingInterrupted):
            train(tmp_path / "stopped", num_workers, stop_at=step)
    train(tmp_path / "stopped", 2)
    assert outcome(tmp_path / "stopped") == outcome(tmp_path / "whole")


@pytest.mark.parametrize(("name", "code"), [pytest.param("SIGINT", 130, marks=pytest.mark.slow), ("SIGTERM", 143)])
def test_signal_to_the_whole_group_ends_the_step_with_its_workers(tmp_path, name, code):
    script = tmp_path / "train.py"
    script.write_text(
        textwrap.dedent(
            f"""
            import os, signal, sys
            sys.path.insert(0, {str(Path(__file__).parent)!r})
            sys.path.insert(0, {str(Path(__file__).parents[1])!r})
            from pathlib import Path
            import test_dataset_loader as job
            from dagnn.training import TrainingInterrupted
            from dagnn.training.trainer import Trainer

            # In the middle of a window: its second micro-batch is still with the workers.
            real, calls = job.DatasetLoader.next_batch, []
            def next_batch(source):
                calls.append(1)
                if len(calls) == 6:
                    os.killpg(0, getattr(signal, sys.argv[1]))
                return real(source)
            job.DatasetLoader.next_batch = next_batch
            try:
                job.train(Path(sys.argv[2]), 2)
            except TrainingInterrupted as interrupted:
                print(interrupted.step)
                sys.exit(interrupted.exit_code)
            """
        )
    )
    train(tmp_path / "whole", 0)
    done = subprocess.run(
        [sys.executable, script, name, tmp_path / name],
        capture_output=True,
        text=True,
        start_new_session=True,
        timeout=120,
    )
    assert (done.returncode, done.stdout) == (code, "3\n"), done.stderr
    train(tmp_path / name, 2)
    assert outcome(tmp_path / name) == outcome(tmp_path / "whole")
