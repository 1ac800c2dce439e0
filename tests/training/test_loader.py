"""A DataLoader or another iterable as a source: every epoch again to the bit, wherever a training stopped."""

import itertools
import random

import numpy as np
import pytest
import torch
from plain_training import Cycle, config, data, fit_until, linear, mse
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler, TensorDataset, WeightedRandomSampler

from dagnn.errors import CheckpointError, ConfigError, RunError
from dagnn.training import RunDirectory, Trainer, find_lr
from dagnn.training.loader import IterableLoader, as_loader
from dagnn.training.log import read_metrics

INPUTS = torch.randn(11, 3, generator=torch.Generator().manual_seed(0))
TARGETS = INPUTS.sum(1, keepdim=True)
PAIRS = TensorDataset(INPUTS, TARGETS)


class Noisy(Dataset):
    """Items that draw from every global generator when they are loaded."""

    def __len__(self):
        return 11

    def __getitem__(self, index):
        return INPUTS[index] + 0.1 * torch.randn(3) + random.random() + np.random.rand(), TARGETS[index]  # noqa: NPY002


class Shuffled(IterableDataset):
    """A stream through a buffer, from which it draws."""

    def __iter__(self):
        buffer = []
        for index in range(11):
            buffer.append((INPUTS[index], TARGETS[index]))
            if len(buffer) > 4:
                yield buffer.pop(random.randrange(len(buffer)))
        yield from buffer


class OwnRandom:
    """A batch sampler with a generator of NumPy or Python, which makes one order after another."""

    def __init__(self, generator):
        self.generator = generator

    def __len__(self):
        return 4

    def __iter__(self):
        order = list(range(11))
        self.generator.shuffle(order)
        yield from (order[start : start + 3] for start in range(0, 11, 3))


class ByEpoch:
    """A sampler that is told the epoch, as DistributedSampler is."""

    epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return 11

    def __iter__(self):
        return iter(torch.randperm(11, generator=torch.Generator().manual_seed(self.epoch)).tolist())


LOADERS = {
    "in order": lambda: DataLoader(PAIRS, batch_size=4),
    "shuffled": lambda: DataLoader(PAIRS, batch_size=4, shuffle=True),
    "of a generator": lambda: DataLoader(PAIRS, batch_size=4, shuffle=True, generator=torch.Generator().manual_seed(3)),
    "of a sampler's generator": lambda: DataLoader(
        PAIRS, batch_size=4, sampler=RandomSampler(PAIRS, True, 11, torch.Generator().manual_seed(3))
    ),
    "weighted": lambda: DataLoader(PAIRS, batch_size=4, sampler=WeightedRandomSampler([1.0, 2.0] * 5, 11)),
    "augmented": lambda: DataLoader(Noisy(), batch_size=4, shuffle=True),
    "dropping the last": lambda: DataLoader(Noisy(), batch_size=4, shuffle=True, drop_last=True),
    "a stream": lambda: DataLoader(Shuffled(), batch_size=4),
    "of NumPy's generator": lambda: DataLoader(PAIRS, batch_sampler=OwnRandom(np.random.default_rng(5))),
    "of Python's generator": lambda: DataLoader(PAIRS, batch_sampler=OwnRandom(random.Random(5))),
    "told the epoch": lambda: DataLoader(PAIRS, batch_size=4, sampler=ByEpoch()),
    "a list": lambda: [PAIRS[:4], PAIRS[4:8], PAIRS[8:]],
}


def trained(path, make_loader, *stops, max_steps=9, micro_batches=1):
    """Trains, stopped after each of these steps and resumed by a new process' worth of objects."""
    settings = config(max_steps=max_steps, micro_batches=micro_batches, checkpoint__save_every=0)
    for number, limit in enumerate((*stops, None)):

        def loss_fn(model, batch):
            # Draws, as dropout: the loader's must not depend on it, nor it on theirs.
            return mse(model, batch) * torch.rand(1).item()

        with RunDirectory.open(path) if number else RunDirectory.create(path, settings) as run:
            trainer = Trainer(linear(), loss_fn, make_loader(), settings, run=run, show_progress=False)
            trainer.resume()
            fit_until(trainer, limit)
            rows = read_metrics(run.metrics_path)
    return trainer.model.weight, [{key: value for key, value in row.items() if key != "seconds"} for row in rows]


@pytest.mark.fault("training_and_command", 8)
@pytest.mark.parametrize("name", LOADERS)
def test_stopped_anywhere_a_loader_goes_on_exactly(tmp_path, name):
    weight, rows = trained(tmp_path / "whole", LOADERS[name])
    for stops in ((1,), (3, 4, 5, 8)):  # within epochs of 3 (or 2, or 4) batches, and at their ends
        resumed, again = trained(tmp_path / str(stops), LOADERS[name], *stops)
        assert torch.equal(resumed, weight) and again == rows
    assert len({row["loss"] for row in rows if row["kind"] == "step"}) == 9


@pytest.mark.fault("training_and_command", 8)
def test_workers_load_the_same(tmp_path):
    loader = lambda: DataLoader(Noisy(), batch_size=4, shuffle=True, num_workers=1)  # noqa: E731
    weight, rows = trained(tmp_path / "whole", loader, max_steps=5)
    resumed, again = trained(tmp_path / "resumed", loader, 2, max_steps=5)
    assert torch.equal(resumed, weight) and again == rows


