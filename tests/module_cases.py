"""Every module of `dagnn.nn`: how to make a small one, and how to call it. A new module joins CASES."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import decimal_addition
import pytest
import torch
from torch import Tensor, nn

import dagnn.nn as dnn
from dagnn.graph import Dag, DagBatch
from dagnn.rewriting import GraphRewriter

GRAPHS = DagBatch.from_dags(
    [
        Dag.from_polish("(+ (* x x) (- y x))", share=True),  # x is used three times
        Dag.from_polish("z"),  # one node, no edges
        Dag.from_polish("(f (f (f x)))"),  # a chain
    ]
)
N, D = GRAPHS.num_nodes, 4
NETWORK = Dag([("a", "c"), ("b", "c"), ("c", "d"), ("a", "d"), ("s", "d")], inputs=["a", "b"], outputs=["d", "c", "a"])
# What a cell sees on a level of three nodes, with edges into the first and the last of them.
TARGET, POSITION = torch.tensor([2, 0, 2]), torch.tensor([1, 0, 0])


def features(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(*shape, dtype=torch.float64, generator=generator)


def run_cell(cell: nn.Module, x: Tensor, *states: Tensor) -> tuple[Tensor, ...]:
    return cell(x, states, TARGET, POSITION)


@dataclass(frozen=True)
class Case:
    """How to make a module, and how to call it on tensors that may need gradients."""

    name: str
    make: Callable[[], nn.Module]
    run: Callable[..., Tensor | tuple[Tensor, ...]]
    inputs: tuple[Tensor, ...] = ()
    twice: bool = True  # check second derivatives too: cheap enough for all but the largest


def on_graphs(module: nn.Module, x: Tensor) -> Tensor | tuple[Tensor, ...]:
    return module(x, GRAPHS)


class Gated(dnn.FormulaCell):
    """A cell from its formula alone."""

    def formula(self, x, operands, weights):
        s = operands.sum(operands.h)
        m = weights.product(s)
        f = torch.sigmoid(x.f + m.f)
        return s + f * (torch.tanh(x.n + f * m.n + weights.shift) - s)


CELLS = {
    "TreeLSTMCell": (lambda: dnn.TreeLSTMCell(D, 3, max_children=2), 2),
    "ChildSumTreeLSTMCell": (lambda: dnn.ChildSumTreeLSTMCell(D, 3), 2),
    "GRUCell": (lambda: dnn.GRUCell(D, 3), 1),
    "GRUCell mean": (lambda: dnn.GRUCell(D, 3, "mean"), 1),
    "GRUCell max": (lambda: dnn.GRUCell(D, 3, "max"), 1),
    "AttentionCell": (lambda: dnn.AttentionCell(D, 3), 1),
    "FormulaCell": (lambda: Gated(D, 3), 1),
    "DiscreteCell": (lambda: dnn.DiscreteCell(D, 3), 1),
}
# (+ 12 3), (+ 5 5) with one shared number, and a sum of digits.
NEIGHBOURHOODS = [(14, 17, 20, 17, 20), (14, 17, 20, 22), (12, 3, 20, 5, 23)]
SYMBOLS = torch.arange(N) % 5
OPERATORS = Dag([(0, 2), (1, 2), (2, 3), (1, 3), (3, 4)], node_attributes={"operator": torch.tensor([0, 0, 1, 0, 1])})
CASES = [
    Case("DagNN", lambda: dnn.DagNN(NETWORK), lambda net, x: net(x), (features(3, 2),)),
    Case(
        "DagNN mixed",
        lambda: dnn.DagNN(NETWORK, activation={"c": "gelu", "s": "softplus", "d": "silu"}),
        lambda net, x: net(x),
        (features(3, 2),),
    ),
    Case("WideDagNN", lambda: dnn.WideDagNN(NETWORK, width={"c": 3, "d": 2}), lambda net, x: net(x), (features(3, 2),)),
    Case(
        "WideDagNN with norm and heads",
        lambda: dnn.WideDagNN(
            NETWORK, width={"c": 3, "s": 2, "d": 2}, normalise="layer", residual=True, heads=2, head_activation="tanh"
        ),
        lambda net, x: net.with_heads(x)[1].outputs,
        (features(3, 2),),
    ),
    Case("Embedding", lambda: dnn.Embedding(5, 3), lambda table: table(torch.tensor([[1, 3], [3, 0]]))),
    Case(
        "Embedding sparse",
        lambda: dnn.Embedding(5, 3, sparse=True),
        lambda table: table(torch.tensor([[1, 3], [3, 0]])),
    ),
    *(
        Case(
            f"MessagePassing {how} {way}",
            lambda how=how, way=way: dnn.MessagePassing(D, 2, how, way, activation="tanh"),
            lambda module, x: module(x, GRAPHS, GRAPHS.edge_attributes["position"]),
            (features(N, D),),
        )
        for how, way in (("sum", "up"), ("mean", "down"), ("max", "both"))
    ),
    *(
        Case(name, make, run_cell, (features(3, D), *(features(3, 3) for _ in range(states))))
        for name, (make, states) in CELLS.items()
    ),
    *(
        Case(
            f"DagSweep {name} {way}", lambda make=make, way=way: dnn.DagSweep(make(), way), on_graphs, (features(N, D),)
        )
        for (name, (make, _)), way in zip(CELLS.items(), itertools.cycle(["up", "down", "both"]), strict=False)
    ),
    *(
        Case(
            f"DagSweep {make.__name__}, a weight per operator",
            lambda make=make: dnn.DagSweep(make(D, 3, operators=2)),
            lambda sweep, x: sweep(x, OPERATORS),
            (features(5, D),),
        )
        for make in (dnn.TreeLSTMCell, dnn.ChildSumTreeLSTMCell, dnn.GRUCell, dnn.AttentionCell, dnn.DiscreteCell)
    ),
    Case(
        "DagSweep over a table",
        lambda: dnn.DagSweep(dnn.TreeLSTMCell(D, 3)),
        lambda sweep, x: sweep(x, GRAPHS, SYMBOLS),
        (features(5, D),),
    ),
    Case(
        "MultiHeadAttention",
        lambda: dnn.MultiHeadAttention(D, 2),
        lambda module, q, m: module(q, m, torch.tensor([[True, True, False], [False, False, False]])),
        (features(2, 2, D), features(2, 3, D)),
    ),
    Case("NodeAttention", lambda: dnn.NodeAttention(D, 2), on_graphs, (features(N, D),)),
    Case("GraphPool", lambda: dnn.GraphPool("mean"), on_graphs, (features(N, D),)),
    Case("NodeHead", lambda: dnn.NodeHead(D, 2), lambda head, x: head(x), (features(N, D),)),
    Case("EdgeHead", lambda: dnn.EdgeHead(D, 2), on_graphs, (features(N, D),)),
    Case("GraphHead", lambda: dnn.GraphHead(D, 2, "max"), on_graphs, (features(N, D),)),
    Case("GraphDecoder", lambda: dnn.GraphDecoder(D, 3, 2, layers=1, heads=2), on_graphs, (features(N, D),)),
    Case(
        "GraphTransformNet",
        lambda: dnn.GraphTransformNet(
            5, 3, 2, D, message_layers=1, attention_heads=2, edge_types=2, decoder_layers=1, decoder_heads=2
        ),
        lambda net: net(SYMBOLS, GRAPHS),
        twice=False,
    ),
    Case(
        "GraphRewriter",
        lambda: GraphRewriter.from_neighbourhoods(
            decimal_addition.SIGNATURE, NEIGHBOURHOODS, width=5, blocks=1, slot_width=3, num_slots=2
        ),
        lambda net: net(net.features.encode(NEIGHBOURHOODS)),
        twice=False,
    ),
    Case(
        "GraphRewriter graph",
        lambda: GraphRewriter.from_neighbourhoods(
            decimal_addition.SIGNATURE,
            NEIGHBOURHOODS,
            width=5,
            blocks=1,
            slot_width=3,
            num_slots=2,
            backbone="graph",
            graph_dim=4,
        ),
        lambda net: net(net.encode(NEIGHBOURHOODS)),
        twice=False,
    ),
]
LEARNING = [case for case in CASES if case.name != "GraphPool"]  # those that have parameters
DENSE = [case for case in CASES if "sparse" not in case.name]  # gradcheck takes no sparse gradients


def every(cases: list[Case]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", cases, ids=lambda case: case.name)


def made(case: Case) -> nn.Module:
    torch.manual_seed(0)
    return case.make().double()


def loss_of(case: Case, module: nn.Module) -> Tensor:
    """A loss on which every output has its own influence."""
    outputs = case.run(module, *case.inputs)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    return sum(
        (out * torch.linspace(1, 2, out.numel(), dtype=out.dtype).view_as(out)).square().sum() for out in outputs
    )
