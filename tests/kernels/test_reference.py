"""Segment operations against loops over groups, and groups without rows."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.autograd import gradcheck, gradgradcheck

from dagnn.errors import ConfigError
from dagnn.kernels.reference import (
    aggregate,
    check_aggregate,
    segment_max,
    segment_mean,
    segment_softmax,
    segment_sum,
)

GROUPS = st.lists(st.integers(0, 4), max_size=12)


@given(GROUPS, st.integers(0, 9))
def test_every_group_equals_its_own_rows(groups, seed):
    segment = torch.tensor(groups, dtype=torch.int64)
    values = torch.randn(len(groups), 2, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    total, mean, top = (f(values, segment, 5) for f in (segment_sum, segment_mean, segment_max))
    soft = segment_softmax(values, segment, 5)
    for group in range(5):
        rows = values[segment == group]
        if len(rows) == 0:
            assert total[group].tolist() == mean[group].tolist() == top[group].tolist() == [0, 0]
            continue
        torch.testing.assert_close(total[group], rows.sum(0))
        torch.testing.assert_close(mean[group], rows.mean(0))
        torch.testing.assert_close(top[group], rows.amax(0))
        torch.testing.assert_close(soft[segment == group], rows.softmax(0))


@pytest.mark.parametrize("function", [segment_sum, segment_mean, segment_max, segment_softmax])
def test_derivatives_with_an_empty_group(function):
    segment = torch.tensor([3, 0, 3, 1, 3])  # nothing in group 2
    values = torch.randn(5, 2, dtype=torch.float64, requires_grad=True)
    assert gradcheck(lambda v: function(v, segment, 4), values)
    assert gradgradcheck(lambda v: function(v, segment, 4), values)


def test_one_number_per_row():
    segment = torch.tensor([1, 1, 0])
    assert segment_mean(torch.tensor([1.0, 3.0, 5.0]), segment, 2).tolist() == [5.0, 2.0]
    assert segment_softmax(torch.tensor([0.0, 0.0, 9.0]), segment, 2).tolist() == [0.5, 0.5, 1.0]


def test_equal_winners_share_the_gradient():
    values = torch.tensor([[2.0], [2.0], [1.0]], requires_grad=True)
    segment_max(values, torch.zeros(3, dtype=torch.int64), 1).sum().backward()
    assert values.grad.flatten().tolist() == [0.5, 0.5, 0.0]


def test_softmax_of_large_numbers():
    logits = torch.tensor([1e4, 1e4 - 1, -1e4], dtype=torch.float64)
    soft = segment_softmax(logits, torch.zeros(3, dtype=torch.int64), 1)
    torch.testing.assert_close(soft, logits.softmax(0))


def test_aggregate_by_name():
    values, segment = torch.tensor([1.0, 3.0]), torch.tensor([0, 0])
    assert [aggregate(how, values, segment, 1).item() for how in ("sum", "mean", "max")] == [4.0, 2.0, 3.0]
    with pytest.raises(ConfigError, match="aggregate must be one of sum, mean, max, got 'prod'"):
        check_aggregate("prod")
