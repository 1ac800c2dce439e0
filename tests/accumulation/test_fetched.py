"""Loaders that fill one buffer again and again: noticed, and never mistaken for those that do not."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from dagnn.accumulation import GradientAccumulator
from dagnn.errors import AccumulationError

VALUES = (1.0, 3.0, 5.0, 7.0)


def updates(loader, **cut):
    """The mean of each window, as SGD with learning rate 1 sees it."""
    w = nn.Parameter(torch.zeros((), dtype=torch.float64))
    accumulator = GradientAccumulator(nn.ParameterList([w]), torch.optim.SGD([w], lr=1.0))
    found = []
    for window in accumulator.windows(loader, **(cut or {"micro_batches": 2})):
        for batch in window:
            while not isinstance(batch, (torch.Tensor, np.ndarray)):
                batch = next(iter(batch.values())) if isinstance(batch, dict) else batch[0]
            window.backward((w * torch.as_tensor(batch).double()).mean(), weight=None if "max_weight" in cut else 1)
        found.append(-w.item())
        window.step()
        found[-1] = -w.item() - found[-1]
    return found


def refilled(buffer, wrap=lambda buffer: buffer):
    for value in VALUES:
        buffer[:] = value
        yield wrap(buffer)


def shared_with_numpy(size):
    array = np.zeros(size)
    tensor = torch.from_numpy(array)
    for value in VALUES:
        array[:] = value
        yield tensor


def new_tensors_of_one_array():
    array = np.zeros(3)
    for value in VALUES:
        array[:] = value
        yield torch.from_numpy(array)


def one_mapping():
    batch = {}
    for value in VALUES:
        batch["x"] = torch.full((1,), value)
        yield batch


def one_list_in_a_tuple():
    batch = [None]
    for value in VALUES:
        batch[0] = torch.full((1,), value)
        yield (batch, torch.zeros(1))


def a_few_values():
    """Where a sample of a large tensor may see nothing, the version does."""
    buffer = torch.zeros(100, 100)
    for value in VALUES:
        buffer[7, 13] = value
        yield buffer


def ring(size, length=8):
    buffers = [torch.zeros(1) for _ in range(size)]
    for index in range(length):
        yield buffers[index % size].fill_(index + 1)


@pytest.mark.fault("accumulation", 6)
@pytest.mark.parametrize(
    "loader",
    [
        refilled(torch.zeros(1)),
        refilled(torch.zeros(4, 3), lambda b: (b, torch.zeros(4))),
        refilled(torch.zeros(4, 3), lambda b: (b, b)),
        refilled(torch.zeros(4), lambda b: {"x": b, "names": ["a"] * 4}),
        refilled(torch.zeros(4), lambda b: [{"x": (b[:2],)}]),
        refilled(np.zeros(4)),
        refilled(torch.zeros(100, 100)),
        refilled(torch.zeros(6, 4).T),
        shared_with_numpy(3),
        shared_with_numpy(10_000),
        new_tensors_of_one_array(),
        one_mapping(),
        one_list_in_a_tuple(),
        a_few_values(),
    ],
)
def test_a_refilled_buffer_is_an_error_that_says_what_to_do(loader):
    with pytest.raises(AccumulationError, match=r"the loader changed batch 0 of the window .*batch.clone\(\)"):
        updates(loader)


@pytest.mark.fault("accumulation", 6)
class Sample:
    def __init__(self):
        self.inner = self  # objects may hold themselves
        self.x = torch.zeros(2)


@pytest.mark.parametrize("new_tensor", [False, True])
def test_an_object_that_is_filled_again_is_noticed(new_tensor):
    def loader():
        sample = Sample()
        for value in VALUES:
            sample.x = torch.full((2,), value) if new_tensor else sample.x.fill_(value)
            yield sample

    w = nn.Parameter(torch.zeros(()))
    accumulator = GradientAccumulator(nn.ParameterList([w]), torch.optim.SGD([w], lr=1.0))
    with pytest.raises(AccumulationError, match="the loader changed batch 0"):
        next(accumulator.windows(loader(), micro_batches=2, weight=lambda sample: len(sample.x)))
    next(accumulator.windows(iter([Sample()] * 2), micro_batches=2, weight=lambda sample: len(sample.x)))


def test_rings_matter_only_where_they_are_shorter_than_the_window():
    assert updates(ring(1), micro_batches=1) == [float(v) for v in range(1, 9)]
    assert updates(ring(2), micro_batches=2) == [1.5, 3.5, 5.5, 7.5]
    with pytest.raises(AccumulationError, match="the loader changed batch 0"):
        updates(ring(3), micro_batches=4)
    assert updates(ring(2), max_weight=1) == [float(v) for v in range(1, 9)]
    with pytest.raises(AccumulationError, match="the loader changed batch 0"):
        updates(ring(1), max_weight=1)  # looks one batch ahead


@pytest.mark.fault("accumulation", 6)
def test_a_loader_that_begins_to_reuse_memory_later_is_noticed():
    def loader():
        yield from (torch.full((1,), v) for v in VALUES)
        yield from refilled(torch.zeros(1))

    with pytest.raises(AccumulationError, match="the loader changed batch 0"):
        updates(loader())


@pytest.mark.fault("accumulation", 6)
@pytest.mark.parametrize(
    "loader",
    [
        (x for x in [torch.full((1,), 4.0)] * 4),
        ({"x": x} for x in [torch.full((2000,), 4.0)] * 4),
        (x for x in torch.full((8,), 4.0).split(2)),
        (torch.full((1,), 4.0).expand(3) for _ in range(4)),
        (torch.full((2,), 4.0, dtype=torch.float16) for _ in range(4)),
        (np.full(3, 4.0) for _ in range(4)),
        ((torch.full((2,), 4.0), torch.tensor([float("nan")]).expand(2)) for _ in range(4)),
        DataLoader(TensorDataset(torch.full((8,), 4.0)), batch_size=2),
    ],
)
def test_batches_that_share_memory_and_do_not_change_are_right(loader):
    assert updates(loader) == pytest.approx([4.0, 4.0])


@pytest.mark.fault("accumulation", 6)
def test_changes_by_the_loop_itself_are_its_own_affair():
    w = nn.Parameter(torch.zeros((), dtype=torch.float64))
    accumulator = GradientAccumulator(nn.ParameterList([w]), torch.optim.SGD([w], lr=1.0))
    for window in accumulator.windows((torch.ones(2).double() for _ in range(4)), micro_batches=2):
        for x in window:
            window.backward((w * x.mul_(2.0)).mean())
        window.step()
    assert w.item() == -4.0


@settings(max_examples=40, deadline=None)
@given(
    size=st.integers(1, 4),
    k=st.integers(1, 4),
    values=st.lists(st.integers(-3, 3), min_size=1, max_size=8),
    numpy=st.booleans(),
)
def test_the_gradient_is_that_of_what_was_given_or_an_error(size, k, values, numpy):
    arrays = [np.zeros(2) for _ in range(size)]
    buffers = [torch.from_numpy(array) for array in arrays]

    def loader():
        for index, value in enumerate(values):
            (arrays if numpy else buffers)[index % size][:] = value
            yield buffers[index % size]

    expected = [sum(values[i : i + k]) / len(values[i : i + k]) for i in range(0, len(values), k)]
    try:
        assert updates(loader(), micro_batches=k) == pytest.approx(expected)
    except AccumulationError:
        assert size < k


class Slotted:
    __slots__ = ("x",)

    def fill(self, value):
        self.x = torch.full((1,), value)


class PrivatelySlotted:
    __slots__ = ("__x",)

    def fill(self, value):
        self.__x = torch.full((1,), value)


def one_slotted_object(kind=Slotted):
    batch = kind()
    for value in VALUES:
        batch.fill(value)
        yield batch


def one_object_with_a_private_slot():
    return one_slotted_object(PrivatelySlotted)


def a_moving_part_of_one_buffer():
    buffer = torch.zeros(6)
    for number, value in enumerate(VALUES):
        part = buffer[number % 2 :][:4]
        part.fill_(value)
        yield part


def columns_of_one_array():
    array = np.zeros((3, 4))
    for number, value in enumerate(VALUES):
        part = array[:, number % 2 :: 2] if number % 2 else array[::-1, ::2]
        array[:] = value
        yield part


@pytest.mark.fault("accumulation", 6)
@pytest.mark.parametrize(
    "loader",
    [one_slotted_object, one_object_with_a_private_slot, a_moving_part_of_one_buffer, columns_of_one_array],
)
def test_parts_of_one_buffer_and_slots_that_are_filled_again(loader):
    model = nn.Linear(1, 1)
    accumulator = GradientAccumulator(model, torch.optim.SGD(model.parameters(), lr=1.0))
    with pytest.raises(AccumulationError, match="changed batch 0 of the window"):
        list(accumulator.windows(loader(), micro_batches=2, weight=lambda batch: 1))


def test_neighbours_and_overlaps_that_nobody_writes_to_are_fine():
    series = torch.arange(8.0)
    assert updates(iter([series[0:4], series[4:8]])) == [3.5]
    assert updates(iter([series[0:4], series[2:6]])) == [2.5]
