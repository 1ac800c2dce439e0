"""Cells from formulas: compiled as on tensors, exact derivatives, the same bits for any threads, clear errors."""

import copy
import pickle

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from dagnn.errors import ConfigError, GraphError
from dagnn.graph import Dag, DagBatch
from dagnn.nn import AttentionCell, DagSweep, FormulaCell, GRUCell, TreeLSTMCell

D, H = 3, 5


class PeepholeTreeLSTM(FormulaCell):
    states = ("h", "c")

    def formula(self, x, operands, weights):
        kept = operands.by_slot(operands.c)
        m = weights.product(operands.by_slot(operands.h))
        i = torch.sigmoid(x.i + m.i + weights.peep_i * operands.sum(kept))
        f = torch.sigmoid(x.f + m.by_slot.f + weights.peep_f * kept)
        c = i * torch.tanh(x.u + m.u) + operands.sum(f * kept)
        o = torch.sigmoid(x.o + m.o + weights.peep_o * c)
        return o * torch.tanh(c), c


class MinimalGatedUnit(FormulaCell):
    def formula(self, x, operands, weights):
        s = operands.sum(operands.h)
        m = weights.product(s)
        f = torch.sigmoid(x.f + m.f)
        return s + f * (torch.tanh(x.n + f * m.n) - s)


class SetGRU(FormulaCell):
    def formula(self, x, operands, weights):
        mean, best = operands.mean(operands.h), operands.max(operands.h)
        m = weights.product(mean, best)
        z = torch.sigmoid(x.z + m.z)
        return z * mean + (1 - z) * torch.tanh(x.n + m.n)


class SoftmaxLSTM(FormulaCell):
    states = ("h", "c")

    def formula(self, x, operands, weights):
        share = operands.softmax(weights.each(operands.h))
        m = weights.product(operands.sum(share * operands.h), operands.max(operands.c))
        c = torch.sigmoid(x.i + m.i) * torch.tanh(x.u + m.u) + torch.sigmoid(x.f + m.f) * operands.sum(
            share * operands.c
        )
        return torch.sigmoid(x.o + m.o) * torch.tanh(c) + operands.max(operands.h), c


class NotZeroAtZero(FormulaCell):
    """In the columns that fill up a pack this would be 0 / 0, and infinity times a weight of 0."""

    states = ("h", "c")

    def formula(self, x, operands, weights):
        m = weights.product(operands.sum(torch.cos(operands.h) / operands.c.abs()))
        c = 1 / (x.c * x.c) + 0.1
        return torch.exp(-m.a * m.a) + torch.log(m.b * m.b + 0.5), torch.maximum(c, x.c)


class Attending(FormulaCell):
    def formula(self, x, operands, weights):
        a = operands.sum(operands.attention() * operands.h)
        m = weights.product(a)
        return torch.tanh(x.n + m.n) + torch.relu(a) * weights.gate


class Ordered(FormulaCell):
    states = ("h", "c", "e")

    def formula(self, x, operands, weights):
        m = weights.product(operands.mean(operands.h * operands.c), operands.max(operands.e))
        kept = operands.sum(
            torch.sin(m.by_slot.f) * operands.max(operands.c) + m.by_slot.f * operands.by_slot(operands.e)
        )
        c = torch.where(x.a < m.a, kept, x.a * m.b)
        return torch.tanh(c + m.a), c * 0.5, torch.tanh(c) - operands.sum(operands.h.square())


class Linear(FormulaCell):
    """What an edge brings back has a term that all edges into the node share, and one of the product's."""

    def formula(self, x, operands, weights):
        s = operands.sum(operands.h)
        m = weights.product(s)
        return torch.tanh(x.n + m.n) + operands.sum(operands.h * 2) - operands.sum(operands.h * weights.v * x.n)


class ColumnAtEdges(FormulaCell):
    """The way back reads, at a source without operands, a column of its target."""

    def formula(self, x, operands, weights):
        m = weights.product(operands.sum(operands.h))
        return torch.tanh(x.n + m.n + operands.sum(operands.h * operands.h * m.f))


