"""A compiled network under autograd: derivatives of any order, `.grad` in place, and what must fall back."""

import copy
import gc
import resource
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from precision import assert_rounded
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.autograd import forward_ad, gradcheck, gradgradcheck

from dagnn.graph import Dag
from dagnn.kernels import ACTIVATIONS
from dagnn.kernels.network import autograd_function as network_function
from dagnn.nn import DagNN, from_sequential

EDGES = [("x", "a"), ("x", "b"), ("z", "b"), ("a", "y"), ("b", "y"), ("x", "y"), ("s", "y")]
SMOOTH = sorted(set(ACTIVATIONS) - {"relu", "leaky_relu", "elu"})  # elu has a kink in its slope


def network(activation: str = "tanh", dtype: torch.dtype = torch.float64) -> DagNN:
    torch.manual_seed(0)
    net = DagNN(
        Dag(EDGES, inputs=["x", "z"], outputs=["y", "a", "z"]),
        activation=activation,
        output_activation=activation,
        dtype=dtype,
    )
    torch.nn.init.normal_(net.bias)
    return net


def function(net: DagNN):
    names = [name for name, _ in net.named_parameters()]

    def call(x: torch.Tensor, *parameters: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(net, dict(zip(names, parameters, strict=True)), (x,))

    return call


def inputs(net: DagNN, batch: int) -> list[torch.Tensor]:
    x = torch.randn(batch, 2, dtype=torch.float64, requires_grad=True)
    return [x, *(p.detach().clone().requires_grad_() for p in net.parameters())]


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("batch", [1, 5])
def test_first_derivatives_are_differences(name, batch):
    net = network(name)
    assert gradcheck(function(net), inputs(net, batch))


@pytest.mark.parametrize("name", SMOOTH)
@pytest.mark.parametrize("batch", [1, 3])
def test_second_derivatives_are_differences(name, batch):
    net = network(name)
    assert gradgradcheck(function(net), inputs(net, batch))


@pytest.fixture
def compiled_passes(monkeypatch):
    """Counts forward and backward passes of the compiled path."""
    counts = {"forward": 0, "backward": 0}

    def counted(name):
        original = getattr(network_function.passes, name)

        def call(*args, **kwargs):
            counts[name] += 1
            return original(*args, **kwargs)

        return call

    for name in counts:
        monkeypatch.setattr(network_function.passes, name, counted(name))
    return counts


def test_plain_training_runs_compiled(compiled_passes):
    net = network()
    net(torch.randn(4, 2, dtype=torch.float64)).sum().backward()
    assert compiled_passes == {"forward": 1, "backward": 1}
    with torch.no_grad():
        net(torch.randn(4, 2, dtype=torch.float64))
    assert compiled_passes == {"forward": 2, "backward": 1}


def test_the_reference_can_be_forced(compiled_passes, monkeypatch):
    monkeypatch.setenv("DAGNN_KERNELS", "reference")
    net = network()
    net(torch.randn(4, 2, dtype=torch.float64)).sum().backward()
    assert compiled_passes == {"forward": 0, "backward": 0}


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")  # PyTorch's own jacfwd
def test_transforms_fall_back(compiled_passes):
    net = network()
    x = torch.randn(4, 2, dtype=torch.float64)
    expected = torch.autograd.functional.jacobian(net, x[1])
    before = dict(compiled_passes)
    torch.testing.assert_close(torch.func.jacrev(net)(x[1]), expected)
    torch.testing.assert_close(torch.func.jacfwd(net)(x[1]), expected)
    with forward_ad.dual_level():
        tangent = forward_ad.unpack_dual(net(forward_ad.make_dual(x[1], x[0]))).tangent
    torch.testing.assert_close(tangent, expected @ x[0])
    assert compiled_passes == before


def test_a_batch_of_gradients_at_once():
    net = network()
    x = torch.randn(2, dtype=torch.float64, requires_grad=True)
    y = net(x)
    (rows,) = torch.autograd.grad(y, x, torch.eye(3, dtype=torch.float64), is_grads_batched=True)
    torch.testing.assert_close(rows, torch.autograd.functional.jacobian(net, x))


# ---- .grad ----


def test_gradients_are_added_in_place_to_the_buffer_that_is_there():
    net = network()
    x = torch.randn(5, 2, dtype=torch.float64)
    net(x).sum().backward()
    buffer, once = net.edge_weight.grad, net.edge_weight.grad.clone()
    place = buffer.data_ptr()
    net(x).sum().backward()
    assert net.edge_weight.grad is buffer and buffer.data_ptr() == place
    torch.testing.assert_close(buffer, 2 * once, rtol=1e-12, atol=1e-12)


def test_the_three_ways_of_zeroing_do_what_pytorch_says():
    net = network()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    x = torch.randn(5, 2, dtype=torch.float64)
    net(x).sum().backward()
    once = net.edge_weight.grad.clone()

    optimizer.zero_grad()
    assert net.edge_weight.grad is None
    net(x).sum().backward()
    buffer = net.edge_weight.grad
    optimizer.zero_grad(set_to_none=False)
    assert net.edge_weight.grad is buffer and not buffer.any()
    net(x).sum().backward()
    torch.testing.assert_close(net.edge_weight.grad, once, rtol=1e-12, atol=1e-12)
    net.edge_weight.grad = None  # and the bias keeps its own
    net(x).sum().backward()
    torch.testing.assert_close(net.edge_weight.grad, once, rtol=1e-12, atol=1e-12)
    assert buffer is not net.edge_weight.grad


def test_autograd_grad_returns_and_touches_no_grad():
    net = network()
    x = torch.randn(5, 2, dtype=torch.float64, requires_grad=True)
    net(x).sum().backward()
    before = [p.grad.clone() for p in net.parameters()]
    weight, bias = torch.autograd.grad(net(x).sum(), [net.edge_weight, net.bias])
    torch.testing.assert_close([weight, bias], before, rtol=1e-12, atol=1e-12)
    net(x).sum().backward(inputs=[x])
    assert all(torch.equal(p.grad, old) for p, old in zip(net.parameters(), before, strict=True))


def test_hooks_see_the_gradient():
    net = network()
    x = torch.randn(5, 2, dtype=torch.float64)
    net(x).sum().backward()
    once, seen = net.edge_weight.grad.clone(), []
    handle = net.edge_weight.register_hook(lambda grad: seen.append(grad.clone()) or 2 * grad)
    net(x).sum().backward()
    handle.remove()
    net.bias.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.clone()))
    net(x).sum().backward()
    torch.testing.assert_close(seen[0], once, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(net.edge_weight.grad, 4 * once, rtol=1e-12, atol=1e-12)
    assert len(seen) == 2 and torch.equal(seen[1], net.bias.grad)


def test_a_network_used_twice_in_one_loss():
    net = network()
    x = torch.randn(2, 5, 2, dtype=torch.float64)
    (net(x[0]).sum() + net(x[1]).sum() + net.edge_weight.square().sum()).backward()
    found = net.edge_weight.grad.clone()
    expected = torch.autograd.grad(net(x.reshape(10, 2)).sum() + net.edge_weight.square().sum(), net.edge_weight)
    torch.testing.assert_close(found, expected[0], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("frozen", ["edge_weight", "bias"])
def test_a_frozen_parameter_gets_nothing(frozen):
    net, twin = network(), network()
    getattr(net, frozen).requires_grad_(False)
    x = torch.randn(5, 2, dtype=torch.float64)
    net(x).sum().backward()
    twin(x).sum().backward()
    other = "bias" if frozen == "edge_weight" else "edge_weight"
    assert getattr(net, frozen).grad is None
    torch.testing.assert_close(getattr(net, other).grad, getattr(twin, other).grad)


def test_twice_through_one_graph_and_never_after_it_is_freed():
    net = network()
    y = net(torch.randn(5, 2, dtype=torch.float64)).sum()
    y.backward(retain_graph=True)
    once = net.edge_weight.grad.clone()
    y.backward()
    torch.testing.assert_close(net.edge_weight.grad, 2 * once, rtol=1e-12, atol=1e-12)
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        y.backward()


def test_weights_changed_between_the_passes_are_noticed():
    net = network()
    y = net(torch.randn(5, 2, dtype=torch.float64)).sum()
    net.step(0.0)
    with torch.no_grad():
        net.edge_weight += 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()


def test_the_fused_step_is_noticed_too():
    net = network()
    x = torch.randn(5, 2, dtype=torch.float64)
    y = net(x).sum()
    with pytest.warns(DeprecationWarning):
        net.backward_and_update(torch.ones(5, 3, dtype=torch.float64), lr=0.1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()


@pytest.mark.parametrize("batch", [1, 40])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_fused_step_is_accumulate_and_step(batch, dtype):
    assert_two_fused_steps(network(dtype=dtype), torch.ones(batch, 2, dtype=dtype), torch.randn(batch, 3, dtype=dtype))


def assert_two_fused_steps(net: DagNN, x: torch.Tensor, grad_y: torch.Tensor) -> None:
    """They leave the parameters and gradients of two times `backward_accumulate` and `step`."""
    twin = copy.deepcopy(net).double()
    net(x)
    with pytest.warns(DeprecationWarning):
        for _ in range(2):
            net.backward_and_update(grad_y, lr=0.1)

    def exactly() -> list[torch.Tensor]:
        model = copy.deepcopy(twin)
        model(x.double())
        for _ in range(2):
            model.backward_accumulate(grad_y.double())
            model.step(0.1)
        return [*model.parameters(), *(p.grad for p in model.parameters())]

    found = [*net.parameters(), *(p.grad for p in net.parameters())]
    if x.dtype == torch.float32:
        assert_rounded(found, exactly)
    else:
        torch.testing.assert_close(found, exactly(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("batch", [1, 40])
def test_the_fused_step_reaches_edges_and_biases_that_no_output_sees(batch):
    """Their gradient may have been fed by hand; the compiled pass leaves their nodes out."""
    net = DagNN(Dag([(0, 2), (0, 3), (2, 3), (1, 2), (1, 4), (0, 1)], outputs=[4]), dtype=torch.float64)
    twin = copy.deepcopy(net)
    for model in (net, twin):
        model(torch.ones(batch, 1, dtype=torch.float64))
        model.accumulate_edge_grad(2, 3, 5.0)
        model.bias.grad = torch.ones_like(model.bias)
    grad_y = torch.randn(batch, 1, dtype=torch.float64)
    for _ in range(2):
        with pytest.warns(DeprecationWarning):
            net.backward_and_update(grad_y, lr=0.1)
        twin.backward_accumulate(grad_y)
        twin.step(0.1)
    assert net.grad_of(2, 3) == 5.0
    for p, q in zip(net.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(p, q)
        torch.testing.assert_close(p.grad, q.grad)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_fused_step_of_a_dense_layer_and_one_sample(dtype):
    torch.manual_seed(0)
    net = DagNN(Dag([(u, v) for v in range(37, 40) for u in range(37)]), dtype=dtype)
    assert_two_fused_steps(net, torch.randn(1, 37, dtype=dtype), torch.randn(1, 3, dtype=dtype))


# ---- memory and torch.compile ----


def test_nothing_leaks_over_many_steps():
    net = network(dtype=torch.float32)
    x = torch.randn(40, 2)

    def steps(count: int) -> None:
        for _ in range(count):
            net.zero_grad()
            net(x).sum().backward()
            net.step(1e-3)

    steps(1_000)
    gc.collect()
    objects, memory = len(gc.get_objects()), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    steps(4_000)
    gc.collect()
    assert len(gc.get_objects()) <= objects + 50
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss <= memory + 2_000  # kilobytes: 500 bytes a step


@pytest.mark.filterwarnings("ignore::dagnn.errors.ConstantNodesWarning")
@pytest.mark.filterwarnings("default")  # those of torch.compile itself
def test_torch_compile_takes_the_network_as_one_operator():
    net, twin = network(), network()
    operators = []

    def backend(graph, example_inputs):
        operators.extend(str(node.target) for node in graph.graph.nodes if node.op == "call_function")
        return graph.forward

    compiled = torch.compile(net, backend=backend, fullgraph=True)
    for batch in (3, 1, 0):
        x = torch.randn(batch, 2, dtype=torch.float64)
        torch.testing.assert_close(compiled(x), twin(x))
        compiled(x).square().sum().backward()
        twin(x).square().sum().backward()
        torch.testing.assert_close(net.edge_weight.grad, twin.edge_weight.grad)
    assert any("dagnn.network" in name for name in operators)


@pytest.mark.filterwarnings("ignore::dagnn.errors.ConstantNodesWarning")
@pytest.mark.filterwarnings("default")  # those of torch.compile itself
def test_torch_compile_does_not_watch_the_environment(monkeypatch):
    """Every change of any variable would compile anew, until Dynamo gives up."""
    count = CompileCounterWithBackend("eager")
    compiled = torch.compile(network(), backend=count, fullgraph=True)
    x = torch.randn(3, 2, dtype=torch.float64)
    for number in range(3):
        monkeypatch.setenv(f"UNRELATED_{number}", "1")
        compiled(x)
    assert count.frame_count == 1


@pytest.mark.parametrize("batch", [1, 2, 40])
def test_dense_blocks_used_in_inference_mode_first_can_be_trained(batch):
    """Memory that a pass leaves for the next is written to by products of matrices."""
    net = from_sequential(nn.Sequential(nn.Linear(100, 80), nn.Tanh(), nn.Linear(80, 60), nn.Tanh(), nn.Linear(60, 5)))
    twin = copy.deepcopy(net)
    x = torch.randn(batch, 100)
    with torch.inference_mode():
        net(x)
    for model in (net, twin):
        model(x).square().sum().backward()
    assert torch.equal(net.edge_weight.grad, twin.edge_weight.grad)


def test_the_operator_keeps_the_rules_of_torch_library():
    net = network()
    x = torch.randn(3, 2, dtype=torch.float64, requires_grad=True)
    fingerprint = net._plan_on[torch.device("cpu")].fingerprint
    torch.library.opcheck(torch.ops.dagnn.network.default, (x, net.edge_weight, net.bias, fingerprint))


@pytest.mark.fault("graphs_and_networks", 9)
@pytest.mark.parametrize("second", ["backward", "backward_accumulate", "backward_and_update"])
@pytest.mark.parametrize("batch", [1, 5])
@pytest.mark.filterwarnings("ignore:backward_and_update is deprecated:DeprecationWarning")
def test_a_gradient_that_a_graph_has_saved_is_not_written_to_unseen(second, batch):
    net, x = network(), torch.randn(batch, 2, dtype=torch.float64)
    net(x).sum().backward()
    factor = torch.ones(net.edge_weight.shape, dtype=torch.float64, requires_grad=True)
    saved = (factor * net.edge_weight.grad).sum()
    y = net(x)
    match second:
        case "backward":
            y.sum().backward()
        case "backward_accumulate":
            net.backward_accumulate(torch.ones_like(y))
        case _:
            net.backward_and_update(torch.ones_like(y), 0.1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        saved.backward()


@pytest.mark.fault("graphs_and_networks", 9)
def test_networks_that_share_parameters_lose_no_gradient_to_each_others_threads():
    """One edge and bias in networks of two plans: what is locked is the parameter, not the plan."""
    nets = [DagNN(Dag([("a", "b")]), output_activation=name).double() for name in ("identity", "tanh")]
    nets[1].edge_weight, nets[1].bias = nets[0].edge_weight, nets[0].bias
    x = torch.ones(64, 1, dtype=torch.float64)

    def passes(net: DagNN) -> None:
        for _ in range(200):
            net(x).sum().backward()

    for net in nets:
        passes(net)
    expected = nets[0].edge_weight.grad.clone()
    nets[0].zero_grad()
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(passes, nets))
    torch.testing.assert_close(nets[0].edge_weight.grad, expected)


def test_a_gradient_made_in_inference_mode_is_left_to_pytorch():
    net = network()
    with torch.inference_mode():
        net.edge_weight.grad = torch.zeros_like(net.edge_weight)
    with pytest.raises(RuntimeError, match="inference tensor"):
        net(torch.ones(3, 2, dtype=torch.float64)).sum().backward()


def test_weights_that_lie_within_other_memory():
    """A parameter may be a view of one flat tensor: its matrices begin where it begins."""
    net = from_sequential(
        nn.Sequential(nn.Linear(40, 60), nn.Tanh(), nn.Linear(60, 50), nn.Tanh(), nn.Linear(50, 3)).double()
    )
    x = torch.randn(17, 40, dtype=torch.float64)
    expected = net(x)
    expected.sum().backward()
    flat = torch.full((7 + net.num_parameters(),), float("nan"), dtype=torch.float64)
    views = {}
    start = 7
    for name, parameter in net.named_parameters():
        view = flat[start : start + parameter.numel()].copy_(parameter.detach())
        views[name], start = view.detach().requires_grad_(), start + parameter.numel()
    y = torch.func.functional_call(net, views, (x,))
    torch.testing.assert_close(y, expected)
    y.sum().backward()
    for name, parameter in net.named_parameters():
        torch.testing.assert_close(views[name].grad, parameter.grad)
