"""The mixin by itself: sizes at the edge of a dtype, what has no direction, shared and mixed parameters."""

import math

import pytest
import torch
from torch import Tensor, nn

import dagnn.nn as dnn
from dagnn.errors import ConfigError


class Vector(dnn.LearnableModule):
    def __init__(self, grad: Tensor) -> None:
        super().__init__()
        self.p = nn.Parameter(torch.zeros_like(grad))
        self.p.grad = grad


def test_norm_of_large_float16_gradients_does_not_overflow():
    assert Vector(torch.full((100,), 60_000.0, dtype=torch.float16)).gradient_norm() == 600_000.0


def test_norm_of_tiny_and_huge_float32_gradients():
    assert Vector(torch.full((4,), 1e-30)).gradient_norm() == pytest.approx(2e-30)
    assert Vector(torch.full((4,), 1e30)).gradient_norm() == pytest.approx(2e30)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_clip_leaves_gradients_without_a_direction_alone(bad):
    module = Vector(torch.tensor([bad, 1.0]))
    norm = module.clip_gradients(1.0)
    assert norm != 1.0 and not math.isfinite(norm)
    assert module.p.grad[1] == 1.0
    assert module.has_gradients()


def test_clip_to_zero_and_to_infinity():
    module = Vector(torch.tensor([3.0, 4.0]))
    assert module.clip_gradients(math.inf) == 5.0
    assert module.clip_gradients(0.0) == 5.0
    assert module.gradient_norm() == 0.0


def test_a_shared_parameter_counts_once():
    shared = nn.Parameter(torch.ones(3))

    class Twice(dnn.LearnableModule):
        def __init__(self) -> None:
            super().__init__()
            self.a = shared
            self.b = shared

    module = Twice()
    (module.a * module.b).sum().backward()
    assert module.num_parameters() == 3
    assert module.gradient_norm() == pytest.approx(2 * 3**0.5)


def test_parameters_of_two_dtypes_step_together():
    class Mixed(dnn.LearnableModule):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Parameter(torch.ones(2))
            self.b = nn.Parameter(torch.ones(2, dtype=torch.float64))
            self.c = nn.Parameter(torch.empty(0))

    module = Mixed()
    (module.a.sum() + module.b.sum() + module.c.sum()).backward()
    assert module.clip_gradients(1.0) == 2.0
    module.step(1.0)
    assert module.a.tolist() == module.b.tolist() == [0.5, 0.5]


@pytest.mark.parametrize("lr", [-0.1, math.nan, math.inf])
def test_step_refuses_a_learning_rate_that_is_none(lr):
    with pytest.raises(ConfigError, match="lr must be a finite number of at least 0, got"):
        Vector(torch.ones(1)).step(lr)


@pytest.mark.parametrize("max_norm", [-1.0, math.nan])
def test_clip_refuses_a_norm_that_is_none(max_norm):
    with pytest.raises(ConfigError, match="max_norm must be at least 0, got"):
        Vector(torch.ones(1)).clip_gradients(max_norm)


def test_the_protocol_asks_for_methods_not_for_a_base_class():
    class Own:
        def __call__(self, x): ...
        def parameters(self, recurse=True): ...
        def zero_grad(self, set_to_none=True): ...
        def step(self, lr): ...
        def gradient_norm(self): ...
        def has_gradients(self): ...
        def clip_gradients(self, max_norm): ...
        def num_parameters(self): ...
        def train(self, mode=True): ...
        def is_training(self): ...

    assert isinstance(Own(), dnn.Learnable)
    assert not isinstance(nn.Linear(1, 1), dnn.Learnable)


def test_norm_of_a_sparse_gradient_adds_repeated_rows_first():
    table = dnn.Embedding(4, 1, sparse=True)
    table(torch.tensor([2, 2, 2, 0])).sum().backward()
    assert table.gradient_norm() == pytest.approx(10**0.5)  # rows 3 and 1
    assert table.clip_gradients(1.0) == pytest.approx(10**0.5)
    assert table.gradient_norm() == pytest.approx(1.0)
