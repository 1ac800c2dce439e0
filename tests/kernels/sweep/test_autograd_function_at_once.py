"""Two sweeps at once give the bits of one after the other, and run at once only where that is worth it."""

import gc
import multiprocessing
import threading
import weakref

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import gradcheck, gradgradcheck

from dagnn.graph import Dag, DagBatch
from dagnn.kernels.emit import workers
from dagnn.kernels.sweep import autograd_function as sweep_function
from dagnn.kernels.sweep import passes
from dagnn.nn import AttentionCell, ChildSumTreeLSTMCell, DagSweep, GRUCell, TreeLSTMCell

D = 3
CELLS = {
    "tree_lstm": lambda hidden: TreeLSTMCell(D, hidden, max_children=3),
    "tree_lstm by operator": lambda hidden: TreeLSTMCell(D, hidden, max_children=3, operators=2),
    "child_sum": lambda hidden: ChildSumTreeLSTMCell(D, hidden),
    "gru mean": lambda hidden: GRUCell(D, hidden, "mean"),
    "gru max": lambda hidden: GRUCell(D, hidden, "max"),
    "attention by operator": lambda hidden: AttentionCell(D, hidden, operators=2),
}
NEVER = 1 << 62
every_cell = pytest.mark.parametrize("name", CELLS)


def chain(length: int) -> Dag:
    position = torch.zeros(length - 1, dtype=torch.int64)
    operator = torch.arange(length) % 2
    return Dag(
        torch.arange(length).unfold(0, 2, 1),
        length,
        node_attributes={"operator": operator},
        edge_attributes={"position": position},
    )


DIAMOND = Dag(
    [(0, 1), (0, 2), (1, 3), (2, 3), (0, 3)],
    4,
    node_attributes={"operator": torch.tensor([0, 1, 0, 1])},
    edge_attributes={"position": torch.tensor([0, 0, 0, 1, 2])},
)
GRAPH = DagBatch.from_dags([chain(12), DIAMOND, chain(2), DIAMOND])


def sweep_of(name: str, hidden: int = 5, dtype: torch.dtype = torch.float64) -> DagSweep:
    torch.manual_seed(0)
    sweep = DagSweep(CELLS[name](hidden), "both")
    for parameter in sweep.parameters():
        nn.init.normal_(parameter, std=0.3)
    return sweep.to(dtype)


