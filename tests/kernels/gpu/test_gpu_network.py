"""The Triton kernels in Triton's interpreter, on the CPU, against the reference; and compiled for absent GPUs.

``make test-triton`` runs them all. Without triton they are skipped.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from precision import assert_rounded

from dagnn.graph import Dag
from dagnn.kernels import ACTIVATIONS, NEAT_ACTIVATIONS, NetworkPlan, choose_path, plan_network, reference
from dagnn.kernels.nodes import activation_text
from dagnn.nn import DagNN

if "triton" not in sys.modules:
    os.environ["TRITON_INTERPRET"] = "1"  # read once, when triton is imported
triton = pytest.importorskip("triton", reason="triton is not installed: make test-triton runs these tests")
if not triton.knobs.runtime.interpret:
    pytest.skip(
        "triton was imported for a GPU before: run these tests in a process of their own", allow_module_level=True
    )

from dagnn.kernels.gpu import network as gpu  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's, where a GPU divides 0 by 0 in silence
CPU = torch.device("cpu")
AGGREGATIONS = ["sum", "mean", "product", "max", "min", "maxabs"]
FORMULA = activation_text(lambda z: torch.where(z > 0.3, z * torch.sigmoid(z), torch.maximum(z, 0 * z - 1) - 0.1))


@st.composite
def networks(draw: st.DrawFn, max_nodes: int = 14, aggregations: list[str] = AGGREGATIONS) -> NetworkPlan:
    """Any Dag whose nodes are numbered by level, some sources as inputs, any nodes as outputs, anything per node."""
    count = draw(st.integers(1, max_nodes))
    pairs = draw(st.sets(st.tuples(st.integers(0, count - 1), st.integers(0, count - 1)), max_size=3 * count))
    dag = Dag(sorted({(min(pair), max(pair)) for pair in pairs if pair[0] != pair[1]}), count)
    place = torch.empty_like(dag.order).scatter_(0, dag.order, torch.arange(count))
    edges = place[dag.edges]
    edges = edges[torch.argsort(edges[:, 1] * count + edges[:, 0])].reshape(-1, 2)
    levels = dag.levels[dag.order]
    sources = [node for node in range(count) if levels[node] == 0]
    inputs = draw(st.permutations(sources))[: draw(st.integers(0, len(sources)))]
    outputs = draw(st.lists(st.integers(0, count - 1), min_size=1, max_size=4))
    has_bias = torch.tensor([draw(st.booleans()) and node not in inputs for node in range(count)])
    names = [*ACTIVATIONS, "neat.gauss", "neat.clamped", "neat.inv", FORMULA]
    per_node = st.lists(st.sampled_from(names), min_size=count, max_size=count)
    how = draw(st.lists(st.sampled_from(aggregations), min_size=count, max_size=count))
    response = draw(st.lists(st.sampled_from([1.0, 1.0, 0.5, -2.0]), min_size=count, max_size=count))
    return plan_network(
        edges,
        levels,
        torch.tensor(inputs, dtype=torch.int64),
        torch.tensor(outputs, dtype=torch.int64),
        has_bias,
        draw(per_node),
        how,
        torch.tensor(response, dtype=torch.float64),
    )


def drawn(plan: NetworkPlan, batch: int, dtype: torch.dtype, seed: int = 0) -> list[torch.Tensor]:
    """x, weights, biases and a gradient of y."""
    generator = torch.Generator().manual_seed(seed)
    sizes = [(batch, len(plan.inputs)), (plan.num_edges,), (plan.num_biases,), (batch, len(plan.outputs))]
    found = [torch.randn(size, generator=generator, dtype=torch.float64) for size in sizes]
    found[1] /= torch.bincount(plan.edges[:, 1], minlength=plan.num_nodes)[plan.edges[:, 1]].sqrt()
    return [each.to(dtype) for each in found]


def results(plan: NetworkPlan, parts: list[torch.Tensor], *, at_once: bool) -> list[torch.Tensor]:
    x, weight, bias, grad_y = parts
    of_gpu = gpu.gpu_plan(plan, CPU)
    y, saved = gpu.forward(of_gpu, x, weight, bias, at_once=at_once)
    return [y, *gpu.backward(of_gpu, grad_y, saved, weight, at_once=at_once)]


def by_reference(plan: NetworkPlan, parts: list[torch.Tensor]) -> list[torch.Tensor]:
    *inputs, grad_y = (part.double() for part in parts)
    inputs = [part.requires_grad_() for part in inputs]
    y = reference.run_network(plan.levels, *inputs)
    gradients = torch.autograd.grad(y, inputs, grad_y, allow_unused=True) if y.requires_grad else [None] * 3
    return [y, *(torch.zeros_like(t) if g is None else g for g, t in zip(gradients, inputs, strict=True))]


def agree(plan: NetworkPlan, batch: int, dtype: torch.dtype) -> None:
    parts = drawn(plan, batch, dtype)
    found, level_by_level = (results(plan, parts, at_once=at_once) for at_once in (True, False))
    for one, other in zip(found, level_by_level, strict=True):
        assert torch.equal(one.nan_to_num(9.0), other.nan_to_num(9.0))  # the same bits for any launch
    if dtype == torch.float32:
        assert_rounded(found, lambda: by_reference(plan, parts))
        return
    for ours, theirs in zip(found, by_reference(plan, parts), strict=True):
        torch.testing.assert_close(ours, theirs.detach(), rtol=1e-11, atol=1e-12, equal_nan=True)


@settings(max_examples=12)
@given(networks(), st.sampled_from([1, 3, 65]), st.sampled_from([torch.float64, torch.float32]))
def test_any_network_has_the_values_and_gradients_of_the_reference(plan, batch, dtype):
    agree(plan, batch, dtype)


@pytest.mark.slow
@settings(max_examples=200)
@given(
    networks(max_nodes=40), st.sampled_from([1, 2, 63, 64, 65, 130]), st.sampled_from([torch.float64, torch.float32])
)
def test_two_hundred_networks_have_the_values_and_gradients_of_the_reference(plan, batch, dtype):
    agree(plan, batch, dtype)


@pytest.mark.slow
@pytest.mark.parametrize("edges", [500, 2_000])
def test_a_network_of_many_edges_is_off_by_a_millionth_at_most(edges):
    generator = torch.Generator().manual_seed(edges)
    pairs = torch.randint(0, edges // 8, (edges, 2), generator=generator).sort(1).values
    pairs = torch.unique(pairs[pairs[:, 0] != pairs[:, 1]], dim=0)
    net = DagNN(Dag(pairs, edges // 8), activation="tanh")
    plan = net._plan_on[CPU]
    parts = drawn(plan, 70, torch.float32)
    for ours, theirs in zip(results(plan, parts, at_once=False), by_reference(plan, parts), strict=True):
        assert (ours - theirs).abs().max() <= 1e-6 * theirs.abs().max().clamp(min=1)


@pytest.mark.parametrize("name", [*ACTIVATIONS, *NEAT_ACTIVATIONS, FORMULA])
def test_an_activation_is_that_of_pytorch_far_out_and_near_zero_too(name):
    has_bias = torch.tensor([False, False])
    ends = torch.tensor([0]), torch.tensor([1])
    plan = plan_network(torch.tensor([[0, 1]]), torch.tensor([0, 1]), *ends, has_bias, ["identity", name])
    given = torch.cat([torch.linspace(-30, 30, 241), torch.tensor([1e-4, -1e-4, 1e-8, 0.0])]).double().unsqueeze(1)
    parts = [given, torch.ones(1).double(), torch.zeros(0).double(), torch.ones(len(given), 1).double()]
    for ours, theirs in zip(results(plan, parts, at_once=True)[:2], by_reference(plan, parts)[:2], strict=True):
        torch.testing.assert_close(ours, theirs.detach(), rtol=1e-12, atol=1e-14, equal_nan=True)


def test_gelu_keeps_the_digits_of_its_tail():
    ends = torch.tensor([0]), torch.tensor([1])
    no_bias = torch.tensor([False, False])
    plan = plan_network(torch.tensor([[0, 1]]), torch.tensor([0, 1]), *ends, no_bias, ["identity", "gelu"])
    z = torch.linspace(-35, -1, 200).double().unsqueeze(1)
    parts = [z, torch.ones(1).double(), torch.zeros(0).double(), torch.ones(len(z), 1).double()]
    expected = 0.5 * z * torch.special.erfc(-z * 0.5**0.5)
    torch.testing.assert_close(results(plan, parts, at_once=True)[0], expected, rtol=2e-12, atol=0)


def test_a_grid_is_one_that_cuda_takes():
    plan = gpu.GpuPlan(DagNN(Dag([(0, node) for node in range(1, 70_000)]))._plan_on[CPU], CPU)
    grids = [grid for grid, *_ in plan.launches(100_000, backward=False, at_once=False)]
    assert grids == [(100_000, 1), (100_000, 65_535)]


def test_nan_stays_and_equal_winners_share_as_on_the_reference():
    edges = torch.tensor([[0, 2], [1, 2], [0, 3], [1, 3], [0, 4], [1, 4]])
    levels, ends = torch.tensor([0, 0, 1, 1, 1]), (torch.tensor([0, 1]), torch.tensor([2, 3, 4]))
    kinds = ["sum", "sum", "max", "min", "product"]
    plan = plan_network(edges, levels, *ends, torch.zeros(5, dtype=torch.bool), ["identity"] * 5, kinds)
    x = torch.tensor([[1.0, 1.0], [torch.nan, 2.0], [0.0, 3.0], [torch.inf, -1.0]]).double()
    parts = [x, torch.ones(6).double(), torch.zeros(0).double(), torch.ones(4, 3).double()]
    for ours, theirs in zip(results(plan, parts, at_once=True)[:2], by_reference(plan, parts)[:2], strict=True):
        torch.testing.assert_close(ours, theirs.detach(), rtol=0, atol=0, equal_nan=True)


@pytest.fixture
def on_gpu(monkeypatch):
    """`choose_path` takes tensors on the CPU for tensors on a GPU, which the interpreter can read."""
    monkeypatch.setattr(choose_path, "_is_compiled", lambda *tensors: False)
    monkeypatch.setattr(choose_path, "_is_on_gpu", lambda *tensors: True)
    monkeypatch.setattr(gpu, "is_plain_on_gpu", lambda tensor: True)


def test_gradcheck_of_both_orders_through_a_network(on_gpu):
    torch.manual_seed(0)
    net = DagNN(Dag([(0, 2), (1, 2), (1, 3), (2, 3), (0, 3)]), activation="gelu", dtype=torch.float64)
    x = torch.randn(3, 2, dtype=torch.float64, requires_grad=True)
    parameters = list(net.parameters())

    def run(x, *values):
        return torch.func.functional_call(net, dict(zip(("edge_weight", "bias"), values, strict=True)), (x,))

    assert torch.autograd.gradcheck(run, (x, *parameters))
    assert torch.autograd.gradgradcheck(run, (x, *parameters))


def test_training_takes_the_same_steps_as_on_the_processor(on_gpu, monkeypatch):
    def weights(steps: int) -> torch.Tensor:
        torch.manual_seed(1)
        net = DagNN(Dag([(0, 2), (1, 2), (1, 3), (2, 3)]), activation="tanh", dtype=torch.float64)
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
        for _ in range(steps):
            optimizer.zero_grad()
            net(torch.randn(5, 2, dtype=torch.float64)).square().mean().backward()
            optimizer.step()
        net.prune(fraction=0.25)
        net(torch.randn(5, 2, dtype=torch.float64)).sum().backward()
        return torch.cat([net.edge_weight.detach(), net.edge_weight.grad])

    ours = weights(5)
    monkeypatch.undo()
    torch.testing.assert_close(ours, weights(5), rtol=1e-10, atol=1e-12)


def test_an_empty_batch_and_parameters_of_before_a_change(on_gpu):
    net = DagNN(Dag([(0, 1)]))
    assert net(torch.zeros(0, 1)).shape == (0, 1)
    y = net(torch.ones(2, 1))
    net.grow([(0, 2)], nodes=1)
    with pytest.raises(RuntimeError):
        y.sum().backward()


@pytest.mark.slow
def test_the_kernels_compile_for_three_gpus_without_spills_or_atomics():
    root = Path(__file__).resolve().parents[3]
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = str(root / "src")
    command = [sys.executable, "-W", "ignore", root / "scripts" / "compile_for_gpus.py", "--json"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads(done.stdout)
    assert {row["architecture"] for row in rows} == {"sm_80", "sm_90", "sm_100"}
    assert all(row["STACK"] == row["LOCAL"] == row["ATOMIC"] == 0 and row["REG"] <= 128 for row in rows)
