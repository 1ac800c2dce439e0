"""`DagSweep.export`: what it takes, what it refuses, and that nothing is left half-written."""

import os

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

from dagnn.errors import ConfigError, GraphError
from dagnn.export import onnx_traced
from dagnn.graph import Dag, DagBatch
from dagnn.nn import (
    ChildSumTreeLSTMCell,
    DagSweep,
    DiscreteCell,
    FormulaCell,
    GraphTransformNet,
    GRUCell,
    TreeLSTMCell,
)

GRAPH = DagBatch.from_dags([Dag([(0, 2), (1, 2), (2, 3), (0, 3)]), Dag([(0, 1)])])


def sweep() -> DagSweep:
    torch.manual_seed(0)
    return DagSweep(ChildSumTreeLSTMCell(3, 4), "both")


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        (None, "exported for one graph: give graph="),
        ([(0, 1)], "graph must be a Dag or a DagBatch, got list"),
        (Dag([], 0), "graph has no nodes"),
    ],
)
@pytest.mark.parametrize("file", ["net.c", "net.onnx", "net.pt2"])
def test_graphs_that_are_refused(tmp_path, graph, message, file):
    with pytest.raises(GraphError, match=message):
        sweep().export(tmp_path / file, graph=graph)
    assert list(tmp_path.iterdir()) == []


def test_a_graph_of_another_kind_is_refused(tmp_path):
    with pytest.raises(GraphError, match="node attribute 'operator'"):
        DagSweep(GRUCell(3, 4, operators=2)).export(tmp_path / "net.c", graph=GRAPH)
    with pytest.raises(GraphError, match="max_children=1 allows"):
        DagSweep(TreeLSTMCell(3, 4, max_children=1)).export(tmp_path / "net.c", graph=GRAPH)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("file", "how", "message"),
    [
        ("net", {}, "does not say the format"),
        ("net.c", {"format": "fortran"}, "format must be one of"),
        ("net.onnx", {"name": "net"}, "is for a function in C"),
        ("net.pt2", {"name": "net"}, "is for a function in C"),
        ("net.c", {"name": "while"}, "name of a C function"),
        *(("net.c", {"name": name}, "name of a C function") for name in ("memset", "fabsf", "size_t", "uint_fast8_t")),
        *((file, {"name": "net"}, "stands in an #include") for file in ("été.c", 'a"b.c', "a??=.c", "a\nb.c")),
    ],
)
def test_formats_and_names_that_are_refused(tmp_path, file, how, message):
    with pytest.raises(ConfigError, match=message):
        sweep().export(tmp_path / file, graph=GRAPH, **how)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("file", ["net.c", "net.onnx", "net.pt2"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["bias", "forget_weight", "state_weight", "feature_weight"])
def test_weights_that_are_no_numbers_are_refused(tmp_path, file, value, name):
    net = sweep()
    with torch.no_grad():
        getattr(net.cells["down"], name).view(-1)[-1] = value
    with pytest.raises(ConfigError, match="NaN or infinite"):
        net.export(tmp_path / file, graph=GRAPH)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "change",
    [lambda net: net.half(), lambda net: net.to("meta"), lambda net: net.cells["up"].double()],
    ids=["half", "meta", "mixed"],
)
def test_parameters_that_are_no_plain_numbers_are_refused(tmp_path, change):
    net = sweep()
    change(net)
    with pytest.raises(ConfigError, match="float32 or float64, with values"):
        net.export(tmp_path / "net.c", graph=GRAPH)
    assert list(tmp_path.iterdir()) == []


class _Sum(nn.Module):
    state_sizes, in_features = (3,), 3

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, features, states, target, position):
        return (features * self.scale + torch.zeros_like(features).index_add(0, target, states[0]),)


class _Erf(FormulaCell):
    def formula(self, x, operands, weights):
        return torch.erf(x.n + weights.product(operands.sum(operands.h)).n)


class _Negated(GRUCell):
    def forward(self, *args, **kwargs):
        return (-super().forward(*args, **kwargs)[0],)


