"""Tensors of every dtype, and values that are none, in one file."""

import warnings

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from dagnn.errors import RunError
from dagnn.training.run.values import check_kept, tensor_file, tensors_in_file

_QUANTIZED = {torch.qint8, torch.quint8, torch.qint32, torch.quint4x2, torch.quint2x4}
DTYPES = sorted({each for each in vars(torch).values() if isinstance(each, torch.dtype)} - _QUANTIZED, key=str)


def random_bits(dtype, shape, generator):
    size = torch.tensor([], dtype=torch.uint8).new_empty(shape).numel() * dtype.itemsize
    bits = torch.randint(0, 2 if dtype is torch.bool else 256, (size,), dtype=torch.uint8, generator=generator)
    return bits.view(dtype).reshape(shape) if size else torch.empty(shape, dtype=dtype)


@pytest.mark.fault("training_and_command", 5)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@given(shape=st.lists(st.integers(0, 3), max_size=3), seed=st.integers(0, 99))
def test_every_dtype_comes_back_to_the_bit(dtype, shape, seed):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # complex32 is told to be experimental
        entries = {
            "odd": random_bits(dtype, shape, torch.Generator().manual_seed(seed)),
            "plain": torch.ones(2),
            "value": {"a": (1, 2)},
        }
        check_kept(entries, "the model's")
        found = tensors_in_file(tensor_file(entries, "the model's"))
    assert found.keys() == entries.keys() and found["value"] == {"a": (1, 2)}
    assert found["odd"].dtype == dtype and found["odd"].shape == entries["odd"].shape
    mine, theirs = (each.reshape(-1).view(torch.uint8) for each in (entries["odd"], found["odd"]))
    assert torch.equal(mine, theirs)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_views_are_kept_as_what_they_show(dtype):
    numbers = torch.randn(3, 4, dtype=dtype)
    entries = {
        "conjugate": numbers.conj(),
        "negative": numbers.conj().imag,
        "transposed": numbers.T,
        "repeated": numbers[:1].expand(3, 4),
        "parameter": nn.Parameter(numbers[:, 1]),
    }
    found = tensors_in_file(tensor_file(entries, "the model's"))
    assert all(torch.equal(found[name], each.resolve_conj().resolve_neg()) for name, each in entries.items())


@pytest.mark.parametrize(
    "value",
    [
        torch.eye(2).to_sparse(),
        torch.empty(2, device="meta"),
        nn.UninitializedParameter(),
    ],
    ids=str,
)
def test_what_is_more_than_its_numbers_is_refused_by_name(value):
    for refuse in (check_kept, tensor_file):
        with pytest.raises(RunError, match=r"the model's a\.b is .* which a checkpoint cannot keep"):
            refuse({"a.b": value}, "the model's")
