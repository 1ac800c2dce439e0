"""Values in a checkpoint come back as they were; what has no form is named."""

import json
from collections import OrderedDict

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dagnn.errors import RunError
from dagnn.training.run.values import packed, unpacked

_numbers = st.one_of(st.integers(), st.floats(), st.complex_numbers(), st.booleans(), st.none())
_leaves = st.one_of(
    _numbers,
    st.text(),
    st.binary(),
    st.integers(-(2**63), 2**63 - 1).map(np.int64),
    st.floats(width=32).map(np.float32),
    st.text(alphabet="abcé").map(np.str_),
    st.lists(st.integers(0, 255), max_size=4).map(lambda each: np.array(each, dtype=np.uint8)),
    st.lists(st.floats(width=32), max_size=4).map(torch.tensor),
    st.sampled_from([torch.float16, torch.device("cpu"), torch.Size([2, 3])]),
)
_hashable = st.one_of(st.integers(), st.text(), st.binary(), st.tuples(st.integers(), st.text()))
_values = st.recursive(
    _leaves,
    lambda inside: st.one_of(
        st.lists(inside, max_size=3),
        st.lists(inside, max_size=3).map(tuple),
        st.dictionaries(st.one_of(st.text(), st.just("dagnn:kind")), inside, max_size=3),
        st.dictionaries(_hashable, inside, max_size=3),
        st.dictionaries(_hashable, inside, max_size=3).map(OrderedDict),
        st.sets(_hashable, max_size=3),
        st.frozensets(_hashable, max_size=3),
    ),
    max_leaves=8,
)


def is_same(a, b):
    """Of the same type, and equal to the bit; nan is nan."""
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor | np.ndarray | np.generic):
        a, b = np.asarray(a), np.asarray(b)
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(is_same, a, b))
    if isinstance(a, dict):
        return all(map(is_same, a.keys(), b.keys())) and all(map(is_same, a.values(), b.values())) and len(a) == len(b)
    return repr(a) == repr(b) if isinstance(a, float | complex) else a == b


@pytest.mark.fault("training_and_command", 5)
@given(_values)
def test_round_trip(value):
    text = json.dumps(packed(value, "it"), allow_nan=False)
    assert is_same(unpacked(json.loads(text)), value)
    assert json.dumps(packed(value, "it"), allow_nan=False) == text


@given(st.recursive(st.one_of(st.integers(), st.text()), lambda v: st.lists(v) | st.dictionaries(st.text(), v)))
def test_what_json_can_say_stays_as_it_is(value):
    assert packed(value, "it") == value


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (object(), "it is a object"),
        ([1, {"a": {(1, 2): lambda: None}}], r"it\[1\]\['a'\]\[\(1, 2\)\] is a function"),
        (torch.nn.Linear(1, 1), "it is a Linear"),
        (torch.eye(2).to_sparse(), "it is a Tensor"),
        (np.array([object()]), "it is a ndarray"),
        (np.datetime64("2026-01-01"), "it is a datetime64"),
    ],
)
def test_what_has_no_form_is_named_with_its_place(value, told):
    with pytest.raises(RunError, match=f"{told}, which a checkpoint cannot keep"):
        packed(value, "it")


def test_a_loop_is_refused():
    loop = []
    loop.append(loop)
    with pytest.raises(RunError, match="nested more than"):
        packed(loop, "it")


@pytest.mark.parametrize("value", [{"dagnn:kind": "module", "value": 1}, {"dagnn:kind": "array", "value": ""}])
def test_what_is_none_of_ours_is_an_error(value):
    with pytest.raises((KeyError, ValueError, TypeError)):
        unpacked(value)
