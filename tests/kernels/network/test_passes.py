"""The compiled path against the reference: values and first derivatives, for any network and batch."""

import dataclasses
from itertools import pairwise, product
from unittest import mock

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from precision import assert_rounded
from strategies import dags

from dagnn.graph import Dag
from dagnn.kernels import ACTIVATIONS, plan_network, reference
from dagnn.kernels.emit.native import PLAIN, Target, host_target
from dagnn.kernels.network import compiled_plan, dense_blocks, passes
from dagnn.kernels.network.compiled_plan import CompiledPlan
from dagnn.kernels.network.passes import Gradients
from dagnn.kernels.network.plan import NetworkPlan

BATCHES = (1, 2, 3, 7, 31, 32, 33, 257)


def network(dag: Dag, activation: list[str], bias: bool = True) -> NetworkPlan:
    """The plan of a Dag whose nodes are numbered by level already."""
    has_bias = (dag.in_degree == 0) | bias
    has_bias[dag.inputs] = False
    return plan_network(dag.edges, dag.levels, dag.inputs, dag.outputs, has_bias, activation)


def tensors(plan: NetworkPlan, batch: int, dtype: torch.dtype, seed: int = 0) -> list[torch.Tensor]:
    """x, weights, biases and a gradient of y, standard normal; weights smaller for many edges."""
    generator = torch.Generator().manual_seed(seed)
    sizes = [(batch, len(plan.inputs)), (len(plan.edges),), (int(plan.has_bias.sum()),), (batch, len(plan.outputs))]
    x, weight, bias, grad_y = (torch.randn(size, generator=generator, dtype=torch.float64) for size in sizes)
    in_degree = torch.bincount(plan.edges[:, 1], minlength=plan.num_nodes)
    weight /= in_degree[plan.edges[:, 1]].sqrt()
    return [t.to(dtype) for t in (x, weight, bias, grad_y)]


def compiled_results(plan: NetworkPlan, compiled: CompiledPlan, parts: list[torch.Tensor]) -> list[torch.Tensor]:
    x, weight, bias, grad_y = parts
    y, saved = passes.forward(compiled, x, weight, bias)
    into = Gradients(torch.full_like(weight, 7.0), torch.full_like(bias, 7.0), accumulate=False)
    grad_x = passes.backward(compiled, grad_y, saved, weight, bias, into, needs_x=True)
    again = Gradients(torch.ones_like(weight), torch.ones_like(bias), accumulate=True)
    assert passes.backward(compiled, grad_y, saved, weight, bias, again, needs_x=False) is None
    for more, fewer in ((again.weight, into.weight), (again.bias, into.bias)):
        # The sum begins with 1, so each of its rows may be rounded another way.
        unit = (1 + len(x)) * torch.finfo(x.dtype).eps
        torch.testing.assert_close(more, fewer + 1, rtol=unit, atol=unit, equal_nan=True)
    return [y, grad_x, into.weight, into.bias]


def agree(plan: NetworkPlan, batch: int, dtype: torch.dtype, compiled: CompiledPlan | None = None) -> None:
    """The compiled results are those of the reference in float64, as exactly as the dtype allows."""
    parts = tensors(plan, batch, dtype)
    found = compiled_results(plan, plan.compiled if compiled is None else compiled, parts)
    *inputs, grad_y = (part.double() for part in parts)
    inputs = [part.requires_grad_() for part in inputs]

    def exactly() -> list[torch.Tensor]:
        y = reference.run_network(plan.levels, *inputs)
        gradients = torch.autograd.grad(y, inputs, grad_y, allow_unused=True)
        return [y, *(torch.zeros_like(t) if g is None else g for g, t in zip(gradients, inputs, strict=True))]

    if dtype == torch.float32:
        assert_rounded(found, exactly)
        return
    for ours, theirs, name in zip(found, exactly(), ("y", "grad_x", "grad_weight", "grad_bias"), strict=True):
        error = (ours - theirs).abs().max().item() if ours.numel() else 0.0
        largest = max(1.0, theirs.abs().max().item()) if ours.numel() else 1.0
        assert error <= 1e-12 * largest, (name, error, largest)


