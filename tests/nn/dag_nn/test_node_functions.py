"""What nodes compute: activations by name and formula, aggregations and responses, wherever a network goes."""

import copy
import math
import re

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from strategies import dags

from dagnn import Dag, DagNN
from dagnn.errors import ConfigError, GraphError
from dagnn.kernels import AGGREGATIONS, NEAT_ACTIVATIONS

FORMULAS = [
    lambda z: z * torch.sigmoid(z),
    lambda z: torch.where(z > 0, z, 0.1 * z.sin()),
    lambda z: (z - z.tanh()).abs().sqrt(),
    lambda z: torch.clamp(z, -1, 1) ** 3 + 0.5,
    torch.sin,
]
DAG = Dag([("a", "c"), ("b", "c"), ("c", "d"), ("a", "d"), ("d", "e")], inputs=["a", "b"], outputs=["e", "c"])
MIXED = {
    "activation": {"c": "neat.sin", "d": lambda z: z * torch.sigmoid(z)},
    "output_activation": "neat.gauss",
    "aggregation": {"d": "product", "e": "max"},
    "response": {"c": 1.5, "e": -0.5},
}


def mixed(**options) -> DagNN:
    torch.manual_seed(0)
    return DagNN(DAG, **MIXED, **{"dtype": torch.float64, **options})


def by_hand(net: DagNN, a: float, b: float) -> tuple[float, float]:
    w, bias = net.edge_weights(), net.biases()
    c = math.sin(5 * (bias["c"] + 1.5 * (w["a", "c"] * a + w["b", "c"] * b)))
    d = bias["d"] + w["c", "d"] * c * w["a", "d"] * a
    d = d / (1 + math.exp(-d))
    return math.exp(-5 * (bias["e"] - 0.5 * w["d", "e"] * d) ** 2), c


@st.composite
def networks(draw: st.DrawFn) -> DagNN:
    dag = draw(dags(min_nodes=1, max_nodes=9, named=None))
    size = dag.num_nodes
    names = st.sampled_from(["tanh", "gelu", *sorted(NEAT_ACTIVATIONS.keys() - {"neat.inv", "neat.cube"})])
    activation = draw(st.lists(names | st.sampled_from(FORMULAS[:1]), min_size=size, max_size=size))
    aggregation = draw(st.lists(st.sampled_from(sorted(AGGREGATIONS)), min_size=size, max_size=size))
    response = draw(st.lists(st.sampled_from([1.0, -0.5, 2.0]), min_size=size, max_size=size))
    torch.manual_seed(draw(st.integers(0, 9)))
    return DagNN(dag, activation=activation, aggregation=aggregation, response=response, dtype=torch.float64)


def outputs(net: DagNN, x: torch.Tensor) -> list[torch.Tensor]:
    """y, and the gradients for its sum."""
    net.zero_grad()
    x = x.clone().requires_grad_()
    y = net(x)
    y.sum().backward()
    return [y.detach(), *(torch.zeros(0) if p.grad is None else p.grad for p in (x, net.edge_weight, net.bias))]


