"""Optimizers by name: the right class with the right settings, and first steps worked by hand."""

import pytest
import torch
from torch import nn

from dagnn.training.config import OPTIMIZERS, OptimizerConfig
from dagnn.training.optimizers import make_optimizer


def stepped(name, gradients, **settings):
    """The weight after these gradients, starting from 1."""
    model = nn.Linear(1, 1, bias=False)
    nn.init.ones_(model.weight)
    optimizer = make_optimizer(model, OptimizerConfig(name=name, weight_decay=0.0, **settings))
    for gradient in gradients:
        model.weight.grad = torch.full((1, 1), gradient)
        optimizer.step()
    return model.weight.item()


def test_sgd_with_momentum_by_hand():
    # velocity 1, then 0.5 * 1 + 2 = 2.5
    assert stepped("sgd", [1.0, 2.0], lr=0.1, momentum=0.5) == pytest.approx(1 - 0.1 - 0.25)


@pytest.mark.parametrize("name", ["adam", "adamw"])
def test_first_adam_step_is_the_learning_rate(name):
    assert stepped(name, [0.3], lr=0.1, betas=(0.9, 0.98)) == pytest.approx(0.9, abs=1e-6)


def test_first_rmsprop_step_by_hand():
    # square average 0.01 * g^2, so the step is lr / sqrt(0.01)
    assert stepped("rmsprop", [0.3], lr=0.01, momentum=0.0) == pytest.approx(1 - 0.01 / 0.1, abs=1e-6)


def test_first_adagrad_step_is_the_learning_rate():
    assert stepped("adagrad", [0.3], lr=0.1) == pytest.approx(0.9, abs=1e-6)


def test_adamw_decays_weights_apart_from_the_gradient_and_adam_through_it():
    model = nn.Linear(1, 1, bias=False)
    for name, decoupled in (("adamw", True), ("adam", False)):
        optimizer = make_optimizer(model, OptimizerConfig(name=name, weight_decay=0.1))
        assert optimizer.param_groups[0]["decoupled_weight_decay"] is decoupled
        assert optimizer.param_groups[0]["weight_decay"] == 0.1


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_parameters_carry_their_names_and_frozen_ones_are_left_out(name):
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[0].bias.requires_grad_(False)
    optimizer = make_optimizer(model, OptimizerConfig(name=name, lr=0.25))
    assert optimizer.param_groups[0]["param_names"] == ["0.weight", "1.weight", "1.bias"]
    assert optimizer.param_groups[0]["lr"] == 0.25