@pytest.mark.parametrize("cell", [_Sum, lambda: _Negated(3, 4)])
def test_a_cell_that_is_more_than_its_formula_is_refused_in_c_and_exported_by_torch(tmp_path, cell):
    torch.manual_seed(0)
    net = DagSweep(cell())
    with pytest.raises(ConfigError, match="C is written from the formula"):
        net.export(tmp_path / "net.c", graph=GRAPH)
    assert list(tmp_path.iterdir()) == []
    check_torch(net, tmp_path)


def test_a_discrete_cell_is_refused(tmp_path):
    for file, message in (("net.c", "C is written from the formula"), ("net.onnx", "cannot trace DagSweep")):
        with pytest.raises(ConfigError, match=message):
            DagSweep(DiscreteCell(3, 4)).export(tmp_path / file, graph=GRAPH)
    assert list(tmp_path.iterdir()) == []


def test_a_function_that_formulas_lack_is_refused_in_c_with_its_line(tmp_path):
    net = DagSweep(_Erf(3, 4))
    with pytest.raises(ConfigError, match=r"C has no torch\.erf: line .*return torch\.erf"):
        net.export(tmp_path / "net.c", graph=GRAPH)
    assert list(tmp_path.iterdir()) == []


class _Lgamma(FormulaCell):
    def formula(self, x, operands, weights):
        return torch.lgamma(x.n + weights.product(operands.sum(operands.h)).n)


@pytest.mark.parametrize(
    ("cell", "file", "message"),
    [
        (_Lgamma, "net.onnx", r"no translation of PyTorch's aten::lgamma\. It can be exported with format='torch'\.$"),
        (_Lgamma, "net.c", r"C has no torch\.lgamma: line .*\. It can be exported with format='torch'\.$"),
        (DiscreteCell, "net.c", r"runs other code: write it as a FormulaCell\. No other format takes it\.$"),
    ],
)
def test_an_error_names_the_formats_that_take_a_cell_and_no_others(tmp_path, cell, file, message):
    with pytest.raises(ConfigError, match=message):
        DagSweep(cell(3, 4)).export(tmp_path / file, graph=GRAPH)
    assert list(tmp_path.iterdir()) == []


def test_an_operator_that_onnx_lacks_and_c_has_leaves_as_c(tmp_path, monkeypatch):
    known = {op: one for op, one in onnx_traced._TRANSLATED.items() if op != "tanh"}
    monkeypatch.setattr(onnx_traced, "_TRANSLATED", known)
    message = r"aten::tanh\. It can be exported with format='c' or format='torch'\.$"
    with pytest.raises(ConfigError, match=message):
        DagSweep(GRUCell(3, 4, operators=2)).export(
            tmp_path / "net.onnx", graph=Dag([(0, 1)], node_attributes={"operator": torch.tensor([0, 1])})
        )
    assert list(tmp_path.iterdir()) == []


def test_hooks_and_replaced_parts_are_refused_in_c(tmp_path):
    net = sweep()
    handle = net.cells["down"].register_forward_hook(lambda *_: None)
    with pytest.raises(ConfigError, match=r"cells\.down has hooks"):
        net.export(tmp_path / "net.c", graph=GRAPH)
    handle.remove()
    gated = DagSweep(GRUCell(3, 4))
    gated.cells["up"].gru = nn.GRUCell(3, 4, bias=False)
    with pytest.raises(ConfigError, match="GRUCell runs other code"):
        gated.export(tmp_path / "net.c", graph=GRAPH)
    assert list(tmp_path.iterdir()) == []


def test_computed_weights_leave_as_they_are_computed(tmp_path):
    class Double(nn.Module):
        def forward(self, weight):
            return 2 * weight

    net, plain = sweep(), sweep()
    with torch.no_grad():
        plain.cells["up"].state_weight.mul_(2)
    parametrize.register_parametrization(net.cells["up"], "state_weight", Double())
    net.export(tmp_path / "net.c", graph=GRAPH)
    plain.export(tmp_path / "plain.c", graph=GRAPH, name="net")
    one, other = ((tmp_path / file).read_text() for file in ("net.c", "plain.c"))
    assert one.replace("net.h", "plain.h") == other


