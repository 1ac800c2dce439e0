"""Networks as ONNX: standard operators, any batch, equal under ONNX Runtime."""

import json
import warnings

import numpy as np
import pytest
import torch
from export_cases import NAMES, any_network, random_network
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import dags

from dagnn.errors import MissingPackageError
from dagnn.graph import Dag
from dagnn.nn import DagNN


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
