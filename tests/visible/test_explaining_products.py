"""`explain` through products: complete over every cut, the definition by autograd, Shapley values of messages."""

from itertools import permutations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import dags

from dagnn import Dag, DagNN
from dagnn.kernels.network import conductance_products
from dagnn.kernels.nodes import activation_of
from dagnn.visible import explain

SMOOTH = ("identity", "tanh", "sigmoid", "gelu", "silu", "softplus")


def inner(dag):
    inputs = set(dag.inputs.tolist())
    return [v for v in range(dag.num_nodes) if v not in inputs]


def network(dag, activation="tanh", *, kinds=("product", "sum", "mean"), seed=0, dtype=torch.float64):
    torch.manual_seed(seed)
    names = {dag.name_of(v): kinds[k % len(kinds)] for k, v in enumerate(inner(dag))}
    factors = {name: (1.5, -0.7, 1.0)[k % 3] for k, name in enumerate(names)}
    options = {"aggregation": names, "response": factors, "bias": list(names), "dtype": dtype}
    net = DagNN(dag, activation=activation, output_activation=activation, **options)
    with torch.no_grad():
        net.bias.uniform_(-0.5, 0.5)
    return net


def samples(net, batch=3, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(batch, len(net.dag.inputs), dtype=net.edge_weight.dtype, generator=generator)


@st.composite
def cases(draw):
    """A random Dag, the node to explain, a cut below it or None, and which nodes multiply."""
    dag = draw(dags(min_nodes=2, max_nodes=8))
    output = draw(st.integers(0, dag.num_nodes - 1))
    chosen = set(dag.inputs.tolist()) | draw(st.sets(st.integers(0, dag.num_nodes - 1)))
    for v in reversed(dag.order.tolist()):
        if v in chosen:
            chosen |= {u for u, w in dag.edges.tolist() if w == v}
    kinds = draw(st.permutations(("product", "sum", "product", "mean")))
    return dag, output, chosen - {output} if output not in chosen else None, tuple(kinds)


def check_cuts(found, cut, tolerance):
    sums = found.cut_sums() if cut is None else torch.cat([found.cut_sums(cut), found.cut_sums()], dim=1)
    scale = 1 + found.edges.abs().sum(1, keepdim=True)
    assert ((sums - found.change.unsqueeze(1)).abs() <= tolerance * scale).all()
    assert found.error <= tolerance * float(scale.max())


@settings(max_examples=30, deadline=None)
@given(cases(), st.sampled_from([*SMOOTH, "relu"]), st.integers(1, 4))
def test_secants_are_complete_over_every_cut_at_any_number_of_steps(case, activation, steps):
    dag, output, cut, kinds = case
    net = network(dag, activation, kinds=kinds)
    check_cuts(explain(net, samples(net), samples(net, seed=2), output=output, rule="secant", steps=steps), cut, 1e-12)


@settings(max_examples=20, deadline=None)
@given(cases(), st.sampled_from(("identity", "tanh", "sigmoid", "softplus")))
def test_paths_are_complete_over_every_cut(case, activation):
    dag, output, cut, kinds = case
    net = network(dag, activation, kinds=kinds)
    check_cuts(explain(net, samples(net) / 2, samples(net, seed=2) / 2, output=output, steps=64), cut, 1e-10)


def test_paths_are_exact_for_polynomials_with_enough_points():
    """y = (a b c) (a d) has degree 5 on the path, so its derivative degree 4: three points suffice, two do not."""
    edges = [("a", "p"), ("b", "p"), ("c", "p"), ("a", "q"), ("d", "q"), ("p", "y"), ("q", "y")]
    dag, options = Dag(edges, outputs=["y"]), {"activation": "identity", "bias": False, "dtype": torch.float64}
    net = DagNN(dag, aggregation="product", **options)
    with torch.no_grad():
        net.edge_weight.fill_(1.0)  # small random ones would make both errors small
    x, baseline = samples(net, 5), samples(net, 5, seed=2)
    errors = [explain(net, x, baseline, steps=steps).error for steps in (2, 3)]
    assert errors[0] > 1e-4
    assert errors[1] < 1e-13


def by_autograd(net, x, baseline, output, steps):
    """Conductance of every edge by its definition: what dF by its message is, times how the message moves."""
    points, weights = np.polynomial.legendre.leggauss(steps)
    total = torch.zeros(len(x), net.dag.num_edges, dtype=x.dtype)
    for point, share in zip((points + 1) / 2, weights / 2, strict=True):
        for sample in range(len(x)):
            s = torch.tensor(point, dtype=x.dtype, requires_grad=True)
            added = torch.zeros(net.dag.num_edges, dtype=x.dtype, requires_grad=True)
            value, messages = run(net, baseline[sample] + s * (x[sample] - baseline[sample]), added, output)
            if not value.requires_grad:
                continue
            (adjoint,) = torch.autograd.grad(value, added, retain_graph=True, allow_unused=True)
            if adjoint is None:
                continue
            for edge, message in enumerate(messages):
                if message is not None and message.requires_grad:
                    (speed,) = torch.autograd.grad(message, s, retain_graph=True, allow_unused=True)
                    total[sample, edge] += 0 if speed is None else share * adjoint[edge] * speed
    return total


def run(net, x, added, output):
    """The value of a node where ``added [num_edges]`` is added to every message, and the messages without it."""
    dag, values = net.dag, {}
    names = [(dag.index_of(u), dag.index_of(v)) for u, v in net.edge_names()]
    messages = [None] * len(names)
    column = {v: k for k, v in enumerate(dag.inputs.tolist())}
    for v in dag.order.tolist():
        if v in column:
            values[v] = x[column[v]]
            continue
        into = [k for k, (_, w) in enumerate(names) if w == v]
        for k in into:
            messages[k] = net.edge_weight[k].detach() * values[names[k][0]]
        z = x.new_ones(()) if net.aggregations[v] == "product" else x.new_zeros(())
        for k in into:
            z = z * (messages[k] + added[k]) if net.aggregations[v] == "product" else z + messages[k] + added[k]
        if net.aggregations[v] == "mean" and into:
            z = z / len(into)
        z = float(net.biases()[dag.name_of(v)]) + net.responses[v] * z
        values[v] = activation_of(net.activations[v])(z)
    return values[output], messages


@settings(max_examples=15, deadline=None)
@given(cases(), st.sampled_from(SMOOTH))
def test_conductances_of_edges_are_those_of_the_definition(case, activation):
    dag, output, _, kinds = case
    net = network(dag, activation, kinds=kinds)
    x, baseline = samples(net, 2), samples(net, 2, seed=3)
    found = explain(net, x, baseline, output=output, steps=4)

    assert torch.allclose(found.edges, by_autograd(net, x, baseline, output, 4), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
def test_a_secant_shares_the_change_of_a_product_as_shapley_does(count):
    names = [f"x{k}" for k in range(count)]
    dag = Dag([(name, "y") for name in names], inputs=names, outputs=["y"])
    net = DagNN(dag, activation="identity", aggregation="product", dtype=torch.float64)
    net.set_weights({(name, "y"): 0.5 + k for k, name in enumerate(names)})
    x, baseline = samples(net, 1), samples(net, 1, seed=2)
    found = explain(net, x, baseline, rule="secant", steps=1)

    weights = torch.tensor([0.5 + k for k in range(count)], dtype=torch.float64)
    before, after = (part[0] * weights for part in (baseline, x))
    expected, orders = torch.zeros(count, dtype=torch.float64), list(permutations(range(count)))
    for order in orders:
        now = before.clone()
        for k in order:
            earlier = now.prod()
            now[k] = after[k]
            expected[k] += (now.prod() - earlier) / len(orders)
    assert torch.allclose(found.nodes[0, dag.inputs], expected, rtol=1e-12, atol=1e-13)


def test_a_message_of_zero_is_no_division():
    dag = Dag([("a", "y"), ("b", "y"), ("c", "y")], inputs=["a", "b", "c"], outputs=["y"])
    net = DagNN(dag, activation="identity", aggregation="product", dtype=torch.float64)
    net.set_weights({(name, "y"): 1.0 for name in "abc"})
    for rule in ("path", "secant"):
        found = explain(net, torch.tensor([[0.0, 0.0, 3.0], [2.0, 0.0, 3.0]]).double(), 1.0, rule=rule)
        assert found.edges.isfinite().all()
        assert torch.allclose(found.edges.sum(1), torch.tensor([-1.0, -1.0]).double(), atol=1e-13)


def test_a_chunk_of_samples_is_explained_as_all_of_them(monkeypatch):
    dag = Dag([("a", "h"), ("b", "h"), ("b", "g"), ("h", "y"), ("g", "y"), ("a", "y")], outputs=["y"])
    for dtype, tolerance in ((torch.float64, 1e-13), (torch.float32, 1e-5)):
        net = network(dag, dtype=dtype)
        whole = explain(net, samples(net, 7))
        with monkeypatch.context() as patch:
            patch.setattr(conductance_products, "CHUNK", 1)
            parts = explain(net, samples(net, 7))
        assert torch.allclose(whole.edges, parts.edges, rtol=tolerance, atol=tolerance)
        assert torch.allclose(whole.nodes, parts.nodes, rtol=tolerance, atol=tolerance)
        assert whole.nodes.dtype == dtype
        assert whole.error < 1e3 * tolerance


def test_inputs_have_the_integrated_gradients_of_captum():
    captum = pytest.importorskip("captum.attr")
    dag = Dag([("a", "h"), ("b", "h"), ("b", "g"), ("c", "g"), ("h", "y"), ("g", "y"), ("a", "y")], outputs=["y"])
    net = network(dag, kinds=("product", "product", "sum"))
    x, baseline = samples(net, 4), samples(net, 4, seed=2)
    found = explain(net, x, baseline)

    method = captum.IntegratedGradients(lambda given: net(given)[:, 0])
    expected = method.attribute(x, baseline, n_steps=32, method="gausslegendre")
    assert torch.allclose(found.nodes[:, dag.inputs], expected, rtol=1e-6, atol=1e-8)
