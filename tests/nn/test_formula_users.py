"""Cells as users write them: what fits no node is refused, what a formula reads is followed, what has no gradient."""

import copy

import pytest
import torch
from torch.nn import functional as F

from dagnn.errors import ConfigError
from dagnn.graph import Dag
from dagnn.nn import DagSweep, FormulaCell

D, H = 3, 5
GRAPH = Dag([(0, 2), (1, 2), (2, 3), (0, 3)], 5)
SCALE, TENSOR, WEIGHT = 2.0, torch.ones(H), torch.nn.Parameter(torch.ones(H))


def made(make: type[FormulaCell]) -> DagSweep:
    torch.manual_seed(0)
    return DagSweep(make(D, H))


def product(operands, weights):
    return weights.product(operands.sum(operands.h)).n


@pytest.mark.parametrize(
    ("formula", "text"),
    [
        (lambda x: torch.softmax(x.n, 0), r"torch.softmax mixes the values of different nodes, and .* is \[nodes, 5\]"),
        (lambda x: F.batch_norm(x.n, TENSOR.clone(), TENSOR.clone(), training=True), "torch.batch_norm does not take"),
        (lambda x: F.layer_norm(x.n, (7,)), r"torch.layer_norm does not take values of the shape \[nodes, 5\], Given"),
        (
            lambda x: torch.mean(x.n, -1, keepdim=True),
            r"torch.mean in a formula must keep the shape \[3, 5\], got \[3, 1\]",
        ),
        (lambda x: F.dropout(x.n, 1.5), "torch.dropout does not take .* has to be between 0 and 1"),
        (lambda x: x.n * float(WEIGHT[0]), "numbers of a tensor may change later"),
        (lambda x: x.n * TENSOR.sum().item(), "numbers of a tensor may change later"),
        (lambda x: x.n if TENSOR.sum() > 0 else -x.n, "numbers of a tensor may change later"),
        (lambda x: x.n * WEIGHT, "got Parameter: .* a trained vector is weights.NAME"),
    ],
)
def test_a_function_that_fits_no_node_is_refused_when_the_cell_is_made(formula, text):
    class Wrong(FormulaCell):
        def formula(self, x, operands, weights):
            return formula(x) + product(operands, weights)

    state = torch.get_rng_state()
    with pytest.raises(ConfigError, match=text) as caught:
        Wrong(D, H)
    assert "test_formula_users.py" in str(caught.value)
    assert torch.equal(torch.get_rng_state(), state)


def test_rows_that_a_function_of_pytorchs_makes_at_random_are_no_mixture():
    class Noisy(FormulaCell):
        def formula(self, x, operands, weights):
            return x.n * torch.rand_like(x.n) + product(operands, weights)

    y = made(Noisy)(torch.randn(GRAPH.num_nodes, D), GRAPH)
    assert y.isfinite().all()


class Scaled(FormulaCell):
    own, of_class = 1.0, 1.0

    def __init__(self, *sizes):
        self.factor = self.more = 1.0
        super().__init__(*sizes)

    def formula(self, x, operands, weights):
        return torch.tanh(x.n + product(operands, weights)) * self.factor * scaled(self.of_class)


def scaled(value):
    return value * SCALE


def test_a_formula_follows_what_it_reads(monkeypatch):
    """It had kept the numbers of when the cell was made, without a word."""
    sweep = made(Scaled)
    x, cell = torch.randn(GRAPH.num_nodes, D), sweep.cells["up"]
    first = sweep(x, GRAPH)

    def follows(factor):
        fresh = DagSweep(Scaled(D, H))
        fresh.cells["up"].factor = cell.factor
        fresh.load_state_dict(sweep.state_dict())
        found = sweep(x, GRAPH)
        assert torch.equal(found, fresh(x, GRAPH))
        torch.testing.assert_close(found[:2], first[:2] * factor)  # sources, and their states are larger by so much
        assert cell.explain() == "compiled"

    follows(1.0)
    cell.factor = 3.0
    follows(3.0)
    monkeypatch.setattr(Scaled, "of_class", 0.5)
    follows(1.5)
    monkeypatch.setitem(globals(), "SCALE", 4.0)
    follows(3.0)
    with pytest.raises(ConfigError, match="must fit into a float"):
        cell.factor = 10**400
    assert cell.factor == 3.0
    follows(3.0)
    cell.more = 7.0  # is in no formula
    assert copy.deepcopy(cell).plan is cell.plan