CELLS = [PeepholeTreeLSTM, MinimalGatedUnit, SetGRU, SoftmaxLSTM, NotZeroAtZero, Attending, Ordered, Linear]
CELLS += [ColumnAtEdges]
ORDERED = {PeepholeTreeLSTM, Ordered}
# A hole: node 3 uses positions 0 and 2. Node 4 uses node 2 twice, node 0 three edges; node 6 stands alone.
GRAPH = DagBatch.from_dags(
    [
        Dag(
            [(0, 2), (1, 2), (2, 3), (0, 3), (2, 4), (3, 4), (0, 5), (2, 5), (4, 5)],
            num_nodes=7,
            edge_attributes={"position": torch.tensor([0, 1, 0, 2, 0, 1, 0, 1, 2])},
        ),
        Dag([(0, 1)], edge_attributes={"position": torch.tensor([0])}),
    ]
)


def made(make: type[FormulaCell], hidden: int = H, **options: object) -> DagSweep:
    torch.manual_seed(0)
    cell = make(D, hidden, 3 if make in ORDERED else None, **options)
    return DagSweep(cell)


def outputs(sweep: DagSweep, x: Tensor, graph: DagBatch = GRAPH) -> list[Tensor]:
    y = sweep(x, graph)
    weight = torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view_as(y)
    grads = torch.autograd.grad((y * weight).sum(), [x, *sweep.parameters()], materialize_grads=True)
    return [y.detach(), *grads]


@pytest.mark.parametrize("hidden", [1, H, 32])
@pytest.mark.parametrize("make", CELLS)
def test_compiled_equals_the_formula_on_tensors(make, hidden, monkeypatch):
    sweep = made(make, hidden).double()
    assert sweep.cells["up"].explain() == "compiled"
    x = torch.randn(GRAPH.num_nodes, D, dtype=torch.float64, requires_grad=True)
    ours = outputs(sweep, x)
    monkeypatch.setenv("DAGNN_KERNELS", "reference")
    for one, theirs in zip(ours, outputs(sweep, x), strict=True):
        torch.testing.assert_close(one, theirs, rtol=1e-11, atol=1e-11 * float(1 + theirs.abs().max()))


@pytest.mark.parametrize("make", [PeepholeTreeLSTM, SetGRU, SoftmaxLSTM])
def test_first_and_second_derivatives_by_differences(make):
    sweep = made(make, 2).double()
    graph = Dag([(0, 2), (1, 2), (2, 3)])
    x = torch.randn(4, D, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x, *_: sweep(x, graph), [x, *sweep.parameters()])
    assert torch.autograd.gradgradcheck(lambda x: sweep(x, graph), [x])


@pytest.mark.parametrize("make", [PeepholeTreeLSTM, MinimalGatedUnit, SetGRU])
def test_threads_change_no_bit(make, monkeypatch):
    monkeypatch.setattr("dagnn.kernels.sweep.passes.PARALLEL_WORK", 0)
    monkeypatch.setattr("dagnn.kernels.sweep.passes.PARALLEL_SPEEDUP", 0)
    graph = DagBatch.from_dags([Dag([(0, 2), (1, 2), (2, 3), (2, 4)])] * 40)
    sweep, x = made(make, 16), torch.randn(graph.num_nodes, D, requires_grad=True)
    before = torch.get_num_threads()
    results = []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            results.append(outputs(sweep, x, graph))
    finally:
        torch.set_num_threads(before)
    assert all(map(torch.equal, *results))


@pytest.mark.parametrize("make", [SetGRU, PeepholeTreeLSTM])
def test_operators_and_both_directions(make, monkeypatch):
    graph = Dag([(0, 2), (1, 2), (2, 3)], node_attributes={"operator": torch.tensor([0, 0, 1, 2])})
    sweep = DagSweep(made(make, operators=3).cells["up"], "both").double()
    x = torch.randn(4, D, dtype=torch.float64, requires_grad=True)
    ours = outputs(sweep, x, graph)
    monkeypatch.setenv("DAGNN_KERNELS", "reference")
    for one, theirs in zip(ours, outputs(sweep, x, graph), strict=True):
        torch.testing.assert_close(one, theirs, rtol=1e-11, atol=1e-12)