@st.composite
def networks(draw: st.DrawFn, max_nodes: int = 12) -> NetworkPlan:
    """Any Dag numbered by level, some sources as inputs, any nodes as outputs, an activation per node."""
    drawn = draw(dags(min_nodes=1, max_nodes=max_nodes))
    place = torch.empty_like(drawn.order).scatter_(0, drawn.order, torch.arange(drawn.num_nodes))
    sources = sorted(int(place[v]) for v in (drawn.in_degree == 0).nonzero().flatten())
    dag = Dag(
        place[drawn.edges],
        drawn.num_nodes,
        inputs=torch.tensor(draw(st.lists(st.sampled_from(sources), unique=True)), dtype=torch.int64),
        outputs=torch.tensor(draw(st.lists(st.integers(0, drawn.num_nodes - 1), unique=True, min_size=1))),
    )
    names = draw(st.lists(st.sampled_from(sorted(ACTIVATIONS)), min_size=dag.num_nodes, max_size=dag.num_nodes))
    return network(dag, names, draw(st.booleans()))


@settings(max_examples=25)
@given(networks(), st.sampled_from(BATCHES), st.sampled_from([torch.float32, torch.float64]))
def test_any_network_equals_the_reference(plan, batch, dtype):
    agree(plan, batch, dtype)


@settings(max_examples=25)
@given(networks(), st.sampled_from(BATCHES), st.sampled_from([torch.float32, torch.float64]))
def test_parameters_have_the_same_gradients_where_that_of_x_is_not_needed(plan, batch, dtype):
    parts = tensors(plan, batch, dtype)
    # Whether networks with many inputs have other code for them or not.
    found = [parameter_gradients(plan, parts, needs_x) for needs_x in (True, False)]
    with mock.patch.multiple(compiled_plan, _MANY_FROM_INPUTS=0, _SHARE_FROM_INPUTS=0):
        plan.compiled.forget()
        found += [parameter_gradients(plan, parts, needs_x) for needs_x in (True, False)]
    for weight, bias in found[1:]:
        assert torch.equal(weight, found[0][0]) and torch.equal(bias, found[0][1])


def parameter_gradients(plan, parts, needs_x):
    """Those of the edges and of the biases."""
    x, weight, bias, grad_y = parts
    _, saved = passes.forward(plan.compiled, x, weight, bias)
    into = Gradients(torch.full_like(weight, 7.0), torch.full_like(bias, 7.0), accumulate=False)
    passes.backward(plan.compiled, grad_y, saved, weight, bias, into, needs_x=needs_x)
    return into.weight, into.bias


