"""The table of activations: each has a second moment, and it is the right one."""

import math

import pytest
import torch

from dagnn.errors import ConfigError
from dagnn.kernels.nodes import ACTIVATIONS, SECOND_MOMENT, check_activation


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_second_moment_by_quadrature(name):
    z = torch.linspace(-12, 12, 240_001, dtype=torch.float64)
    density = torch.exp(-z.square() / 2) / math.sqrt(2 * math.pi)
    moment = torch.trapezoid(ACTIVATIONS[name](z).square() * density, z).item()
    assert SECOND_MOMENT[name] == pytest.approx(moment, abs=1e-6)


def test_every_activation_has_a_second_moment():
    assert set(SECOND_MOMENT) == set(ACTIVATIONS)


@pytest.mark.parametrize("name", ["swish", None, 3])
def test_an_unknown_name_lists_the_known_ones(name):
    with pytest.raises(ConfigError, match=r"act must be one of identity, relu, .*, softplus, got "):
        check_activation(name, "act")
