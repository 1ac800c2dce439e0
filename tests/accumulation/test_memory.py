"""Sizes of memory, and the search for the largest micro-batch that fits."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from dagnn.accumulation import GradientAccumulator
from dagnn.accumulation.whole_batch import activation_bytes, is_out_of_memory, largest_fitting, parse_memory
from dagnn.errors import AccumulationError, ConfigError


@pytest.mark.parametrize(
    ("text", "size"),
    [("2GiB", 2 * 2**30), ("500MB", 500 * 10**6), ("1.5 k", 1500), ("64", 64), (64, 64), ("3 tib", 3 * 2**40)],
)
def test_sizes(text, size):
    assert parse_memory(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "-1GiB", "2 GG", 0, -3, True, "0MB"])
def test_bad_sizes(text):
    with pytest.raises(ConfigError, match="memory must be a size such as"):
        parse_memory(text)


@given(fixed=st.integers(0, 1000), slope=st.integers(1, 100), items=st.integers(1, 500), budget=st.integers(1, 50_000))
def test_search_finds_the_largest_size_with_few_measurements(fixed, slope, items, budget):
    measured = []

    def measure(n):
        measured.append(n)
        return fixed + slope * n

    best = min(items, (budget - fixed) // slope)
    if best < 1:
        with pytest.raises(AccumulationError, match="one item needs"):
            largest_fitting(measure, budget, items)
    else:
        assert largest_fitting(measure, budget, items) == best
    assert len(measured) <= 6


@given(steps=st.lists(st.integers(0, 50), min_size=1, max_size=60), budget=st.integers(1, 1000))
def test_search_ends_on_memory_that_does_not_grow_evenly(steps, budget):
    used = [1 + sum(steps[: n + 1]) for n in range(len(steps))]
    if used[0] <= budget:
        found = largest_fitting(lambda n: used[n - 1], budget, len(used))
        assert used[found - 1] <= budget
        assert found == len(used) or used[found] > budget


def test_bytes_that_a_forward_pass_keeps():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)).double()
    x = torch.randn(10, 4).double()
    # Of what backward needs, only the output of tanh is new: 10 items of 8 numbers of 8 bytes.
    assert activation_bytes(lambda: model(x).sum(), [*model.parameters(), x]) == 10 * 8 * 8


def test_errors_of_an_allocation_that_failed():
    assert is_out_of_memory(torch.OutOfMemoryError("x"))
    assert is_out_of_memory(MemoryError())
    assert is_out_of_memory(RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried ..."))
    assert not is_out_of_memory(RuntimeError("shape mismatch"))
    assert not is_out_of_memory(ValueError("out of memory"))


def test_update_measures_once_per_budget():
    model = nn.Linear(4, 4)
    calls = []

    def loss_fn(model, x):
        calls.append(len(x))
        return model(x).tanh().square().mean()

    accumulator = GradientAccumulator(model, torch.optim.SGD(model.parameters(), lr=0.1))
    first = accumulator.update(torch.randn(32, 4), loss_fn, micro_batch_size="auto", memory=400)
    probes = len(calls) - first.micro_batches
    calls.clear()
    second = accumulator.update(torch.randn(32, 4), loss_fn, micro_batch_size="auto", memory=400)
    assert probes > 0
    assert len(calls) == second.micro_batches == first.micro_batches > 1
