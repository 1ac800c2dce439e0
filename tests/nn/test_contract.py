"""The contract that every module of `dagnn.nn` keeps: see `module_cases`."""

import copy
import io
import math
from collections.abc import Callable

import pytest
import torch
from module_cases import CASES, DENSE, GRAPHS, LEARNING, NETWORK, SYMBOLS, D, every, loss_of, made
from torch import Tensor, nn
from torch.autograd import gradcheck, gradgradcheck

import dagnn.nn as dnn


def gradients(module: nn.Module) -> dict[str, Tensor]:
    return {name: p.grad.to_dense().clone() for name, p in module.named_parameters() if p.grad is not None}


def flat(tensors: dict[str, Tensor]) -> Tensor:
    return torch.cat([t.flatten() for t in tensors.values()])


# ---- Learnable, row by row ----


@every(CASES)
def test_every_module_is_learnable(case):
    assert isinstance(made(case), dnn.Learnable)
    assert isinstance(made(case), dnn.LearnableModule)


@every(LEARNING)
def test_every_parameter_gets_a_gradient(case):
    module = made(case)
    loss_of(case, module).backward()
    assert set(gradients(module)) == {name for name, _ in module.named_parameters()}


@every(LEARNING)
def test_nothing_is_accumulated_before_the_first_backward(case):
    module = made(case)
    assert not module.has_gradients()
    assert module.gradient_norm() == 0.0
    assert module.clip_gradients(1.0) == 0.0
    before = copy.deepcopy(module.state_dict())
    module.step(0.1)
    assert all(torch.equal(before[name], value) for name, value in module.state_dict().items())


@every(LEARNING)
def test_two_backward_calls_sum(case):
    module = made(case)
    loss_of(case, module).backward()
    once = gradients(module)
    loss_of(case, module).backward()
    for name, grad in gradients(module).items():
        torch.testing.assert_close(grad, 2 * once[name], rtol=1e-12, atol=1e-12)


@every(LEARNING)
@pytest.mark.parametrize("way", ["zero_grad", "fill with zeros", "optimizer", "optimizer zeros", "p.grad = None"])
def test_every_way_of_zeroing_starts_anew(case, way):
    module = made(case)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    loss_of(case, module).backward()
    once = gradients(module)
    assert module.has_gradients()

    if way == "zero_grad":
        module.zero_grad()
    elif way == "fill with zeros":
        module.zero_grad(set_to_none=False)
    elif way == "optimizer":
        optimizer.zero_grad()
    elif way == "optimizer zeros":
        optimizer.zero_grad(set_to_none=False)
    else:
        for p in module.parameters():
            p.grad = None

    zeros = way in ("fill with zeros", "optimizer zeros")
    assert all((p.grad is not None) == zeros for p in module.parameters())
    assert not module.has_gradients()
    assert module.gradient_norm() == 0.0
    loss_of(case, module).backward()
    for name, grad in gradients(module).items():
        torch.testing.assert_close(grad, once[name], rtol=1e-12, atol=1e-12)


