"""Gradients of a sweep's weights go straight into ``.grad`` where autograd would only add them, and nowhere else."""

import contextlib
import multiprocessing
import os
import threading
from unittest import mock

import pytest
import torch
from small_sweeps import CELLS, DIRECT, GRAPH, RAGGED, WHOLE, D, features, sweep_of
from torch import Tensor, nn

from dagnn.graph import Dag, DagBatch
from dagnn.kernels import autograd
from dagnn.kernels.sweep import passes
from dagnn.nn import DagNN, DagSweep

every_cell = pytest.mark.parametrize("name", CELLS)


def loss_of(sweep: DagSweep) -> Tensor:
    return sweep(features(), GRAPH).square().sum()


def gradients(sweep: DagSweep) -> list[Tensor]:
    return [p.grad.clone() for p in sweep.parameters()]


def returned(sweep: DagSweep) -> tuple[Tensor, ...]:
    """The gradients of one pass, without touching ``.grad``."""
    return torch.autograd.grad(loss_of(sweep), list(sweep.parameters()))


def assert_equal(found, expected) -> None:
    torch.testing.assert_close(list(found), list(expected), rtol=1e-12, atol=1e-12)


@pytest.fixture
def direct(monkeypatch):
    """Numbers of the weights whose gradients were added in place."""
    numbers: list[int] = []
    original = passes.Sweep.weight_gradient

    def noticed(self, number, into=None, step=None):
        if into is not None:
            numbers.append(number)
        return original(self, number, into, step)

    monkeypatch.setattr(passes.Sweep, "weight_gradient", noticed)
    return numbers


@every_cell
@pytest.mark.parametrize("hidden", [WHOLE, RAGGED])
def test_two_passes_sum_in_the_buffer_that_is_there(name, hidden, direct):
    sweep = sweep_of(name, hidden=hidden)
    loss_of(sweep).backward()
    assert direct == []  # autograd keeps a first gradient without a copy
    once, buffers = gradients(sweep), [p.grad for p in sweep.parameters()]
    versions = [buffer._version for buffer in buffers]
    loss_of(sweep).backward()
    assert direct == (list(range(DIRECT[name])) if hidden == WHOLE else [])
    assert all(p.grad is buffer for p, buffer in zip(sweep.parameters(), buffers, strict=True))
    assert all(buffer._version > version for buffer, version in zip(buffers, versions, strict=True))
    assert_equal(gradients(sweep), [2 * g for g in once])


@pytest.mark.parametrize("set_to_none", [True, False])
def test_both_ways_of_zeroing(set_to_none, direct):
    sweep = sweep_of("child_sum")
    expected = returned(sweep)
    for _ in range(3):
        sweep.zero_grad(set_to_none=set_to_none)
        loss_of(sweep).backward()
        assert_equal(gradients(sweep), expected)
    assert len(direct) == (0 if set_to_none else 4)


def test_autograd_grad_returns_and_touches_no_grad(direct):
    sweep, x = sweep_of("tree_lstm"), features().requires_grad_()
    loss_of(sweep).backward()
    before = gradients(sweep)
    assert_equal(returned(sweep), before)
    sweep(x, GRAPH).square().sum().backward(inputs=[x])
    assert all(torch.equal(p.grad, old) for p, old in zip(sweep.parameters(), before, strict=True))
    assert direct == []
    weight = sweep.cells["up"].state_weight
    expected = 2 * weight.grad
    loss_of(sweep).backward(inputs=[weight])
    assert_equal([weight.grad], [expected])


def test_hooks_see_the_gradient(direct):
    sweep = sweep_of("child_sum")
    cell, seen = sweep.cells["up"], []
    (of_state, of_forget) = torch.autograd.grad(loss_of(sweep), [cell.state_weight, cell.forget_weight])
    loss_of(sweep).backward()
    handle = cell.state_weight.register_hook(lambda grad: seen.append(grad.clone()) or 2 * grad)
    loss_of(sweep).backward()
    handle.remove()
    cell.forget_weight.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.clone()))
    loss_of(sweep).backward()
    assert direct == [1, 0]  # the one that nobody listened to
    assert_equal(seen, [of_state, 3 * of_forget])
    assert_equal([cell.state_weight.grad, cell.forget_weight.grad], [4 * of_state, 3 * of_forget])


@every_cell
def test_twice_through_one_graph(name):
    sweep = sweep_of(name)
    expected = returned(sweep)
    loss_of(sweep).backward()
    loss = loss_of(sweep)
    loss.backward(retain_graph=True)
    loss.backward()
    assert_equal(gradients(sweep), [3 * g for g in expected])


