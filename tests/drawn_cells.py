"""Cells as users write them, drawn at random as source text: kinks, comparisons, reductions of all kinds, dropout.

What is drawn is a class with its lines, so a failure prints a cell that can be run as it is.
"""

import linecache
import random
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from dagnn.graph import Dag, DagBatch
from dagnn.nn import DagSweep, FormulaCell

ONE = (
    "torch.tanh({a})", "torch.sigmoid({a})", "torch.relu({a})", "{a}.abs()", "torch.sin({a})", "torch.cos({a})",
    "F.silu({a})", "{a}.square() * 0.3", "torch.exp(-{a}.abs())", "torch.sqrt(abs({a}) + 0.5)",
    "torch.log(1 + {a} * {a})", "{a}.clamp(-0.6, 0.7)", "torch.clamp({a}, min=-0.25)", "{a}.clamp(max=0.4)", "-{a}",
    "1.7 * {a}", "{a} - 0.3", "1 - {a}", "1 / (1 + {a}**2)", "{a} ** 3 * 0.1", "{a} * {a}.detach()",
    "torch.where({a} > 0, {a}, 0.1 * {a})", "({a} > 0.1) * {a}",
)  # fmt: skip
TWO = (
    "{a} * {b}", "{a} - {b}", "{a} + {b}", "torch.maximum({a}, {b})", "torch.minimum({a}, {b})",
    "torch.where({a} < {b}, {a}, {c})", "torch.where(({a} <= {b}) & ({c} > 0), {c}, {b})",
    "torch.where(~({a} > {c}) | ({b} >= 0.2), {a} * {b}, 0.5)", "{a} / (1 + {b} * {b})", "{a} / ({b}.abs() + 0.7)",
    "torch.addcmul({a}, {b}, {c})", "torch.where(torch.relu({a}) == 0, {c}, {b})",
    "torch.maximum({a}, {b}) - torch.minimum({b}, {c})", "torch.relu({a} - {b}) + {b}", "abs({a} - {b}) * {c}",
    "{a} * {b} + {c}", "{c} - {a} * {b}", "torch.tanh({a}) + {a} * {b}", "1.7 * {a} + torch.sin(1.7 * {b})",
)  # fmt: skip
BOUNDED = ("torch.tanh({a})", "{a} / (1 + {a}.abs())", "{a}.clamp(-1, 1)", "torch.sigmoid({a}) * torch.tanh({b})")


@dataclass
class DrawnCell:
    """A cell, and how it runs: ``build`` makes a `DagSweep` of it."""

    seed: int
    lines: list[str] = field(default_factory=list)
    states: tuple[str, ...] = ("h",)
    slots: int | None = None
    operators: int | None = None
    direction: str = "up"

    @property
    def source(self) -> str:
        head = f"class Drawn{self.seed}(FormulaCell):\n    states = {self.states}\n\n"
        return (
            head + "    def formula(self, x, operands, weights):\n" + "".join(f"        {one}\n" for one in self.lines)
        )

    @property
    def kind(self) -> type[FormulaCell]:
        name = f"<drawn {self.seed}>"
        linecache.cache[name] = len(self.source), None, self.source.splitlines(keepends=True), name
        space = {"FormulaCell": FormulaCell, "torch": torch, "F": nn.functional, "__name__": __name__}
        exec(compile(self.source, name, "exec"), space)
        return space[f"Drawn{self.seed}"]

    def build(self, features: int, hidden: int, dtype: torch.dtype = torch.float64) -> DagSweep:
        """With numbers that float32 holds."""
        sweep = DagSweep(self.kind(features, hidden, self.slots, operators=self.operators), self.direction)
        generator = torch.Generator().manual_seed(self.seed)
        with torch.no_grad():
            for parameter in sweep.parameters():
                parameter.normal_(
                    0, 0.8 / (1 if parameter.dim() < 2 else parameter.shape[-2] ** 0.5), generator=generator
                )
        return sweep.to(dtype)


def drawn_cell(seed: int) -> DrawnCell:
    """A cell that is compiled in eval mode; in training too, unless it has dropout."""
    return _Draw(seed).cell


