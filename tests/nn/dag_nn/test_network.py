"""`DagNN` against a loop over nodes in plain Python, and what its users rely on by name."""

import copy
import math
import pickle
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from precision import assert_rounded
from strategies import dags
from torch import Tensor
from torch.autograd import gradcheck

from dagnn.errors import ConfigError, CycleError, DtypeError, GraphError
from dagnn.graph import Dag
from dagnn.nn import DagNN

DIAMOND = [("x", "a"), ("x", "b"), ("a", "y"), ("b", "y"), ("x", "y")]

SCALAR: dict[str, Callable[[float], float]] = {
    "identity": lambda z: z,
    "relu": lambda z: max(z, 0.0),
    "leaky_relu": lambda z: z if z > 0 else 0.01 * z,
    "elu": lambda z: z if z > 0 else math.expm1(z),
    "tanh": math.tanh,
    "sigmoid": lambda z: 1 / (1 + math.exp(-z)),
    "gelu": lambda z: z * (1 + math.erf(z / 2**0.5)) / 2,
    "silu": lambda z: z / (1 + math.exp(-z)),
    "softplus": lambda z: math.log1p(math.exp(z)),
}


@st.composite
def networks(draw: st.DrawFn, max_nodes: int = 9) -> DagNN:
    """A float64 network on any Dag: some sources as inputs, any nodes as outputs, an activation per node."""
    dag = draw(dags(min_nodes=1, max_nodes=max_nodes, named=None))
    sources = (dag.in_degree == 0).nonzero().flatten().tolist()
    nodes = range(dag.num_nodes)
    inputs = draw(st.lists(st.sampled_from(sources), unique=True))
    outputs = draw(st.lists(st.sampled_from(nodes), unique=True, min_size=1))
    chosen = Dag(
        dag.edges,
        dag.num_nodes,
        names=dag.names,
        inputs=torch.tensor(inputs, dtype=torch.int64),
        outputs=torch.tensor(outputs),
    )
    activation = draw(st.lists(st.sampled_from(sorted(SCALAR)), min_size=dag.num_nodes, max_size=dag.num_nodes))
    torch.manual_seed(draw(st.integers(0, 99)))
    net = DagNN(chosen, activation=activation, bias=draw(st.booleans()), dtype=torch.float64)
    torch.nn.init.normal_(net.bias)
    return net


def by_hand(net: DagNN, x: list[float]) -> list[float]:
    """The outputs for one sample, node by node, from weights looked up by name."""
    dag = net.dag
    inputs = dag.inputs.tolist()
    layout = net._layout
    biased = [v for v in layout.node_at.tolist() if layout.has_bias[layout.place_of[v]]]
    bias = dict(zip(biased, net.bias.tolist(), strict=True))
    value: dict[int, float] = {}
    for v in dag.order.tolist():
        if v in inputs:
            value[v] = x[inputs.index(v)]
            continue
        total = bias.get(v, 0.0)
        for u, w in dag.edges.tolist():
            if w == v:
                total += net.weight_of(dag.name_of(u), dag.name_of(v)) * value[u]
        value[v] = SCALAR[net.activations[v]](total)
    return [value[v] for v in dag.outputs.tolist()]


# ---- values and derivatives ----


@settings(max_examples=25)
@given(networks(), st.integers(0, 4))
def test_output_equals_a_loop_over_nodes(net, batch):
    x = torch.randn(batch, len(net.dag.inputs), dtype=torch.float64)
    expected = torch.tensor([by_hand(net, row) for row in x.tolist()], dtype=torch.float64)
    y = net(x)
    assert y.shape == (batch, len(net.dag.outputs))
    torch.testing.assert_close(y, expected.reshape(y.shape), rtol=1e-12, atol=1e-12)


@pytest.mark.slow
@settings(max_examples=500)
@given(networks(max_nodes=30), st.sampled_from([0, 1, 7, 31, 32, 33]))
def test_output_equals_a_loop_over_nodes_on_many_dags(net, batch):
    x = torch.randn(batch, len(net.dag.inputs), dtype=torch.float64)
    expected = torch.tensor([by_hand(net, row) for row in x.tolist()], dtype=torch.float64)
    torch.testing.assert_close(net(x), expected.reshape(batch, len(net.dag.outputs)), rtol=1e-12, atol=1e-12)
    net.float()
    exact = copy.deepcopy(net).double()
    assert_rounded(net(x.float()), lambda: exact(x.float().double()))


