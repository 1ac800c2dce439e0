"""`explain`: conductances sum to the change of the output over every cut, whatever the graph; bad input is refused."""

import copy

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import dags

from dagnn import Dag, DagNN
from dagnn.errors import ConfigError, DtypeError, GraphError
from dagnn.kernels.nodes import ACTIVATIONS, NEAT_ACTIVATIONS, activation_of
from dagnn.visible import explain

SMOOTH = ("identity", "tanh", "sigmoid", "gelu", "silu", "softplus")


def swish_of_a_user(z):
    return z / (1 + (-z).exp())


def network(dag, activation="tanh", *, dtype=torch.float64, seed=0, **options):
    torch.manual_seed(seed)
    last = "identity" if isinstance(activation, dict) else activation
    net = DagNN(dag, activation=activation, output_activation=last, bias=list(nodes_of(dag)), dtype=dtype, **options)
    with torch.no_grad():
        net.bias.uniform_(-0.5, 0.5)
    return net


def nodes_of(dag):
    inputs = set(dag.inputs.tolist())
    return [dag.name_of(v) for v in range(dag.num_nodes) if v not in inputs]


def small():
    return Dag([("a", "h"), ("b", "h"), ("h", "g"), ("c", "g"), ("a", "y"), ("h", "y"), ("g", "y")], outputs=["y"])


