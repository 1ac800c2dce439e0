"""A compiled sweep under autograd: derivatives of any order, what falls back, and what nobody may notice."""

import gc
import multiprocessing
import threading
import weakref
from unittest import mock

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad, gradcheck, gradgradcheck

from dagnn.graph import Dag, DagBatch
from dagnn.kernels import autograd
from dagnn.kernels.sweep import passes
from dagnn.nn import AttentionCell, ChildSumTreeLSTMCell, DagSweep, GRUCell, TreeLSTMCell

D = 3
CELLS = {
    "tree_lstm": lambda: TreeLSTMCell(D, 2, max_children=3),
    "tree_lstm by operator": lambda: TreeLSTMCell(D, 2, max_children=3, operators=2),
    "child_sum": lambda: ChildSumTreeLSTMCell(D, 2),
    "child_sum by operator": lambda: ChildSumTreeLSTMCell(D, 2, operators=2),
    "gru sum": lambda: GRUCell(D, 2),
    "gru mean": lambda: GRUCell(D, 2, "mean"),
    "gru max": lambda: GRUCell(D, 2, "max"),
    "gru by operator": lambda: GRUCell(D, 2, operators=2),
    "attention": lambda: AttentionCell(D, 2),
    "attention by operator": lambda: AttentionCell(D, 2, operators=2),
}
EDGES = [(0, 2), (1, 2), (1, 3), (2, 3), (2, 4), (2, 5), (3, 5)]
POSITION = torch.tensor([0, 1, 2, 0, 1, 0, 1])
GRAPH = DagBatch.from_dags(
    [
        Dag(
            torch.tensor(EDGES),
            6,
            node_attributes={"operator": torch.tensor([0, 1, 0, 1, 1, 0])},
            edge_attributes={"position": POSITION},
        ),
        Dag(
            torch.empty(0, 2, dtype=torch.int64),
            2,
            node_attributes={"operator": torch.tensor([0, 1])},
            edge_attributes={"position": torch.empty(0, dtype=torch.int64)},
        ),
    ]
)
ROWS = torch.tensor([0, 1, 1, 2, 0, 2, 1, 1])
every_cell = pytest.mark.parametrize("name", CELLS)


def sweep_of(name: str, direction: str = "up") -> DagSweep:
    torch.manual_seed(0)
    sweep = DagSweep(CELLS[name](), direction).double()
    for parameter in sweep.parameters():
        nn.init.normal_(parameter, std=0.7)
    return sweep