@every_cell
def test_a_cell_used_twice_in_one_graph_and_on_its_own(name):
    sweep = sweep_of(name)
    parameters = list(sweep.parameters())

    def loss() -> Tensor:
        y = sweep(features(), GRAPH)
        again = sweep(y[:, :D], GRAPH)
        return again.square().sum() + y.sum() + sum(p.square().sum() for p in parameters)

    expected = torch.autograd.grad(loss(), parameters)
    for times in (1, 2, 3):
        loss().backward()
        assert_equal(gradients(sweep), [times * g for g in expected])


@every_cell
def test_one_cell_for_both_ways(name, direct):
    cell = sweep_of(name).cells["up"]
    if name.startswith("tree_lstm"):
        nn.init.normal_(cell.state_weight)
    sweep = DagSweep(cell, "both", down_cell=cell)
    expected = returned(sweep)
    for times in (1, 2, 3):
        loss_of(sweep).backward()
        assert_equal(gradients(sweep), [times * g for g in expected])
    assert len(direct) == 4 * DIRECT[name]


@every_cell
def test_frozen_weights_get_nothing_and_cost_nothing(name, direct):
    sweep = sweep_of(name)
    expected = dict(zip([n for n, _ in sweep.named_parameters()], returned(sweep), strict=True))
    for frozen, parameter in sweep.named_parameters():
        sweep.zero_grad()
        parameter.requires_grad_(False)
        for _ in range(2):
            loss_of(sweep).backward()
        for other, p in sweep.named_parameters():
            if other == frozen:
                assert p.grad is None
            else:
                assert_equal([p.grad], [2 * expected[other]])
        parameter.requires_grad_()


@every_cell
@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph=True:UserWarning")
def test_second_derivatives_go_another_way(name, direct):
    sweep = sweep_of(name)
    parameters = list(sweep.parameters())
    loss_of(sweep).backward()
    sweep.zero_grad(set_to_none=False)
    loss_of(sweep).backward(create_graph=True)
    found = torch.autograd.grad(sum(p.grad.square().sum() for p in parameters), parameters)
    with mock.patch.dict(os.environ, {"DAGNN_KERNELS": "reference"}):
        first = torch.autograd.grad(loss_of(sweep), parameters, create_graph=True)
        expected = torch.autograd.grad(sum(g.square().sum() for g in first), parameters)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    assert direct == []
    sweep.zero_grad()  # the gradients hold their graph


@pytest.mark.filterwarnings("ignore:grad and param do not obey the gradient layout contract:UserWarning")
def test_odd_gradients_are_left_to_pytorch(direct):
    sweep = sweep_of("child_sum")
    weight = sweep.cells["up"].forget_weight
    (expected,) = torch.autograd.grad(loss_of(sweep), [weight])
    for odd in (
        torch.ones(WHOLE, WHOLE, dtype=torch.float64).t().contiguous().t(),
        torch.ones(WHOLE, 2 * WHOLE, dtype=torch.float64)[:, ::2],
        nn.Parameter(torch.ones(WHOLE, WHOLE, dtype=torch.float64), requires_grad=False),
        torch._neg_view(-torch.ones(WHOLE, WHOLE, dtype=torch.float64)),
    ):
        weight.grad = odd
        loss_of(sweep).backward()
        assert_equal([weight.grad.clone()], [1 + expected])
    assert 1 not in direct
    with torch.inference_mode():
        weight.grad = torch.ones(WHOLE, WHOLE, dtype=torch.float64)
    with pytest.raises(RuntimeError, match="Inplace update to inference tensor outside InferenceMode"):
        loss_of(sweep).backward()


def test_a_weight_whose_memory_was_exchanged_since_the_forward_pass(direct):
    sweep = sweep_of("child_sum")
    weight = sweep.cells["up"].forget_weight
    loss_of(sweep).backward()
    loss = loss_of(sweep)
    weight.grad = None
    weight.data = torch.zeros(1, 1, dtype=torch.float64)
    weight.grad = torch.zeros(1, 1, dtype=torch.float64)
    with pytest.raises(RuntimeError):
        loss.backward()
    assert weight.grad.tolist() == [[0.0]]


# ---- threads ----