def test_a_formula_with_a_function_of_pytorchs_runs_level_by_level_and_says_so():
    class WithErf(FormulaCell):
        def formula(self, x, operands, weights):
            return torch.erf(x.n + weights.product(operands.sum(operands.h)).n)

    sweep = made(WithErf).double()
    reason = sweep.cells["up"].explain()
    assert reason.startswith("level by level: formulas have no torch.erf: line ")
    assert "`return torch.erf(" in reason and "test_formula_cells.py" in reason
    x = torch.randn(GRAPH.num_nodes, D, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: sweep(x, GRAPH), [x])


def test_layer_norm_runs_level_by_level():
    class Normed(FormulaCell):
        def formula(self, x, operands, weights):
            return F.layer_norm(x.n + weights.product(operands.sum(operands.h)).n, (H,))

    y = made(Normed)(torch.randn(GRAPH.num_nodes, D), GRAPH)
    torch.testing.assert_close(y.mean(1), torch.zeros(len(y)), rtol=0, atol=1e-5)


def test_cells_of_one_formula_share_their_compiled_code_and_survive_copies():
    one, other = made(SetGRU).cells["up"], made(SetGRU, 7).cells["up"]
    assert one.plan is other.plan is copy.deepcopy(one).plan
    again = pickle.loads(pickle.dumps(GRUCell(D, H, "mean")))
    assert again.plan is GRUCell(D, H, "mean").plan is not GRUCell(D, H).plan


def test_all_built_in_cells_are_compiled():
    for cell in (GRUCell(D, H, "max"), AttentionCell(D, H), TreeLSTMCell(D, H, 3)):
        assert cell.explain() == "compiled"


def test_parameters_follow_from_the_formula():
    cell = PeepholeTreeLSTM(D, H, 3)
    shapes = {name: list(parameter.shape) for name, parameter in cell.named_parameters()}
    assert shapes == {
        "feature_weight": [D, 4 * H],
        "state_weight": [3 * H, (3 + 3) * H],
        "peep_i": [H],
        "peep_f": [H],
        "peep_o": [H],
        "bias": [4 * H],
    }


def product(operands, weights):
    return weights.product(operands.sum(operands.h)).n


@pytest.mark.parametrize(
    ("formula", "text"),
    [
        (lambda x, o, w: None, "must return a value for each of the states h, got None"),
        (lambda x, o, w: (x.a, x.b), "must return a value for each of the states h"),
        (lambda x, o, w: o.h, "the state h differs from operand to operand"),
        (lambda x, o, w: product(o, w) + o.sum(x.a), "needs a value that differs from operand to operand"),
        (lambda x, o, w: w.product(x.a).n, "a product takes what operands.sum, mean, max or by_slot gave"),
        (lambda x, o, w: w.product().n, "one or more aggregates"),
        (lambda x, o, w: w.product(o.sum(o.h), o.sum(o.h)).n, "one or more aggregates, each once"),
        # Compared by slot, these are one: the compiled product read rows that nobody had written.
        (lambda x, o, w: w.product(o.by_slot(o.h), o.sum(o.h)).n, "one or more aggregates, each once"),
        (lambda x, o, w: product(o, w) + product(o, w), "a cell has one product"),
        (lambda x, o, w: w.each(x.a), "one product for each operand"),
        (lambda x, o, w: product(o, w) if x.a > 0 else x.a, "Write torch.where"),
        (lambda x, o, w: x.a + "b", "its values and numbers, got str"),
        (lambda x, o, w: product(o, w) + w.bias, "has a bias already"),
        (lambda x, o, w: x.a + w.product(o.sum(o.h)).by_slot.f, "the state h differs|columns by slot"),
        (lambda x, o, w: o.sum(w.product(o.sum(o.h)).by_slot.f) + x.a, "columns by slot, f: give max_children"),
        (lambda x, o, w: (x.a + product(o, w)) > 0, "the state h is a comparison: write torch.where"),
        (lambda x, o, w: x.a + o.sum(w.each(3)), "one product for each operand"),
        (lambda x, o, w: [x.a], "must return a value for each of the states h, got .<a value of line "),
    ],
)
def test_a_wrong_formula_is_refused_when_the_cell_is_made(formula, text):
    class Wrong(FormulaCell):
        def formula(self, x, operands, weights):
            return formula(x, operands, weights)

    with pytest.raises(ConfigError, match=text):
        Wrong(D, H)