def samples(net, batch=3, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(batch, len(net.dag.inputs), dtype=net.edge_weight.dtype, generator=generator)


def by_autograd(net, x, baseline, output, steps):
    """Conductance of every edge by its definition: one sample, one point and one tangent at a time, ``[B, edges]``."""
    points, weights = np.polynomial.legendre.leggauss(steps)
    dag, total = net.dag, torch.zeros(len(x), net.dag.num_edges, dtype=x.dtype)
    ends = [(dag.index_of(u), dag.index_of(v)) for u, v in net.edge_names()]
    for point, share in zip((points + 1) / 2, weights / 2, strict=True):
        for sample in range(len(x)):
            s = torch.tensor(point, dtype=x.dtype, requires_grad=True)
            added = torch.zeros(dag.num_nodes, dtype=x.dtype, requires_grad=True)
            values = values_of(net, baseline[sample] + s * (x[sample] - baseline[sample]), added)
            adjoint = derivative(values[output], added, dag.num_nodes)
            for k, (u, v) in enumerate(ends):
                total[sample, k] += share * adjoint[v] * net.edge_weight[k].detach() * derivative(values[u], s, 1)[0]
    return total


def derivative(value, by, length):
    found = torch.autograd.grad(value, by, retain_graph=True, allow_unused=True)[0] if value.requires_grad else None
    return torch.zeros(length) if found is None else found.reshape(length)


def values_of(net, x, added):
    """Every node's value where ``added [num_nodes]`` is added to its sum, node by node."""
    dag, values = net.dag, {}
    weights, biases = net.edge_weights(), net.biases()
    column = {v: k for k, v in enumerate(dag.inputs.tolist())}
    for v in dag.order.tolist():
        if v in column:
            values[v] = x[column[v]]
            continue
        z = biases.get(dag.name_of(v), 0.0) + added[v]
        for u, w in dag.edges.tolist():
            if w == v:
                z = z + weights[dag.name_of(u), dag.name_of(v)] * values[u]
        values[v] = activation_of(net.activations[v])(z)
    return values


@st.composite
def cases(draw):
    """A random Dag with at least one node, the node to explain, and a random cut below it or None."""
    dag = draw(dags(min_nodes=1, max_nodes=9))
    output = draw(st.integers(0, dag.num_nodes - 1))
    chosen = set(dag.inputs.tolist()) | draw(st.sets(st.integers(0, dag.num_nodes - 1)))
    for v in reversed(dag.order.tolist()):
        if v in chosen:
            chosen |= {u for u, w in dag.edges.tolist() if w == v}
    return dag, output, chosen - {output} if output not in chosen else None


@settings(max_examples=30, deadline=None)
@given(cases(), st.sampled_from([*SMOOTH, "relu", "elu", "leaky_relu", swish_of_a_user]), st.integers(1, 5))
def test_secants_are_complete_over_every_cut_at_any_number_of_steps(case, activation, steps):
    dag, output, cut = case
    net = network(dag, activation)
    found = explain(net, samples(net), samples(net, seed=2), output=output, rule="secant", steps=steps)

    sums = found.cut_sums() if cut is None else torch.cat([found.cut_sums(cut), found.cut_sums()], dim=1)
    scale = 1 + found.edges.abs().sum(1, keepdim=True)
    assert ((sums - found.change.unsqueeze(1)).abs() <= 1e-13 * scale).all()
    assert found.error <= 1e-13 * float(scale.max())


@settings(max_examples=20, deadline=None)
@given(cases(), st.sampled_from([*SMOOTH, swish_of_a_user]))
def test_paths_are_complete_over_every_cut_where_activations_are_smooth(case, activation):
    dag, output, cut = case
    net = network(dag, activation)
    found = explain(net, samples(net), samples(net, seed=2), output=output)

    sums = found.cut_sums() if cut is None else torch.cat([found.cut_sums(cut), found.cut_sums()], dim=1)
    assert found.error < 1e-8
    assert ((sums - found.change.unsqueeze(1)).abs() < 1e-8).all()


@settings(max_examples=12, deadline=None)
@given(dags(min_nodes=1, max_nodes=7), st.sampled_from(SMOOTH))
def test_conductances_of_edges_are_those_of_the_definition(dag, activation):
    net = network(dag, activation)
    x, baseline = samples(net, 2), samples(net, 2, seed=3)
    output = net.output_names[0]
    found = explain(net, x, baseline, output=output, steps=4)

    assert torch.allclose(found.edges, by_autograd(net, x, baseline, output, 4), rtol=1e-11, atol=1e-12)


@settings(max_examples=12, deadline=None)
@given(cases(), st.sampled_from(["path", "secant"]))
def test_a_node_has_what_enters_it_and_an_input_what_leaves_it(case, rule):
    dag, output, _ = case
    net = network(dag)
    found = explain(net, samples(net), output=output, rule=rule, steps=4)

    entering, leaving = torch.zeros(2, *found.nodes.shape, dtype=torch.float64)
    for k, (u, v) in enumerate(found.edge_names):
        entering[:, v] += found.edges[:, k]
        leaving[:, u] += found.edges[:, k]
    inputs = net.dag.inputs
    expected = entering
    expected[:, inputs] = leaving[:, inputs]
    if output in inputs.tolist():
        expected[:, output] = found.change
    assert torch.allclose(found.nodes, expected, atol=1e-13)
    assert torch.allclose(found.edge_means, found.edges.mean(0), atol=1e-14)
    assert torch.allclose(found.node_shares * found.change.abs().mean(), found.nodes.abs().mean(0), equal_nan=True) or (
        found.change.abs().mean() == 0
    )


@pytest.mark.parametrize("name", [*ACTIVATIONS, *NEAT_ACTIVATIONS])
def test_every_activation_is_complete_by_secants(name):
    net = network(small(), {"h": name, "g": name, "y": "identity"})
    found = explain(net, samples(net, 20) / 4, rule="secant", steps=3)

    assert torch.allclose(found.cut_sums(), found.change.unsqueeze(1), rtol=1e-11, atol=1e-11)


def test_means_and_responses_are_complete_too():
    net = network(small(), aggregation={"g": "mean", "y": "mean"}, response={"h": 1.5, "g": -2.0})
    for rule in ("path", "secant"):
        found = explain(net, samples(net, 4), rule=rule)
        assert torch.allclose(found.cut_sums(), found.change.unsqueeze(1), atol=1e-9)


@settings(max_examples=20, deadline=None)
@given(cases(), st.sampled_from([*SMOOTH, "relu", swish_of_a_user]), st.sampled_from(["path", "secant"]))
def test_the_compiled_path_is_the_reference(case, activation, rule):
    dag, output, _ = case
    net = network(dag, activation)
    x, baseline = samples(net, 11), samples(net, 11, seed=2)
    compiled = explain(net, x, baseline, output=output, rule=rule, steps=3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DAGNN_KERNELS", "reference")
        reference = explain(net, x, baseline, output=output, rule=rule, steps=3)

    assert torch.allclose(compiled.nodes, reference.nodes, rtol=1e-9, atol=1e-11)
    assert torch.allclose(compiled.edges, reference.edges, rtol=1e-9, atol=1e-11)


def test_secants_hold_where_a_sum_hardly_moves():
    """h moves by rounding only: its slope must stay that of tanh, not a quotient of rounding errors."""
    net = network(Dag([("a", "h"), ("b", "h"), ("h", "y")]), {"h": "tanh", "y": "identity"})
    net.set_weights({("a", "h"): 1.0, ("b", "h"): -1.0 + 1e-15, ("h", "y"): 1.0})
    for path in ("compiled", "reference"):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("DAGNN_KERNELS", path)
            found = explain(net, torch.tensor([[1e3, 1e3]], dtype=torch.float64), rule="secant", steps=1)
        bias = net.biases()["h"]
        assert found.edges[0].abs().tolist() == pytest.approx([1e3 * (1 - np.tanh(bias) ** 2)] * 2 + [0], abs=1e-9)


def test_one_step_of_secants_is_the_rescale_rule():
    net = network(Dag([("a", "h"), ("h", "y")]), {"h": "tanh", "y": "identity"})
    net.set_weights({("a", "h"): 2.0, ("h", "y"): 3.0})
    net.set_biases({"h": 0.0})
    found = explain(net, torch.tensor([[1.0]], dtype=torch.float64), rule="secant", steps=1)

    assert found.edges[0].tolist() == pytest.approx([3 * np.tanh(2.0)] * 2)


def test_captum_finds_the_same_integrated_gradients():
    attribution = pytest.importorskip("captum.attr")
    net = network(small())
    x, baseline = samples(net, 5), samples(net, 5, seed=4)
    theirs = attribution.IntegratedGradients(net).attribute(x, baseline, target=0, n_steps=32)

    found = explain(net, x, baseline)
    assert torch.allclose(found.nodes[:, net.dag.inputs], theirs, atol=1e-6)


def test_explaining_changes_nothing():
    net = network(small()).train()
    x = samples(net, 4).requires_grad_()
    net(x).sum().backward()
    before, state, last = copy.deepcopy(net), torch.get_rng_state(), net._last_input
    gradients = net.edge_weight.grad.clone(), net.bias.grad.clone(), x.grad.clone()

    explain(net, x, output="g")
    explain(net, x, rule="secant")

    assert torch.equal(torch.get_rng_state(), state) and net.training and net._last_input is last
    assert torch.equal(net(x), before(x)) and net.output_names == ("y",)
    assert all(map(torch.equal, gradients, (net.edge_weight.grad, net.bias.grad, x.grad)))


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad])
def test_modes_of_the_caller_change_nothing(mode):
    net = network(small())
    expected = explain(net, samples(net)).nodes
    with mode():
        found = explain(net, samples(net))
    assert torch.equal(found.nodes, expected) and not found.nodes.is_inference()