@every_cell
def test_the_bits_do_not_depend_on_the_number_of_threads(name, monkeypatch):
    monkeypatch.setattr(passes, "PARALLEL_WORK", 0)
    monkeypatch.setattr(passes, "PARALLEL_SPEEDUP", 0)
    before, results = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            sweep = sweep_of(name, "both")
            for _ in range(3):
                loss_of(sweep).backward()
            results.append([g.numpy().tobytes() for g in gradients(sweep)])
    finally:
        torch.set_num_threads(before)
    assert results[0] == results[1] == results[2]


@pytest.mark.parametrize("begins", ["with a gradient", "with none"])
@pytest.mark.parametrize("direction", ["up", "both"])
def test_threads_that_share_weights_lose_no_gradient(begins, direction):
    sweep, rounds, graph = sweep_of("child_sum", direction), 20, DagBatch.from_dags(list(GRAPH) * 60)
    x = features().repeat(60, 1)
    once = torch.autograd.grad(sweep(x, graph).square().sum(), list(sweep.parameters()))
    shared = [p for name, p in sweep.named_parameters() if "state_weight" in name or "forget_weight" in name]
    if begins == "with a gradient":
        for p in shared:
            p.grad = torch.zeros_like(p)
    gate = threading.Barrier(3)

    def work() -> None:
        gate.wait()
        for _ in range(rounds):
            sweep(x, graph).square().sum().backward(inputs=shared)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expected = dict(zip(sweep.parameters(), once, strict=True))
    assert_equal([p.grad / (3 * rounds) for p in shared], [expected[p] for p in shared])


def test_a_pass_waits_for_another_that_is_adding():
    sweep = sweep_of("child_sum")
    expected = [2 * g for g in returned(sweep)]
    loss_of(sweep).backward()
    thread = threading.Thread(target=lambda: loss_of(sweep).backward())
    with autograd.added_to([sweep.cells["up"].forget_weight]) as ((grad,), _):
        before = grad.clone()
        thread.start()
        thread.join(0.3)
        assert thread.is_alive() and torch.equal(grad, before)
    thread.join(60)
    assert_equal(gradients(sweep), expected)


def _child(sweep: DagSweep, queue) -> None:
    loss_of(sweep).backward()
    queue.put([g.tolist() for g in gradients(sweep)])


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_child_that_is_forked_in_the_middle_of_an_addition():
    sweep = sweep_of("child_sum")
    expected = [2 * g for g in returned(sweep)]
    loss_of(sweep).backward()
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_child, args=(sweep, queue))
    with autograd.added_to(list(sweep.parameters())):
        child.start()
    found = queue.get(timeout=60)
    child.join(60)
    assert_equal([torch.tensor(g, dtype=torch.float64) for g in found], expected)
    assert child.exitcode == 0


@pytest.mark.fault("graphs_and_networks", 29)
def test_threads_that_compiled_code_runs_on_are_no_other_writers(monkeypatch):
    parameter = torch.nn.Parameter(torch.ones(1))
    started = list(range(3))
    monkeypatch.setattr(autograd.threading, "active_count", lambda: 1 + len(started))
    monkeypatch.setattr(autograd.workers, "_started", started)
    assert autograd.are_first(parameter)
    started.pop()
    monkeypatch.setattr(autograd.threading, "active_count", lambda: 4)
    assert not autograd.are_first(parameter)


@pytest.mark.fault("graphs_and_networks", 9)
@pytest.mark.parametrize("begins", ["with a gradient", "with none"])
@pytest.mark.parametrize("kind", ["network", "child_sum"])
def test_gradients_survive_hooks_on_saved_tensors_beside_other_threads(kind, begins, monkeypatch):
    """Checkpointing and offloading hand the backward pass copies of the parameters."""
    monkeypatch.setattr(autograd.threading, "active_count", lambda: 9)  # such as the one of a progress bar

    def gradients_with(hooks) -> list[Tensor]:
        torch.manual_seed(0)
        model = sweep_of(kind) if kind != "network" else DagNN(Dag([("a", "h"), ("b", "h"), ("h", "y")]))
        if begins == "with a gradient":
            for p in model.parameters():
                p.grad = torch.ones_like(p)
        with hooks:
            y = model(features(), GRAPH) if kind != "network" else model(torch.ones(3, 2))
        y.square().sum().backward()
        return gradients(model)

    expected = gradients_with(contextlib.nullcontext())
    assert_equal(gradients_with(torch.autograd.graph.saved_tensors_hooks(Tensor.clone, lambda t: t)), expected)
    assert_equal(gradients_with(torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t)), expected)
    assert_equal(gradients_with(torch.autograd.graph.save_on_cpu()), expected)