def test_a_tensor_that_a_formula_holds_is_read_at_every_call():
    held = torch.ones(H)

    class Holding(FormulaCell):
        def formula(self, x, operands, weights):
            return torch.where(x.n > -9, x.n, held) * 1.0 + torch.mul(held, x.n) + 0 * product(operands, weights)

    sweep, x = made(Holding), torch.randn(GRAPH.num_nodes, D)
    assert sweep.cells["up"].explain().startswith("level by level: formulas have no torch.where: line")
    before = sweep(x, GRAPH)
    held.fill_(2.0)
    torch.testing.assert_close(sweep(x, GRAPH), before * 1.5)
    held = torch.full((H,), 3.0)
    torch.testing.assert_close(sweep(x, GRAPH), before * 2)


def test_an_attribute_that_changes_what_is_named_is_refused_and_stays():
    class Named(FormulaCell):
        name = "a"

        def formula(self, x, operands, weights):
            return getattr(x, self.name) + product(operands, weights)

    cell = Named(D, H)
    with pytest.raises(ConfigError, match=r"other weights in eval mode than before .*'b'.*'a'"):
        cell.name = "b"
    assert cell.name == "a"
    DagSweep(cell)(torch.randn(GRAPH.num_nodes, D), GRAPH)


def test_dropout_is_compiled_in_eval_mode():
    class Dropping(FormulaCell):
        def formula(self, x, operands, weights):
            return torch.tanh(F.dropout(x.n, 0.5, self.training) + product(operands, weights))

    cell = Dropping(D, H)
    assert cell.explain().startswith("level by level: formulas have no torch.dropout: line")
    assert cell.eval().explain() == "compiled"


class HalfUsed(FormulaCell):
    """Of each kind of parameter, one that the output depends on and one that it does not."""

    states = ("h", "c", "e")
    which = "h"

    def formula(self, x, operands, weights):
        m = weights.product(operands.sum(operands.h))
        h = {
            "h": torch.tanh(weights.v) + operands.sum(operands.h),
            "detached": weights.v + x.a.detach(),
            "compared": torch.where((weights.w > 0) & (m.a > x.a), weights.v, 0.5),
            "through states": operands.sum(operands.c) + 0.1 * weights.v,
            "by products": operands.sum(operands.h * m.a) + weights.v * 0,
            "each": torch.tanh(operands.max(weights.each(operands.h))) + weights.v,
        }[self.which]
        return h, operands.sum(operands.e) + weights.w + (m.a + x.a).detach(), weights.u + x.a


class Each(HalfUsed):
    which = "each"


@pytest.mark.parametrize("edges", [[], [(0, 1)], [(0, 2), (1, 2), (2, 3)]], ids=["none", "one", "three"])
@pytest.mark.parametrize(
    ("which", "with_gradient"),
    [
        ("h", "v"),
        ("detached", "v"),
        ("compared", "v"),
        ("through states", "v w u x.a"),
        ("by products", "v m.a"),
        ("each", "v operand_weight"),
    ],
)
def test_what_the_output_does_not_depend_on_has_no_gradient(which, with_gradient, edges, monkeypatch):
    """As in plain PyTorch; and where this graph alone has no operands, zeros, as of a layer for a batch of no rows."""
    names = {"v": ["v"], "w": ["w"], "u": ["u"], "m.a": ["state_weight"], "operand_weight": ["operand_weight"]}
    names |= {"x.a": ["x", "feature_weight", "bias"]}
    expected = {name for word in with_gradient.split() for name in names[word]}
    monkeypatch.setattr(HalfUsed, "which", which)
    make = Each if which == "each" else HalfUsed
    sweep, x = made(make), torch.randn(4, D, requires_grad=True)
    for path in ("compiled", "reference"):
        monkeypatch.setenv("DAGNN_KERNELS", path)
        x.grad = None
        sweep.zero_grad()
        sweep(x, Dag(edges, 4)).sum().backward()
        found = {name.removeprefix("cells.up.") for name, one in sweep.named_parameters() if one.grad is not None}
        assert (found | ({"x"} if x.grad is not None else set())) - {"state_weight"} == expected - {"state_weight"}, (
            path
        )
