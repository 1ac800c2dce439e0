"""Sweeps over one graph as C: compiled without a warning, and equal to the sweep."""

import copy
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from export_cases import (
    CELLS,
    COMPILER,
    OPERATORS,
    OTHERS,
    SAME_BITS,
    SLOTS,
    STRICT,
    SWEPT,
    D,
    compiled,
    needs_compiler,
    run_c,
    sweep_of,
)
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from strategies import dags

from dagnn.graph import Dag, DagBatch
from dagnn.kernels.emit.native import host_target
from dagnn.nn import DagSweep


def run(library: object, name: str, sweep: DagSweep, x: torch.Tensor) -> np.ndarray:
    """Results ``[n, nodes, out_features]`` for ``x [n, nodes, features]``."""
    rows = x.reshape(len(x), -1).numpy()
    return run_c(library, name, rows, x.shape[1] * sweep.out_features).reshape(*x.shape[:2], -1)


def assert_as_exact(found: np.ndarray, sweep: DagSweep, x: torch.Tensor, graph: Dag | DagBatch) -> None:
    """As near to the sweep in float64 as the dtype allows: some roundings for every node on the way."""
    exact = copy.deepcopy(sweep).double()
    for sample, y in zip(x, found, strict=True):
        expected = exact(sample.double(), graph).detach().numpy()
        reference = sweep(sample, graph).detach().numpy()
        smallest = 64 * np.finfo(found.dtype).eps * np.maximum(1, np.abs(expected).max(initial=0))
        assert (np.abs(y - expected) <= 4 * np.abs(reference - expected) + smallest).all()


def check_many(folder: Path, cases: list[tuple[DagSweep, Dag | DagBatch]], *, as_compiled: bool = False) -> None:
    """All by one call of the compiler. ``as_compiled``: the same bits as the compiled path, from features on."""
    for number, (sweep, graph) in enumerate(cases):
        sweep.export(folder / f"net{number}.c", graph=graph)
    library = compiled(folder, [f"net{number}.c" for number in range(len(cases))])
    for number, (sweep, graph) in enumerate(cases):
        like = next(sweep.parameters())
        generator = torch.Generator().manual_seed(number)
        x = torch.randn(2, graph.num_nodes, D, generator=generator, dtype=like.dtype)
        if as_compiled:  # one feature is 1: its weight is projected, in whatever order terms are added
            x = torch.eye(D, dtype=like.dtype)[torch.randint(D, (2, graph.num_nodes), generator=generator)]
        found = run(library, f"net{number}", sweep, x)
        if as_compiled and host_target().fma:  # without the instruction, the compiled path rounds products apart
            expected = torch.stack([sweep(sample, graph) for sample in x])
            np.testing.assert_array_equal(found, expected.detach().numpy())
        assert_as_exact(found, sweep, x, graph)