@pytest.mark.parametrize("rule", ["path", "secant"])
def test_threads_change_no_bit(rule):
    dag = Dag([(f"x{k}", f"h{k % 7}") for k in range(60)] + [(f"h{k}", "y") for k in range(7)], outputs=["y"])
    net = network(dag, dtype=torch.float32)
    x, threads, found = samples(net, 300), torch.get_num_threads(), []
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            found.append(explain(net, x, rule=rule, steps=8))
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(found[0].nodes, found[1].nodes) and torch.equal(found[0].edges, found[1].edges)
    assert torch.equal(found[0].edge_means, found[1].edge_means) and found[0].error == found[1].error


def test_float32_differs_by_rounding():
    net = network(small())
    x = samples(net, 8)
    exact = explain(net, x)
    single = explain(copy.deepcopy(net).float(), x.float())
    assert single.nodes.dtype == torch.float32
    assert torch.allclose(single.nodes.double(), exact.nodes, atol=1e-5)


def test_columns_by_name_and_a_baseline_by_name():
    net = network(small())
    x = samples(net, 2)
    names = net.input_names
    table = {name: x[:, k] for k, name in reversed(list(enumerate(names)))}
    found = explain(net, table, {"c": 3.0, "a": 1.0, "b": 2.0})

    column = dict(zip("abc", (1.0, 2.0, 3.0), strict=True))
    plain = explain(net, x, torch.tensor([column[name] for name in names], dtype=torch.float64))
    assert torch.equal(found.nodes, plain.nodes) and torch.equal(explain(net, x[0]).nodes, explain(net, x[:1]).nodes)


def test_an_input_as_output_explains_itself_and_a_constant_nothing():
    net = network(Dag([("a", "y"), ("c", "y")], inputs=["a"]))
    x = torch.tensor([[2.0]], dtype=torch.float64)
    found = explain(net, x, 0.5, output="a")
    assert dict(zip(found.node_names, found.nodes[0].tolist(), strict=True)) == {"a": 1.5, "y": 0.0, "c": 0.0}
    assert found.change.tolist() == [1.5] and not found.edges.any() and found.cut_sums().shape == (1, 0)
    assert not explain(net, x, output="c").nodes.any()


def test_the_error_is_printed_and_one_network_is_said_to_say_little():
    net = network(small(), "relu")
    found = explain(net, samples(net, 50), steps=2)
    assert found.error > 1e-6
    assert f"completeness error {found.error:.1e}" in str(found) and f"error={found.error:.1e}" in repr(found)
    assert "one network" in str(found)
    assert [name for name, _ in found.top(5)] == sorted("gh", key=lambda name: -dict(found.top())[name])
    assert len(found.top(2, of="edges")) == 2
    with pytest.raises(ConfigError, match="n must be a whole number, got 'a'"):
        found.top("a")


