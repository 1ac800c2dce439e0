"""Nodes that are no plain sums: the reference against PyTorch's functions, the compiled path against the reference."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import dags

from dagnn.graph import Dag
from dagnn.kernels import AGGREGATIONS, plan_network, reference
from dagnn.kernels.emit.native import PLAIN, Target, host_target
from dagnn.kernels.network import passes
from dagnn.kernels.network.compiled_plan import CompiledPlan
from dagnn.kernels.network.passes import Gradients
from dagnn.kernels.network.plan import NetworkPlan

COMPILED = sorted(set(AGGREGATIONS) - {"median"})
ACTIVATIONS = ["identity", "tanh", "gelu", "neat.sin", "neat.gauss", "neat.hat", "neat.inv", "neat.log"]
SPECIAL = [0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 0.5]  # ties and zeros


def plan_of(dag: Dag, aggregation: list[str], response: torch.Tensor, activation: list[str]) -> NetworkPlan:
    """The plan of a Dag whose nodes are numbered by level already."""
    has_bias = torch.ones(dag.num_nodes, dtype=torch.bool)
    has_bias[dag.inputs] = False
    return plan_network(
        dag.edges, dag.levels, dag.inputs, dag.outputs, has_bias, activation, aggregation, response.double()
    )


@st.composite
def networks(draw: st.DrawFn, kinds: list[str] = COMPILED, max_nodes: int = 10) -> NetworkPlan:
    drawn = draw(dags(min_nodes=1, max_nodes=max_nodes))
    count = drawn.num_nodes
    place = torch.empty_like(drawn.order).scatter_(0, drawn.order, torch.arange(count))
    sources = sorted(int(place[v]) for v in (drawn.in_degree == 0).nonzero().flatten())
    # At the end a chain of nodes of several kinds, so that all these networks share one compilation.
    chain = torch.tensor([[v, v + 1] for v in range(count - 1, count + 2)])
    edges = torch.cat([place[drawn.edges], chain])
    dag = Dag(
        edges[(edges[:, 1] * (count + 3) + edges[:, 0]).argsort()],
        count + 3,
        inputs=torch.tensor(draw(st.lists(st.sampled_from(sources), unique=True)), dtype=torch.int64),
        outputs=torch.tensor(draw(st.lists(st.integers(0, count + 2), unique=True, min_size=1))),
    )
    aggregation = draw(st.lists(st.sampled_from(kinds), min_size=count, max_size=count))
    response = draw(st.lists(st.sampled_from([1.0, 1.0, -0.5, 2.0, 0.0]), min_size=count, max_size=count))
    activation = draw(st.lists(st.sampled_from(ACTIVATIONS[:4]), min_size=count, max_size=count))
    return plan_of(
        dag,
        [*aggregation, "product", "max", "sum"],
        torch.tensor([*response, 1.0, 1.0, 1.0]),
        [*activation, "neat.sin", "gelu", "tanh"],
    )


def tensors(plan: NetworkPlan, batch: int, seed: int, *, special: bool) -> list[torch.Tensor]:
    """x, weights, biases and a gradient of y, float64: standard normal, or many equal numbers and zeros."""
    generator = torch.Generator().manual_seed(seed)
    sizes = [(batch, len(plan.inputs)), (plan.num_edges,), (plan.num_biases,), (batch, len(plan.outputs))]
    if special:
        chosen = torch.tensor(SPECIAL, dtype=torch.float64)
        return [chosen[torch.randint(len(SPECIAL), size, generator=generator)] for size in sizes]
    return [torch.randn(size, generator=generator, dtype=torch.float64) for size in sizes]


def compiled_results(plan: CompiledPlan, parts: list[torch.Tensor]) -> list[torch.Tensor]:
    x, weight, bias, grad_y = parts
    y, saved = passes.forward(plan, x, weight, bias)
    into = Gradients(torch.full_like(weight, 7.0), torch.full_like(bias, 7.0), accumulate=False)
    grad_x = passes.backward(plan, grad_y, saved, weight, bias, into, needs_x=True)
    assert grad_x is not None
    return [y, grad_x, into.weight, into.bias]


def expected(plan: NetworkPlan, parts: list[torch.Tensor]) -> list[torch.Tensor]:
    *inputs, grad_y = (part.clone() for part in parts)
    inputs = [part.requires_grad_() for part in inputs]
    y = reference.run_network(plan.levels, *inputs)
    found = torch.autograd.grad(y, inputs, grad_y, allow_unused=True)
    return [y.detach(), *(torch.zeros_like(of) if g is None else g for g, of in zip(found, inputs, strict=True))]


def agree(ours: list[torch.Tensor], theirs: list[torch.Tensor], tolerance: float = 1e-12) -> None:
    for one, other in zip(ours, theirs, strict=True):
        scale = other[other.isfinite()].abs().max().clamp(min=1).item() if other.isfinite().any() else 1.0
        ours_scaled, theirs_scaled = one.double() / scale, other.double() / scale
        torch.testing.assert_close(ours_scaled, theirs_scaled, rtol=tolerance, atol=tolerance, equal_nan=True)


@settings(max_examples=20)
@given(networks(), st.sampled_from([1, 2, 9, 33]), st.booleans())
def test_compiled_equals_the_reference(plan, batch, special):
    parts = tensors(plan, batch, 0, special=special)
    agree(compiled_results(plan.compiled, parts), expected(plan, parts))


@pytest.mark.parametrize("target", [PLAIN, host_target()], ids=["16 bytes", "here"])
@pytest.mark.parametrize("kind", COMPILED)
def test_each_aggregation_in_float32_is_as_exact_as_float32(kind, target: Target):
    dag = Dag([(u, 5) for u in range(5)] + [(u, 6) for u in range(6)])
    plan = plan_of(dag, [kind] * 7, torch.full((7,), -1.5), ["tanh"] * 7)
    parts = [part.float() for part in tensors(plan, 40, 1, special=False)]
    agree(compiled_results(plan.compile(target), parts), expected(plan, [part.double() for part in parts]), 4e-6)


def node(kind: str, x: list[float], dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, torch.Tensor]:
    """The value of one node over inputs with weights of 1, and the gradients of the inputs, as compiled."""
    count = len(x)
    dag = Dag([(u, count) for u in range(count)], count + 1, outputs=[count])
    plan = plan_of(dag, [kind] * (count + 1), torch.ones(count + 1), ["identity"] * (count + 1))
    row, one = torch.tensor([x], dtype=dtype), torch.ones(count, dtype=dtype)
    parts = [row, one, torch.zeros(1, dtype=dtype), torch.ones(1, 1, dtype=dtype)]
    y, grad_x, *_ = compiled_results(plan.compiled, parts)
    agree(compiled_results(plan.compiled, parts), expected(plan, parts))
    return y[0, 0], grad_x[0]


PYTORCH = {
    "sum": torch.sum,
    "mean": torch.mean,
    "product": torch.prod,
    "max": torch.amax,
    "min": torch.amin,
}


@pytest.mark.parametrize("kind", PYTORCH)
@pytest.mark.parametrize("x", [[2.0], [0.0, 3.0, -2.0], [0.0, 0.0, 5.0], [1.0, 1.0, -1.0], [-4.0, -4.0, -4.0, -5.0]])
def test_a_node_has_the_value_and_gradient_of_pytorchs_function(kind, x):
    given_x = torch.tensor(x, dtype=torch.float64, requires_grad=True)
    y = PYTORCH[kind](given_x)
    (slope,) = torch.autograd.grad(y, given_x)
    ours = node(kind, x)
    torch.testing.assert_close(ours, (y.detach(), slope), equal_nan=True)


@pytest.mark.parametrize("kind", COMPILED)
def test_nan_comes_out_and_goes_back(kind):
    value, slope = node(kind, [1.0, float("nan"), 2.0])
    assert value.isnan()
    assert slope.isnan().tolist() == {"sum": [False] * 3, "mean": [False] * 3, "product": [True, False, True]}.get(
        kind, [True] * 3
    )


def test_products_that_underflow_keep_their_gradient():
    value, slope = node("product", [1e-25, 1e-25, 1e25], torch.float32)
    assert value == 0
    torch.testing.assert_close(slope, torch.tensor([1.0, 1.0, 0.0]))


def test_maxabs_keeps_the_sign_and_prefers_the_positive_one():
    assert node("maxabs", [1.0, -3.0, 2.0])[0] == -3
    value, slope = node("maxabs", [-3.0, 3.0, 3.0])
    assert value == 3 and slope.tolist() == [0, 0.5, 0.5]


def test_a_product_of_nothing_is_one_and_all_else_of_nothing_is_zero():
    for kind in AGGREGATIONS:
        dag = Dag(torch.empty(0, 2, dtype=torch.int64), 1, inputs=[], outputs=[0])
        plan = plan_of(dag, [kind], torch.tensor([3.0]), ["identity"])
        x, none, bias = torch.zeros(2, 0), torch.zeros(0), torch.tensor([0.25])
        y = reference.run_network(plan.levels, x, none, bias)
        assert y.tolist() == [[0.25 + 3 * (kind == "product")]] * 2
        if kind != "median":
            assert torch.equal(passes.forward(plan.compiled, x, none, bias)[0], y)


@settings(max_examples=5)
@given(networks(kinds=sorted(AGGREGATIONS), max_nodes=6))
def test_derivatives_of_the_reference_are_differences_twice(plan):
    *inputs, _ = tensors(plan, 2, 3, special=False)
    inputs = [part.requires_grad_() for part in inputs]

    def run(*given: torch.Tensor) -> torch.Tensor:
        return reference.run_network(plan.levels, *given)

    assert torch.autograd.gradcheck(run, inputs, atol=1e-4)
    assert torch.autograd.gradgradcheck(run, inputs, atol=1e-3, rtol=1e-2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_bits_do_not_depend_on_the_number_of_threads(dtype):
    generator = torch.Generator().manual_seed(0)
    source, target = torch.randint(400, (2, 4000), generator=generator)
    pairs = torch.stack([torch.minimum(source, target), torch.maximum(source, target)], 1)
    dag = Dag(pairs[pairs[:, 0] != pairs[:, 1]].unique(dim=0), 400)
    place = torch.empty_like(dag.order).scatter_(0, dag.order, torch.arange(400))
    edges = place[dag.edges]
    dag = Dag(edges[(edges[:, 1] * 400 + edges[:, 0]).argsort()], 400)
    kinds = [COMPILED[v % len(COMPILED)] for v in range(400)]
    plan = plan_of(dag, kinds, torch.ones(400), [ACTIVATIONS[v % 3] for v in range(400)])
    parts = [part.to(dtype) for part in tensors(plan, 256, 5, special=False)]
    threads, found = torch.get_num_threads(), []
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            found.append(compiled_results(plan.compiled, parts))
    finally:
        torch.set_num_threads(threads)
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)


def test_dense_blocks_leave_out_nodes_that_are_no_sums():
    width = 64
    edges = [(u, v) for v in range(width, 2 * width) for u in range(width)]
    dag = Dag(edges, 2 * width)
    kinds = ["sum"] * width + ["max", "product"] + ["sum"] * (width - 3) + ["mean"]
    plan = plan_of(dag, kinds, torch.ones(2 * width), ["tanh"] * (2 * width))
    assert [(block.first, block.last) for block in plan.compiled.blocks] == [(width + 2, 2 * width - 1)]
    for batch in (1, 40):
        parts = tensors(plan, batch, 7, special=False)
        parts[1] *= 0.2
        agree(compiled_results(plan.compiled, parts), expected(plan, parts))