@settings(max_examples=25)
@given(networks(max_nodes=7))
def test_derivatives_on_random_dags(net):
    smooth = DagNN(net.dag, activation="tanh", dtype=torch.float64)  # no kink near which differences are wrong

    def function(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return torch.func.functional_call(smooth, {"edge_weight": weight, "bias": bias}, (x,))

    x = torch.randn(2, len(net.dag.inputs), dtype=torch.float64, requires_grad=True)
    parameters = [p.detach().clone().requires_grad_() for p in smooth.parameters()]
    assert gradcheck(function, (x, *parameters), fast_mode=True)


@pytest.mark.parametrize("name", sorted(SCALAR))
def test_activation(name):
    net = DagNN(Dag([("x", "y")]), output_activation=name, dtype=torch.float64)
    net.load_state_dict({"edge_weight": torch.tensor([2.0]), "bias": torch.tensor([-0.5])})
    for x in (-3.0, -0.2, 0.25, 4.0):
        assert net(torch.tensor([x], dtype=torch.float64)).item() == pytest.approx(SCALAR[name](2 * x - 0.5), rel=1e-12)


def test_value_worked_by_hand():
    net = DagNN(Dag(DIAMOND), activation="relu", bias=False)
    weights = {("x", "a"): 2.0, ("x", "b"): -1.0, ("a", "y"): 3.0, ("b", "y"): 5.0, ("x", "y"): 0.5}
    net.load_state_dict({"edge_weight": torch.tensor([weights[e] for e in net.edge_names()]), "bias": torch.empty(0)})
    assert {e: net.weight_of(*e) for e in weights} == weights
    # x=2: a=4, b=relu(-2)=0, y=12+0+1; x=-2: a=0, b=2, y=0+10-1
    assert net(torch.tensor([[2.0], [-2.0]])).tolist() == [[13.0], [9.0]]


def test_outputs_may_be_inputs_and_inner_nodes_in_any_order():
    dag = Dag(DIAMOND, outputs=["a", "x", "y"])
    net = DagNN(dag, activation="tanh", output_activation="identity", bias=False)
    x = torch.tensor([[0.5]])
    a = math.tanh(net.weight_of("x", "a") * 0.5)
    b = math.tanh(net.weight_of("x", "b") * 0.5)
    y = net.weight_of("a", "y") * a + net.weight_of("b", "y") * b + net.weight_of("x", "y") * 0.5
    assert net(x).tolist() == [pytest.approx([a, 0.5, y])]


def test_sources_that_are_no_inputs_hold_a_trainable_bias_even_without_biases():
    dag = Dag([("x", "y"), ("s", "y")], inputs=["x"])
    net = DagNN(dag, activation="tanh", bias=False)
    assert net.bias.shape == (1,)
    s = math.tanh(net.bias.item())
    x = torch.tensor([3.0])
    close = {"rel": 1e-5, "abs": 1e-6}
    assert net(x).item() == pytest.approx(net.weight_of("x", "y") * 3 + net.weight_of("s", "y") * s, **close)
    net(x).sum().backward()
    assert net.bias.grad.item() == pytest.approx(net.weight_of("s", "y") * (1 - s * s), **close)


@pytest.mark.parametrize("bias", [True, False])
def test_num_parameters_is_one_per_edge_plus_biases(bias):
    assert DagNN(Dag(DIAMOND), bias=bias).num_parameters() == 5 + (3 if bias else 0)


def test_a_dag_without_inputs_or_edges_gives_its_biases():
    net = DagNN(Dag([], 2, inputs=[]), output_activation="identity")
    assert torch.equal(net(torch.empty(3, 0)), net.bias.expand(3, 2))


# ---- shapes and dtypes ----


@pytest.mark.parametrize("shape", [(2,), (0, 2), (5, 2), (2, 3, 2), (2, 0, 3, 2)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_any_batch_shape(shape, dtype):
    net = DagNN(Dag([("a", "c"), ("b", "c"), ("c", "d")], outputs=["d", "c", "a"]), dtype=dtype)
    x = torch.randn(shape, dtype=dtype, requires_grad=True)
    y = net(x)
    assert (y.shape, y.dtype, y.is_contiguous()) == ((*shape[:-1], 3), dtype, True)
    exact = copy.deepcopy(net).double()
    rows = x.detach().double().reshape(-1, 2)
    if len(rows):
        assert_rounded(y.reshape(-1, 3), lambda: torch.stack([exact(row) for row in rows]))
    y.sum().backward()
    assert x.grad.shape == x.shape


def test_a_non_contiguous_batch():
    net = DagNN(Dag(DIAMOND))
    x = torch.randn(1, 4, 6)[:, ::2, 1::3].transpose(0, 2)[..., :1]
    assert not x.is_contiguous()
    assert torch.equal(net(x), net(x.contiguous()))


def test_default_dtype_is_that_of_torch():
    assert DagNN(Dag(DIAMOND)).edge_weight.dtype == torch.get_default_dtype()


def test_autocast_runs_in_the_dtype_of_the_parameters():
    net = DagNN(Dag(DIAMOND))
    x = torch.randn(3, 1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = net(x.bfloat16())
    assert y.dtype == torch.float32
    assert torch.equal(y, net(x.bfloat16().float()))


def test_nan_weights_are_propagated_to_their_targets_only():
    net = DagNN(Dag([("x", "a"), ("x", "b")]))
    with torch.no_grad():
        net.edge_weight[net._layout.index_of("x", "a")] = math.nan
    y = net(torch.ones(1))
    assert y.isnan().tolist() == [True, False]


def test_vmap_and_jacobians_of_torch_func():
    net = DagNN(Dag(DIAMOND, outputs=["y", "a"]), dtype=torch.float64)
    x = torch.randn(4, 1, dtype=torch.float64)
    y = net(x)
    torch.testing.assert_close(torch.func.vmap(net)(x), y)
    jacobian = torch.func.vmap(torch.func.jacrev(net))(x)
    net.backward_accumulate(torch.ones_like(y))  # through the last plain call, not a transformed one
    torch.testing.assert_close(jacobian[2], torch.autograd.functional.jacobian(net, x[2]))


def test_a_node_of_in_degree_5000():
    net = DagNN(Dag([(i, 5_000) for i in range(5_000)]), dtype=torch.float64)
    x = torch.randn(2, 5_000, dtype=torch.float64)
    torch.testing.assert_close(net(x)[:, 0], x @ net.edge_weight, rtol=1e-12, atol=1e-12)


def test_another_device_gets_a_plan_of_its_own():
    net = DagNN(Dag(DIAMOND, outputs=["a", "y"]), activation={"a": "relu", "b": "tanh"})
    here = net(torch.ones(2, 1))
    net.to("meta")  # a device without values: what is left is where every tensor lives
    there = net(torch.ones(2, 1, device="meta"))
    assert there.is_meta and there.shape == here.shape


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # those of torch.compile itself
def test_torch_compile_traces_it_as_one_graph():
    net = DagNN(Dag(DIAMOND, outputs=["y", "a"]), dtype=torch.float64)
    twin = copy.deepcopy(net)
    compiled = torch.compile(net, backend="eager", fullgraph=True)
    x = torch.randn(3, 1, dtype=torch.float64)
    torch.testing.assert_close(compiled(x), twin(x))
    compiled(x).sum().backward()
    net.backward_accumulate(torch.ones(3, 2, dtype=torch.float64))
    (2 * twin(x).sum()).backward()
    torch.testing.assert_close(net.edge_weight.grad, twin.edge_weight.grad)


def test_inference_mode_leaves_nothing_behind():
    net = DagNN(Dag(DIAMOND))
    with torch.inference_mode():
        net(torch.ones(1))
    with pytest.raises(GraphError, match="there is no forward pass to go back through"):
        net.backward_accumulate(torch.ones(1))


# ---- parameters follow names ----


@settings(max_examples=20)
@given(dags(min_nodes=1, named=True), st.randoms())
def test_a_dag_declared_in_another_order_loads_the_same_function(dag, random):
    inputs = [dag.names[v] for v in dag.inputs]
    outputs = [dag.names[v] for v in dag.outputs]
    edges = [(dag.names[u], dag.names[v]) for u, v in dag.edges.tolist()]
    names = list(dag.names)
    random.shuffle(edges)
    random.shuffle(names)
    net = DagNN(dag, dtype=torch.float64)
    other = DagNN(Dag(edges, names=names, inputs=inputs, outputs=outputs), dtype=torch.float64)
    other.load_state_dict(net.state_dict())
    x = torch.randn(3, len(inputs), dtype=torch.float64)
    torch.testing.assert_close(other(x), net(x))
    assert all(other.weight_of(*edge) == net.weight_of(*edge) for edge in edges)


def test_one_seed_gives_a_named_edge_the_same_weight_however_declared():
    a, b = DagNN(Dag(DIAMOND)), DagNN(Dag(DIAMOND[::-1]))
    a.reset_parameters(torch.Generator().manual_seed(5))
    b.reset_parameters(torch.Generator().manual_seed(5))
    assert {e: a.weight_of(*e) for e in DIAMOND} == {e: b.weight_of(*e) for e in DIAMOND}


# ---- copies ----


def test_copies_and_pickles_after_a_forward_pass_on_a_computed_input():
    net = DagNN(Dag(DIAMOND))
    x = torch.randn(2, 1, requires_grad=True) * 2  # part of a graph: neither deep-copied nor pickled
    y = net(x)
    for twin in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert torch.equal(twin(x), y)
        assert twin.edge_weight is not net.edge_weight


def test_a_long_chain_runs_backward_and_copies():
    net = DagNN(Dag([(i, i + 1) for i in range(5_000)]), activation="identity", bias=False)
    torch.nn.init.ones_(net.edge_weight)
    y = copy.deepcopy(net)(torch.ones(1))
    net(torch.ones(1)).backward()
    assert y.item() == 1.0
    assert torch.equal(net.edge_weight.grad, torch.ones(5_000))


# ---- bad input ----


def test_wrong_number_of_features():
    with pytest.raises(GraphError, match=r"x must have the shape \[\.\.\., inputs\] = \[\.\.\., 1\], got \[2, 3\]"):
        DagNN(Dag(DIAMOND))(torch.randn(2, 3))
    with pytest.raises(GraphError, match=r"got \[\]"):
        DagNN(Dag(DIAMOND))(torch.tensor(1.0))


def test_wrong_dtype_of_features():
    with pytest.raises(DtypeError, match=r"x must be torch.float32.*got torch.float64.*x.to\(torch.float32\)"):
        DagNN(Dag(DIAMOND))(torch.randn(2, 1, dtype=torch.float64))


def test_wrong_dtype_of_parameters():
    with pytest.raises(DtypeError, match=r"dtype must be torch.float32 or torch.float64, got torch.int64"):
        DagNN(Dag(DIAMOND), dtype=torch.int64)


def test_a_network_needs_an_output():
    with pytest.raises(GraphError, match=r"the Dag has no outputs.*outputs=\[\.\.\.\]"):
        DagNN(Dag(DIAMOND, outputs=[]))


def test_an_input_cannot_be_computed():
    with pytest.raises(GraphError, match="the input 'a' has the incoming edge 'x' -> 'a'"):
        DagNN(Dag(DIAMOND, inputs=["x", "a"]))


def test_an_edge_twice_is_named():
    dag = Dag([("x", "y"), ("x", "y")], edge_attributes={"position": torch.tensor([0, 1])})
    with pytest.raises(GraphError, match="the edge 'x' -> 'y' is declared twice"):
        DagNN(dag)


def test_a_cycle_is_named():
    with pytest.raises(CycleError, match="a -> b -> a"):
        DagNN(Dag([("a", "b"), ("b", "a")]))


def test_an_edge_that_is_not_there():
    net = DagNN(Dag(DIAMOND))
    with pytest.raises(GraphError, match="there is no edge 'y' -> 'a'; there is 'a' -> 'y': give the source first"):
        net.weight_of("y", "a")
    with pytest.raises(GraphError, match="there is no edge 'a' -> 'b': give"):
        net.grad_of("a", "b")
    with pytest.raises(GraphError, match="'nobody'"):
        net.get_edge_grad("x", "nobody")


def test_a_width_is_refused_with_the_class_that_has_one():
    with pytest.raises(ConfigError, match=r"got width=6: for several take dagnn.WideDagNN\(dag, width=...\)"):
        DagNN(Dag([("a", "b")]), width=6)
    assert DagNN(Dag([("a", "b")]), width=1).edge_weight.shape == (1,)