def bits_cases(swap: int) -> list[tuple[DagSweep, DagBatch]]:
    """Every cell in one dtype, every second one with operators; the others for ``swap`` 1."""
    return [
        (
            sweep_of(
                name,
                "both",
                (torch.float32, torch.float64)[(number // 2 + swap) % 2],
                operators=(None, OPERATORS)[number % 2],
            ),
            SWEPT,
        )
        for number, name in enumerate(SAME_BITS)
    ]


@needs_compiler
@pytest.mark.parametrize("swap", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_sweep_in_c_has_the_bits_of_the_compiled_path(tmp_path, swap):
    check_many(tmp_path, bits_cases(swap), as_compiled=True)


@needs_compiler
@pytest.mark.parametrize("swap", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_what_differs_in_the_last_digits(tmp_path, swap):
    dtypes, directions = (torch.float32, torch.float64), ("both", "down")
    check_many(
        tmp_path,
        [
            (sweep_of(name, directions[(number + swap) % 2], dtypes[(number + swap) % 2]), SWEPT)
            for number, name in enumerate(OTHERS)
        ],
    )


def with_operators(dag: Dag, seed: int) -> Dag:
    """With operators, and positions in any order and with holes."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(SLOTS, generator=generator).tolist()
    targets, position = dag.edges[:, 1].tolist(), list[int]()
    for target in targets:
        position.append(order[targets[: len(position)].count(target)])
    return Dag(
        dag.edges,
        dag.num_nodes,
        node_attributes={"operator": torch.randint(OPERATORS, (dag.num_nodes,), generator=generator)},
        edge_attributes={"position": torch.tensor(position, dtype=torch.int64)},
    )


def random_case(dag: Dag, seed: int, name: str) -> tuple[DagSweep, Dag]:
    dtype = torch.float64 if seed % 2 else torch.float32
    direction = ("up", "down", "both")[seed % 3]
    return sweep_of(name, direction, dtype, seed, OPERATORS if seed % 4 < 2 else None), with_operators(dag, seed)


_DRAWN = st.tuples(dags(min_nodes=1, max_nodes=9), st.integers(0, 99), st.sampled_from(sorted(CELLS)))


@needs_compiler
@settings(max_examples=1, suppress_health_check=list(HealthCheck), deadline=None, phases=[Phase.generate])
@given(st.lists(_DRAWN, min_size=8, max_size=8))
def test_random_sweeps_equal_c(tmp_path_factory, drawn):
    check_many(tmp_path_factory.mktemp("c"), [random_case(*case) for case in drawn])


@needs_compiler
@pytest.mark.slow
@settings(max_examples=20, suppress_health_check=list(HealthCheck), deadline=None, phases=[Phase.generate])
@given(st.lists(_DRAWN, min_size=15, max_size=15))
def test_three_hundred_sweeps_equal_c(tmp_path_factory, drawn):
    check_many(tmp_path_factory.mktemp("c"), [random_case(*case) for case in drawn])


@needs_compiler
def test_graphs_without_edges_and_of_named_nodes(tmp_path):
    lonely, named = Dag([], 2), Dag([('*/ "\\', "??/"), ("π\n", "??/")])
    cases = [(sweep_of(name, "both", torch.float32), lonely) for name in ("tree_lstm", "attention", "no operands")]
    check_many(tmp_path, [*cases, (sweep_of("child_sum", "up", torch.float32), named)])


@needs_compiler
def test_the_test_program_of_a_sweep_passes_and_fails(tmp_path):
    sweep_of("tree_lstm", "both", torch.float32).export(tmp_path / "some net.c", graph=SWEPT, name="mine")
    build = [COMPILER, *STRICT, "some net_test.c", "some net.c", "-lm", "-o", "check"]
    assert subprocess.run(build, cwd=tmp_path, capture_output=True).returncode == 0
    assert subprocess.run(["./check"], cwd=tmp_path, capture_output=True).returncode == 0

    source = (tmp_path / "some net.c").read_text()
    (tmp_path / "some net.c").write_text(source.replace("y[j] + b[j]", "y[j] + b[j] + 1"))
    assert subprocess.run(build, cwd=tmp_path, capture_output=True).returncode == 0
    wrong = subprocess.run(["./check"], cwd=tmp_path, capture_output=True, text=True)
    assert (wrong.returncode, "numbers wrong" in wrong.stdout) == (1, True)


@needs_compiler
@pytest.mark.slow
def test_a_sweep_over_many_nodes_compiles_as_fast_as_its_tables(tmp_path):
    nodes = 20_000
    edges = torch.stack([torch.arange(nodes - 1), torch.arange(1, nodes)], 1)
    further = torch.stack([torch.arange(nodes - 7), torch.arange(7, nodes)], 1)
    sweep, graph = sweep_of("child_sum", "up", torch.float64), Dag(torch.cat([edges, further]), nodes)
    sweep.export(tmp_path / "net.c", graph=graph)
    assert "static double work" in (tmp_path / "net.c").read_text()
    assert len((tmp_path / "net.c").read_text().splitlines()) < 20_000
    library = compiled(tmp_path, ["net.c"])
    x = torch.randn(1, nodes, D, dtype=torch.float64)
    np.testing.assert_allclose(run(library, "net", sweep, x)[0], sweep(x[0], graph).detach().numpy(), atol=1e-11)


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_every_cell_compiles_without_a_warning(tmp_path, compiler):
    if shutil.which(compiler) is None:
        pytest.skip(f"{compiler} is not here")
    for number, name in enumerate(CELLS):
        sweep_of(name, "both", torch.float64 if number % 2 else torch.float32).export(
            tmp_path / f"net{number}.c", graph=SWEPT
        )
    command = [
        compiler,
        *STRICT,
        "-c",
        *(f"net{number}{end}.c" for number in range(len(CELLS)) for end in ("", "_test")),
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
