"""Networks as ONNX: standard operators, any batch, equal under ONNX Runtime."""

import json
import warnings

import numpy as np
import pytest
import torch
from export_cases import (
    CELLS,
    GRAPHS,
    NAMES,
    SWEPT,
    SYMBOLS,
    any_network,
    network,
    random_network,
    sweep_of,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import dags

from dagnn.errors import ConfigError, MissingPackageError
from dagnn.graph import Dag
from dagnn.nn import DagNN, DagSweep, FormulaCell


@pytest.fixture(scope="module")
def runtime():
    pytest.importorskip("onnx")
    return pytest.importorskip("onnxruntime")


def run_onnx(runtime, path, x: np.ndarray) -> np.ndarray:
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return session.run(None, {"x": x})[0]


@settings(max_examples=25, deadline=None)
@given(dag=dags(min_nodes=1, max_nodes=14, named=None), seed=st.integers(0, 99), double=st.booleans())
def test_random_networks_equal_onnx(tmp_path_factory, runtime, dag, seed, double):
    if not len(dag.outputs):
        return
    generator = np.random.default_rng(seed)
    net = (any_network if seed % 2 else random_network)(dag, seed, torch.float64 if double else torch.float32)
    path = tmp_path_factory.mktemp("onnx") / "net.onnx"
    net.export(path)
    for batch in (3, 1, 0):
        x = generator.standard_normal((batch, len(dag.inputs))).astype(net.program().weight.dtype)
        expected = net(torch.from_numpy(x)).detach().numpy()
        largest = max(1.0, np.abs(expected).max(initial=0))
        np.testing.assert_allclose(run_onnx(runtime, path, x), expected, rtol=0, atol=1e-6 * largest)


def test_every_activation_over_its_range(tmp_path, runtime):
    dag = Dag([("x", name) for name in NAMES], inputs=["x"], outputs=NAMES)
    for dtype in (torch.float32, torch.float64):
        net = DagNN(dag, activation={name: name for name in NAMES}, dtype=dtype)
        net.set_weights({("x", name): 1.0 for name in NAMES})
        path = tmp_path / f"{dtype}.onnx"
        net.export(path)
        x = torch.cat([torch.linspace(-100, 100, 2001, dtype=dtype), torch.tensor([0.0, 1e-20, -1e-20], dtype=dtype)])
        expected = net(x[:, None]).detach().numpy()
        found = run_onnx(runtime, path, x[:, None].numpy())
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6 if dtype == torch.float32 else 1e-9)


def test_the_model_has_standard_operators_and_names(tmp_path, runtime):
    import onnx

    net = DagNN(Dag([("gene A", "b"), ("c", "b")]), activation="silu")
    net.export(tmp_path / "net.onnx")
    model = onnx.load(tmp_path / "net.onnx")
    assert {(entry.domain, entry.version) for entry in model.opset_import} == {("", 18)}
    assert {node.domain for node in model.graph.node} == {""}
    properties = {entry.key: json.loads(entry.value) for entry in model.metadata_props}
    assert properties == {"input_names": ["gene A", "c"], "output_names": ["b"]}


def test_without_the_package_the_error_names_it(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "onnx", None)
    with pytest.raises(MissingPackageError, match=r"pip install .dagnn\[export\]"):
        DagNN(Dag([(0, 1)])).export(tmp_path / "net.onnx")
    assert list(tmp_path.iterdir()) == []


def test_torch_programs_load_and_are_equal(tmp_path):
    net = DagNN(Dag([("a", "b"), ("c", "b"), ("b", "d"), ("a", "d")]), activation="gelu")
    net.export(tmp_path / "net.pt2")
    program = torch.export.load(tmp_path / "net.pt2")
    assert all("dagnn" not in str(node.target) for node in program.graph.nodes if node.op == "call_function")
    for batch in (1, 2, 7):
        x = torch.randn(batch, 2)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.testing.assert_close(program.module()(x), net(x), rtol=1e-5, atol=1e-6)


def equals_onnx(runtime, path, module, graph, x) -> None:
    """To 1e-6 of the largest number, all results by name."""
    module.export(path, graph=graph)
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    found = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    expected = module(x, graph)
    assert [one.name for one in session.get_outputs()] == list(getattr(expected, "_fields", ["y"]))
    for one, other in zip(found, expected if isinstance(expected, tuple) else [expected], strict=True):
        numbers = other.detach().numpy()
        np.testing.assert_allclose(one, numbers, rtol=0, atol=1e-6 * max(1, np.abs(numbers).max(initial=0)))


@pytest.mark.filterwarnings("ignore")  # those of torch's own tracers
@pytest.mark.parametrize(
    ("name", "double"),
    [
        pytest.param(name, bool(number % 2), marks=[] if name in ("mean", "max", "attention") else [pytest.mark.slow])
        for number, name in enumerate(CELLS)
    ],
)
def test_sweeps_over_a_graph_equal_onnx(tmp_path, runtime, name, double):
    dtype = torch.float64 if double else torch.float32
    sweep = sweep_of(name, "both" if double else "down", dtype, operators=2 if double else None)
    equals_onnx(runtime, tmp_path / "net.onnx", sweep, SWEPT, torch.randn(SWEPT.num_nodes, 3, dtype=dtype))


@pytest.mark.filterwarnings("ignore")  # those of torch's own tracers
@pytest.mark.parametrize("number", [*(pytest.param(k, marks=pytest.mark.slow) for k in range(4)), 4])
def test_networks_over_a_graph_equal_onnx(tmp_path, runtime, number):
    net = network(number, torch.float64 if number % 2 else torch.float32)
    equals_onnx(runtime, tmp_path / "net.onnx", net, GRAPHS, torch.arange(GRAPHS.num_nodes) % SYMBOLS)


@pytest.mark.filterwarnings("ignore")  # those of torch's own tracers
def test_an_operator_without_a_translation_is_named(tmp_path):
    pytest.importorskip("onnx")

    class Erf(FormulaCell):
        def formula(self, x, operands, weights):
            return torch.erf(x.n + weights.product(operands.sum(operands.h)).n)

    with pytest.raises(ConfigError, match="no translation of PyTorch's aten::erf"):
        DagSweep(Erf(3, 4)).export(tmp_path / "net.onnx", graph=Dag([(0, 1)]))
    assert list(tmp_path.iterdir()) == []
