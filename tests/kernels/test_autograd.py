"""Compiled code beside PyTorch: tensors that are more than their memory, recorded passes, borrowed memory."""

import sys
import threading

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx

from dagnn.errors import DtypeError, GraphError
from dagnn.graph import Dag
from dagnn.kernels import autograd
from dagnn.kernels.autograd import Borrowed
from dagnn.nn import AttentionCell, ChildSumTreeLSTMCell, DagNN, DagSweep, GRUCell

# PyTorch's own first forward-mode derivative of a process calls it.
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")
GRAPH = Dag([(0, 2), (1, 2), (2, 3), (0, 3)], 4)
HIDDEN = 16  # whole vectors: no padding makes a copy


def sweep_of() -> DagSweep:
    torch.manual_seed(0)
    return DagSweep(ChildSumTreeLSTMCell(2, HIDDEN)).double()


def network_of() -> DagNN:
    torch.manual_seed(0)
    return DagNN(GRAPH, dtype=torch.float64)


MODELS = {"sweep": (sweep_of, lambda: (torch.ones(4, 2), GRAPH)), "network": (network_of, lambda: (torch.ones(4, 2),))}
every_model = pytest.mark.parametrize("name", MODELS)


def given(name: str):
    make, inputs = MODELS[name]
    x, *rest = inputs()
    return make(), x.double().requires_grad_(), rest


@every_model
@pytest.mark.parametrize("kind", ["negated", "zeros without memory", "expanded"])
def test_gradients_that_are_not_what_lies_in_their_memory(name, kind):
    model, x, rest = given(name)
    y = model(x, *rest)
    gradient, plain = {
        "negated": (torch._neg_view(torch.ones_like(y)), -torch.ones_like(y)),
        "zeros without memory": (torch._efficientzerotensor(y.shape, dtype=y.dtype), torch.zeros_like(y)),
        "expanded": (torch.ones((), dtype=y.dtype).expand(y.shape), torch.ones_like(y)),
    }[kind]
    (found,) = torch.autograd.grad(y, x, gradient, retain_graph=True)
    torch.testing.assert_close(found, torch.autograd.grad(y, x, plain)[0], rtol=1e-12, atol=1e-12)


def test_a_sparse_gradient():
    sweep, x, rest = given("sweep")
    y = sweep(x, *rest)
    picked = torch.tensor([1, 2])
    (expected,) = torch.autograd.grad(y[picked].sum(), x, retain_graph=True)
    (found,) = torch.autograd.grad(nn.functional.embedding(picked, y, sparse=True).sum(), x)
    torch.testing.assert_close(found, expected)


def test_a_negated_input():
    net, x, _ = given("network")
    for rows in (1, 4):
        torch.testing.assert_close(net(torch._neg_view(x[:rows])), net(-x[:rows]))


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")  # PyTorch's own, at the first dual tensor
@every_model
def test_a_tangent_of_the_gradient_goes_on(name):
    model, x, rest = given(name)
    with forward_ad.dual_level():
        y = model(x, *rest)
        (found,) = torch.autograd.grad(y, x, forward_ad.make_dual(torch.ones_like(y), torch.ones_like(y)))
        value, tangent = forward_ad.unpack_dual(found)
    torch.testing.assert_close(tangent, value, rtol=1e-12, atol=1e-12)


def test_what_is_recorded_is_no_constant():
    sweep, x, rest = given("sweep")
    x = x.detach()
    recorded = make_fx(lambda x: sweep(x, *rest))(x)
    torch.testing.assert_close(recorded(2 * x), sweep(2 * x, *rest))


@every_model
@pytest.mark.parametrize("transform", [torch.func.grad, torch.func.vmap, torch.func.jacfwd])
def test_a_pass_over_constants_within_a_transform(name, transform):
    """What a transform does not transform runs under it all the same."""
    model, x, rest = given(name)
    scale = torch.ones(4, dtype=x.dtype) if transform is torch.func.vmap else torch.ones((), dtype=x.dtype)
    total = model(x, *rest).sum()
    found = transform(lambda factor: factor * model(x, *rest).sum())(scale)
    torch.testing.assert_close(found, total.expand(found.shape), rtol=1e-12, atol=1e-12)
    (gradient,) = torch.autograd.grad(found.sum() / found.numel(), x)
    torch.testing.assert_close(gradient, torch.autograd.grad(total, x)[0], rtol=1e-12, atol=1e-12)


def test_a_subclass_stays_one():
    class Marked(Tensor):
        pass

    sweep, x, rest = given("sweep")
    assert type(sweep(x.detach().as_subclass(Marked), *rest)) is Marked


@every_model
def test_another_default_device_changes_nothing(name):
    model, x, rest = given(name)
    with torch.device("meta"):
        y = model(x, *rest)
        (found,) = torch.autograd.grad(y.sum(), x)
    model, _, _ = given(name)
    torch.testing.assert_close(found, torch.autograd.grad(model(x, *rest).sum(), x)[0], rtol=1e-12, atol=1e-12)


def second_derivative(function):
    return torch.func.grad(lambda x: torch.func.grad(function)(x).sum())


def in_inference_mode(function, x):
    with torch.inference_mode():
        function(x)


def among_fake_tensors(function, x):
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        function(mode.from_tensor(x))


