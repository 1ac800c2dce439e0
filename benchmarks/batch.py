"""One recursive cell over many different DAGs is fastest with DagSweep: peers, one thread unless said, float32.

A case is a forward and a backward pass of an ordered TreeLSTM over 512 random DAGs of 5 to 40 nodes, up to three
operands each, some of them shared; all gradients of parameters. Features come from a table of 10 symbols, which every
contestant projects once, not once for every node. PyG is compared where it is installed.
"""

import copy
import os
import sys
from collections.abc import Callable, Iterable
from functools import partial
from importlib.util import find_spec
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks import batch_cortex, batch_peers
from benchmarks.batch_peers import CHILDREN, Problem, Run
from benchmarks.harness import Case, Contestant, main
from dagnn.graph import Dag, DagBatch
from dagnn.kernels.graph_plans import compiled_plan
from dagnn.kernels.sweep import autograd_function as sweep_function
from dagnn.nn import ChildSumTreeLSTMCell, DagSweep, FormulaCell, GRUCell, LearnableModule, TreeLSTMCell

SYMBOLS, GRAPHS, WIDTHS = 10, 512, (64, 128)
# Smallest ratios, per peer, for d=64 and d=128.
REQUIRED: dict[str, tuple[Callable[[Problem], Run], float, float]] = {
    "autograd per level": (batch_peers.eager, 3.5, 2.2),
    "custom Function": (batch_peers.function, 2, 1.8),
    "PyG per level": (batch_peers.pyg, 5, 3),
    "recursion per node": (batch_peers.recursion, 60, 40),
}
SHARES = {64: 0.44, 128: 0.57}


def random_dags(count: int = GRAPHS) -> list[Dag]:
    """Random DAGs: a node's operands are among the eight before it, and the more it has the likelier it is used."""
    generator = torch.Generator().manual_seed(0)
    dags = []
    for _ in range(count):
        size = int(torch.randint(5, 41, (), generator=generator))
        arity = torch.tensor([0, 0, 0, 0, 1, 2, 2, 3])[torch.randint(8, (size,), generator=generator)]
        arity[0] = 0
        target = torch.arange(size).repeat_interleave(arity)
        source = target - 1 - (torch.rand(len(target), generator=generator) * target.clamp(max=8)).long()
        position = torch.cat([torch.arange(int(k)) for k in arity])
        operator = arity + 4 * (torch.rand(size, generator=generator) < 0.5) * (arity < 2)
        dags.append(
            Dag(
                torch.stack([source, target], 1),
                size,
                node_attributes={"operator": operator},
                edge_attributes={"position": position},
            )
        )
    return dags


class Contest:
    """A batch, a sweep and its parameters; peers get the same parameters."""

    def __init__(self, batch: DagBatch, d: int, operators: int | None = None) -> None:
        torch.manual_seed(0)
        self.batch, self.d = batch, d
        self.symbol = batch.node_attributes["operator"]
        self.cell = TreeLSTMCell(d, d, CHILDREN, operators=operators)
        self.sweep = DagSweep(self.cell)
        self.table = nn.Parameter(torch.randn(SYMBOLS, d))
        self.parameters = [self.table, *self.cell.parameters()]
        self.grad = torch.randn(batch.num_nodes, d)

    def ours(self) -> tuple[Tensor, ...]:
        return self._step(self.sweep(self.table, self.batch, self.symbol))

    def peer(self, run: Run) -> Contestant:
        return lambda: self._step(
            run(torch.addmm(self.cell.bias, self.table, self.cell.feature_weight), self.cell.state_weight)
        )

    def _step(self, y: Tensor) -> tuple[Tensor, ...]:
        return y.detach(), *torch.autograd.grad(y, self.parameters, self.grad)

    def case(self, name: str, peers: dict[str, Contestant], required: float | None) -> Case:
        def check() -> None:
            for peer in peers.values():
                for mine, other in zip(self.ours(), peer(), strict=True):
                    torch.testing.assert_close(mine, other, rtol=1e-3, atol=2e-3)

        return Case(name, self.ours, peers, required=required, check=check, threads=1)


