"""Optimizers by name: the right class with the right settings, and first steps worked by hand."""

import copy

import pytest
import torch
from torch import nn

from dagnn.errors import ConfigError
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


@pytest.mark.parametrize("model", [nn.Identity(), nn.Linear(2, 1).requires_grad_(False)])
def test_nothing_to_train_is_refused(model):
    with pytest.raises(ConfigError, match=r"nothing to train: \w+ has no parameter that requires a gradient"):
        make_optimizer(model, OptimizerConfig())


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


@pytest.mark.parametrize("name", ["adam", "adamw"])
def test_weights_whose_memory_is_not_in_order_are_not_fused(name):
    """The fused form asks for no strides: it would write between the elements, and mix up restored moments."""
    base = torch.ones(4, 6)
    whole, sliced = nn.Linear(2, 2), nn.Linear(3, 4, bias=False)
    sliced.weight = nn.Parameter(base[:, ::2])
    channels_last = nn.Conv2d(2, 2, 3).to(memory_format=torch.channels_last)
    fused = [make_optimizer(m, OptimizerConfig(name=name)).defaults["fused"] for m in (whole, sliced, channels_last)]
    assert fused == [True, None, None]

    optimizer = make_optimizer(sliced, OptimizerConfig(name=name, lr=0.1, weight_decay=0.0))
    sliced.weight.grad = torch.ones(4, 3)
    optimizer.step()
    torch.testing.assert_close(sliced.weight.detach(), torch.full((4, 3), 0.9))
    assert (base[:, 1::2] == 1).all()


@pytest.mark.parametrize("name", ["adam", "adamw"])
def test_restored_moments_of_any_layout_go_on_as_before(name):
    """A checkpoint gives them back contiguous."""
    torch.manual_seed(0)
    model = nn.Conv2d(2, 2, 3).to(memory_format=torch.channels_last)
    twin = copy.deepcopy(model)
    optimizers = [make_optimizer(m, OptimizerConfig(name=name, lr=0.1)) for m in (model, twin)]
    for step in range(4):
        if step == 2:
            state = optimizers[1].state_dict()
            for values in state["state"].values():
                for key, value in values.items():
                    values[key] = value.contiguous()
            optimizers[1].load_state_dict(state)
        for m, optimizer in zip((model, twin), optimizers, strict=True):
            m.zero_grad()
            m(torch.ones(1, 2, 4, 4)).square().sum().backward()
            optimizer.step()
    assert torch.equal(model.weight, twin.weight)