def features(rows: int = 8) -> Tensor:
    return torch.randn(rows, D, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def function_of(sweep: DagSweep, rows: Tensor | None = None):
    names = [name for name, _ in sweep.named_parameters()]

    def call(x: Tensor, *parameters: Tensor) -> Tensor:
        return torch.func.functional_call(sweep, dict(zip(names, parameters, strict=True)), (x, GRAPH, rows))

    return call


def inputs_of(sweep: DagSweep, rows: int = 8) -> list[Tensor]:
    return [features(rows).requires_grad_(), *(p.detach().clone().requires_grad_() for p in sweep.parameters())]


@pytest.fixture
def pass_counts(monkeypatch):
    """Counts forward and backward passes of the compiled path."""
    counts = {"forward": 0, "backward": 0}
    for name in counts:
        original = getattr(passes.Sweep, name)

        def counted(self, *args, name=name, original=original, **options):
            counts[name] += 1
            return original(self, *args, **options)

        monkeypatch.setattr(passes.Sweep, name, counted)
    return counts


@every_cell
@pytest.mark.parametrize("direction", ["up", "down"])
def test_first_derivatives_are_differences(name, direction, pass_counts):
    sweep = sweep_of(name, direction)
    assert gradcheck(function_of(sweep), inputs_of(sweep), fast_mode=direction == "down")
    assert pass_counts["backward"] > 0


@every_cell
def test_first_derivatives_of_a_table_are_differences(name):
    sweep = sweep_of(name)
    assert gradcheck(function_of(sweep, ROWS), inputs_of(sweep, 3), fast_mode=True)


@every_cell
def test_second_derivatives_are_differences(name):
    sweep = sweep_of(name)
    assert gradgradcheck(function_of(sweep, ROWS), inputs_of(sweep, 3), fast_mode=True)


def test_plain_training_runs_compiled_and_the_reference_can_be_forced(pass_counts, monkeypatch):
    sweep = sweep_of("tree_lstm")
    sweep(features(), GRAPH).sum().backward()
    assert pass_counts == {"forward": 1, "backward": 1}
    with torch.no_grad():
        sweep(features(), GRAPH)
    assert pass_counts == {"forward": 2, "backward": 1}
    monkeypatch.setenv("DAGNN_KERNELS", "reference")
    sweep(features(), GRAPH).sum().backward()
    assert pass_counts == {"forward": 2, "backward": 1}


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")  # PyTorch's own jacfwd
@pytest.mark.parametrize("name", ["tree_lstm", "attention"])
def test_transforms_fall_back(name, pass_counts):
    sweep, x = sweep_of(name), features()
    call = lambda x: sweep(x, GRAPH)  # noqa: E731
    expected = torch.autograd.functional.jacobian(call, x)
    before = dict(pass_counts)
    torch.testing.assert_close(torch.func.jacrev(call)(x), expected)
    torch.testing.assert_close(torch.func.jacfwd(call)(x), expected)
    with forward_ad.dual_level():
        tangent = forward_ad.unpack_dual(call(forward_ad.make_dual(x, torch.ones_like(x)))).tangent
    torch.testing.assert_close(tangent, expected.sum((2, 3)))
    assert pass_counts == before


def test_a_batch_of_gradients_at_once():
    sweep, x = sweep_of("tree_lstm"), features().requires_grad_()
    y = sweep(x, GRAPH)
    directions = torch.randn(4, *y.shape, dtype=torch.float64)
    (rows,) = torch.autograd.grad(y, x, directions, is_grads_batched=True, retain_graph=True)
    expected = torch.stack([torch.autograd.grad(y, x, one, retain_graph=True)[0] for one in directions])
    torch.testing.assert_close(rows, expected)


@every_cell
def test_twice_through_one_graph_and_never_after_it_is_freed(name):
    sweep, x = sweep_of(name), features().requires_grad_()
    y = sweep(x, GRAPH).square().sum()
    y.backward(retain_graph=True)
    once = [x.grad.clone(), *(p.grad.clone() for p in sweep.parameters())]
    y.backward()
    for twice, single in zip([x.grad, *(p.grad for p in sweep.parameters())], once, strict=True):
        torch.testing.assert_close(twice, 2 * single, rtol=1e-12, atol=1e-12)
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        y.backward()


@every_cell
def test_only_what_needs_a_gradient_gets_one(name):
    sweep, x = sweep_of(name), features()
    parameters = dict(sweep.named_parameters())
    expected = dict(
        zip(parameters, torch.autograd.grad(sweep(x, GRAPH).square().sum(), parameters.values()), strict=True)
    )
    for free in parameters:
        for other, parameter in parameters.items():
            parameter.requires_grad_(other == free)
        (found,) = torch.autograd.grad(sweep(x, GRAPH).square().sum(), parameters[free])
        torch.testing.assert_close(found, expected[free], rtol=1e-12, atol=1e-12)


def test_an_output_may_be_changed_in_place_where_backward_does_not_read_it():
    sweep, x = sweep_of("tree_lstm"), features().requires_grad_()
    (expected,) = torch.autograd.grad((2 * sweep(x, GRAPH)).sum(), x)
    (found,) = torch.autograd.grad(sweep(x, GRAPH).mul_(2).sum(), x)
    torch.testing.assert_close(found, expected)
    for name in ("gru max", "attention"):
        y = sweep_of(name)(features().requires_grad_(), GRAPH)
        with torch.no_grad():
            y.mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()


def test_weights_changed_between_the_passes_are_noticed():
    sweep = sweep_of("tree_lstm")
    y = sweep(features(), GRAPH)
    with torch.no_grad():
        sweep.cells["up"].state_weight += 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_tensors_that_are_views_of_others():
    sweep = sweep_of("gru sum")
    wide = torch.randn(9, 2 * D + 1, dtype=torch.float64)
    for x in (wide[1:, 1 : 1 + D], wide.t()[:D].t()[:8], wide.flatten()[1 : 1 + 8 * D].view(8, D)):
        torch.testing.assert_close(sweep(x, GRAPH), sweep(x.clone(), GRAPH), rtol=1e-13, atol=1e-13)
        y = sweep(x.requires_grad_() if x.is_leaf else x, GRAPH)
        flat = torch.randn(1 + y.numel(), dtype=torch.float64)
        odd = flat[1:].view_as(y)  # at no multiple of a vector
        for found, expected in zip(
            torch.autograd.grad(y, list(sweep.parameters()), odd, retain_graph=True),
            torch.autograd.grad(y, list(sweep.parameters()), odd.clone()),
            strict=True,
        ):
            torch.testing.assert_close(found, expected, rtol=1e-13, atol=1e-13)


# ---- cells that are not quite ours ----


def test_an_overridden_cell_a_hooked_cell_and_one_of_the_users_are_called(pass_counts):
    class Doubled(ChildSumTreeLSTMCell):
        def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
            h, c = super().forward(*inputs)
            return 2 * h, c

    sweep = DagSweep(Doubled(D, 2))
    plain = DagSweep(ChildSumTreeLSTMCell(D, 2))
    plain.load_state_dict(sweep.state_dict())
    x = features().float()
    assert not torch.equal(sweep(x, GRAPH), plain(x, GRAPH))
    assert pass_counts["forward"] == 1  # the plain one
    seen: list[int] = []
    plain.cells["up"].register_forward_hook(lambda *_: seen.append(1))
    plain(x, GRAPH)
    assert pass_counts["forward"] == 1 and len(seen) == int(GRAPH.levels.max()) + 1


def test_a_cell_with_normalised_weights_runs_compiled(pass_counts):
    cell = ChildSumTreeLSTMCell(D, 2).double()
    torch.nn.utils.parametrizations.weight_norm(cell, "state_weight")
    sweep = DagSweep(cell)
    x = features()
    found = torch.autograd.grad(sweep(x, GRAPH).sum(), list(sweep.parameters()))
    assert pass_counts == {"forward": 1, "backward": 1}
    with mock.patch.dict("os.environ", {"DAGNN_KERNELS": "reference"}):
        expected = torch.autograd.grad(sweep(x, GRAPH).sum(), list(sweep.parameters()))
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


def test_autocast_and_other_dtypes_go_by_level(pass_counts):
    sweep = DagSweep(GRUCell(D, 2))
    with torch.autocast("cpu", torch.bfloat16):
        sweep(features().float(), GRAPH)
    DagSweep(GRUCell(D, 2)).bfloat16()(features().bfloat16(), GRAPH)
    assert pass_counts["forward"] == 0


@pytest.mark.filterwarnings("default")  # those of torch.compile itself
def test_under_torch_compile(pass_counts):
    sweep = sweep_of("child_sum")
    compiled = torch.compile(lambda x: sweep(x, GRAPH), backend="eager")
    torch.testing.assert_close(compiled(features()), sweep(features(), GRAPH), rtol=1e-12, atol=1e-12)


# ---- memory and threads ----


def test_nothing_lives_longer_than_its_step():
    sweep = sweep_of("child_sum")
    x = features()
    y = sweep(x, GRAPH)
    alive = weakref.ref(y.grad_fn)
    gc.disable()
    try:
        y.sum().backward()
        del y
        assert alive() is None  # no cycle that waits for the garbage collector
    finally:
        gc.enable()
    for _ in range(20):
        sweep(x, GRAPH).sum().backward()
    gc.collect()
    before = len(gc.get_objects())
    for _ in range(200):
        sweep(x, GRAPH).sum().backward()
    gc.collect()
    assert len(gc.get_objects()) <= before + 20
    assert all(len(pieces) <= 4 for pieces in autograd._kept.values())


def bits(sweep: DagSweep, graph=GRAPH, x: Tensor | None = None) -> list[bytes]:
    x = features(graph.num_nodes) if x is None else x
    y = sweep(x, graph)
    gradients = torch.autograd.grad(y.square().sum(), list(sweep.parameters()))
    return [tensor.detach().numpy().tobytes() for tensor in (y, *gradients)]


@pytest.fixture
def two_threads(monkeypatch):
    monkeypatch.setattr(passes, "PARALLEL_WORK", 0)
    monkeypatch.setattr(passes, "PARALLEL_SPEEDUP", 0)
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(threads)


def test_many_passes_from_several_python_threads_race_for_nothing(two_threads):
    sweeps = [sweep_of(name) for name in ("tree_lstm", "child_sum", "attention")]
    graph = DagBatch.from_dags([part for part in GRAPH for _ in range(40)])
    expected = [bits(sweep, graph) for sweep in sweeps]
    failures: list[int] = []
    gate = threading.Barrier(3)

    def work(number: int) -> None:
        gate.wait()
        failures.extend(number for _ in range(25) if bits(sweeps[number], graph) != expected[number])

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def _child(sweep: DagSweep, queue) -> None:
    queue.put(bits(sweep))


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_computes_after_its_parent_used_threads(two_threads):
    sweep = sweep_of("tree_lstm")
    expected = bits(sweep)
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_child, args=(sweep, queue))
    child.start()
    found = queue.get(timeout=60)
    child.join(60)
    assert (found, child.exitcode) == (expected, 0)