@pytest.mark.parametrize("make", [Attending, SoftmaxLSTM])
def test_a_softmax_over_operands_that_have_slots_of_their_own_is_refused(make):
    with pytest.raises(ConfigError, match="max_children=2 each is alone in its slot"):
        make(D, H, 2)


def test_names_of_states_and_missing_formulas():
    class NoState(FormulaCell):
        states = ("sum",)

    with pytest.raises(ConfigError, match="a state cannot be called 'sum'"):
        NoState(D, H)
    with pytest.raises(NotImplementedError, match="needs a method formula"):
        FormulaCell(D, H)
    with pytest.raises(AttributeError, match=r"operands have the states h, not c: line .*test_formula_cells"):
        type("Other", (FormulaCell,), {"formula": lambda self, x, o, w: o.c})(D, H)
    with pytest.raises(GraphError, match="an edge has position 2, but max_children=2"):
        DagSweep(PeepholeTreeLSTM(D, H, 2))(torch.randn(GRAPH.num_nodes, D), GRAPH)


def test_what_is_not_compiled_says_why():
    class Before(FormulaCell):
        def formula(self, x, operands, weights):
            return torch.tanh(weights.product(operands.sum(x.a * operands.h)).n)

    class Twice(FormulaCell):
        def formula(self, x, operands, weights):
            a = operands.attention()
            return torch.tanh(x.n + weights.product(operands.sum(a * operands.h)).n) + operands.sum(a)

    assert "is used before the product: line" in made(Before).cells["up"].explain()
    assert "attention is compiled in" in made(Twice).cells["up"].explain()
    for make in (Before, Twice):
        sweep = made(make, 2).double()
        x = torch.randn(GRAPH.num_nodes, D, dtype=torch.float64, requires_grad=True)
        assert torch.autograd.gradcheck(lambda x, sweep=sweep: sweep(x, GRAPH), [x])


class _ByMode(FormulaCell):
    dropped = 0.9

    def formula(self, x, operands, weights):
        kept = torch.nn.functional.dropout(x.n, self.dropped, self.training) if self.dropped else x.n
        scale = 2.0 if self.training else 1.0
        return torch.tanh(scale * kept + weights.product(operands.sum(operands.h)).n)


class _ByModeCompiled(_ByMode):
    dropped = 0.0


@pytest.mark.parametrize("kind", [_ByMode, _ByModeCompiled])
def test_a_formula_follows_the_mode_of_its_cell(kind):
    class Plain(FormulaCell):
        def formula(self, x, operands, weights):
            return torch.tanh(x.n + weights.product(operands.sum(operands.h)).n)

    dag, x = Dag([(0, 2), (1, 2), (2, 3)]), torch.randn(4, 3)
    sweep, plain = DagSweep(kind(3, 5)), DagSweep(Plain(3, 5))
    plain.load_state_dict(sweep.state_dict())
    assert not torch.allclose(sweep(x, dag), plain(x, dag))
    for evaluated in (
        sweep.eval(),
        copy.deepcopy(sweep),
        pickle.loads(pickle.dumps(sweep)) if kind is _ByMode else sweep,
    ):
        torch.testing.assert_close(evaluated(x, dag), plain(x, dag))
    assert not torch.allclose(sweep.train()(x, dag), plain(x, dag))


def test_a_formula_that_names_other_weights_by_mode_is_refused():
    class Other(FormulaCell):
        def formula(self, x, operands, weights):
            part = x.a if self.training else x.b
            return torch.tanh(part + weights.product(operands.sum(operands.h)).n)

    with pytest.raises(ConfigError, match=r"names other weights in eval mode than in training .*'b'.*'a'"):
        Other(3, 5)