def test_a_frame_has_a_row_per_node_or_edge():
    pytest.importorskip("pandas")
    net = network(small())
    found = explain(net, samples(net))
    nodes, edges = found.to_frame(), found.to_frame("edges")
    assert nodes.set_index("node").kind.to_dict() == {"a": "input", "b": "input", "c": "input"} | {
        "h": "hidden",
        "g": "hidden",
        "y": "output",
    }
    assert list(zip(edges.source, edges.target, strict=True)) == list(net.edge_names())
    assert edges["mean"].tolist() == found.edge_means.tolist() and nodes.share.tolist() == found.node_shares.tolist()


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"x": torch.zeros(2, 4).double()}, GraphError, r"x must have the shape .*3\], got \[2, 4\]"),
        ({"x": torch.zeros(0, 3).double()}, GraphError, "x holds no samples"),
        ({"x": torch.zeros(2, 3)}, DtypeError, "x must be a dense tensor of torch.float64"),
        ({"x": torch.full((2, 3), torch.nan).double()}, ConfigError, "x is nan for the input 'a' of sample 0"),
        ({"baseline": torch.zeros(2).double()}, GraphError, r"baseline must be .*got the shape \[2\]"),
        ({"baseline": torch.zeros(3, 3).double()}, GraphError, "baseline has 3 rows for 2 samples"),
        ({"baseline": torch.tensor([0, torch.inf, 0]).double()}, ConfigError, "baseline is inf for the input 'b'"),
        ({"baseline": torch.zeros(3)}, DtypeError, "baseline must be a dense tensor"),
        ({"baseline": 10**400}, ConfigError, r"baseline must be a finite number in torch\.float64, got 1000"),
        ({"baseline": [0.0, 0.0, 0.0]}, DtypeError, r"baseline must be a tensor or an array .*, got a list"),
        ({"output": "z"}, GraphError, "'z'"),
        ({"rule": "lift"}, ConfigError, "rule must be 'path' or 'secant', got 'lift'"),
        ({"steps": 0}, ConfigError, "steps must be a whole number, at least 1, got 0"),
    ],
)
def test_bad_input_is_refused(arguments, error, text):
    net = network(small())
    with pytest.raises(error, match=text):
        explain(net, **{"x": torch.ones(2, 3).double()} | arguments)


def test_networks_without_a_complete_explanation_are_refused():
    net = network(small(), aggregation={"g": "max"})
    with pytest.raises(ConfigError, match="the node 'g' aggregates by max"):
        explain(net, samples(net))
    with pytest.raises(DtypeError, match="explain needs a DagNN, got Linear"):
        explain(torch.nn.Linear(2, 2), torch.zeros(1, 2))
    broken = network(small())
    broken.set_weights({("g", "y"): float("nan")})
    with pytest.raises(ConfigError, match="the output 'y' is not finite for sample 0"):
        explain(broken, samples(broken))
    dag = Dag([("a", "p"), ("b", "p"), ("p", "y")])
    for aggregation in ("sum", "product"):  # tanh of infinity is 1
        large = DagNN(
            dag, activation="identity", output_activation="tanh", aggregation={"p": aggregation}, dtype=torch.float64
        )
        large.set_weights(dict.fromkeys([("a", "p"), ("b", "p"), ("p", "y")], 1e200))
        for rule in ("path", "secant"):
            with pytest.raises(ConfigError, match="a node overflows for sample 0, though 'y' does not"):
                explain(large, torch.tensor([[1e200, 2.0]], dtype=torch.float64), rule=rule)
    several = network(Dag([("a", "y"), ("a", "z")]))
    with pytest.raises(GraphError, match="has 2 outputs, 'y', 'z'"):
        explain(several, samples(several))


@pytest.mark.parametrize(
    ("cut", "text"),
    [
        ({"a", "b"}, "without 'c'"),
        ({"a", "b", "c", "y"}, "must not hold the output"),
        ({"a", "b", "c", "g"}, "with 'g' but without 'h'"),
        ("abc", "a set of node names"),
    ],
)
def test_a_set_that_is_no_cut_is_refused(cut, text):
    net = network(small())
    with pytest.raises(GraphError, match=text):
        explain(net, samples(net)).cut_sums(cut)


def test_numbers_of_numpy_are_numbers():
    net = network(Dag([("a", "h"), ("b", "h"), ("h", "y")]))
    x = samples(net)
    expected = explain(net, x, 0.5, steps=8)
    found = explain(net, x, np.float32(0.5), steps=np.int64(8))
    assert torch.equal(found.nodes, expected.nodes)