def against_peers(batch: DagBatch, quick: bool) -> Iterable[Case]:
    problem = Problem.of(batch, SYMBOLS)
    for column, d in enumerate(WIDTHS):
        contest = Contest(batch, d)
        for name, (make, *bars) in REQUIRED.items():
            if (name == "PyG per level" and find_spec("torch_geometric") is None) or (
                quick and name == "recursion per node" and d > 64
            ):
                continue
            yield contest.case(f"TreeLSTM, d={d}", {name: contest.peer(make(problem))}, bars[column])
        limit = batch_peers.products_only(problem, d)
        yield Case(
            f"TreeLSTM, d={d}, share of the limit",
            contest.ours,
            {"its matrix products alone": limit},
            required=SHARES[d],
            threads=1,
        )


def by_operator(batch: DagBatch, quick: bool) -> Iterable[Case]:
    """A weight of its own for each of ten operators."""
    problem = Problem.of(batch, SYMBOLS)
    for d in WIDTHS[: 1 if quick else None]:
        contest = Contest(batch, d, operators=SYMBOLS)
        for how in ("loop", "bmm", "grouped"):
            peer = contest.peer(batch_peers.by_operator(problem, how))
            yield contest.case(f"a weight per operator, d={d}", {how: peer}, 3.5)


def with_threads(threads: int, call: Contestant) -> Contestant:
    """A contestant that runs with so many threads."""

    def run() -> object:
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            return call()
        finally:
            torch.set_num_threads(before)

    return run


def more_threads(batch: DagBatch, quick: bool) -> Iterable[Case]:
    for d in WIDTHS:
        contest = Contest(batch, d)
        yield Case(
            f"TreeLSTM, d={d}, 2 threads",
            with_threads(2, contest.ours),
            {"1 thread": with_threads(1, contest.ours)},
            required=1.4,
        )
    for layers in (1, 4) if quick else (1, 2, 4, 8):
        step = stacked(batch, layers)
        yield Case(
            f"{layers} child-sum layers, d=64, 2 threads", with_threads(2, step), {"1 thread": with_threads(1, step)}
        )
    for graphs in (1, 4, 16) if quick else (1, 2, 4, 8, 16, 64):
        contest = Contest(DagBatch.from_dags(random_dags(graphs)), 64)
        yield Case(
            f"{graphs} graphs, d=64, 2 threads",
            with_threads(2, contest.ours),
            {"1 thread": with_threads(1, contest.ours)},
        )


def chain(length: int) -> Dag:
    """Nodes in a row: no two may be computed at once."""
    return Dag(torch.arange(length).unfold(0, 2, 1), length)


def at_once(quick: bool) -> Iterable[Case]:
    """Up and down a narrow graph at the same time, against one after the other: forward, backward and all gradients."""
    graphs = {f"a chain of {n}": chain(n) for n in ((40, 400) if quick else (10, 20, 40, 100, 400, 4000))}
    graphs |= {f"{n} graphs": DagBatch.from_dags(random_dags(n)) for n in ((4,) if quick else (1, 2, 4, 8, 16))}
    for name, graph in graphs.items():
        for d in (64,) if quick else (16, 64):
            torch.manual_seed(0)
            sweep = DagSweep(ChildSumTreeLSTMCell(d, d), "both")
            x = torch.randn(graph.num_nodes, d)

            def step(sweep: DagSweep = sweep, x: Tensor = x, graph: Dag | DagBatch = graph) -> tuple[Tensor, ...]:
                y = sweep(x, graph)
                return y.detach(), *torch.autograd.grad(y, list(sweep.parameters()), torch.ones_like(y))

            ours, theirs = with_at_once_work(0, step), with_at_once_work(1 << 62, step)

            def check(ours: Contestant = ours, theirs: Contestant = theirs) -> None:
                pairs = zip(ours(), theirs(), strict=True)  # type: ignore[call-overload]
                assert all(torch.equal(mine, other) for mine, other in pairs)

            yield Case(f"both ways, {name}, d={d}, 2 threads", ours, {"one after the other": theirs}, check=check)


def with_at_once_work(least: int, call: Contestant) -> Contestant:
    """A contestant that runs on two threads, two sweeps at once if each has so many multiply-adds."""

    def run() -> object:
        before = sweep_function.AT_ONCE_WORK
        sweep_function.AT_ONCE_WORK = least
        try:
            return with_threads(2, call)()
        finally:
            sweep_function.AT_ONCE_WORK = before

    return run


