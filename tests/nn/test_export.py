"""Networks as programs that outlive their process: torch.export, torch.jit.trace and what torch.compile keeps."""

import gc
import io
import os
import subprocess
import sys

import pytest
import torch
from torch import Tensor, nn

from dagnn import Dag, DagBatch, DagNN
from dagnn.errors import GraphError
from dagnn.nn import AttentionCell, ChildSumTreeLSTMCell, DagSweep, GraphTransformNet, GRUCell, TreeLSTMCell

pytestmark = pytest.mark.filterwarnings("ignore")  # those of torch's own tracers
DAG = Dag([("a", "c"), ("b", "c"), ("c", "d"), ("a", "d"), ("d", "e")], inputs=["a", "b"], outputs=["e", "c"])
GRAPHS = DagBatch.from_dags(
    [
        Dag([(0, 2), (1, 2), (2, 3), (0, 3)], node_attributes={"operator": torch.tensor([0, 1, 2, 1])}),
        Dag([(0, 1), (1, 2), (0, 2)], node_attributes={"operator": torch.tensor([2, 1, 2])}),
    ]
)
CELLS = {"gru": GRUCell, "attention": AttentionCell, "tree_lstm": TreeLSTMCell, "child_sum": ChildSumTreeLSTMCell}
# PyTorch's compiler takes seconds for each: by default one with positions and one with attention.
few_cells = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name in ("gru", "child_sum") else []) for name in CELLS]
)
# Loads a program where there is no dagnn, and compares.
ALONE = """
import sys
sys.modules["dagnn"] = None
import torch
program, cases = torch.export.load(sys.argv[1]).module(), torch.load(sys.argv[2])
for x, y in cases:
    torch.testing.assert_close(program(x), y)
    print("equal")
"""


class OnGraphs(nn.Module):
    """A module on graphs that are part of it."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor) -> Tensor:
        y = self.module(x, GRAPHS)
        return y if isinstance(y, Tensor) else y.edges


@pytest.fixture(autouse=True)
def double_precision():
    """What is exported computes in another order: equal to rounding, which in float64 is far below any mistake."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def operators_of(program: torch.export.ExportedProgram) -> set[str]:
    return {node.target.namespace for node in program.graph.nodes if isinstance(node.target, torch._ops.OpOverload)}


@pytest.mark.fault("graphs_and_networks", 6)
def test_an_exported_network_runs_in_a_process_without_this_library(tmp_path):
    net = DagNN(DAG, activation={"c": "tanh", "d": "gelu"})
    x = torch.randn(5, 2)
    program = torch.export.export(net, (x,), dynamic_shapes=({0: torch.export.Dim("batch")},))
    torch.export.save(program, tmp_path / "net.pt2")
    torch.save([(z, net(z).detach()) for z in (x, torch.randn(9, 2))], tmp_path / "cases.pt")
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", ALONE, tmp_path / "net.pt2", tmp_path / "cases.pt"],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert (ran.stdout, ran.stderr) == ("equal\nequal\n", "")


@pytest.mark.fault("graphs_and_networks", 6)
@pytest.mark.fault("graphs_and_networks", 25)  # torch.onnx.export(dynamo=True) translates such a program
def test_dynamo_exports_a_network_of_which_nothing_is_worked_out_yet():
    net, x = DagNN(DAG), torch.randn(5, 2)
    program = torch.export.export(net, (x,), strict=True)
    assert operators_of(program) == {"aten"}
    torch.testing.assert_close(program.module()(x), net(x))


@pytest.mark.fault("graphs_and_networks", 6)
@pytest.mark.parametrize("end", ["deleted", "pruned"])
def test_an_exported_network_is_that_of_the_export(end):
    net = DagNN(DAG)
    x = torch.randn(5, 2)
    expected, program, file = net(x).detach(), torch.export.export(net, (x,)), io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    if end == "deleted":
        del net, program
    else:
        net.prune(fraction=0.2, allow_disconnected=True)
    others = [DagNN(Dag([("a", "b")])) for _ in range(3)]
    torch.testing.assert_close(torch.export.load(file).module()(x), expected)
    del others


@pytest.mark.fault("graphs_and_networks", 6)
@few_cells
def test_exported_sweeps_are_operators_of_pytorch(name):
    module = OnGraphs(DagSweep(CELLS[name](3, 4, operators=3), down_cell=CELLS[name](3, 4), direction="both"))
    x = torch.randn(GRAPHS.num_nodes, 3)
    program = torch.export.export(module, (x,))
    assert operators_of(program) == {"aten"}
    torch.testing.assert_close(program.module()(x), module(x))


def test_exported_graph_networks_are_operators_of_pytorch():
    module = OnGraphs(GraphTransformNet(4, 5, 6, 16, message_layers=1, edge_types=2, attention_heads=2)).eval()
    symbols = torch.arange(GRAPHS.num_nodes) % 4
    program = torch.export.export(module, (symbols,))
    assert operators_of(program) == {"aten"}
    torch.testing.assert_close(program.module()(symbols), module(symbols))


@pytest.mark.parametrize("shape", [(2,), (5, 2), (3, 5, 2), (0, 2)])
def test_export_takes_every_shape_and_leaves_no_trace_in_the_network(shape):
    net, x = DagNN(DAG), torch.randn(shape)
    program = torch.export.export(net, (x,))
    torch.testing.assert_close(program.module()(x), net.eval()(x))
    assert net._last_input is None


@pytest.mark.fault("graphs_and_networks", 24)
def test_a_traced_network_takes_any_batch():
    net = DagNN(DAG)
    traced = torch.jit.trace(net, (torch.randn(5, 2),))
    for batch in (1, 5, 9):
        x = torch.randn(batch, 2)
        torch.testing.assert_close(traced(x), net(x))


@pytest.mark.parametrize("name", CELLS)
def test_a_traced_sweep(name):
    module = OnGraphs(DagSweep(CELLS[name](3, 4)))
    x = torch.randn(GRAPHS.num_nodes, 3)
    torch.testing.assert_close(torch.jit.trace(module, (x,))(x + 1), module(x + 1))


@few_cells
def test_a_compiled_sweep_is_one_graph_and_checks_what_it_is_given(name):
    module = OnGraphs(DagSweep(CELLS[name](3, 4, operators=3)))
    x = torch.randn(GRAPHS.num_nodes, 3)
    compiled = torch.compile(module, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), module(x))
    few = OnGraphs(DagSweep(CELLS[name](3, 4, operators=2)))
    with pytest.raises(GraphError, match="a node has operator 2, but operators=2 allows"):
        torch.compile(few, backend="eager")(x)


@pytest.mark.fault("graphs_and_networks", 6)
def test_what_torch_compile_keeps_names_a_network_by_what_it_is():
    net, same, other = DagNN(DAG), DagNN(DAG), DagNN(DAG, output_activation="tanh")
    plans = [one._plan_on[torch.device("cpu")].fingerprint for one in (net, same, other)]
    assert plans[0] == plans[1] != plans[2]
    x, weight, bias = torch.randn(4, 2), net.edge_weight, net.bias
    del net
    run = torch.ops.dagnn.network
    torch.testing.assert_close(run(x, weight, bias, plans[0]), same.eval()(x) * 0 + run(x, weight, bias, plans[1]))
    del same
    gc.collect()
    with pytest.raises(GraphError, match="a compiled program computes with a DagNN that this process does not hold"):
        run(x, weight, bias, plans[0])
