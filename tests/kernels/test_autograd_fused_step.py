"""Plain gradient descent in the pass that computes the gradients: what `backward()` and `step` give, and safe."""

import copy

import pytest
import torch
import torch.nn.functional as F
from precision import assert_rounded
from small_sweeps import CELLS, DIRECT, GRAPH, RAGGED, WHOLE, D, features, sweep_of
from torch import Tensor, nn

from dagnn.errors import ConfigError
from dagnn.graph import Dag
from dagnn.kernels.emit import workers
from dagnn.kernels.sweep import passes
from dagnn.nn import DagNN, DagSweep, Embedding, LearnableModule, TreeLSTMCell

LR = 0.03
every_cell = pytest.mark.parametrize("name", CELLS)


def loss_of(sweep: DagSweep) -> Tensor:
    return sweep(features(), GRAPH).square().mean()


def assert_same_step(module: LearnableModule, loss) -> None:
    """Parameters and gradients after `backward_and_step` are those of the two calls."""
    twin = copy.deepcopy(module)
    for own, other in zip(module.parameters(), twin.parameters(), strict=True):
        other.grad = None if own.grad is None else own.grad.clone()
    loss(twin).backward()
    twin.step(LR)
    module.backward_and_step(loss(module), LR)
    for own, other in zip(module.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(own, other, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(own.grad, other.grad, rtol=1e-12, atol=1e-12)


@pytest.fixture
def moved(monkeypatch):
    """The numbers of the weights that a compiled pass moved."""
    numbers: list[int] = []
    original = passes.Sweep.weight_gradient

    def noticed(self, number, into=None, step=None):
        if step is not None:
            numbers.append(number)
        return original(self, number, into, step)

    monkeypatch.setattr(passes.Sweep, "weight_gradient", noticed)
    return numbers


@every_cell
@pytest.mark.parametrize("hidden", [WHOLE, 3 * WHOLE, RAGGED])
@pytest.mark.parametrize("direction", ["up", "both"])
def test_is_backward_then_step(name, hidden, direction, moved):
    sweep = sweep_of(name, direction, hidden)
    for step in range(3):  # gradients are not cleared: they sum, as in the two calls
        assert_same_step(sweep, loss_of)
        ways = 2 if direction == "both" else 1
        assert sorted(moved) == sorted([*range(DIRECT[name])] * ways * (step + 1) if hidden != RAGGED else [])


@every_cell
def test_in_float32(name):
    sweep = sweep_of(name, "both").float()
    twin = copy.deepcopy(sweep).double()
    x = features().float()

    def stepped(module: DagSweep, x: Tensor, fused: bool) -> list[Tensor]:
        loss = module(x, GRAPH).square().mean()
        if fused:
            module.backward_and_step(loss, LR)
        else:
            loss.backward()
            module.step(LR)
        return [*module.parameters(), *(p.grad for p in module.parameters())]

    assert_rounded(stepped(sweep, x, True), lambda: stepped(copy.deepcopy(twin), x.double(), False))


def test_operators_without_nodes_move_by_the_gradient_that_they_have(moved):
    sweep = DagSweep(TreeLSTMCell(D, WHOLE, max_children=3, operators=4)).double()
    sweep.cells["up"].state_weight.grad = torch.ones_like(sweep.cells["up"].state_weight)
    before = sweep.cells["up"].state_weight.detach().clone()
    assert_same_step(sweep, loss_of)
    assert moved == [0]
    torch.testing.assert_close(sweep.cells["up"].state_weight[2:], before[2:] - LR)


def test_a_cell_used_twice_moves_once_by_the_whole_gradient(moved):
    class Twice(LearnableModule):
        def __init__(self) -> None:
            super().__init__()
            cell = TreeLSTMCell(D, WHOLE, max_children=3)
            self.sweeps = nn.ModuleList([DagSweep(cell, "up"), DagSweep(cell, "down")]).double()

        def forward(self) -> Tensor:
            outputs = [sweep(features(), GRAPH) for sweep in self.sweeps]
            weight = self.sweeps[0].cells["up"].state_weight
            return sum(y.square().mean() for y in outputs) + weight.pow(3).sum() * weight.detach().sum()

    assert_same_step(Twice(), lambda module: module())
    assert moved == [0]


def test_layers_one_after_another_read_weights_that_have_not_moved(moved):
    class Deep(LearnableModule):
        def __init__(self) -> None:
            super().__init__()
            self.table = Embedding(2, WHOLE)
            self.sweeps = nn.ModuleList(
                DagSweep(TreeLSTMCell(WHOLE, WHOLE, max_children=3), way) for way in ("up", "down", "up")
            )
            self.head = nn.Linear(WHOLE, 2)
            self.double()

        def forward(self) -> Tensor:
            x = self.table(GRAPH.node_attributes["operator"])
            for sweep in self.sweeps:
                x = x + sweep(x, GRAPH)
            return F.cross_entropy(self.head(x), GRAPH.node_attributes["operator"])

    assert_same_step(Deep(), lambda module: module())
    assert moved == [0, 0, 0]


def test_other_modules_get_gradients_and_stay(moved):
    sweep, other = sweep_of("tree_lstm"), sweep_of("child_sum")
    before = [p.detach().clone() for p in other.parameters()]
    sweep.backward_and_step(loss_of(sweep) + loss_of(other), LR)
    assert moved == [0]
    assert all(torch.equal(p, old) and p.grad.any() for p, old in zip(other.parameters(), before, strict=True))


def test_hooked_and_frozen_weights_go_the_long_way(moved):
    sweep, seen = sweep_of("child_sum"), []
    sweep.cells["up"].state_weight.register_hook(lambda grad: seen.append(grad))
    sweep.cells["up"].forget_weight.requires_grad_(False)
    forget = sweep.cells["up"].forget_weight.clone()
    before = sweep.cells["up"].state_weight.detach().clone()
    sweep.backward_and_step(loss_of(sweep), LR)
    assert moved == [] and len(seen) == 1
    assert torch.equal(sweep.cells["up"].forget_weight, forget)
    torch.testing.assert_close(sweep.cells["up"].state_weight, before - LR * seen[0])


def test_a_gradient_of_another_form_that_came_in_the_same_pass(moved):
    sweep = sweep_of("tree_lstm")

    def loss(module: DagSweep) -> Tensor:
        weight = module.cells["up"].state_weight  # autograd keeps the first gradient as it comes: a transpose
        return loss_of(module) + (weight.t() * torch.arange(weight.numel()).view_as(weight.t()) / 1e4).sum()

    assert_same_step(sweep, loss)
    assert_same_step(sweep, loss)


def test_weights_that_share_memory_do_not_race(moved):
    sweep = DagSweep(TreeLSTMCell(D, WHOLE, max_children=3), "both").double()
    up, down = sweep.cells["up"], sweep.cells["down"]
    up.state_weight.data = down.state_weight.data
    before, weight = down.state_weight.detach().clone(), down.state_weight
    sweep.backward_and_step(loss_of(sweep), LR)
    assert moved == []
    torch.testing.assert_close(weight, before - LR * (up.state_weight.grad + weight.grad))


def test_the_step_is_seen_by_autograd():
    sweep = sweep_of("tree_lstm")
    weight = sweep.cells["up"].state_weight
    version, kept = weight._version, (weight * weight).sum()
    sweep.backward_and_step(loss_of(sweep), LR)
    assert weight._version > version
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        kept.backward()


def test_nothing_moves_when_backward_fails(moved):
    sweep = sweep_of("tree_lstm")
    before = [p.detach().clone() for p in sweep.parameters()]
    x = features().requires_grad_()
    x.register_hook(lambda grad: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        sweep.backward_and_step(sweep(x, GRAPH).sum(), LR)
    assert moved == [] and all(torch.equal(p, old) for p, old in zip(sweep.parameters(), before, strict=True))
    loss_of(sweep).backward()  # and an ordinary pass is one again
    assert moved == [] and all(torch.equal(p, old) for p, old in zip(sweep.parameters(), before, strict=True))


def test_weights_that_share_a_gradient_move_when_it_is_complete(moved):
    sweep, twin = (DagSweep(TreeLSTMCell(D, WHOLE, max_children=3), "both").double() for _ in range(2))
    twin.load_state_dict(sweep.state_dict())
    for module in (sweep, twin):
        up, down = module.cells["up"].state_weight, module.cells["down"].state_weight
        up.grad = down.grad = torch.zeros_like(up)
    loss_of(twin).backward()
    twin.step(LR)
    sweep.backward_and_step(loss_of(sweep), LR)
    assert moved == []
    for own, other in zip(sweep.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(own, other, rtol=1e-12, atol=1e-12)


def test_processes_that_join_their_gradients_find_them_complete(moved, monkeypatch):
    sweep, seen = sweep_of("tree_lstm"), []
    weight = sweep.cells["up"].state_weight
    weight.grad = torch.zeros_like(weight)
    node = weight.expand_as(weight).grad_fn.next_functions[0][0]
    node.register_hook(lambda *_: seen.append(weight.grad.clone()))  # as DistributedDataParallel does
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    sweep.backward_and_step(loss_of(sweep), LR)
    assert moved == [] and torch.equal(seen[0], weight.grad) and seen[0].any()


def test_a_rate_as_a_tensor_and_one_too_large_for_float32():
    sweep = sweep_of("tree_lstm")
    before = sweep.cells["up"].bias.detach().clone()
    sweep.backward_and_step(loss_of(sweep), torch.tensor([LR], dtype=torch.float64))
    torch.testing.assert_close(sweep.cells["up"].bias, before - LR * sweep.cells["up"].bias.grad)
    single = sweep_of("tree_lstm").float()
    before = [p.detach().clone() for p in single.parameters()]
    with pytest.raises(RuntimeError, match="without overflow"):
        single.backward_and_step(single(features().float(), GRAPH).square().mean(), 1e39)
    assert all(torch.equal(p, old) for p, old in zip(single.parameters(), before, strict=True))


@pytest.mark.parametrize("lr", [-1.0, float("nan"), float("inf")])
def test_a_learning_rate_that_is_none(lr):
    sweep = sweep_of("tree_lstm")
    with pytest.raises(ConfigError, match="lr must be a finite number of at least 0"):
        sweep.backward_and_step(loss_of(sweep), lr)
    assert all(p.grad is None for p in sweep.parameters())


def test_every_module_has_it():
    net = DagNN(Dag(torch.tensor([(0, 1), (1, 2)]), 3, inputs=[0], outputs=[2])).double()
    x = torch.ones(3, 1, dtype=torch.float64)
    assert_same_step(net, lambda module: module(x).square().sum())


@pytest.mark.parametrize("direction", ["up", "both"])
def test_the_same_bits_for_any_number_of_threads(direction, monkeypatch):
    def bits(threads: int) -> list[bytes]:
        monkeypatch.setattr(workers, "num_workers", lambda pieces: min(threads, pieces))
        sweep = sweep_of("tree_lstm by operator", direction)
        for _ in range(3):
            sweep.backward_and_step(loss_of(sweep), LR)
        return [p.detach().numpy().tobytes() for p in sweep.parameters()]

    assert bits(1) == bits(2) == bits(3)
