"""Weights of 8 and 16 bits: the bound holds, for every activation, and the C code is within it."""

import warnings

import numpy as np
import pytest
import torch
from export_cases import compiled, needs_compiler, random_network, run_c
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import dags

from dagnn.errors import ConfigError, GraphError
from dagnn.export.rounded import error_bounds, rounded
from dagnn.graph import Dag
from dagnn.kernels import ACTIVATIONS
from dagnn.nn import DagNN

NAMES = sorted(ACTIVATIONS)


def with_stored_weights(net: DagNN, storage: str) -> DagNN:
    """The network in float64 with the weights that are stored; of a network all of whose nodes are read."""
    twin = DagNN(net.dag, activation=net.activations, bias=net.bias_nodes, dtype=torch.float64)
    twin.load_state_dict(net.state_dict())
    with torch.no_grad():
        twin.edge_weight.copy_(torch.from_numpy(rounded(net.program(), storage).weight))
    return twin


@settings(max_examples=25, deadline=None)
@given(
    dag=dags(min_nodes=1, max_nodes=12),
    seed=st.integers(0, 99),
    storage=st.sampled_from(["int8", "bfloat16"]),
    size=st.sampled_from([0.01, 1.0, 30.0]),
)
def test_no_input_moves_an_output_by_more(dag, seed, storage, size):
    dag = Dag(dag.edges, dag.num_nodes, inputs=dag.inputs, outputs=torch.arange(dag.num_nodes))  # all are read
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        net = random_network(dag, seed, torch.float64)
        with torch.no_grad():
            net.edge_weight.mul_(size)
        twin = with_stored_weights(net, storage)
    bounds = np.array(list(net.error_bounds(storage, (-1.5, 2.0)).values()))
    x = np.random.default_rng(seed).uniform(-1.5, 2.0, (200, len(dag.inputs)))
    x[: min(4, len(x))] = np.array([-1.5, 2.0, 0.0, 1.0])[:, None]
    exact, stored = (one(torch.from_numpy(x)).detach().numpy() for one in (net, twin))
    slack = 1e-12 * np.maximum(1, np.abs(exact))  # both are computed in float64
    assert (np.abs(exact - stored) <= bounds + slack).all()


@pytest.mark.parametrize("name", NAMES)
def test_the_slope_of_every_activation_is_bounded(name):
    """One weight that is off: the output moves by no more than the bound, and the bound is of that size."""
    for low, high in ((-30, 30), (-3, -1), (1, 3), (-0.5, 0.5), (19, 21)):
        net = DagNN(Dag([(0, 1)], outputs=[1]), output_activation=name, bias=False, dtype=torch.float64)
        net.set_weights({(0, 1): 1.001})
        (bound,) = net.error_bounds("bfloat16", (low, high)).values()
        x = torch.linspace(low, high, 2001, dtype=torch.float64)[:, None]
        moved = (net(x) - with_stored_weights(net, "bfloat16")(x)).abs().max().item()
        assert moved <= bound + 1e-13
        assert bound <= 1.14 * 0.00101 * max(abs(low), abs(high))  # no slope is above 1.13


@needs_compiler
@pytest.mark.parametrize("storage", ["int8", "bfloat16"])
def test_c_is_within_the_bound_that_its_header_says(tmp_path, storage):
    generator = np.random.default_rng(0)
    edges = [(u, v) for v in range(4, 20) for u in range(v) if generator.random() < 0.25]
    net = random_network(Dag(edges, 20, inputs=[0, 1, 2, 3], outputs=[17, 18, 19]), 0, torch.float32)
    net.export(tmp_path / "net.c", weights=storage, within=(-2, 2))
    bounds = np.array(list(net.error_bounds(storage, (-2, 2)).values()))
    header = (tmp_path / "net.h").read_text()
    assert all(f"y[{j}]: {bound!r}" in header for j, bound in enumerate(bounds.tolist()))
    x = generator.uniform(-2, 2, (500, 4)).astype(np.float32)
    found = run_c(compiled(tmp_path, ["net.c"]), "net", x, 3)
    assert (np.abs(found - net.predictor()(x)) <= bounds + 1e-5).all()
    assert np.abs(found - net.predictor()(x)).max() > 0


def test_bfloat16_rounds_as_pytorch():
    net = DagNN(Dag([(u, v) for v in range(1, 40) for u in range(v)], outputs=list(range(1, 40))))
    stored = rounded(net.program(), "bfloat16")
    expected = torch.from_numpy(net.program().weight).bfloat16()
    assert torch.equal(torch.from_numpy(stored.stored.view(np.int16)), expected.view(torch.int16))


def test_weights_of_zero_and_of_any_size_are_stored():
    dag = Dag([(0, 1), (0, 2), (0, 3)], outputs=[1, 2, 3])
    net = DagNN(dag, bias=False, dtype=torch.float64)
    net.set_weights({(0, 1): 0.0, (0, 2): 1e-300, (0, 3): 1e300})
    stored = rounded(net.program(), "int8")
    np.testing.assert_allclose(stored.weight, [0.0, 1e-300, 1e300], rtol=1e-2)
    assert np.isfinite(error_bounds(net.program(), stored, np.array([-1.0]), np.array([1.0]))).all()


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"weights": "int4", "within": (-1, 1)}, ConfigError, "weights must be one of bfloat16, int8"),
        ({"within": (-1, 1)}, ConfigError, "weights must be one of"),
        ({"weights": "int8"}, ConfigError, "within= must be a pair"),
        ({"weights": "int8", "within": (1, -1)}, ConfigError, "low <= high"),
        ({"weights": "int8", "within": (0, float("inf"))}, ConfigError, "finite"),
        ({"weights": "int8", "within": 3}, ConfigError, "within= must be a pair"),
        ({"weights": "int8", "within": {"a": (0, 1)}}, GraphError, r"missing \['b'\]"),
        ({"weights": "int8", "within": {"a": (0, 1), "b": (0, 1), "c": (0, 1)}}, GraphError, r"unknown \['c'\]"),
    ],
)
def test_what_is_refused(tmp_path, arguments, error, message):
    net = DagNN(Dag([("a", "c"), ("b", "c")]))
    with pytest.raises(error, match=message):
        net.export(tmp_path / "net.c", **arguments)
    assert list(tmp_path.iterdir()) == []


def test_other_formats_keep_all_bits(tmp_path):
    with pytest.raises(ConfigError, match="keeps all bits"):
        DagNN(Dag([("a", "c")])).export(tmp_path / "net.pt2", weights="int8", within=(-1, 1))


def test_bounds_by_name():
    net = DagNN(Dag([("a", "c"), ("b", "d")]))
    wide, narrow = (net.error_bounds("int8", {"a": (-1, 1), "b": (-high, high)}) for high in (5.0, 0.5))
    assert wide["c"] == narrow["c"]
    assert wide["d"] >= narrow["d"]