def stacked(batch: DagBatch, layers: int) -> Contestant:
    """Layers of child-sum sweeps, one on the other: a whole step, with the gradients cleared, clipped and followed."""
    torch.manual_seed(0)
    model = nn.ModuleList(DagSweep(ChildSumTreeLSTMCell(64, 64)) for _ in range(layers))
    x = torch.randn(batch.num_nodes, 64)

    def step() -> None:
        h = x
        for layer in model:
            h = layer(h, batch)
        h.square().mean().backward()
        for layer in model:
            layer.clip_gradients(1.0)
            layer.step(0.01)
            layer.zero_grad()

    return step


class Stack(LearnableModule):
    """Layers of child-sum sweeps as one model, with the gradients of a step."""

    def __init__(self, layers: int, d: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(DagSweep(ChildSumTreeLSTMCell(d, d)) for _ in range(layers))
        self.fresh = [torch.randn_like(p) for p in self.parameters()]
        self.held = [torch.empty_like(g) for g in self.fresh]

    def take_gradients(self) -> None:
        """The same gradients again, as a backward pass leaves them."""
        torch._foreach_copy_(self.held, self.fresh)
        for p, g in zip(self.parameters(), self.held, strict=True):
            p.grad = g


def stepped_in_the_pass(batch: DagBatch, quick: bool) -> Iterable[Case]:
    """`backward_and_step` against its two calls: two sweeps over a few graphs and many, and a weight per operator."""
    few = DagBatch.from_dags(random_dags(8))
    problems = [(few, 64, None), (batch, 64, None), (few, 128, SYMBOLS)]
    for graphs, d, operators in problems[: 1 if quick else None]:
        make = partial(TreeLSTMCell, d, d, CHILDREN, operators=operators)
        torch.manual_seed(0)
        ours = DagSweep(make(), "both")
        theirs = copy.deepcopy(ours)
        x = torch.randn(graphs.num_nodes, d)

        def fused(model: DagSweep = ours, graphs: DagBatch = graphs, x: Tensor = x) -> None:
            model.zero_grad()
            model.backward_and_step(model(x, graphs).square().mean(), 1e-6)

        def in_two_calls(model: DagSweep = theirs, graphs: DagBatch = graphs, x: Tensor = x) -> None:
            model.zero_grad()
            model(x, graphs).square().mean().backward()
            model.step(1e-6)

        def check(
            ours: DagSweep = ours,
            theirs: DagSweep = theirs,
            calls: tuple[Callable[[], None], ...] = (fused, in_two_calls),
        ) -> None:
            for call in calls:
                call()
            for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
                torch.testing.assert_close(p, q)

        name = f"backward and step, {len(graphs)} graphs, d={d}" + ("" if operators is None else ", by operator")
        yield Case(name, fused, {"two calls": in_two_calls}, check=check, threads=1)


def all_at_once(model: Stack) -> float:
    """What a training loop does after backward, by the methods of the model: one call for all parameters each."""
    model.take_gradients()
    norm = model.clip_gradients(1.0)
    model.step(1e-3)
    model.zero_grad()
    return norm


def one_by_one(model: Stack) -> float:
    """The same in a loop over the parameters."""
    model.take_gradients()
    parameters = list(model.parameters())
    with torch.no_grad():
        norm = sum(float(torch.linalg.vector_norm(p.grad, dtype=torch.float64)) ** 2 for p in parameters) ** 0.5
        for p in parameters:
            if norm > 1.0:
                p.grad.mul_(1.0 / norm)
        for p in parameters:
            p.sub_(p.grad, alpha=1e-3)
        for p in parameters:
            p.grad = None
    return norm


def many_parameters(quick: bool) -> Iterable[Case]:
    """What clipping, stepping and clearing cost for a model of several layers, without any pass through it."""
    for layers in (1, 8) if quick else (1, 2, 4, 8):
        for d in (64,) if quick else (16, 64):
            ours, theirs = Stack(layers, d), Stack(layers, d)

            def check(ours: Stack = ours, theirs: Stack = theirs) -> None:
                torch.testing.assert_close(all_at_once(ours), one_by_one(theirs), rtol=1e-6, atol=0)
                for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
                    torch.testing.assert_close(p, q)
                    assert p.grad is None and q.grad is None

            yield Case(
                f"clip, step and clear {layers} layers, d={d}",
                partial(all_at_once, ours),
                {"one parameter after another": partial(one_by_one, theirs)},
                check=check,
                threads=1,
            )


class PeepholeTreeLSTM(FormulaCell):
    """A user's cell: forget gates that see the states they gate."""

    states = ("h", "c")

    def formula(self, x: Any, operands: Any, weights: Any) -> Any:
        kept = operands.by_slot(operands.c)
        m = weights.product(operands.by_slot(operands.h))
        i = torch.sigmoid(x.i + m.i + weights.peep_i * operands.sum(kept))
        f = torch.sigmoid(x.f + m.by_slot.f + weights.peep_f * kept)
        c = i * torch.tanh(x.u + m.u) + operands.sum(f * kept)
        o = torch.sigmoid(x.o + m.o + weights.peep_o * c)
        return o * torch.tanh(c), c


class MinimalGatedUnit(FormulaCell):
    """A user's cell: one gate."""

    def formula(self, x: Any, operands: Any, weights: Any) -> Any:
        s = operands.sum(operands.h)
        m = weights.product(s)
        f = torch.sigmoid(x.f + m.f)
        return s + f * (torch.tanh(x.n + f * m.n) - s)


class SetGRU(FormulaCell):
    """A user's cell: two reductions."""

    def formula(self, x: Any, operands: Any, weights: Any) -> Any:
        mean, best = operands.mean(operands.h), operands.max(operands.h)
        m = weights.product(mean, best)
        z = torch.sigmoid(x.z + m.z)
        return z * mean + (1 - z) * torch.tanh(x.n + m.n)


def other_cells(batch: DagBatch, quick: bool) -> Iterable[Case]:
    """The other cells, and three as a user writes them, against the reference, level by level under autograd."""
    makes: list[tuple[str, Callable[[int], FormulaCell]]] = [
        ("child-sum TreeLSTM", lambda d: ChildSumTreeLSTMCell(d, d)),
        ("GRU over the sum", lambda d: GRUCell(d, d)),
        ("GRU over the maximum", lambda d: GRUCell(d, d, "max")),
        ("a user's peephole TreeLSTM", lambda d: PeepholeTreeLSTM(d, d, CHILDREN)),
        ("a user's minimal gated unit", lambda d: MinimalGatedUnit(d, d)),
        ("a user's GRU over two reductions", lambda d: SetGRU(d, d)),
    ]
    if quick:
        del makes[2]
    for d, (name, make) in product(WIDTHS[: 1 if quick else None], makes):
        torch.manual_seed(0)
        sweep = DagSweep(make(d))
        x = torch.randn(batch.num_nodes, d, requires_grad=True)

        def step(sweep: DagSweep = sweep, x: Tensor = x) -> tuple[Tensor, ...]:
            y = sweep(x, batch)
            return torch.autograd.grad(y.square().sum(), [x, *sweep.parameters()])

        yield Case(f"{name}, d={d}", step, {"the reference": on_reference(step)}, threads=1)


def on_reference(call: Contestant) -> Contestant:
    """A contestant that runs with plain PyTorch."""

    def run() -> object:
        os.environ["DAGNN_KERNELS"] = "reference"
        try:
            return call()
        finally:
            del os.environ["DAGNN_KERNELS"]

    return run


def collating(batch: DagBatch, dags: list[Dag]) -> Iterable[Case]:
    """From a list of graphs to a batch with its plan: what a new batch costs beside its step."""

    def collate() -> None:
        compiled_plan(DagBatch.from_dags(dags), "up", by_position=True, by_operator=False)

    contest = Contest(batch, 64)
    yield Case("collate 512 graphs and plan the sweep", collate, {"a step, d=64": contest.ours}, required=10, threads=1)


def cases(quick: bool) -> Iterable[Case]:
    """All of them."""
    dags = random_dags()
    batch = DagBatch.from_dags(dags)
    yield from against_peers(batch, quick)
    yield from by_operator(batch, quick)
    yield from collating(batch, dags)
    yield from other_cells(batch, quick)
    yield from batch_cortex.cases(quick)
    yield from many_parameters(quick)
    yield from stepped_in_the_pass(batch, quick)
    yield from at_once(quick)
    yield from more_threads(batch, quick)


if __name__ == "__main__":
    sys.exit(main(__doc__, cases))