@settings(max_examples=25)
@given(networks(), st.sampled_from(BATCHES), st.sampled_from([torch.float32, torch.float64]))
def test_chosen_rows_are_a_batch_of_those_rows(plan, batch, dtype):
    x, weight, bias, _ = tensors(plan, batch, dtype)
    rows = torch.randint(batch, (batch // 2 + 1,), generator=torch.Generator().manual_seed(batch))
    expected, _ = passes.forward(plan.compiled, x[rows], weight, bias)
    assert torch.equal(passes.forward(plan.compiled, x, weight, bias, rows)[0], expected)


@pytest.mark.parametrize("batch", [4, 12, 50])
def test_inputs_beside_other_sources_of_either_number(batch):
    """Constants before, between and behind the inputs: of what leaves them, weights are needed, of inputs not."""
    for inputs in ([0, 1], [1, 3], [2, 3], [0, 1, 2, 3], []):
        dag = Dag([(u, v) for u in range(4) for v in (4, 5)] + [(4, 6), (5, 6), (1, 6)], 7, inputs=inputs)
        agree(network(dag, ["tanh"] * 7), batch, torch.float64)


@pytest.mark.slow
@settings(max_examples=500)
@given(networks(max_nodes=40), st.sampled_from(BATCHES), st.sampled_from([torch.float32, torch.float64]))
@example(network(Dag([], 1), ["tanh"]), 33, torch.float32)
@example(network(Dag([], 3, inputs=[]), ["gelu", "tanh", "relu"]), 7, torch.float64)
def test_500_networks_equal_the_reference(plan, batch, dtype):
    agree(plan, batch, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("batch", [1, 7, 33])
def test_a_node_of_in_degree_5000(dtype, batch):
    edges = torch.tensor([(u, 5_000) for u in range(5_000)] + [(0, 5_001), (5_000, 5_001)])
    agree(network(Dag(edges, 5_002), ["tanh"] * 5_002), batch, dtype)


@pytest.mark.parametrize("batch", [1, 33])
def test_nodes_of_every_out_degree_up_to_40(batch):
    """Edges are reduced 16, 4 and 1 together: every remainder occurs."""
    edges = torch.tensor([(u, 41 + k) for u in range(41) for k in range(u)])
    agree(network(Dag(edges, 81), ["tanh"] * 81), batch, torch.float64)


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_neighbouring_sources_of_every_number_up_to_70(dtype, batch):
    """Without tiles they are taken a vector at a time, from wherever they begin; a gap among them forbids it."""
    edges = [(u, 80 + k) for k in range(71) for u in range(k % 7, k % 7 + k)]
    edges += [(u, 151) for u in range(80) if u != 33] + [(151, 152)]
    agree(network(Dag(edges, 153), ["tanh"] * 153), batch, dtype)


@pytest.mark.parametrize("batch", BATCHES)
def test_tiles_leave_out_what_no_output_sees(batch):
    """Nodes 4 and 5, behind the output 3. An input stays, though nobody uses it."""
    dag = Dag([(0, 2), (2, 3), (3, 4), (2, 5), (4, 5)], 6, inputs=[0, 1], outputs=[3])
    plan = network(dag, ["tanh"] * 6)
    compiled = plan.compiled
    assert (compiled.num_live, compiled.num_sparse, compiled.dead_edges.tolist()) == (4, 2, [2, 3, 4])
    agree(plan, batch, torch.float64, compiled)


@pytest.mark.parametrize("batch", BATCHES)
def test_nan_behind_the_outputs_stays_there(batch):
    dag = Dag([(0, 1), (1, 2), (0, 3)], 4, outputs=[1])
    plan = network(dag, ["tanh"] * 4)
    x, weight, bias, grad_y = tensors(plan, batch, torch.float64)
    weight[plan.edges[:, 1] > 1] = torch.nan
    _, grad_x, grad_weight, grad_bias = compiled_results(plan, plan.compiled, [x, weight, bias, grad_y])
    assert grad_x.isfinite().all()
    assert grad_weight.tolist()[1:] == [0.0, 0.0]
    assert grad_bias.tolist()[1:] == [0.0, 0.0]


@pytest.mark.parametrize("batch", BATCHES)
def test_one_node_and_no_edges(batch):
    agree(network(Dag([], 1), ["identity"]), batch, torch.float64)
    agree(network(Dag([], 2, inputs=[]), ["tanh", "gelu"]), batch, torch.float64)


@pytest.mark.parametrize("num_nodes", [40, 30_000])
def test_every_width_of_a_tile(num_nodes):
    """Large networks take other tiles than small ones."""
    first = num_nodes - 9  # what is before has no edges: level 0
    edges = torch.stack([torch.arange(first, num_nodes - 1), torch.arange(first + 1, num_nodes)], 1)
    plan = network(Dag(edges, num_nodes), ["tanh"] * num_nodes)
    for batch in (4, 12, 20, 48, 200):
        agree(plan, batch, torch.float64)


# ---- other processors ----

PROCESSORS = {
    "plain": PLAIN,
    "half": dataclasses.replace(host_target(), vector_bytes=32),
    "no fma": Target("", "", vector_bytes=32, fma=False, level2_bytes=1 << 14),
}


@pytest.mark.parametrize("processor", PROCESSORS)
def test_a_processor_with_less(processor):
    plan = network(Dag([(u, v) for v in range(9) for u in range(v)]), ["tanh"] * 9)
    for dtype in (torch.float32, torch.float64):
        for batch in (1, 7, 33):
            agree(plan, batch, dtype, plan.compile(PROCESSORS[processor]))


def test_rows_from_far_away_give_the_same_bits():
    """Where a tile's values leave the second-level cache they are asked for ahead, and that is all."""
    plan = network(Dag([(u, v) for v in range(40) for u in range(v)]), ["tanh"] * 40)
    near, far = (plan.compile(dataclasses.replace(host_target(), level2_bytes=size)) for size in (1 << 30, 1))
    assert [compiled.shape(False, 32).far for compiled in (near, far)] == [False, True]
    for dtype in (torch.float32, torch.float64):
        results = [compiled_results(plan, compiled, tensors(plan, 200, dtype)) for compiled in (near, far)]
        assert near.cut(200, dtype is torch.float64).shape.tile == far.cut(200, dtype is torch.float64).shape.tile
        assert all(map(torch.equal, *results))


# ---- dense blocks ----


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks of a few nodes are products of matrices too."""
    monkeypatch.setattr(dense_blocks, "MIN_EDGES", 4)
    monkeypatch.setattr(dense_blocks, "MIN_NODES", 2)
    monkeypatch.setattr(dense_blocks, "MIN_FILLED", 0.3)
    monkeypatch.setattr(compiled_plan, "_MIN_BLOCK_SHARE", 0.0)


def layers(*sizes: int) -> list[tuple[int, int]]:
    start = [sum(sizes[:i]) for i in range(len(sizes) + 1)]
    ranges = [range(a, b) for a, b in pairwise(start)]
    return [(u, v) for below, above in pairwise(ranges) for v in above for u in below]


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_an_mlp_runs_as_blocks(small_blocks, batch, dtype):
    plan = network(Dag(layers(5, 7, 6, 3)), ["tanh"] * 21)
    assert [block.shape for block in plan.compiled.blocks] == [(7, 5), (6, 7), (3, 6)]
    agree(plan, batch, dtype)


@pytest.mark.parametrize("limit", [0, 1 << 20])
def test_one_sample_through_blocks_and_without(small_blocks, limit, monkeypatch):
    monkeypatch.setattr(compiled_plan, "_LARGEST_SINGLE_DENSE", limit)
    plan = network(Dag(layers(5, 7, 6, 3)), ["tanh", "gelu", "relu"] * 7)
    assert plan.compiled.is_single(1) == (limit > 0)
    assert not plan.compiled.is_single(2)
    agree(plan, 1, torch.float64)


@pytest.mark.parametrize("batch", [1, 33])
def test_blocks_sparse_parts_and_skips_in_one_network(small_blocks, batch):
    edges = [edge for edge in layers(5, 7, 6, 3) if edge not in {(6, 13), (8, 15)}]  # one block has holes
    edges += [(0, 20), (3, 15), (20, 21), (12, 21), (1, 22), (21, 22)]
    plan = network(Dag(edges, 23, outputs=[22, 9, 2, 20]), ["gelu", "tanh", "silu"] * 7 + ["elu", "relu"])
    compiled = plan.compiled
    assert any(block.positions is not None for block in compiled.blocks)
    assert len(compiled.segments()) > len(compiled.blocks)
    agree(plan, batch, torch.float64)


def test_any_network_with_blocks_equals_the_reference(small_blocks):
    @settings(max_examples=15)
    @given(networks(), st.sampled_from(BATCHES))
    def check(plan, batch):
        agree(plan, batch, torch.float64)

    check()


# ---- values that are no numbers ----


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_nan_and_infinity_go_where_the_reference_says(activation):
    """Lanes behind the end of a batch must not spoil it: 0 times infinity would be NaN there."""
    plan = network(Dag([(0, 2), (1, 3), (2, 4), (3, 5)]), [activation] * 4 + ["tanh"] * 2)
    for batch, value in product((1, 7, 33), (torch.nan, torch.inf)):
        parts = tensors(plan, batch, torch.float64)
        parts[1][0] = value
        found = compiled_results(plan, plan.compiled, parts)
        *inputs, grad_y = parts
        inputs = [part.requires_grad_() for part in inputs]
        y = reference.run_network(plan.levels, *inputs)
        for ours, theirs in zip(found, (y, *torch.autograd.grad(y, inputs, grad_y)), strict=True):
            torch.testing.assert_close(ours, theirs.detach(), rtol=1e-12, atol=1e-12, equal_nan=True)
