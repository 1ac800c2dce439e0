"""`from_sequential`: the same function, weights where the layers had them."""

import pytest
import torch
from torch import nn

from dagnn.errors import ConfigError
from dagnn.nn import from_sequential


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("batch", [1, 40])
def test_the_same_function_and_gradient(dtype, batch):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(70, 60), nn.GELU(), nn.Linear(60, 50, bias=False), nn.Linear(50, 3), nn.Softplus()
    ).to(dtype)
    net = from_sequential(model)
    assert net.num_parameters() == sum(p.numel() for p in model.parameters())
    x = torch.randn(batch, 70, dtype=dtype)
    tolerance = {"rtol": 1e-4, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 1e-12, "atol": 1e-12}
    torch.testing.assert_close(net(x), model(x), **tolerance)
    net(x).sum().backward()
    model(x).sum().backward()
    layers = [module for module in model if isinstance(module, nn.Linear)]
    weight = torch.cat([layer.weight.grad.flatten() for layer in layers])
    bias = torch.cat([layer.bias.grad for layer in layers if layer.bias is not None])
    torch.testing.assert_close(net.edge_weight.grad, weight, **tolerance)
    torch.testing.assert_close(net.bias.grad, bias, **tolerance)


def test_every_activation_with_its_default_settings():
    modules = [nn.Identity(), nn.ReLU(), nn.LeakyReLU(), nn.ELU(), nn.Tanh(), nn.Sigmoid(), nn.SiLU()]
    model = nn.Sequential(*(part for module in modules for part in (nn.Linear(3, 3), module))).double()
    x = torch.randn(5, 3, dtype=torch.float64)
    torch.testing.assert_close(from_sequential(model)(x), model(x), rtol=1e-12, atol=1e-12)


def test_the_mode_is_kept_and_the_model_is_not_shared():
    model = nn.Sequential(nn.Linear(2, 2)).eval()
    net = from_sequential(model)
    assert not net.is_training()
    with torch.no_grad():
        net.edge_weight.zero_()
    assert model[0].weight.any()


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (nn.Sequential(nn.Linear(2, 2), nn.Dropout()), r"module 1 of the Sequential is Dropout\(p=0.5"),
        (nn.Sequential(nn.Linear(2, 2), nn.LeakyReLU(0.2)), "module 1 of the Sequential is LeakyReLU"),
        (nn.Sequential(nn.ReLU(), nn.Linear(2, 2)), "module 0 of the Sequential is ReLU"),
        (nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Tanh()), "module 2 of the Sequential is Tanh"),
        (nn.Sequential(), "has no Linear module"),
    ],
)
def test_what_is_no_mlp_is_refused(model, message):
    with pytest.raises(ConfigError, match=message):
        from_sequential(model)
