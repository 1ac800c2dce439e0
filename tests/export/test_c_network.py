"""A `GraphTransformNet` over one graph as C: compiled without a warning, and equal to the network."""

import copy
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from export_cases import (
    COMPILER,
    DIM,
    GRAPHS,
    LABELS,
    POSITIONS,
    SETTINGS,
    STRICT,
    SYMBOLS,
    compiled,
    needs_compiler,
    network,
    run_c,
)
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from strategies import dags
from torch import nn

from dagnn.errors import ConfigError
from dagnn.graph import Dag, DagBatch
from dagnn.nn import GraphTransformNet


def logits(net: GraphTransformNet, symbols: torch.Tensor, graph: Dag | DagBatch) -> np.ndarray:
    return torch.cat([one.flatten() for one in net(symbols, graph)]).detach().numpy()


def check_many(folder: Path, cases: list[tuple[GraphTransformNet, Dag | DagBatch]]) -> None:
    """All by one call of the compiler; as near to the network in float64 as the network itself is."""
    for number, (net, graph) in enumerate(cases):
        net.export(folder / f"net{number}.c", graph=graph)
    library = compiled(folder, [f"net{number}.c" for number in range(len(cases))])
    for number, (net, graph) in enumerate(cases):
        generator = torch.Generator().manual_seed(number)
        symbols = torch.randint(SYMBOLS, (2, graph.num_nodes), generator=generator)
        reference = np.stack([logits(net, one, graph) for one in symbols])
        exact = np.stack([logits(copy.deepcopy(net).double(), one, graph) for one in symbols])
        found = run_c(library, f"net{number}", symbols.numpy().astype(np.int32), reference.shape[1], reference.dtype)
        allowed = 4 * np.abs(reference - exact).max() + 64 * np.finfo(found.dtype).eps * max(1, np.abs(exact).max())
        assert np.abs(found - exact).max() <= allowed


@needs_compiler
@pytest.mark.parametrize("numbers", [(1, 2), pytest.param((0, 3, 4), marks=pytest.mark.slow)])
def test_every_setting_equals_c(tmp_path, numbers):
    dtypes = torch.float32, torch.float64
    check_many(tmp_path, [(network(number, dtypes[number % 2]), GRAPHS) for number in numbers])


_DRAWN = st.tuples(
    st.lists(dags(min_nodes=1, max_nodes=8), min_size=1, max_size=3),
    st.integers(0, len(SETTINGS) - 1),
    st.integers(0, 99),
)


def random_case(graphs: list[Dag], number: int, seed: int) -> tuple[GraphTransformNet, Dag | DagBatch]:
    graph = graphs[0] if len(graphs) == 1 else DagBatch.from_dags(graphs)
    return network(number, torch.float64 if seed % 2 else torch.float32, seed), graph


@needs_compiler
@settings(max_examples=1, suppress_health_check=list(HealthCheck), deadline=None, phases=[Phase.generate])
@given(st.lists(_DRAWN, min_size=3, max_size=3))
def test_random_networks_equal_c(tmp_path_factory, drawn):
    check_many(tmp_path_factory.mktemp("c"), [random_case(*case) for case in drawn])


@needs_compiler
@pytest.mark.slow
@settings(max_examples=10, suppress_health_check=list(HealthCheck), deadline=None, phases=[Phase.generate])
@given(st.lists(_DRAWN, min_size=10, max_size=10))
def test_a_hundred_networks_equal_c(tmp_path_factory, drawn):
    check_many(tmp_path_factory.mktemp("c"), [random_case(*case) for case in drawn])


@needs_compiler
def test_the_test_program_passes_and_unknown_symbols_give_nan(tmp_path):
    network(1, torch.float32).export(tmp_path / "net.c", graph=GRAPHS)
    build = [COMPILER, *STRICT, "net_test.c", "net.c", "-lm", "-o", "check"]
    built = subprocess.run(build, cwd=tmp_path, capture_output=True, text=True)
    assert (built.returncode, built.stderr) == (0, "")
    assert subprocess.run(["./check"], cwd=tmp_path, capture_output=True).returncode == 0

    x = np.zeros((3, GRAPHS.num_nodes), np.int32)
    x[0, -1], x[1, 0] = SYMBOLS, -1
    outputs = len(GRAPHS) * POSITIONS * (1 + LABELS + POSITIONS)
    found = run_c(compiled(tmp_path, ["net.c"]), "net", x, outputs, np.float32)
    np.testing.assert_array_equal(np.isnan(found).all(1), [True, True, False])
    assert np.isfinite(found[2]).all()


def _replace_norm(net: GraphTransformNet) -> None:
    net.norms[0] = nn.RMSNorm(DIM)


def _replace_decoder(net: GraphTransformNet) -> None:
    net.decoder = nn.Identity()


def _replace_gelu(net: GraphTransformNet) -> None:
    net.decoder.layers[0].feed_forward[1] = nn.SiLU()


def _replace_layer(net: GraphTransformNet) -> None:
    class Other(type(net.decoder.layers[0])):  # type: ignore[misc]
        def forward(self, positions, memory, present):
            return positions

    net.decoder.layers[0].__class__ = Other


class _Encodes(GraphTransformNet):
    def encode(self, symbols, graph):
        return -super().encode(symbols, graph)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_replace_norm, "LayerNorm, and RMSNorm runs other code"),
        (_replace_decoder, "GraphDecoder, and Identity runs other code"),
        (_replace_gelu, "GELU, and SiLU runs other code"),
        (_replace_layer, "PositionLayer, and Other runs other code"),
        (lambda net: setattr(net, "__class__", _Encodes), "GraphTransformNet, and _Encodes runs other code"),
    ],
)
def test_parts_that_were_replaced_are_refused(tmp_path, monkeypatch, change, message):
    net = network(0, torch.float32)
    change(net)
    monkeypatch.setattr(GraphTransformNet, "_outputs", lambda self, x, graph: (torch.zeros(1),))
    with pytest.raises(ConfigError, match=message):
        net.export(tmp_path / "net.c", graph=GRAPHS)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["embedding.weight", "decoder.edge_bias", "norms.1.weight"])
def test_weights_that_are_no_numbers_are_refused(tmp_path, name):
    net = network(0, torch.float32)
    with torch.no_grad():
        net.get_parameter(name).view(-1)[0] = float("nan")
    with pytest.raises(ConfigError, match="NaN or infinite"):
        net.export(tmp_path / "net.c", graph=GRAPHS)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.filterwarnings("ignore")  # those of torch's own tracers
def test_a_program_of_torch_gives_all_logits(tmp_path):
    net = network(4, torch.float64)  # the fewest operators to trace
    net.export(tmp_path / "net.pt2", graph=GRAPHS)
    symbols = torch.arange(GRAPHS.num_nodes) % SYMBOLS
    found = torch.export.load(tmp_path / "net.pt2").module()(symbols)
    for one, expected in zip(found, net(symbols, GRAPHS), strict=True):
        torch.testing.assert_close(one, expected)
