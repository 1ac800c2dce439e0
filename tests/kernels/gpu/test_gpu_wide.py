"""The Triton kernels of wide nodes in Triton's interpreter, on the CPU, against the reference.

``make test-triton`` runs them all. Without triton they are skipped.
"""

import os
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from precision import assert_rounded
from wide_networks import batch_for, by_reference, drops, gradient_for, parameters_of, state_of, wide_networks

from dagnn import Dag, GraphError, WideDagNN
from dagnn.kernels import ACTIVATIONS, choose_path
from dagnn.kernels.wide.operators import run_backward, run_forward
from dagnn.kernels.wide.plan import WideState

if "triton" not in sys.modules:
    os.environ["TRITON_INTERPRET"] = "1"  # read once, when triton is imported
triton = pytest.importorskip("triton", reason="triton is not installed: make test-triton runs these tests")
if not triton.knobs.runtime.interpret:
    pytest.skip(
        "triton was imported for a GPU before: run these tests in a process of their own", allow_module_level=True
    )

from dagnn.kernels.gpu.wide import GpuWide, gpu_wide  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's, where a GPU divides 0 by 0 in silence
CPU = torch.device("cpu")
FORMULA = lambda z: torch.where(z > 0.3, z * torch.sigmoid(z), torch.maximum(z, 0 * z - 1) - 0.1)  # noqa: E731


def results(net, x, state, gradient, engine=None):
    """Values, statistics of the batch, and gradients of x and the parameters."""
    engine, parameters = engine or gpu_wide(net._plan, CPU), parameters_of(net)
    result, saved = engine.forward(x, parameters, state)
    found = engine.backward(gradient, parameters, saved, needs_x=True)
    return [each for each in (*result, *found) if each is not None]


def expected(net, x, state, gradient):
    result, gradients = by_reference(net, x, state, gradient)
    return [each for each in (*result, *gradients) if each is not None]


def agree(net, batch, *, own_statistics=True):
    """In float32 and in float64, up to the error that rounding must make."""
    own = own_statistics and batch > 1
    for dtype in (torch.float64, torch.float32):
        net.to(dtype)
        x, gradient, state = batch_for(net, batch), gradient_for(net, batch), state_of(net, batch, own_statistics=own)
        found = results(net, x, state, gradient)
        net.double()
        exact = WideState(*(None if each is None else each.double() for each in state))
        given = (net, x.double(), exact, gradient.double())
        if dtype == torch.float64 and are_close(found, expected(*given)):
            continue
        # A norm of nearly equal numbers loses digits in any order of operations.
        assert dtype == torch.float32 or net.normalise is not None
        assert_rounded(found, lambda given=given: expected(*given), dtype)


def are_close(found, right):
    pairs = zip(found, right, strict=True)
    return all(torch.allclose(ours, theirs, rtol=1e-12, atol=1e-12) for ours, theirs in pairs)


WIDE = wide_networks(max_nodes=7, activations=(*ACTIVATIONS, "neat.gauss", FORMULA)).map(drops)


@settings(max_examples=10)
@given(WIDE, st.sampled_from([1, 3, 65]), st.booleans())
def test_any_network_has_the_values_and_gradients_of_the_reference(net, batch, own_statistics):
    agree(net, batch, own_statistics=own_statistics)


@pytest.mark.slow
@settings(max_examples=60)
@given(
    wide_networks(max_nodes=14, activations=(*ACTIVATIONS, "neat.clamped", FORMULA)).map(drops),
    st.sampled_from([1, 2, 31, 64, 65, 130]),
    st.booleans(),
)
def test_sixty_networks_have_the_values_and_gradients_of_the_reference(net, batch, own_statistics):
    agree(net, batch, own_statistics=own_statistics)


@pytest.mark.parametrize("normalise", [None, "batch", "layer"])
def test_nodes_of_many_units_are_multiplied_as_blocks(normalise):
    torch.manual_seed(0)
    dag = Dag([(0, 2), (1, 2), (0, 3), (2, 3), (1, 3), (2, 4), (3, 4), (3, 5), (4, 5)])
    width = {1: 5, 2: 17, 3: 40, 4: 17, 5: 3}
    net = WideDagNN(dag, width=width, normalise=normalise, residual=True, dropout=0.3, activation="gelu")
    assert max(level.units for level in GpuWide(net._plan, CPU)._levels) == 16
    agree(net, 70)