class _Draw:
    def __init__(self, seed: int) -> None:
        draw = self._draw = random.Random(seed)
        self.cell = cell = DrawnCell(seed)
        self._level: dict[str, int] = {}
        self._names: dict[str, str] = {}
        cell.states = ("h", "c", "e")[: draw.choice([1, 1, 2, 2, 3])]
        cell.slots = draw.choice([None, None, 3])
        cell.operators = draw.choice([None, None, 2])
        cell.direction = draw.choice(["up", "up", "down", "both"])
        attends = cell.slots is None and len(cell.states) == 1 and draw.random() < 0.15
        if attends:
            before, each = [], []
            aggregates = [self._add("operands.sum(operands.attention() * operands.h)", 0)]
        else:
            each = [self._add("weights.each(operands.h)", 2)] if draw.random() < 0.35 else []
            given = [f"operands.{name}" for name in cell.states] + each
            self._level |= dict.fromkeys(given, 2)
            before = self._mixed(given, draw.randint(1, 4))
            aggregates = self._aggregates(before)
        self._add(f"weights.product({', '.join(aggregates)})", 0, "m")
        nodes = ["x.a", "m.b", "x.b", "weights.v", "x.c", "m.c", *(one for one in aggregates if self._level[one] == 0)]
        self._level |= dict.fromkeys(nodes, 0)
        nodes.append(self._add(draw.choice(["x.a + m.a", "x.a * m.a"]), 0))
        nodes = self._mixed(nodes, draw.randint(2, 6))
        late = self._late(before, nodes, each) if not attends else []
        last = self._mixed([*nodes[-4:], "x.c", "m.c", *late, *late], draw.randint(2, 5))
        if draw.random() < 0.25:
            last.append(self._add(f"F.dropout({last[-1]}, 0.4, self.training)", 0))
        if draw.random() < 0.2:
            last.append(self._add(f"{last[-1]} * (0.5 if self.training else 0.8)", 0))
        results = [
            self._add(draw.choice(BOUNDED).format(a=self._sum([*last[-3:], nodes[-1]]), b=last[-1 - k]), 0)
            for k in range(len(cell.states))
        ]
        self.cell.lines.append(f"return {', '.join(results)}")

    def _add(self, text: str, level: int, name: str | None = None) -> str:
        if text in self._names:  # one value, so also one aggregate of a product
            return self._names[text]
        name = name or f"v{len(self.cell.lines)}"
        self._names[text] = name
        self.cell.lines.append(f"{name} = {text}")
        self._level[name] = level
        return name

    def _sum(self, names: list[str]) -> str:
        return "(" + " + ".join(dict.fromkeys(self._draw.choice(names) for _ in range(2))) + ")"

    def _mixed(self, given: list[str], steps: int) -> list[str]:
        """What was given, and after it what is made of it."""
        draw, values = self._draw, list(given)
        for _ in range(steps):
            a, b, c = (draw.choice(values[-4:] if draw.random() < 0.5 else values) for _ in range(3))
            text = draw.choice(TWO if draw.random() < 0.6 else ONE)
            level = max(self._level[one] for one, place in ((a, "{a}"), (b, "{b}"), (c, "{c}")) if place in text)
            values.append(self._add(text.format(a=a, b=b, c=c), level))
        return values

    def _aggregates(self, before: list[str]) -> list[str]:
        draw, found, texts = self._draw, list[str](), set[str]()
        for _ in range(draw.randint(1, 3)):
            value, kind = draw.choice(before[-4:]), draw.choice(self._kinds())
            text = kind.format(a=value, b=draw.choice(before))
            if text.replace("by_slot", "sum") not in texts:  # of one value these are one aggregate
                texts.add(text.replace("by_slot", "sum"))
                found.append(self._add(text, 1 if "by_slot" in text else 0))
        return found

    def _kinds(self) -> list[str]:
        kinds = ["operands.sum({a})", "operands.mean({a})", "operands.max({a})", "operands.max(torch.tanh({a}) + {a})"]
        if self.cell.slots is not None:
            return kinds if self._draw.random() < 0.5 else ["operands.by_slot({a})", *kinds[1:]]
        return [*kinds, "operands.sum(operands.softmax({a}) * {b})"]

    def _late(self, before: list[str], nodes: list[str], each: list[str]) -> list[str]:
        draw = self._draw
        given = [*before[-3:], *each, draw.choice(nodes), draw.choice(nodes)]
        if self.cell.slots is not None:
            given.append(self._add(f"operands.by_slot({draw.choice(before)})", 1))
            if draw.random() < 0.5:
                given.append("m.by_slot.f")
                self._level["m.by_slot.f"] = 1
        inner, late = self._mixed(given, draw.randint(2, 5)), list[str]()
        edges = [one for one in inner if self._level[one] == 2]
        for value in edges[::-1][: draw.randint(1, 2)]:
            kind = draw.choice([kind for kind in self._kinds() if "by_slot" not in kind])
            late.append(self._add(kind.format(a=value, b=draw.choice(edges)), 0))
        late += [self._add(f"operands.sum({one})", 0) for one in inner[::-1] if self._level[one] == 1][:1]
        return late


def drawn_graph(seed: int, operators: int | None = None) -> DagBatch:
    """Two graphs: sources that are used twice, slots without operands, nodes that stand alone."""
    draw, dags = random.Random(seed), []
    for size in (draw.randint(3, 9), draw.randint(1, 3)):
        edges, positions = [], []
        for v in range(1, size):
            for position in draw.sample(range(3), draw.randint(0, 3)):
                edges.append((draw.randrange(v), v))
                positions.append(position)
        attributes = {"operator": torch.tensor([draw.randrange(operators or 1) for _ in range(size)])}
        position = {"position": torch.tensor(positions, dtype=torch.int64)}
        dags.append(Dag(edges, size, edge_attributes=position, node_attributes=attributes))
    return DagBatch.from_dags(dags)


def results(sweep: DagSweep, x: Tensor, graph: DagBatch) -> list[Tensor | None]:
    """The outputs, and the gradients of the features and of every parameter: None where there is none."""
    x = x.clone().requires_grad_()
    for parameter in sweep.parameters():
        parameter.grad = None
    y = sweep(x, graph)
    weight = torch.linspace(-1, 1, y.numel(), dtype=y.dtype).cos().view_as(y)
    if y.requires_grad:
        (y * weight).sum().backward()
    return [y.detach(), x.grad, *(parameter.grad for parameter in sweep.parameters())]