def test_values_by_hand():
    net = mixed()
    x = torch.tensor([[0.3, -0.2], [1.0, 2.0], [-0.7, 0.0]], dtype=torch.float64)
    expected = torch.tensor([by_hand(net, *row) for row in x.tolist()], dtype=torch.float64)
    torch.testing.assert_close(net(x), expected, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("batch", [0, 1, 5, 70])
def test_the_reference_has_the_same_values_and_gradients(batch, monkeypatch):
    net = mixed()
    x = torch.randn(batch, 2, dtype=torch.float64)
    ours = outputs(net, x)
    assert net.explain().startswith("compiled")
    monkeypatch.setenv("DAGNN_KERNELS", "reference")
    assert net.explain() == "reference: plain PyTorch, level by level, because DAGNN_KERNELS=reference"
    for one, other in zip(ours, outputs(net, x), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("formula", FORMULAS)
def test_a_formula_is_the_function_that_it_writes(formula):
    net = DagNN(Dag([(0, 1)]), output_activation=formula, bias=False, dtype=torch.float64)
    net.set_weights({(0, 1): 1.0})
    x = torch.linspace(-3, 3, 41, dtype=torch.float64).unsqueeze(1).requires_grad_()
    y, expected = net(x), formula(x)
    torch.testing.assert_close(y, expected, rtol=1e-13, atol=1e-13)
    slopes = [torch.autograd.grad(one.sum(), x)[0] for one in (y, expected)]
    torch.testing.assert_close(*slopes, rtol=1e-12, atol=1e-12, equal_nan=True)


def test_derivatives_are_differences_twice():
    net = mixed()

    def run(*given: torch.Tensor) -> torch.Tensor:
        x, weight, bias = given
        return torch.func.functional_call(net, {"edge_weight": weight, "bias": bias}, (x,))

    parts = [torch.rand(3, 2, dtype=torch.float64), *(p.detach().clone() for p in net.parameters())]
    parts = [part.requires_grad_() for part in parts]
    assert torch.autograd.gradcheck(run, parts) and torch.autograd.gradgradcheck(run, parts)


@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(networks())
def test_save_and_load_keep_the_function(tmp_path, net):
    net.save(tmp_path / "net")
    loaded = DagNN.load(tmp_path / "net")
    x = torch.randn(3, len(net.dag.inputs), dtype=torch.float64)
    assert torch.equal(loaded(x), net(x)) or net(x).isnan().any()
    for name in ("activations", "aggregations", "responses"):
        assert getattr(loaded, name) == getattr(net, name)


def test_what_is_saved_is_the_formula_and_no_code(tmp_path):
    net = mixed()
    net.save(tmp_path / "net")
    content = (tmp_path / "net").read_bytes()
    assert b'"sigmoid' in content.replace(b"\\", b"") and b"lambda" not in content
    DagNN(DAG).save(tmp_path / "plain")
    assert b'version\\": 1' in (tmp_path / "plain").read_bytes()  # earlier versions read it


def test_pickles_and_copies_keep_the_function(tmp_path):
    net = mixed()
    x = torch.randn(3, 2, dtype=torch.float64)
    torch.save(net, tmp_path / "net.pt")
    for twin in (copy.deepcopy(net), torch.load(tmp_path / "net.pt", weights_only=False)):
        assert torch.equal(twin(x), net(x))


def test_grow_and_prune_keep_what_nodes_compute():
    net = mixed()
    x = torch.rand(4, 2, dtype=torch.float64)
    before = net(x).detach()
    net.grow(
        [("a", "n"), ("b", "n"), ("n", "c")],
        nodes=["n"],
        weight=[2.0, 3.0, 0.0],
        activation=lambda z: z.cos(),
        aggregation="mean",
        response=4.0,
    )
    torch.testing.assert_close(net(x).detach(), before, rtol=1e-13, atol=1e-13)
    net.set_weights({("n", "c"): 1.0})
    n = (4 * (2 * x[:, 0] + 3 * x[:, 1]) / 2).cos()
    w, c = net.edge_weights(), net(x)[:, 1]
    expected = (5 * (1.5 * (w["a", "c"] * x[:, 0] + w["b", "c"] * x[:, 1] + n))).sin()
    torch.testing.assert_close(c, expected, rtol=1e-12, atol=1e-12)

    net.set_weights({("c", "d"): 1e-9})
    assert net.prune(threshold=1e-6).removed == 1
    assert net.aggregations[net.dag.index_of("d")] == "product"
    d = w["a", "d"] * x[:, 0]  # the product of what is left
    e = (-0.5 * w["d", "e"] * d * d.sigmoid()).square().mul(-5).exp()
    torch.testing.assert_close(net(x)[:, 0], e, rtol=1e-12, atol=1e-12)


@pytest.mark.filterwarnings("ignore")
def test_an_exported_program_and_torch_compile_compute_the_same(tmp_path):
    net = mixed()
    x = torch.randn(5, 2, dtype=torch.float64)
    program = torch.export.export(net, (x,), dynamic_shapes=({0: torch.export.Dim("batch")},))
    torch.export.save(program, tmp_path / "net.pt2")
    run = torch.export.load(tmp_path / "net.pt2").module()
    for given_x in (x, torch.randn(9, 2, dtype=torch.float64)):
        torch.testing.assert_close(run(given_x), net(given_x), rtol=1e-12, atol=1e-12)
    compiled = torch.compile(net, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), net(x), rtol=1e-12, atol=1e-12)


def test_a_predictor_and_an_exported_program_compute_the_same(tmp_path):
    net = DagNN(
        Dag([(u, v) for v in range(1, 12) for u in range(v)]),
        activation=["tanh", "neat.sin", "gelu"] * 4,
        aggregation=[*sorted(set(AGGREGATIONS) - {"median"}), *["max", "product"] * 3],
        response=[1.0, 1.5, -0.5] * 4,
    )
    x = torch.randn(5, 1)
    y = net(x).detach()
    found = net.predictor()
    torch.testing.assert_close(torch.from_numpy(found(x.numpy())), y, rtol=1e-5, atol=1e-5)
    for row, expected in zip(x.numpy(), y, strict=True):
        torch.testing.assert_close(torch.from_numpy(found(row)), expected, rtol=1e-5, atol=1e-5)
    net.export(tmp_path / "net.pt2")
    program = torch.export.load(tmp_path / "net.pt2").module()
    torch.testing.assert_close(program(x), y, rtol=1e-5, atol=1e-5)
    with pytest.raises(ConfigError, match="aggregate by median"):
        DagNN(DAG, aggregation="median").predictor()


def test_a_median_runs_on_the_reference_and_says_so():
    net = DagNN(Dag([(0, 3), (1, 3), (2, 3)]), aggregation="median", dtype=torch.float64)
    net.set_weights({(0, 3): 1.0, (1, 3): 1.0, (2, 3): 1.0})
    assert net.explain().endswith("because nodes aggregate by median, which is not compiled")
    assert net(torch.tensor([[3.0, -1.0, 2.0]], dtype=torch.float64)).item() == 2
    net.backward_accumulate(torch.ones(1, 1, dtype=torch.float64))
    assert net.edge_grads() == {(0, 3): 0.0, (1, 3): 0.0, (2, 3): 2.0}


@pytest.mark.parametrize(("times", "path"), [(100, "compiled"), (300, "reference: .* a formula has 602 operations")])
def test_a_long_formula_runs(times, path, tmp_path):
    def deep(z):
        for _ in range(times):
            z = (z + 0.5).tanh()
        return z

    net = DagNN(DAG, activation=deep, dtype=torch.float64)
    assert re.match(path, net.explain())
    x = torch.randn(3, 2, dtype=torch.float64)
    w, c = net.edge_weights(), net(x)[:, 1]
    expected = deep(w["a", "c"] * x[:, 0] + w["b", "c"] * x[:, 1])
    torch.testing.assert_close(c, expected, rtol=1e-12, atol=1e-12)
    net.save(tmp_path / "net")
    assert torch.equal(DagNN.load(tmp_path / "net")(x), net(x))


def test_first_weights_give_means_and_products_unit_variance():
    torch.manual_seed(0)
    count = 60
    for kind in ("sum", "mean"):
        dag = Dag([(u, v) for u in range(count) for v in range(count, 2 * count)])
        y = DagNN(dag, aggregation=kind)(torch.randn(4000, count))
        assert y.std().item() == pytest.approx(1, rel=0.1)
    pairs = Dag([(u, v) for v in range(3, 300) for u in range(3)])
    y = DagNN(pairs, aggregation="product")(torch.randn(4000, 3))
    assert 0.5 < y.square().mean().item() < 2


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"activation": "sine"}, ConfigError, "got 'sine'"),
        ({"activation": "sin"}, ConfigError, "write activation='neat.sin'"),
        ({"activation": "neat.sinn"}, ConfigError, "write activation='neat.sin'"),
        ({"activation": "[[1]]"}, ConfigError, "are no formula"),
        ({"activation": "[1"}, ConfigError, "is no formula"),
        ({"activation": lambda z: math.sin(z)}, ConfigError, r"`.*math\.sin\(z\).*`"),
        ({"activation": lambda z: z if z > 0 else 0 * z}, ConfigError, r"`.*if z > 0 else.*`"),
        ({"activation": lambda z: torch.erf(z)}, ConfigError, r"torch\.erf"),
        ({"activation": lambda z: 1.0}, ConfigError, "must return"),
        ({"activation": lambda z: (z, z)}, ConfigError, "must return one value, got 2"),
        ({"activation": lambda z: z.sum()}, ConfigError, "sum"),
        ({"activation": lambda: 1.0}, ConfigError, "must be a function of one value"),
        ({"activation": ["tanh", lambda z: torch.erf(z)]}, ConfigError, "activation lists 2 names"),
        ({"aggregation": "average"}, ConfigError, "write aggregation='mean'"),
        ({"aggregation": "maximum"}, ConfigError, "write aggregation='max'"),
        ({"aggregation": torch.prod}, ConfigError, "write aggregation='product'"),
        ({"aggregation": ["sum"]}, ConfigError, "aggregation lists 1 names, expected one for each of 5 nodes"),
        ({"aggregation": {"q": "max"}}, GraphError, "'q'"),
        ({"response": {"q": 1.0}}, GraphError, "'q'"),
        ({"response": {"c": "x"}}, ConfigError, r"response\['c'\] must be a finite number, got 'x'"),
        ({"response": math.inf}, ConfigError, "response must be a finite number"),
        ({"response": [1.0]}, ConfigError, "response lists 1 numbers"),
    ],
)
def test_what_no_node_computes_is_refused(options, error, message):
    with pytest.raises(error, match=message):
        DagNN(DAG, **options)
    name = next(iter(options))
    if not isinstance(options[name], list | dict):
        net = mixed()
        with pytest.raises(error, match=message):
            net.grow(nodes=["n"], **options)
        assert net.dag.num_nodes == 5
