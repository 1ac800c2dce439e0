"""The quick way of a backward pass gives what the public one gives."""

import pytest
import torch
from torch import nn

from dagnn.accumulation import sums as backward_pass
from dagnn.accumulation.sums import run_backward


def gradients(model: nn.Module, inputs: torch.Tensor, seeds: list[float]) -> list[torch.Tensor]:
    losses = [model(inputs).square().mean(), model(inputs).abs().sum()][: len(seeds)]
    model.zero_grad()
    run_backward(losses, [torch.tensor(seed, dtype=inputs.dtype) for seed in seeds], retain_graph=False)
    return [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]


@pytest.mark.parametrize("seeds", [[0.25], [0.25, 3.0]])
def test_the_quick_way_gives_the_bytes_of_the_public_one(seeds: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model, inputs = nn.Linear(5, 3), torch.randn(7, 5)
    assert backward_pass._run_engine is not None, "torch renamed it: give the new name, or the public way costs time"

    quick = gradients(model, inputs, seeds)
    monkeypatch.setattr(backward_pass, "_run_engine", None)
    public = gradients(model, inputs, seeds)

    assert len(quick) == len(public) == 2
    assert all(torch.equal(a, b) for a, b in zip(quick, public, strict=True))


def test_gradients_add_to_those_that_are_there() -> None:
    weight = nn.Parameter(torch.ones(2))
    weight.grad = torch.tensor([1.0, 2.0])
    run_backward([weight.sum()], [torch.tensor(0.5)], retain_graph=False)
    assert weight.grad.tolist() == [1.5, 2.5]


def test_a_root_with_dimensions_takes_the_public_way_and_its_checks() -> None:
    weight = nn.Parameter(torch.ones(2))
    with pytest.raises(RuntimeError, match="Mismatch in shape"):
        run_backward([weight * 2], [torch.ones(3)], retain_graph=False)


def test_retain_graph_allows_a_second_pass() -> None:
    weight = nn.Parameter(torch.ones(2))
    loss = weight.square().sum()
    for retain_graph in (True, False):
        run_backward([loss], [torch.tensor(1.0)], retain_graph=retain_graph)
    assert weight.grad is not None
    assert weight.grad.tolist() == [4.0, 4.0]
    with pytest.raises(RuntimeError, match="second time"):
        run_backward([loss], [torch.tensor(1.0)], retain_graph=False)