@every(LEARNING)
def test_step_is_plain_gradient_descent_and_keeps_the_gradients(case):
    module, twin = made(case), made(case)
    loss_of(case, module).backward()
    loss_of(case, twin).backward()
    grads = gradients(module)
    module.step(0.25)
    torch.optim.SGD(twin.parameters(), lr=0.25).step()
    for p, expected in zip(module.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(p, expected, rtol=1e-14, atol=1e-14)
    assert all(torch.equal(grad, grads[name]) for name, grad in gradients(module).items())


@every(LEARNING)
def test_gradient_norm_is_that_of_one_long_vector(case):
    module = made(case)
    loss_of(case, module).backward()
    assert module.gradient_norm() == pytest.approx(float(flat(gradients(module)).norm()), rel=1e-12)


@every(LEARNING)
def test_clip_scales_to_max_norm_only_when_above(case):
    module = made(case)
    loss_of(case, module).backward()
    before = flat(gradients(module))
    norm = float(before.norm())

    assert module.clip_gradients(2 * norm) == pytest.approx(norm, rel=1e-12)
    assert torch.equal(flat(gradients(module)), before)
    assert module.clip_gradients(norm / 4) == pytest.approx(norm, rel=1e-12)
    torch.testing.assert_close(flat(gradients(module)), before / 4, rtol=1e-12, atol=0)
    assert module.gradient_norm() == pytest.approx(norm / 4, rel=1e-12)


@every(CASES)
def test_num_parameters_counts_trainable_scalars(case):
    module = made(case)
    assert module.num_parameters() == sum(math.prod(p.shape) for p in module.parameters())
    for p in module.parameters():
        p.requires_grad_(False)
    assert module.num_parameters() == 0


@every(CASES)
def test_train_and_is_training(case):
    module = made(case)
    assert module.is_training()
    assert module.train(False) is module
    assert not module.is_training()
    assert not module.eval().is_training()
    assert module.train().is_training()
    assert all(part.training for part in module.modules())


@every(LEARNING)
def test_eval_mode_does_not_stop_autograd(case):
    module, twin = made(case).eval(), made(case)
    loss_of(case, module).backward()
    loss_of(case, twin).backward()
    torch.testing.assert_close(flat(gradients(module)), flat(gradients(twin)), rtol=1e-12, atol=1e-12)


@every(CASES)
def test_state_dict_holds_parameters_and_structure_only_and_never_a_gradient(case):
    module = made(case)
    if case in LEARNING:
        loss_of(case, module).backward()
    state = module.state_dict()
    of_structure = {name for name in state if name.rpartition(".")[2] == "_extra_state"}
    assert set(state) - of_structure == {name for name, _ in module.named_parameters()}
    assert all(not value.requires_grad and value.grad is None for value in state.values())

    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    torch.manual_seed(1)
    loaded = case.make().double()
    loaded.load_state_dict(torch.load(file, weights_only=True))
    assert not loaded.has_gradients()
    assert torch.equal(loss_of(case, loaded), loss_of(case, module))


@every(CASES)
def test_a_deep_copy_after_a_forward_pass_is_the_same_function(case):
    module = made(case)
    before = loss_of(case, module)
    assert torch.equal(loss_of(case, copy.deepcopy(module)), before)


@every(LEARNING)
def test_a_forward_pass_gives_the_same_bits_twice(case):
    module = made(case)
    assert torch.equal(loss_of(case, module), loss_of(case, module))


# ---- derivatives ----


@every(DENSE)
def test_derivatives_of_inputs_and_parameters(case):
    module = made(case)
    names = [name for name, _ in module.named_parameters()]
    params = [p.detach().clone().requires_grad_() for p in module.parameters()]
    inputs = [x.clone().requires_grad_() for x in case.inputs]

    def function(*tensors: Tensor) -> Tensor | tuple[Tensor, ...]:
        given = dict(zip(names, tensors[len(inputs) :], strict=True))
        outer = _Runner(module, case.run)
        return torch.func.functional_call(outer, {f"module.{n}": t for n, t in given.items()}, tensors[: len(inputs)])

    assert gradcheck(function, (*inputs, *params), fast_mode=True)
    if case.twice:
        assert gradgradcheck(function, (*inputs, *params), fast_mode=True)


class _Runner(nn.Module):
    def __init__(self, module: nn.Module, run: Callable[..., Tensor | tuple[Tensor, ...]]) -> None:
        super().__init__()
        self.module = module
        self.run = run

    def forward(self, *inputs: Tensor) -> Tensor | tuple[Tensor, ...]:
        outputs = self.run(self.module, *inputs)
        return tuple(outputs) if isinstance(outputs, tuple) else outputs


# ---- generic code ----


def fit(model: dnn.Learnable, loss: Callable[[], Tensor], steps: int, lr: float) -> tuple[float, float]:
    """Written against the protocol alone: the loss before and after."""
    model.train()
    first = loss().item()
    for _ in range(steps):
        model.zero_grad()
        loss().backward()
        assert model.has_gradients()
        model.clip_gradients(1.0)
        model.step(lr)
    return first, loss().item()


@every(LEARNING)
def test_one_fit_trains_every_module(case):
    module = made(case)
    first, last = fit(module, lambda: loss_of(case, module), steps=15, lr=0.05)
    assert last < first


def test_several_modules_train_jointly():
    class Joint(dnn.LearnableModule):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = dnn.Embedding(5, D)
            self.messages = dnn.MessagePassing(D)
            self.sweep = dnn.DagSweep(dnn.GRUCell(D, 2), "up")
            self.network = dnn.DagNN(NETWORK)

        def forward(self) -> Tensor:
            return self.network(self.sweep(self.messages(self.embedding(SYMBOLS), GRAPHS), GRAPHS))

    torch.manual_seed(0)
    joint = Joint()
    assert joint.num_parameters() == sum(part.num_parameters() for part in joint.children())
    first, last = fit(joint, lambda: joint().square().mean(), steps=15, lr=0.1)
    assert last < first
    assert all(part.has_gradients() for part in joint.children())
    squares = [part.gradient_norm() ** 2 for part in joint.children()]
    assert joint.gradient_norm() == pytest.approx(sum(squares) ** 0.5, rel=1e-6)
