"""`DagNN.export` and `DagNN.predictor`: what they take, what they refuse, and that nothing is left half-written."""

import threading

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import dags
from torch.nn.utils import parametrize

from dagnn.errors import ConfigError, DtypeError, GraphError
from dagnn.graph import Dag
from dagnn.kernels import ACTIVATIONS
from dagnn.nn import DagNN, from_sequential

NAMES = sorted(ACTIVATIONS)


def network() -> DagNN:
    return DagNN(Dag([("a", "c"), ("b", "c"), ("c", "d")]))


@settings(max_examples=15, deadline=None)
@given(dag=dags(min_nodes=1, named=None), seed=st.integers(0, 99), double=st.booleans())
def test_a_predictor_is_the_network(dag, seed, double):
    if not len(dag.outputs):
        return
    generator = np.random.default_rng(seed)
    dtype = torch.float64 if double else torch.float32
    net = DagNN(dag, activation=[NAMES[k] for k in generator.integers(len(NAMES), size=dag.num_nodes)], dtype=dtype)
    predictor = net.predictor()
    x = generator.standard_normal((4, len(dag.inputs))).astype(predictor.dtype)
    np.testing.assert_array_equal(predictor(x[0]), net(torch.from_numpy(x[0])).detach().numpy())
    np.testing.assert_array_equal(predictor(x), net(torch.from_numpy(x)).detach().numpy())
    assert predictor(x[:0]).shape == (0, len(dag.outputs))


def test_a_dense_network_predicts_too():
    net = from_sequential(torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4)))
    x = np.random.default_rng(0).standard_normal(64).astype(np.float32)
    np.testing.assert_array_equal(net.predictor()(x), net(torch.from_numpy(x)).detach().numpy())


def test_a_predictor_keeps_its_weights_and_returns_new_arrays():
    net = network()
    predictor = net.predictor()
    first = predictor(np.ones(2))
    kept = first.copy()
    with torch.no_grad():
        net.edge_weight.zero_()
    second = predictor(np.zeros(2))
    np.testing.assert_array_equal(first, kept)
    assert second.base is None and not np.shares_memory(first, second)
    np.testing.assert_array_equal(predictor(np.ones(2)), kept)


@pytest.mark.parametrize("x", [[1, 2], np.array([1, 2]), np.array([1.0, 2.0]), np.array([True, False]), (1.0, 2.5)])
def test_other_real_numbers_are_converted(x):
    net = network()
    expected = net(torch.tensor(np.asarray(x, dtype=np.float32))).detach().numpy()
    np.testing.assert_array_equal(net.predictor()(x), expected)


def test_rows_of_other_layouts_and_read_only_rows():
    net, x = network(), np.random.default_rng(0).standard_normal((6, 4))[::2, ::2]
    expected = net(torch.from_numpy(x.astype(np.float32))).detach().numpy()
    np.testing.assert_array_equal(net.predictor()(x), expected)
    frozen = np.ascontiguousarray(x[0])
    frozen.flags.writeable = False
    one = net(torch.from_numpy(x[0].astype(np.float32))).detach().numpy()
    np.testing.assert_array_equal(net.predictor()(frozen), one)


@pytest.mark.parametrize(
    ("x", "error"),
    [
        (np.ones(3), GraphError),
        (np.ones((2, 3)), GraphError),
        (np.ones((2, 2, 2)), GraphError),
        (1.0, GraphError),
        (np.ones(2, complex), DtypeError),
        (["a", "b"], DtypeError),
        (None, DtypeError),
    ],
)
def test_what_a_predictor_refuses(x, error):
    with pytest.raises(error, match="x must"):
        network().predictor()(x)


def test_threads_share_a_predictor():
    net = network()
    predictor, wrong = net.predictor(), []
    rows = np.random.default_rng(0).standard_normal((4, 2)).astype(np.float32)
    expected = [predictor(row) for row in rows]

    def work(number: int) -> None:
        wrong.extend(1 for _ in range(300) if not np.array_equal(predictor(rows[number]), expected[number]))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_computed_weights_leave_as_they_are_computed(tmp_path):
    class Double(torch.nn.Module):
        def forward(self, weight):
            return 2 * weight

    net = network()
    plain = network()
    plain.load_state_dict(net.state_dict())
    with torch.no_grad():
        plain.edge_weight.mul_(2)
    parametrize.register_parametrization(net, "edge_weight", Double())
    np.testing.assert_array_equal(net.program().weight, plain.program().weight)
    np.testing.assert_array_equal(net.predictor()(np.ones(2)), plain.predictor()(np.ones(2)))


@pytest.mark.parametrize("format", ["c", "onnx", "torch"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_no_numbers_are_refused(tmp_path, format, value):
    net = network()
    net.set_weights({("a", "c"): value})
    with pytest.raises(ConfigError, match="NaN or infinite"):
        net.export(tmp_path / "net.c" if format == "c" else tmp_path / "net", format)
    assert list(tmp_path.iterdir()) == []


def test_half_precision_is_refused():
    with pytest.raises(ConfigError, match=r"net\.float"):
        network().half().predictor()


@pytest.mark.parametrize(
    ("file", "format", "message"),
    [
        ("net", None, "does not say the format"),
        ("net.txt", None, "does not say the format"),
        ("net.c", "fortran", "format must be one of c, onnx, torch, got 'fortran'"),
        ("net.cpp", "c", "ends in .c"),
    ],
)
def test_formats_that_are_refused(tmp_path, file, format, message):
    with pytest.raises(ConfigError, match=message):
        network().export(tmp_path / file, format)


def test_files_that_exist_stay(tmp_path):
    (tmp_path / "net.h").write_text("mine")
    with pytest.raises(FileExistsError, match="overwrite"):
        network().export(tmp_path / "net.c")
    assert [path.name for path in tmp_path.iterdir()] == ["net.h"]
    assert (tmp_path / "net.h").read_text() == "mine"
    written = network().export(tmp_path / "net.c", overwrite=True)
    assert sorted(path.name for path in written) == sorted(path.name for path in tmp_path.iterdir())


def test_a_folder_that_is_missing_is_said(tmp_path):
    with pytest.raises(FileNotFoundError):
        network().export(tmp_path / "none" / "net.c")


def test_an_error_between_two_files_leaves_none(tmp_path, monkeypatch):
    (tmp_path / "net_test.c").mkdir()
    with pytest.raises(OSError, match="net_test"):
        network().export(tmp_path / "net.c", overwrite=True)
    assert [path.name for path in tmp_path.iterdir()] == ["net_test.c"]
