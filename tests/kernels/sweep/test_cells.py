"""What does not fit the compiled arithmetic goes by level, and PyTorch or the cell says what is wrong with it."""

import os
from unittest import mock

import pytest
import torch
from torch import nn

from dagnn.errors import GraphError
from dagnn.graph import Dag
from dagnn.nn import AttentionCell, ChildSumTreeLSTMCell, DagSweep, GRUCell, TreeLSTMCell

GRAPH = Dag([(0, 2), (1, 2), (2, 3), (0, 3)], 4, node_attributes={"operator": torch.tensor([0, 1, 2, 0])})
X = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
HIDDEN = 16


def outcome(sweep: DagSweep, path: str, graph: Dag = GRAPH) -> torch.Tensor | str:
    with mock.patch.dict(os.environ, {"DAGNN_KERNELS": path}), torch.no_grad():
        try:
            return sweep(X[: graph.num_nodes], graph)
        except (RuntimeError, ValueError, IndexError) as error:
            return str(error)


class Halved(nn.Module):
    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return weight.bfloat16()


def raised_max_children() -> DagSweep:
    sweep = DagSweep(TreeLSTMCell(3, HIDDEN, max_children=1))
    sweep.cells["up"].max_children = 2
    return sweep


def replaced(cell: nn.Module, **tensors: torch.Tensor) -> DagSweep:
    for name, tensor in tensors.items():
        setattr(cell, name, nn.Parameter(tensor))
    return DagSweep(cell)


def of_another_dtype() -> DagSweep:
    cell = TreeLSTMCell(3, HIDDEN)
    nn.utils.parametrize.register_parametrization(cell, "state_weight", Halved(), unsafe=True)
    return DagSweep(cell)


def overridden() -> DagSweep:
    cell = ChildSumTreeLSTMCell(3, HIDDEN)
    own = cell.forward
    cell.forward = lambda *inputs: tuple(2 * state for state in own(*inputs))
    return DagSweep(cell)


class Doubled(nn.GRUCell):
    def forward(self, x, h=None):
        return 2 * super().forward(x, h)


def with_gru(gru: nn.GRUCell) -> DagSweep:
    cell = GRUCell(3, HIDDEN)
    cell.gru = gru
    return DagSweep(cell)


SWEEPS = {
    "more children than there are weights": raised_max_children,
    "a short score": lambda: replaced(AttentionCell(3, HIDDEN), score_weight=torch.ones(1)),
    "a narrow forget weight": lambda: replaced(ChildSumTreeLSTMCell(3, HIDDEN), forget_weight=torch.ones(HIDDEN, 1)),
    "narrow weights of operators": lambda: replaced(
        ChildSumTreeLSTMCell(3, HIDDEN, operators=3), state_weight=torch.ones(3, HIDDEN, HIDDEN)
    ),
    "a weight for all operators": lambda: replaced(
        AttentionCell(3, HIDDEN, operators=3), state_weight=torch.ones(HIDDEN, 3 * HIDDEN)
    ),
    "weights of fewer operators": lambda: replaced(
        GRUCell(3, HIDDEN, operators=3), state_weight=torch.ones(2, HIDDEN, 3 * HIDDEN)
    ),
    "a weight of another dtype": of_another_dtype,
    "a cell overridden as an object": overridden,
    "a GRU of the user's": lambda: with_gru(Doubled(3, HIDDEN)),
    "a GRU without biases": lambda: with_gru(nn.GRUCell(3, HIDDEN, bias=False)),
    "a GRU of another width": lambda: with_gru(nn.GRUCell(3, 2 * HIDDEN)),
}


@pytest.mark.parametrize("name", SWEEPS)
def test_it_is_what_the_reference_says(name):
    torch.manual_seed(0)
    sweep = SWEEPS[name]()
    expected, found = outcome(sweep, "reference"), outcome(sweep, "compiled")
    if isinstance(expected, str):
        assert found == expected
    else:
        torch.testing.assert_close(found, expected)


def test_a_hook_on_all_modules_is_called_for_every_level():
    sweep, seen = DagSweep(GRUCell(3, HIDDEN)), list[str]()
    handle = nn.modules.module.register_module_forward_hook(lambda module, *_: seen.append(type(module).__name__))
    try:
        sweep(X, GRAPH)
    finally:
        handle.remove()
    assert seen.count("GRUCell") == 2 * 3  # ours and PyTorch's, on three levels


@pytest.mark.parametrize(
    ("kind", "attribute", "text"),
    [("edge", "position", "an edge has position 5000"), ("node", "operator", "a node has operator 5000")],
)
def test_attributes_written_to_after_they_were_looked_at(kind, attribute, text):
    values = torch.tensor([0, 1, 0, 1])
    attributes = {
        "node_attributes": {"operator": torch.zeros(4, dtype=torch.int64)},
        "edge_attributes": {"position": torch.tensor([0, 1, 0, 1])},
    }
    attributes[f"{kind}_attributes"][attribute] = values
    graph = Dag([(0, 2), (1, 2), (2, 3), (0, 3)], 4, **attributes)
    up = DagSweep(TreeLSTMCell(3, HIDDEN, operators=2))
    up(X, graph)
    getattr(graph, f"{kind}_attributes")[attribute].fill_(5_000)
    down = DagSweep(up.cells["up"], "down")  # with a plan of its own
    with pytest.raises(GraphError, match=text):
        down(X, graph)


@pytest.mark.parametrize("edge", [[3, 1], [-1, 2], [2, 2]])
def test_edges_written_to_are_refused(edge):
    graph = Dag([(0, 2), (1, 2), (2, 3), (0, 3)], 4)
    graph.edges[0] = torch.tensor(edge)
    with pytest.raises(GraphError, match="do not go with its levels"):
        DagSweep(GRUCell(3, HIDDEN))(X, graph)
