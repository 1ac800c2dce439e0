"""Networks as C: compiled without a warning, and equal to the network."""

import shutil
import subprocess
import warnings
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from export_cases import COMPILER, NAMES, STRICT, any_network, compiled, needs_compiler, random_network, run_c
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from strategies import dags

from dagnn.errors import ConfigError
from dagnn.graph import Dag
from dagnn.kernels.nodes import AGGREGATIONS, NEAT_ACTIVATIONS
from dagnn.nn import DagNN


def assert_as_exact(found: np.ndarray, net: DagNN, x: np.ndarray) -> None:
    """As near to the network in float64 as the dtype allows: some roundings for every node on the way."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exact = DagNN(
            net.dag,
            activation=net.activations,
            aggregation=net.aggregations,
            response=net.responses,
            bias=net.bias_nodes,
            dtype=torch.float64,
        )
    exact.load_state_dict(net.state_dict())
    expected = exact(torch.from_numpy(x).double()).detach().numpy()
    reference = net(torch.from_numpy(x)).detach().numpy()
    allowed = 4 * np.abs(reference - expected) + 64 * np.finfo(found.dtype).eps * np.maximum(1, np.abs(expected).max())
    assert (np.abs(found - expected) <= allowed).all()


@needs_compiler
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_activation_rounds_as_the_compiled_path(tmp_path, dtype):
    # One edge for each: no sum whose order could differ.
    dag = Dag([("x", name) for name in NAMES], inputs=["x"], outputs=NAMES)
    net = DagNN(dag, activation={name: name for name in NAMES}, dtype=dtype)
    net.set_weights({("x", name): 1.0 for name in NAMES})
    net.export(tmp_path / "net.c")
    x = np.concatenate(
        [np.linspace(-100, 100, 2001), np.logspace(-30, 2, 200), -np.logspace(-30, 2, 200), [0.0, -0.0]]
    )[:, None].astype(net.predictor().dtype)
    special = np.array([[np.nan], [np.inf], [-np.inf]], x.dtype)
    found = run_c(compiled(tmp_path, ["net.c"]), "net", np.concatenate([x, special]), len(NAMES))
    predictor = net.predictor()
    expected = np.stack([predictor(row) for row in np.concatenate([x, special])])
    fused = predictor._plan.target.fma
    if fused:
        np.testing.assert_array_equal(found, expected)
    else:  # without the instruction, the compiled path rounds products and sums apart
        np.testing.assert_allclose(found, expected, rtol=32 * np.finfo(x.dtype).eps, atol=32 * np.finfo(x.dtype).eps)


def check_many(folder: Path, networks: list[DagNN]) -> None:
    for number, net in enumerate(networks):
        net.export(folder / f"net{number}.c")
    library = compiled(folder, [f"net{number}.c" for number in range(len(networks))])
    for number, net in enumerate(networks):
        dtype = net.program().weight.dtype
        x = np.random.default_rng(number).standard_normal((5, len(net.input_names))).astype(dtype)
        found = run_c(library, f"net{number}", x, len(net.output_names))
        assert_as_exact(found, net, x)


@needs_compiler
@settings(max_examples=1, suppress_health_check=list(HealthCheck), deadline=None)
@given(st.lists(st.tuples(dags(min_nodes=1, max_nodes=14, named=None), st.integers(0, 99), st.booleans()), min_size=8))
def test_random_networks_equal_c(tmp_path_factory, drawn):
    networks = [
        (any_network if seed % 2 else random_network)(dag, seed, torch.float64 if wide else torch.float32)
        for dag, seed, wide in drawn
    ]
    check_many(tmp_path_factory.mktemp("c"), [net for net in networks if len(net.output_names)])


@needs_compiler
@pytest.mark.slow
def test_three_hundred_networks_equal_c(tmp_path):
    networks = []
    for seed in range(300):
        generator = np.random.default_rng(seed)
        nodes = int(generator.integers(2, 60))
        edges = [(u, v) for v in range(2, nodes) for u in range(v) if generator.random() < 0.2]
        dag = Dag(edges, nodes, inputs=[0, 1], outputs=[nodes - 1, 0])
        net = (any_network if seed % 4 == 0 else random_network)(
            dag, seed, torch.float64 if seed % 2 else torch.float32
        )
        if seed % 3 == 0 and net.dag.num_edges:
            net.prune(fraction=0.3, allow_disconnected=True)
        if seed % 5 == 0:
            net.grow([(1, nodes), (nodes, nodes - 1)], nodes=1, weight=[0.5, -0.5], activation="gelu")
        networks.append(net)
    check_many(tmp_path, networks)


@needs_compiler
def test_the_test_program_passes_and_fails(tmp_path):
    net = random_network(Dag([(0, 2), (1, 2), (2, 3)], 4, inputs=[0, 1]), 0, torch.float32)
    net.export(tmp_path / "some net.c", name="mine")
    build = [COMPILER, *STRICT, "some net_test.c", "some net.c", "-lm", "-o", "check"]
    assert subprocess.run(build, cwd=tmp_path, capture_output=True).returncode == 0
    assert subprocess.run(["./check"], cwd=tmp_path, capture_output=True).returncode == 0

    source = (tmp_path / "some net.c").read_text()
    (tmp_path / "some net.c").write_text(source.replace("return (z + s1)", "return (z + s1 + 1)"))
    assert subprocess.run(build, cwd=tmp_path, capture_output=True).returncode == 0
    wrong = subprocess.run(["./check"], cwd=tmp_path, capture_output=True, text=True)
    assert (wrong.returncode, "numbers wrong" in wrong.stdout) == (1, True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("machine", "sort"), [("aarch64", "linux-gnu"), ("arm", "linux-gnueabihf"), ("s390x", "linux-gnu")]
)
def test_the_test_programs_pass_on_other_processors(tmp_path, machine, sort):
    """With 64 bits, with 32, and with the highest byte first; emulated."""
    compiler, emulator = shutil.which(f"{machine}-{sort}-gcc"), shutil.which(f"qemu-{machine}")
    if compiler is None or emulator is None:
        pytest.skip(f"needs the packages gcc-{machine}-{sort} and qemu-user")
    for seed in range(20):
        dag = Dag([(u, v) for v in range(4, 24) for u in range(v) if (u * v + seed) % 3 == 0], 24)
        weights = ("bfloat16", "int8", None, None)[seed % 4]
        make = any_network if weights is None else random_network
        net = make(dag, seed, torch.float64 if seed % 2 else torch.float32)
        net.export(tmp_path / "net.c", weights=weights, within=(-2, 2) if weights else None, overwrite=True)
        build = [compiler, *STRICT, "-static", "net_test.c", "net.c", "-lm", "-o", "check"]
        built = subprocess.run(build, cwd=tmp_path, capture_output=True, text=True)
        assert built.returncode == 0, built.stderr
        ran = subprocess.run([emulator, "./check"], cwd=tmp_path, capture_output=True, text=True)
        assert ran.returncode == 0, f"seed {seed}: {ran.stdout}"


@needs_compiler
@pytest.mark.parametrize(
    "dag",
    [
        Dag([], 1, inputs=[0], outputs=[0]),  # nothing to compute
        Dag([], 1, inputs=[], outputs=[0]),  # nothing to read
        Dag([("a", "b"), ("c", "d")], inputs=["a", "c"], outputs=["b"]),  # an input that no output reads
        Dag([('*/ "\\', "??/"), ("/*", "??/"), ("π\n", "??/")]),  # names that could end a comment
    ],
    ids=["input", "constant", "dead", "names"],
)
def test_odd_networks_compile_and_are_equal(tmp_path, dag):
    check_many(tmp_path, [DagNN(dag)])


def test_values_of_a_large_network_do_not_lie_on_the_stack(tmp_path):
    edges = np.stack([np.arange(5000), np.arange(1, 5001)], 1)
    DagNN(Dag(torch.from_numpy(edges), 5001)).export(tmp_path / "net.c")
    assert "static float work[5001];" in (tmp_path / "net.c").read_text()
    assert "one thread at a time" in (tmp_path / "net.h").read_text()


@pytest.mark.parametrize("name", ["", "x", "2nd", "a-b", "while", "tanh", "näme", "a" * 32])
def test_a_name_that_c_refuses_is_refused(tmp_path, name):
    with pytest.raises(ConfigError, match="name of a C function"):
        DagNN(Dag([(0, 1)])).export(tmp_path / "net.c", name=name)
    assert list(tmp_path.iterdir()) == []


@needs_compiler
def test_every_activation_and_aggregation_of_neat_python(tmp_path):
    hidden = [(name, kind) for name in sorted(NEAT_ACTIVATIONS) for kind in AGGREGATIONS]
    edges = [(x, node) for node in hidden for x in "abcde"[: 4 + len(node[0]) % 2]]
    for dtype in (torch.float32, torch.float64):
        net = DagNN(
            Dag(edges, outputs=hidden),
            activation={node: node[0] for node in hidden},
            aggregation={node: node[1] for node in hidden},
            response=dict.fromkeys(hidden, 0.7),
            dtype=dtype,
        )
        folder = tmp_path / str(dtype)
        folder.mkdir()
        check_many(folder, [net])


@needs_compiler
def test_nan_passes_through_c_as_through_the_network(tmp_path):
    kinds = list(AGGREGATIONS)
    dag = Dag([(x, kind) for kind in kinds for x in "abc"], inputs=["a", "b", "c"], outputs=kinds)
    net = DagNN(dag, aggregation={kind: kind for kind in kinds}, activation="identity")
    net.export(tmp_path / "net.c")
    x = np.ones((4, 3), np.float32)
    x[1, 0] = x[2, 1] = x[3, 2] = np.nan
    found = run_c(compiled(tmp_path, ["net.c"]), "net", x, len(kinds))
    np.testing.assert_array_equal(np.isnan(found), np.isnan(net(torch.from_numpy(x)).detach().numpy()))


@needs_compiler
def test_a_genome_of_neat_python_becomes_c_in_three_lines(tmp_path):
    node = {"bias": 0.5, "response": 2.0, "activation": "sigmoid", "aggregation": "product"}
    nodes = {0: SimpleNamespace(**node), 7: SimpleNamespace(**node | {"activation": "gauss", "aggregation": "max"})}
    weights = {(-1, 7): 0.4, (-2, 7): -1.5, (7, 0): 2.0, (-1, 0): 1.0}
    connections = {key: SimpleNamespace(key=key, weight=w, enabled=True) for key, w in weights.items()}
    genome = SimpleNamespace(nodes=nodes, connections=connections)
    config = SimpleNamespace(genome_config=SimpleNamespace(input_keys=[-1, -2], output_keys=[0]))

    net = DagNN.from_neat(genome, config)
    net.export(tmp_path / "evolved.c")
    x = np.random.default_rng(0).standard_normal((50, 2))
    found = run_c(compiled(tmp_path, ["evolved.c"]), "evolved", x, 1)[:, 0]

    hidden = np.exp(-5 * np.clip(0.5 + 2 * np.maximum(0.4 * x[:, 0], -1.5 * x[:, 1]), -3.4, 3.4) ** 2)
    expected = 1 / (1 + np.exp(-5 * (0.5 + 2 * (2.0 * hidden) * x[:, 0])))
    np.testing.assert_allclose(found, expected, rtol=1e-13)
