"""Derived gradients of drawn formulas: those of the formula on tensors."""

import os
import random
from unittest import mock

import pytest
import torch

from dagnn.graph import Dag
from dagnn.nn import DagSweep, FormulaCell

_ONE = [torch.tanh, torch.sigmoid, lambda v: v * 2, lambda v: v + 0.3, lambda v: -v, torch.sin, lambda v: v * v * 0.2]
_TWO = [lambda a, b: a * b, lambda a, b: a - b, lambda a, b: a + b]


def drawn_formula(seed, two, ordered, each):
    """A smooth formula: sums and means of what operands hold, before the product and after it."""

    def formula(self, x, o, w):
        draw = random.Random(7777 + seed)

        def mixed(values, steps):
            values = list(values)
            for _ in range(steps):
                if draw.random() < 0.6:
                    values.append(draw.choice(_ONE)(draw.choice(_TWO)(draw.choice(values), draw.choice(values))))
                else:
                    values.append(draw.choice(_TWO)(draw.choice(values), draw.choice(values)))
            return values

        given = [o.h] + ([o.c] if two else []) + ([w.each(o.h)] if each else [])
        before, aggregates = mixed(given, 2), []
        for _ in range(draw.randint(1, 2)):
            one = getattr(o, draw.choice(["sum", "sum", "mean"]))(draw.choice(before))
            if not any(one is other for other in aggregates):
                aggregates.append(one)
        m = w.product(*aggregates)
        slots = [o.by_slot(draw.choice(before))] if ordered else []
        if ordered and draw.random() < 0.5:
            slots.append(m.by_slot.f)
        nodes = mixed([m.a, x.a, m.b, x.b, w.v, *aggregates], 3)
        inner = mixed([*given, *slots, draw.choice(nodes), draw.choice(nodes)], 3)
        late = [getattr(o, draw.choice(["sum", "sum", "mean"]))(v) for v in inner[::-1] if v.level >= 2][:1]
        late += [o.sum(v) for v in inner[::-1] if v.level == 1][:1]
        last = mixed([nodes[-1], nodes[-2], *late, *late], 3)
        outputs = torch.tanh(last[-1] + x.a * 0.1 + m.a * 0.1), torch.tanh(last[-2] + last[-1] * 0.3)
        return outputs if two else outputs[0]

    return type("Drawn", (FormulaCell,), {"states": ("h", "c") if two else ("h",), "formula": formula})


@pytest.mark.parametrize("seed", [9, 15, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (10, 31))])
@pytest.mark.parametrize(("two", "ordered", "each"), [(True, False, False), (True, True, False), (False, False, True)])
def test_drawn_formulas_have_the_gradients_of_tensors(seed, two, ordered, each):
    """Some were wrong: what is repeated for every operand gets the sum of its gradients, also where all are equal."""
    edges = [(0, 2), (1, 2), (2, 3), (0, 3), (2, 4), (3, 4), (0, 5), (2, 5), (4, 5)]
    graph = Dag(edges, 7, edge_attributes={"position": torch.tensor([0, 1, 0, 2, 0, 1, 0, 1, 2])})
    generator = torch.Generator().manual_seed(seed)
    sweep = DagSweep(drawn_formula(seed, two, ordered, each)(3, 3, 3 if ordered else None)).double()
    with torch.no_grad():
        for parameter in sweep.parameters():
            parameter.normal_(0, 0.7, generator=generator)
    x = torch.randn(7, 3, dtype=torch.float64, generator=generator)
    weight = torch.randn(7, 3, dtype=torch.float64, generator=generator)

    def gradients():
        own = x.clone().requires_grad_()
        total = (sweep(own, graph) * weight).sum()
        return torch.autograd.grad(total, [own, *sweep.parameters()], allow_unused=True, materialize_grads=True)

    found = gradients()
    with mock.patch.dict(os.environ, {"DAGNN_KERNELS": "reference"}):
        expected = gradients()
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-10)


def test_a_feature_inside_a_sum_counts_once_for_every_operand():
    """d/da of the sum of a + h over k operands is k; of the sum over s slots, s."""

    class Repeated(FormulaCell):
        def formula(self, x, operands, weights):
            m = weights.product(operands.sum(operands.h))
            return (
                x.a
                + 0 * m.a
                + operands.sum(x.b + operands.h)
                + operands.sum(weights.v * operands.by_slot(operands.h) + x.c)
            )

    for slots, factor in ((None, 1), (3, 3)):  # x.c: an unordered cell has one slot, this one three
        edges = [(0, 3), (1, 3), (2, 3)]
        graph = Dag(edges, 4, edge_attributes={"position": torch.arange(3)})
        sweep = DagSweep(Repeated(1, 2, slots)).double()
        with torch.no_grad():
            for parameter in sweep.parameters():
                parameter.fill_(0.5)
        sweep(torch.ones(4, 1, dtype=torch.float64), graph)[3].sum().backward()
        of_features = sweep.cells["up"].bias.grad.view(3, 2)[:, 0].tolist()
        # In node 3: 1 of x.a, 3 of x.b, the slots of x.c. In each of the three sources: x.a, once by h and once by v h.
        assert of_features == [1 + 3 * 1.5, 3, factor]


def test_a_maximum_of_what_is_rounded_in_two_ways_gives_its_gradient(monkeypatch):
    """The way back added and multiplied at once where the forward pass had not: nothing equalled the maximum."""

    class Best(FormulaCell):
        def formula(self, x, operands, weights):
            t = operands.h * x.b
            m = weights.product(operands.sum(operands.h), operands.max(operands.h * 1.7 + torch.sin(operands.h * 1.7)))
            return torch.tanh(x.a + m.a + operands.max(torch.tanh(t) + t))

    generator = torch.Generator().manual_seed(0)
    sweep, graph = DagSweep(Best(2, 5)).double(), Dag([(0, 3), (1, 3), (2, 3), (3, 4), (0, 4), (1, 4)], 5)
    x = torch.randn(5, 2, dtype=torch.float64, generator=generator, requires_grad=True)

    def gradients():
        return torch.autograd.grad(sweep(x, graph).square().sum(), [x, *sweep.parameters()])

    found = gradients()
    monkeypatch.setenv("DAGNN_KERNELS", "reference")
    torch.testing.assert_close(found, gradients(), rtol=1e-9, atol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(40))
def test_more_drawn_formulas(seed):
    for two, ordered, each in ((False, False, False), (True, False, True), (True, True, False), (False, True, True)):
        test_drawn_formulas_have_the_gradients_of_tensors(seed, two, ordered, each)