def features(rows: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(rows, D, dtype=dtype, generator=torch.Generator().manual_seed(0))


def bits(sweep: DagSweep, graph: DagBatch | Dag = GRAPH, rows: Tensor | None = None) -> list[bytes]:
    """The output and all gradients, three times summed, byte by byte."""
    x = features(graph.num_nodes if rows is None else 4, next(sweep.parameters()).dtype).requires_grad_()
    sweep.zero_grad()
    for _ in range(3):
        y = sweep(x, graph, rows)
        y.square().sum().backward()
    return [tensor.detach().numpy().tobytes() for tensor in (y, x.grad, *(p.grad for p in sweep.parameters()))]


@pytest.fixture
def at_once(monkeypatch):
    """With two threads, every pair of sweeps goes at once; counts how often."""
    monkeypatch.setattr(sweep_function, "AT_ONCE_WORK", 0)
    threads, times = torch.get_num_threads(), []
    original = workers._run_at_once
    monkeypatch.setattr(workers, "_run_at_once", lambda rows: times.append(len(rows)) or original(rows))
    torch.set_num_threads(2)
    yield times
    torch.set_num_threads(threads)


def one_after_the_other(monkeypatch, *args) -> list[bytes]:
    with monkeypatch.context() as patch:
        patch.setattr(sweep_function, "AT_ONCE_WORK", NEVER)
        return bits(*args)


@every_cell
@pytest.mark.parametrize(
    ("hidden", "dtype", "by_table"), [(16, torch.float32, False), (5, torch.float64, False), (16, torch.float64, True)]
)
def test_the_bits_are_those_of_one_after_the_other(name, hidden, dtype, by_table, at_once, monkeypatch):
    sweep = sweep_of(name, hidden, dtype)
    rows = torch.arange(GRAPH.num_nodes) % 4 if by_table else None
    expected = one_after_the_other(monkeypatch, sweep, GRAPH, rows)
    assert at_once == []
    assert bits(sweep, GRAPH, rows) == expected
    assert at_once == [2, 2, 2] * 3  # forward, backward, weights
    torch.set_num_threads(1)
    assert bits(sweep, GRAPH, rows) == expected
    assert len(at_once) == 9


@every_cell
@pytest.mark.parametrize("hidden", [5, 16])
def test_one_cell_for_both_ways_adds_one_after_the_other(name, hidden, at_once, monkeypatch):
    cell = sweep_of(name, hidden).cells["up"]
    sweep = DagSweep(cell, "both", down_cell=cell)
    expected = one_after_the_other(monkeypatch, sweep)
    assert bits(sweep) == expected
    in_place = hidden == 16 and "gru" not in name
    assert len(at_once) == (7 if in_place else 9)  # the second and third time both add to one buffer


@every_cell
def test_derivatives_are_differences(name, at_once):
    sweep, x = sweep_of(name, 2), features(DIAMOND.num_nodes).requires_grad_()
    names = [n for n, _ in sweep.named_parameters()]

    def call(x: Tensor, *parameters: Tensor) -> Tensor:
        return torch.func.functional_call(sweep, dict(zip(names, parameters, strict=True)), (x, DIAMOND))

    inputs = [x, *(p.detach().clone().requires_grad_() for p in sweep.parameters())]
    # Along one random direction each; entry by entry for one sweep at a time: test_autograd_function.py.
    assert gradcheck(call, inputs, fast_mode=True)
    assert gradgradcheck(call, inputs, fast_mode=True)
    assert at_once


@every_cell
def test_twice_through_one_graph(name, at_once):
    sweep, x = sweep_of(name), features(GRAPH.num_nodes).requires_grad_()
    loss = sweep(x, GRAPH).square().sum()
    expected = torch.autograd.grad(loss, [x, *sweep.parameters()], retain_graph=True)
    found = torch.autograd.grad(loss, [x, *sweep.parameters()])
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
    assert len(at_once) == 6
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        loss.backward()


def test_half_of_the_output_may_be_left_aside(at_once, monkeypatch):
    sweep, x = sweep_of("child_sum"), features(GRAPH.num_nodes).requires_grad_()
    parameters = list(sweep.parameters())

    def of_up() -> tuple[Tensor, ...]:
        return torch.autograd.grad(sweep(x, GRAPH)[:, :5].square().sum(), [x, *parameters])

    found = of_up()
    monkeypatch.setattr(sweep_function, "AT_ONCE_WORK", NEVER)
    assert all(torch.equal(one, other) for one, other in zip(found, of_up(), strict=True))


def test_when_it_is_worth_it(at_once, monkeypatch):
    sweep, x = sweep_of("child_sum"), features(GRAPH.num_nodes)
    with torch.no_grad():
        sweep(x, GRAPH)
    assert len(at_once) == 1
    for cell in (sweep.cells["up"], sweep.cells["down"]):
        cell.requires_grad_(False)
        sweep(x, GRAPH)  # what one of them has to keep, the other has not
        assert len(at_once) == 1
        cell.requires_grad_()
    torch.set_num_threads(1)
    sweep(x, GRAPH)
    DagSweep(sweep.cells["up"]).double()(x, GRAPH)
    assert len(at_once) == 1
    torch.set_num_threads(2)
    work = [passes.work_of(course_plan(sweep, way), 5) for way in ("up", "down")]
    for limit, times in ((min(work), 2), (min(work) + 1, 2)):
        monkeypatch.setattr(sweep_function, "AT_ONCE_WORK", limit)
        sweep(x, GRAPH)
        assert len(at_once) == times
    monkeypatch.setattr(sweep_function, "AT_ONCE_WORK", 0)
    monkeypatch.setattr(passes, "PARALLEL_WORK", 0)
    monkeypatch.setattr(passes, "PARALLEL_SPEEDUP", 0)
    sweep(x, GRAPH)  # each of them uses both threads by itself
    assert len(at_once) == 2


def course_plan(sweep: DagSweep, way: str):
    from dagnn.kernels.graph_plans import compiled_plan

    by_position = sweep.cells[way].max_children is not None
    return compiled_plan(GRAPH, way, by_position=by_position, by_operator=False)


def test_a_long_chain_is_worth_it_and_a_short_one_is_not(at_once, monkeypatch):
    monkeypatch.undo()
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        counts = []
        original = workers._run_at_once
        monkeypatch.setattr(workers, "_run_at_once", lambda rows: counts.append(len(rows)) or original(rows))
        for length in (2, 5_000):
            with torch.no_grad():
                sweep_of("child_sum", 16)(features(length), chain(length))
        assert counts == [2]
    finally:
        torch.set_num_threads(threads)


def test_a_cell_of_the_users_beside_one_of_ours(at_once):
    class Sum(nn.Module):
        state_sizes = (3,)

        def forward(self, features, states, target, position):
            return (features + torch.zeros_like(features).index_add(0, target, states[0]).tanh(),)

    down = sweep_of("gru max").cells["down"]
    sweep, x = DagSweep(Sum(), "both", down_cell=down), features(GRAPH.num_nodes)
    y = sweep(x, GRAPH)
    assert at_once == []
    assert torch.equal(y, torch.cat([DagSweep(Sum())(x, GRAPH), DagSweep(down, "down")(x, GRAPH)], 1))


def test_threads_of_python_do_the_same(at_once, monkeypatch):
    sweep = sweep_of("attention by operator")
    expected = one_after_the_other(monkeypatch, sweep)
    monkeypatch.setattr(workers, "_team", lambda: workers.python_team)
    assert bits(sweep) == expected


def test_python_threads_beside_each_other_race_for_nothing(at_once, monkeypatch):
    sweeps = [sweep_of(name, 16) for name in ("tree_lstm", "child_sum", "attention by operator")]
    expected = [one_after_the_other(monkeypatch, sweep) for sweep in sweeps]
    failures: list[int] = []
    gate = threading.Barrier(3)

    def work(number: int) -> None:
        gate.wait()
        failures.extend(number for _ in range(15) if bits(sweeps[number]) != expected[number])

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_nothing_lives_longer_than_its_step(at_once):
    sweep, x = sweep_of("child_sum"), features(GRAPH.num_nodes)
    gc.disable()
    try:
        y = sweep(x, GRAPH)
        alive = weakref.ref(y.grad_fn.next_functions[0][0])
        y.sum().backward()
        del y
        assert alive() is None  # no cycle that waits for the garbage collector
    finally:
        gc.enable()


def gradient_bits(sweep: DagSweep) -> list[bytes]:
    """Of the parameters alone: in a forked child, products of PyTorch's own wait for threads that it has not."""
    gradients = torch.autograd.grad(sweep(features(4), DIAMOND).square().sum(), list(sweep.parameters()))
    return [gradient.numpy().tobytes() for gradient in gradients]


def _child(sweep: DagSweep, queue) -> None:
    queue.put(gradient_bits(sweep))


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_computes_after_its_parent_used_threads(at_once):
    sweep = sweep_of("tree_lstm")
    expected = gradient_bits(sweep)
    assert len(at_once) == 3
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_child, args=(sweep, queue))
    child.start()
    found = queue.get(timeout=60)
    child.join(60)
    assert (found, child.exitcode) == (expected, 0)