@pytest.mark.fault("training_and_command", 8)
def test_windows_reach_over_the_end_of_an_epoch_and_epochs_have_their_rows(tmp_path):
    _, rows = trained(tmp_path / "whole", LOADERS["shuffled"], max_steps=3, micro_batches=2)
    epochs = [row for row in rows if row["kind"] == "epoch"]
    assert [(row["epoch"], row["weight"]) for row in epochs] == [(0, 11.0), (1, 11.0)]
    _, again = trained(tmp_path / "resumed", LOADERS["shuffled"], 1, 2, max_steps=3, micro_batches=2)
    assert again == rows


def test_epochs_differ_seeds_differ_and_every_item_comes_once():
    def orders(loader, seed=0):
        source = IterableLoader(loader(), seed=seed)
        return [torch.cat([source.next_batch()[0] for _ in range(3)]) for _ in range(3)]

    for name in ("shuffled", "of a generator"):
        first, second, third = orders(LOADERS[name])
        assert torch.equal(first.sort(0)[0], INPUTS.sort(0)[0])
        assert not torch.equal(first, second) and not torch.equal(second, third)
        assert not torch.equal(first, orders(LOADERS[name], seed=1)[0])
        assert torch.equal(first, orders(LOADERS[name])[0])
    other = lambda: DataLoader(PAIRS, 4, shuffle=True, generator=torch.Generator().manual_seed(4))  # noqa: E731
    assert not torch.equal(orders(LOADERS["of a generator"])[0], orders(other)[0])


def test_draws_of_a_loader_move_no_generator_of_the_training():
    source = IterableLoader(LOADERS["augmented"]())
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    source.next_batch()
    assert torch.equal(torch.rand(3), expected)


def test_another_loader_is_refused_or_told():
    source = IterableLoader(LOADERS["shuffled"]())
    source.next_batch()
    state = source.state_dict()
    with pytest.raises(CheckpointError, match="loader has 3 batches in an epoch, this one has 6"):
        IterableLoader(DataLoader(PAIRS, batch_size=2)).load_state_dict(state)
    other = IterableLoader(DataLoader(TensorDataset(-INPUTS, TARGETS), batch_size=4, shuffle=True))
    other.load_state_dict(state)
    with pytest.warns(UserWarning, match="the first batch of epoch 0 is another than before the stop"):
        other.next_batch()
    short = IterableLoader(DataLoader(Shuffled(), batch_size=4))
    for _ in range(3):
        short.next_batch()
    shorter = IterableLoader(DataLoader(Shuffled(), batch_size=11))
    shorter.load_state_dict(short.state_dict())
    with pytest.raises(CheckpointError, match="had more than 3 batches in epoch 0, this one has 1"):
        shorter.next_batch()


def test_what_can_be_iterated_once_serves_until_its_end():
    batches = data(4, 4, 4)
    source = IterableLoader(iter(batches))
    assert source.next_batch() is batches[0]
    source.close()  # a second fit goes on with it
    assert source.next_batch() is batches[1]
    position = source.state_dict()
    assert source.next_batch() is batches[2]
    with pytest.raises(RunError, match="can be iterated once and cannot go back"):
        source.load_state_dict(position)
    with pytest.raises(RunError, match="the loader, list_iterator, is at its end"):
        source.next_batch()
    resumed = IterableLoader(batch for batch in batches)
    resumed.load_state_dict(position)
    assert resumed.next_batch() is batches[2]
    endless = IterableLoader(itertools.cycle(batches))
    assert [endless.next_batch() for _ in range(5)][4] is batches[1]


@pytest.mark.parametrize("empty", [[], DataLoader(TensorDataset(INPUTS[:0]), batch_size=4)])
def test_a_loader_without_a_batch_is_an_error(empty):
    with pytest.raises(RunError, match="is at its end"):
        IterableLoader(empty).next_batch()


def test_what_is_a_source_stays_one_and_what_is_none_is_refused():
    source = Cycle(data(4))
    assert as_loader(source, seed=0, rank=0) is source
    for odd in (3, "batches", {"a": 1}, torch.ones(3), None):
        with pytest.raises(ConfigError, match=f"loader is a {type(odd).__name__}: give a DataLoader"):
            as_loader(odd, seed=0, rank=0)


def test_find_lr_takes_a_loader_and_leaves_it_where_it_was():
    loader = LOADERS["shuffled"]()
    curve = find_lr(linear(), mse, loader, lambda model: torch.optim.SGD(model.parameters(), lr=1.0), steps=5)
    assert len(curve.rates) > 1
    trainer = Trainer(linear(), mse, loader, config(), show_progress=False)
    trainer.find_lr(steps=4)
    assert trainer.loader.state_dict()["position"] == 0


class Reordered:
    """Batches in an order that a generator inside another object of its own draws."""

    def __init__(self, generator):
        self.settings, self.batches = {"order": [generator]}, data(*[4] * 5)

    def __iter__(self):
        order = list(range(5))
        self.settings["order"][0].shuffle(order)
        return (self.batches[number] for number in order)


@pytest.mark.parametrize("kind", [np.random.RandomState, np.random.default_rng, random.Random])
def test_generators_inside_attributes_and_those_of_old_numpy_resume(tmp_path, kind):
    settings = config(max_steps=12)

    def trainer(run=None):
        return Trainer(linear(), mse, Reordered(kind(3)), settings, run=run, show_progress=False)

    whole = trainer()
    whole.fit()
    with RunDirectory.create(tmp_path / "run", settings) as run:
        fit_until(trainer(run), 7)
    with RunDirectory.open(tmp_path / "run") as run:
        resumed = trainer(run)
        assert resumed.resume()
        resumed.fit()
    assert torch.equal(resumed.model.weight, whole.model.weight)
