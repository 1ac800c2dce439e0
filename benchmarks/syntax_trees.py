"""DagSweep trains on Python's own syntax trees, and on DAGs with real sharing, faster than anything written for them.

The graphs are the functions of the standard library (examples/python_graphs.py) and multipliers of the package
aigverse. Every case is a forward and a backward pass, the gradient of the features included, one thread, float32; the
plan of a batch is made before, and has a row of its own. A second epoch over the same batches makes no plan: it is
counted.
"""

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from benchmarks import syntax_trees_peers as peers
from benchmarks.harness import Case, Contestant, main
from dagnn.graph import Dag, DagBatch
from dagnn.kernels import graph_plans
from dagnn.nn import AttentionCell, ChildSumTreeLSTMCell, DagSweep
from examples.python_graphs import Function, shared_tree, standard_library, syntax_tree

REQUIRED = {"sorted level loop": 3.0, "PyG per level": 3.0, "pytorch-tree-lstm 0.1.3": 3.0}


def functions(count: int) -> list[Function]:
    """The first functions of the library that have at least 10 nodes."""
    found = list[Function]()
    for function in standard_library():
        if len(found) == count:
            break
        if syntax_tree(function).num_nodes >= 10:
            found.append(function)
    return found


def step(function: Callable[..., Tensor], tensors: list[Tensor], grad: Tensor) -> tuple[Tensor, ...]:
    """Output, and the gradients of the tensors."""
    y = function(*tensors)
    return y, *torch.autograd.grad(y, tensors, grad)


def described(graphs: list[Dag]) -> str:
    levels = 1 + max(int(graph.levels.max()) for graph in graphs)
    return f"{sum(graph.num_nodes for graph in graphs):,} nodes, {levels} levels"


def agree(ours: Contestant, theirs: Contestant, parts: int) -> Callable[[], None]:
    """Output and the first gradients are the same."""

    def check() -> None:
        pairs = zip(ours()[:parts], theirs()[:parts], strict=True)  # type: ignore[index]
        for mine, other in pairs:
            torch.testing.assert_close(mine, other, rtol=1e-3, atol=1e-3 * float(other.abs().max()))

    return check


def syntax_trees(graphs: list[Dag], hidden: int) -> Iterable[Case]:
    """Child-sum TreeLSTM, the cell that pytorch-tree-lstm has."""
    torch.manual_seed(0)
    batch = DagBatch.from_dags(graphs)
    cell = ChildSumTreeLSTMCell(hidden, hidden)
    sweep = DagSweep(cell, "up")
    x = torch.randn(batch.num_nodes, hidden, requires_grad=True)
    grad = torch.randn(batch.num_nodes, hidden)
    own: list[Tensor] = [x, cell.feature_weight, cell.state_weight, cell.forget_weight, cell.bias]
    ours = partial(step, lambda x, *_: sweep(x, batch), own, grad)
    plan = peers.SortedLevels(batch)

    theirs: dict[str, tuple[Contestant, int]] = {
        "sorted level loop": (partial(step, peers.level_loop(plan, hidden), own, grad), 6),
    }
    if find_spec("torch_geometric"):
        theirs["PyG per level"] = (partial(step, peers.pyg_per_level(plan, hidden), own, grad), 6)
    if find_spec("treelstm"):
        function, parameters = peers.pytorch_tree_lstm(cell, peers.tree_lstm_inputs(graphs))
        theirs["pytorch-tree-lstm 0.1.3"] = (partial(step, function, [x, *parameters], grad), 2)
    name = f"{len(graphs)} syntax trees ({described(graphs)}), h={hidden}"
    for peer, (call, parts) in theirs.items():
        yield Case(name, ours, {peer: call}, required=REQUIRED[peer], check=agree(ours, call, parts), threads=1)