def test_files_that_exist_stay_unless_told(tmp_path):
    (tmp_path / "net.h").write_text("mine")
    with pytest.raises(FileExistsError, match="exists already"):
        sweep().export(tmp_path / "net.c", graph=GRAPH)
    assert [path.name for path in tmp_path.iterdir()] == ["net.h"]
    assert (tmp_path / "net.h").read_text() == "mine"
    written = sweep().export(tmp_path / "net.c", graph=GRAPH, overwrite=True)
    assert sorted(tmp_path.iterdir()) == sorted(written)


@pytest.mark.parametrize("place", range(3))
def test_after_an_error_of_the_disk_no_new_file_is_left(tmp_path, monkeypatch, place):
    real, calls = os.fsync, []

    def failing(descriptor: int) -> None:
        calls.append(descriptor)
        if len(calls) == 2 * place + 1:  # of the file, then of the folder
            raise OSError(28, "No space left on device")
        real(descriptor)

    monkeypatch.setattr("dagnn.files.os.fsync", failing)
    with pytest.raises(OSError, match="No space"):
        sweep().export(tmp_path / "net.c", graph=GRAPH)
    assert list(tmp_path.iterdir()) == []


def check_torch(net: DagSweep, folder) -> None:
    net.export(folder / "net.pt2", graph=GRAPH)
    program = torch.export.load(folder / "net.pt2")
    operators = {node.target for node in program.graph.nodes if node.op == "call_function"}
    assert {one.namespace for one in operators if isinstance(one, torch._ops.OpOverload)} == {"aten"}
    x = torch.randn(GRAPH.num_nodes, 3)
    torch.testing.assert_close(program.module()(x), net(x, GRAPH), rtol=1e-5, atol=1e-5)


@pytest.mark.filterwarnings("ignore")  # those of torch's own tracers
def test_a_program_of_torch_holds_the_graph(tmp_path):
    check_torch(sweep(), tmp_path)


@pytest.mark.filterwarnings("ignore")  # those of torch's own tracers
@pytest.mark.parametrize("nodes", [1, 3])
def test_a_program_of_torch_of_a_graph_without_edges(tmp_path, nodes):
    net = GraphTransformNet(num_symbols=5, num_labels=4, max_nodes=3, dim=8)
    graph, symbols = Dag([], nodes), torch.arange(nodes)
    net.export(tmp_path / "net.pt2", graph=graph)
    found = torch.export.load(tmp_path / "net.pt2").module()(symbols)
    torch.testing.assert_close(tuple(found), tuple(net(symbols, graph)), rtol=1e-5, atol=1e-5)


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(FileNotFoundError) as error:
        sweep().export(tmp_path / "no" / "net.c", graph=GRAPH)
    assert str(error.value).endswith("net.h'")
    (tmp_path / "net.h").mkdir()
    with pytest.raises(IsADirectoryError) as error:
        sweep().export(tmp_path / "net.c", graph=GRAPH, overwrite=True)
    assert str(error.value).endswith("net.h'")


class _Dropping(FormulaCell):
    """A cell with dropout, which formulas lack."""

    def formula(self, x, operands, weights):
        kept = torch.nn.functional.dropout(x.n, 0.5, self.training)
        return torch.tanh(kept + weights.product(operands.sum(operands.h)).n)


def test_a_module_in_training_leaves_as_it_answers(tmp_path):
    sweep = DagSweep(_Dropping(2, 3))
    assert sweep.training
    sweep.export(tmp_path / "net.pt2", graph=GRAPH)
    assert all(part.training for part in sweep.modules())
    x = torch.randn(GRAPH.num_nodes, 2)
    torch.testing.assert_close(torch.export.load(tmp_path / "net.pt2").module()(x), sweep.eval()(x, GRAPH))