@pytest.mark.parametrize("width", [1, 2])
def test_a_node_of_many_operands_and_one_of_many_readers(width):
    edges = [(k, 300) for k in range(300)] + [(300, node) for node in range(301, 350)]
    net = WideDagNN(Dag(edges, inputs=list(range(300))), width=width, activation="silu")
    agree(net, 2)


@pytest.mark.slow
@pytest.mark.parametrize("normalise", [None, "layer"])
def test_a_network_of_two_thousand_edges_is_off_by_rounding_and_without_norms_by_a_millionth(normalise):
    generator = torch.Generator().manual_seed(5)
    pairs = torch.randint(0, 250, (2_060, 2), generator=generator).sort(1).values
    dag = Dag(torch.unique(pairs[pairs[:, 0] != pairs[:, 1]], dim=0), 250)
    assert dag.num_edges > 1_900
    torch.manual_seed(0)
    net = WideDagNN(dag, width={node: 2 + node % 3 for node in range(250)}, normalise=normalise)
    x, gradient = batch_for(net, 10), gradient_for(net, 10)
    found = results(net, x, WideState(), gradient)
    net.double()

    def exactly():
        return expected(net, x.double(), WideState(), gradient.double())

    assert_rounded(found, exactly)
    if normalise is None:
        for ours, theirs in zip(found, exactly(), strict=True):
            assert (ours - theirs).abs().max() <= 1e-6 * theirs.abs().max().clamp(min=1)


@pytest.mark.parametrize("normalise", [None, "batch", "layer"])
def test_other_launches_change_no_bit(normalise):
    edges = [(source, node) for node in range(3, 9) for source in range(node - 3 + node % 2, node)]
    width = {node: 5 + node % 3 for node in range(3, 9)}
    net = WideDagNN(Dag(edges, 9, inputs=[0, 1, 2]), width=width, normalise=normalise, dropout=0.2, residual=True)
    x, gradient, state = batch_for(net, 66), gradient_for(net, 66), state_of(net, 66)
    first = results(net, x, state, gradient)
    for options in ({"most_programs": 1}, {"most_units": 4}):
        for one, other in zip(first, results(net, x, state, gradient, GpuWide(net._plan, CPU, **options)), strict=True):
            assert torch.equal(one, other)


def test_a_sample_of_nan_stays_alone():
    net = WideDagNN(Dag([(0, 2), (1, 2), (2, 3)]), width={2: 3, 3: 2}, normalise="layer", residual=True)
    x, state = batch_for(net, 5), WideState()
    x[2] = torch.nan
    values = gpu_wide(net._plan, CPU).forward(x, parameters_of(net), state)[0].values
    assert values[:, 2].isnan().all()
    assert not values[:, [0, 1, 3, 4]].isnan().any()


@pytest.fixture
def on_gpu(monkeypatch):
    """`choose_path` takes tensors on the CPU for tensors on a GPU, which the interpreter can read."""
    monkeypatch.setattr(choose_path, "_is_compiled", lambda *tensors: False)
    monkeypatch.setattr(choose_path, "_is_on_gpu", lambda *tensors: True)


@pytest.mark.parametrize("normalise", [None, "batch", "layer"])
def test_gradcheck_of_both_orders_through_a_network(on_gpu, normalise):
    torch.manual_seed(0)
    dag = Dag([(0, 2), (1, 2), (1, 3), (2, 3), (0, 4), (3, 4)])
    settings = {"width": {2: 2, 3: 2}, "residual": True, "normalise": normalise, "activation": "gelu"}
    net = WideDagNN(dag, **settings, dtype=torch.float64)
    x = torch.randn(3, 2, dtype=torch.float64, requires_grad=True)
    names, parameters = zip(*net.named_parameters(), strict=True)

    def run(x, *values):
        return torch.func.functional_call(net, dict(zip(names, values, strict=True)), (x,))

    assert torch.autograd.gradcheck(run, (x, *parameters))
    assert torch.autograd.gradgradcheck(run, (x, *parameters))
    assert "_on_gpu" in net._plan.__dict__