def planning(graphs: list[Dag]) -> Iterable[Case]:
    """A batch never seen: joining the Dags and planning the sweep, without any step."""

    def ours() -> None:
        batch = DagBatch.from_dags(graphs)
        graph_plans.compiled_plan(batch, "up", by_position=False, by_operator=False)

    theirs: dict[str, Contestant] = {"sorted level loop": lambda: peers.SortedLevels(DagBatch.from_dags(graphs))}
    if find_spec("treelstm"):
        theirs["pytorch-tree-lstm 0.1.3"] = lambda: peers.tree_lstm_inputs(graphs)
    yield Case(f"joining and planning {len(graphs)} syntax trees", ours, theirs, threads=1)


@contextmanager
def counted_plans() -> Iterator[list[Any]]:
    """Within it, the list grows by an entry for everything that is worked out about a graph."""
    made = list[Any]()
    remembered = graph_plans._remembered

    def counting(graph: Any, key: Any, make: Callable[[], Any]) -> Any:
        return remembered(graph, key, lambda: (made.append(key), make())[1])

    graph_plans._remembered = counting
    try:
        yield made
    finally:
        graph_plans._remembered = remembered


def epochs(graphs: list[Dag], hidden: int) -> Iterable[Case]:
    """The second epoch over the same batches against one whose batches are all new."""
    torch.manual_seed(0)
    sweep = DagSweep(ChildSumTreeLSTMCell(hidden, hidden), "both")
    parts = [graphs[i : i + 64] for i in range(0, len(graphs), 64)]
    batches = [DagBatch.from_dags(part) for part in parts]
    features = [torch.randn(batch.num_nodes, hidden) for batch in batches]

    def epoch(batches: list[DagBatch]) -> None:
        for batch, x in zip(batches, features, strict=True):
            sweep.zero_grad()
            sweep(x, batch).sum().backward()

    def check() -> None:
        with counted_plans() as made:
            epoch([DagBatch.from_dags(part) for part in parts])
            first = len(made)
            epoch(batches)
            made.clear()
            epoch(batches)
        assert first > 0, "the counter counts nothing"
        assert made == [], f"the second epoch planned again: {made}"

    yield Case(
        f"the second epoch over {len(batches)} batches, up and down, h={hidden}",
        partial(epoch, batches),
        {"with new batches": lambda: epoch([DagBatch.from_dags(part) for part in parts])},
        check=check,
        threads=1,
    )


def attention(name: str, graphs: list[Dag], hidden: int, required: float) -> Iterable[Case]:
    """DAGNN's own cell, up and down, on graphs whose nodes have several parents."""
    torch.manual_seed(0)
    batch = DagBatch.from_dags(graphs)
    sweep = DagSweep(AttentionCell(hidden, hidden), "both")
    x = torch.randn(batch.num_nodes, hidden, requires_grad=True)
    grad = torch.randn(batch.num_nodes, 2 * hidden)
    own = [x, *peers.parameters_of(sweep.cells["up"]), *peers.parameters_of(sweep.cells["down"])]
    ours = partial(step, lambda x, *_: sweep(x, batch), own, grad)
    loop = partial(step, peers.dagnn_loop(batch, ("up", "down"), hidden), own, grad)
    many = int((batch.out_degree > 1).sum()) / batch.num_nodes
    yield Case(
        f"{len(graphs)} {name} ({described(graphs)}, {many:.0%} with several parents), up and down, h={hidden}",
        ours,
        {"DAGNN's loop": loop},
        required=required,
        check=agree(ours, loop, len(own) + 1),
        threads=1,
    )


def cases(quick: bool) -> Iterable[Case]:
    """All of them."""
    chosen = functions(256)  # quick too: fewer fill the levels less, and the claim is about these
    trees = [syntax_tree(function) for function in chosen]
    yield from syntax_trees(trees, 128)
    yield from planning(trees)
    yield from epochs(trees, 128)
    yield from attention(
        "shared syntax trees", [shared_tree(function) for function in chosen[: 64 if quick else 256]], 64, 4
    )
    if find_spec("aigverse") is None:
        print("not measured: multipliers, which need aigverse (pip install aigverse)", file=sys.stderr)
        return
    bits = [8, 9] if quick else list(range(8, 17))
    yield from attention("multipliers of 8 to 16 bits", [peers.multiplier(width) for width in bits], 64, 10)


if __name__ == "__main__":
    sys.exit(main(__doc__, cases))