# What is worked out for a graph when it is first seen serves for as long as the graph lives.
FIRST_SEEN = {
    "in inference mode": in_inference_mode,
    "among fake tensors": among_fake_tensors,
    "by make_fx": lambda function, x: make_fx(function)(x),
    "in a second derivative": lambda function, x: second_derivative(lambda x: function(x).sum())(x),
    "as a constant in one": lambda function, x: second_derivative(lambda scale: scale**2 * function(x).sum())(
        torch.ones((), dtype=x.dtype)
    ),
    "by jvp of grad": lambda function, x: torch.func.jvp(torch.func.grad(lambda x: function(x).sum()), (x,), (x,)),
    "by vmap": lambda function, x: torch.func.vmap(function)(x.expand(2, *x.shape)),
}


@every_model
@pytest.mark.parametrize("path", ["compiled", "reference"])
@pytest.mark.parametrize("first", FIRST_SEEN)
def test_a_graph_first_seen_elsewhere_can_be_trained_on(name, path, first, monkeypatch):
    monkeypatch.setenv("DAGNN_KERNELS", path)

    def derivatives(first_seen: bool) -> list[Tensor]:
        model, x, _ = given(name)
        rest = [Dag(GRAPH.edges, 4)] if name == "sweep" else []
        if first_seen:
            FIRST_SEEN[first](lambda x: model(x, *rest), x.detach())
        (gradient,) = torch.autograd.grad(model(x, *rest).square().sum(), x, create_graph=True)
        gradient.sum().backward()
        model(x, *rest).sum().backward()
        return [x.grad, *(p.grad for p in model.parameters()), torch.func.jacrev(lambda x: model(x, *rest))(x.detach())]

    for found, expected in zip(derivatives(True), derivatives(False), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


# ---- parameters that are not what they were ----


def test_a_network_whose_precision_changed_before_the_way_back():
    net, x, _ = given("network")
    y = net(x)
    net.float()  # the same parameters with half the memory
    with pytest.raises(DtypeError, match=r"ran in torch.float64 on cpu, but the network is now torch.float32 on cpu"):
        y.sum().backward()


def test_a_gradient_that_was_cut_short_is_not_written_to():
    net, x, _ = given("network")
    net(x).sum().backward()
    net.edge_weight.grad.data = torch.zeros(1, dtype=torch.float64)
    with pytest.raises(RuntimeError, match="shape"):
        net(x).sum().backward()


@pytest.mark.parametrize(("cell", "name"), [(ChildSumTreeLSTMCell, "forget_weight"), (AttentionCell, "score_weight")])
def test_weights_replaced_by_fewer_before_the_way_back(cell, name):
    sweep = DagSweep(cell(2, HIDDEN)).double()
    y = sweep(torch.ones(4, 2, dtype=torch.float64), GRAPH)
    parameter = getattr(sweep.cells["up"], name)
    parameter.data = torch.zeros([1] * parameter.dim(), dtype=torch.float64)
    with pytest.raises(RuntimeError, match="is invalid for input of size"):
        y.sum().backward()


def test_rows_of_a_table_changed_after_the_pass_do_not_count():
    sweep = DagSweep(GRUCell(2, HIDDEN)).double()
    table = torch.randn(2, 2, dtype=torch.float64, requires_grad=True)
    rows = torch.tensor([0, 1, 0, 1])
    y = sweep(table, GRAPH, rows).sum()
    (expected,) = torch.autograd.grad(y, table, retain_graph=True)
    rows.fill_(10_000_000)
    torch.testing.assert_close(torch.autograd.grad(y, table)[0], expected)  # the second time, forward is run again


def test_the_operator_checks_what_it_is_given():
    net, x, _ = given("network")
    run, number = torch.ops.dagnn.network, net._plan_on[x.device].fingerprint
    with pytest.raises(GraphError, match=r"x must have the shape \[4, 2\], got \[4, 1\]"):
        run(x[:, :1], net.edge_weight, net.bias, number)
    with pytest.raises(DtypeError, match=r"all of one, got torch.float32, torch.float64"):
        run(x.float(), net.edge_weight, net.bias, number)


def test_two_users_never_have_the_same_and_the_next_gets_what_the_last_left():
    one, other = Borrowed(1_000, torch.float64), Borrowed(1_000, torch.float64)
    assert one.numbers.data_ptr() != other.numbers.data_ptr()
    left = one.numbers.data_ptr()
    del one
    assert Borrowed(900, torch.float64).numbers.data_ptr() == left


def test_what_is_kept_is_bounded_and_the_smallest_goes():
    users = [Borrowed(length, torch.float64) for length in (10, 5_000, 20, 4_000, 30, 40)]
    users.clear()
    kept = autograd._kept[torch.float64]
    assert len(kept) <= 4
    assert max(piece.numel() for piece in kept.values()) >= 5_000


def test_threads_that_borrow_at_the_same_time(monkeypatch):
    failures: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda failure: failures.append(failure.exc_value))

    def work() -> None:
        for _ in range(1_500):
            users = [Borrowed(length, torch.float32) for length in (10, 2_000, 30)]
            del users

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert failures == []
    assert len(autograd._kept[torch.float32]) <= 4 + len(threads)