@pytest.mark.parametrize("normalise", ["batch", "layer"])
def test_training_takes_the_same_steps_as_on_the_processor(on_gpu, monkeypatch, normalise):
    """With dropout, whose masks are drawn outside of the kernels, running statistics, heads, and a change of edges."""

    def trained():
        torch.manual_seed(1)
        dag = Dag([("a", "s"), ("b", "s"), ("b", "t"), ("s", "t"), ("s", "y"), ("t", "y")])
        settings = {"dropout": 0.3, "residual": True, "heads": ["t"], "head_activation": "tanh"}
        net = WideDagNN(dag, width=3, normalise=normalise, **settings, dtype=torch.float64)
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            y, heads = net.with_heads(torch.randn(5, 2, dtype=torch.float64))
            (y.square().mean() + heads.loss(torch.nn.functional.mse_loss, y.detach())).backward()
            optimizer.step()
        net.prune(fraction=0.2)
        net(torch.randn(5, 2, dtype=torch.float64)).sum().backward()
        y = net.eval()(torch.randn(1, 2, dtype=torch.float64))
        tensors = [*net.parameters(), *net.buffers(), net.edge_weight.grad, y]
        return torch.cat([each.detach().flatten() for each in tensors])

    ours = trained()
    monkeypatch.undo()
    torch.testing.assert_close(ours, trained(), rtol=1e-10, atol=1e-11)


def test_an_empty_batch_one_node_and_parameters_of_before_a_change(on_gpu):
    net = WideDagNN(Dag([(0, 1)]))
    assert net(torch.zeros(0, 1)).shape == (0, 1)
    single = WideDagNN(Dag([], 1, inputs=[0], outputs=[0]))
    x = torch.tensor([[2.0], [3.0]], requires_grad=True)
    single(x).sum().backward()
    assert x.grad.tolist() == [[1.0], [1.0]]
    y = net(torch.ones(2, 1))
    net.grow([(0, 2)], nodes=1)
    with pytest.raises((GraphError, RuntimeError)):
        y.sum().backward()


def test_too_many_activations_run_on_the_reference(on_gpu, monkeypatch):
    activation = [lambda z, k=k: z * (k + 1.5) for k in range(70)]
    net = WideDagNN(Dag([(0, node) for node in range(1, 70)]), output_activation="tanh", width=2)
    assert net.explain().startswith("compiled: Triton kernels")
    net = WideDagNN(
        Dag([(0, node) for node in range(1, 70)] + [(node, 70) for node in range(1, 70)]),
        activation=[*activation, "tanh"],
    )
    net(torch.ones(2, 1))
    assert "_on_gpu" not in net._plan.__dict__
    assert "activations, and up to 64 are compiled" in net._plan.why_not_on_gpu()


@pytest.mark.parametrize("normalise", [None, "batch", "layer"])
def test_the_operator_for_torch_compile_runs_the_kernels(normalise):
    torch.manual_seed(0)
    net = WideDagNN(Dag([(0, 2), (1, 2), (1, 3), (2, 3)]), width={2: 3, 3: 3}, normalise=normalise, dtype=torch.float64)
    engine, parameters = GpuWide(net._plan, CPU), parameters_of(net)
    for batch in (4, 0):
        x, gradient = batch_for(net, batch), gradient_for(net, batch)
        state = state_of(net, batch, own_statistics=batch > 1)
        theirs, gradients = by_reference(net, x, state, gradient)
        values, mean, _ = run_forward(engine, x, parameters, state)
        torch.testing.assert_close(values, theirs.values)
        assert len(mean) == (0 if theirs.mean is None else len(theirs.mean))
        found = run_backward(engine, gradient, x, parameters, state)
        for ours, their in zip(found, gradients, strict=False):
            torch.testing.assert_close(ours, their)
