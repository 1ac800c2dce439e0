"""The passes of a `CellPlan` as Triton kernels: the text is written from the formula and its derivative.

One program computes a node of one level, for a tile of its columns. It pulls: forward from the operands of the node,
backward from the nodes that use it, edge after edge in the order of the plan. Nothing is added atomically, and columns
never meet, so the bits do not depend on the size of a tile. Where columns do meet, in the products with a weight, the
kernels of a level end and begin.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from dagnn.kernels.emit.expressions import NODE, REDUCTIONS, SLOT, Expr
from dagnn.kernels.emit.formula import ancestors
from dagnn.kernels.gpu.mathematics import from_text, operation
from dagnn.kernels.sweep.cell_plan import CellPlan, Place

Sinks = Sequence[tuple[Expr, Place]]

MOST_COLUMNS = 128
"""Columns that one program computes at most; their number changes no bits."""
MOST_REGISTERS = 128
INTEGERS = frozenset(
    {
        "nodes", "first_slots", "class_rows", "operand_rows", "feature_rows", "in_offsets", "in_places", "out_offsets",
        "out_slots", "out_edges",
    }
)  # fmt: skip
"""Fields of int32; the others have the dtype of the features."""
# What a program knows about its node, each read where it is needed first.
_OF_NODE = {
    "node": "tl.load(nodes + place)",
    "first_slot": "tl.load(first_slots + place)",
    "slots": "tl.load(first_slots + place + 1) - first_slot",
    "class_row": "tl.load(class_rows + place)",
    "operand_row": "tl.load(operand_rows + place)",
    "feature_row": "tl.load(feature_rows + place)",
}
_NEEDS = {"slots": ("first_slot",)}


@dataclass(frozen=True)
class Kernel:
    """A kernel of a cell, called with its ``fields``, the first place, ``hidden`` and ``tile``."""

    run: Any
    fields: tuple[str, ...]


def launch_options(tile: int) -> dict[str, int]:
    """How a kernel of a cell is compiled: two columns a thread."""
    # Without a limit, ptxas spills rather than take a few more registers, for programs that do not need the occupancy.
    limit = {} if torch.version.hip else {"maxnreg": MOST_REGISTERS}
    return {"num_warps": max(1, tile // 64), **limit}


@cache
def cell_kernels(plan: CellPlan) -> Mapping[str, Kernel]:
    """The kernels of a cell, by name: ``first``, ``second``, ``pull``, ``back`` and ``last``, those that it has."""
    texts = {"first": _first(plan), "second": _second(plan), "back": _back(plan)}
    if plan.each:
        texts["pull"] = _pull(plan)
    if plan.last:
        texts["last"] = _last(plan)
    made = from_text("\n".join(text.finished() for text in texts.values()))
    return {name: Kernel(made[name], tuple(text.fields)) for name, text in texts.items()}


def _first(plan: CellPlan) -> "_Text":
    """What the operands say is aggregated."""
    text = _Text("first")
    with text.nested(f"if {text.of_node('slots')} > 0:"):
        _Body(text, plan, plan.there_first).block(NODE, plan.first)
    return text


def _second(plan: CellPlan) -> "_Text":
    """The states, from the features and the product."""
    text = _Text("second")
    _Body(text, plan, plan.there).block(NODE, plan.second)
    return text


def _pull(plan: CellPlan) -> "_Text":
    """The gradients of the states, but for what the product with the weight of operands adds."""
    text = _Text("pull")
    pulled = _pulled(text, plan)
    for number, name in enumerate([*plan.states, plan.each]):
        assert name is not None
        field, count, index = _waiting(plan, number)
        text.line(f"tl.store({text.address(field, f'place * {count} + {index}')}, {pulled[name]}, mask=present)")
    return text


def _waiting(plan: CellPlan, number: int) -> tuple[str, int, int]:
    """Where the gradient of a state waits for the product, or that of the operand's product: field, rows, row."""
    if number == 0:
        return "hidden_gradients", 1, 0
    if number == len(plan.states):
        return "forget_gradients", 1, 0
    return "state_gradients", len(plan.states) - 1, number - 1


def _back(plan: CellPlan) -> "_Text":
    """The gradients of what the states were computed from."""
    text = _Text("back")
    if plan.each:
        pulled = {}
        for number, name in enumerate(plan.states):
            field, count, index = _waiting(plan, number)
            pulled[name] = text.loaded(text.address(field, f"place * {count} + {index}"))
    else:
        pulled = _pulled(text, plan)
    columns = {Place(NODE, number=k) for k in range(len(plan.columns))} | {Place(SLOT, number=len(plan.columns))}
    # Gradients of features go to a matrix of their own. What is summed over all nodes lies among the gates.
    needed = columns | set(plan.vector_places)
    sinks = [(one, at) for one, at in plan.back if at.field != "gates" or at in needed]
    _Body(text, plan, plan.there_back, {plan.seeds[name]: pulled[name] for name in plan.states}).block(NODE, sinks)
    return text


def _last(plan: CellPlan) -> "_Text":
    """What edges into a slot bring back in common, once the gradients of the aggregates are there."""
    text = _Text("last")
    with text.nested(f"if {text.of_node('slots')} > 0:"):
        _Body(text, plan, plan.there_last).block(NODE, plan.last)
    return text


def _pulled(text: "_Text", plan: CellPlan) -> dict[str, str]:
    """The gradients of what a node gives to others: every edge out of it brings one back."""
    first = plan.states[0]
    names = [*plan.states, *([plan.each] if plan.each else [])]
    totals = {name: text.let("zero") for name in names if name != first}
    totals[first] = text.loaded(text.address("grad_y", text.of_node("node")))
    body = _Body(text, plan, plan.there_at_source)
    ends = [plan.pulled[name] for name in names if name in plan.pulled]
    for one in ancestors(ends, plan.there_at_source.__contains__):
        if one in plan.there_at_source and plan.there_at_source[one].level == NODE:
            body.value(one)  # of the source itself: read once, not for every edge
    shared = text.let("tl.sum(zero, axis=0)") if plan.has_attention else ""
    with text.loop(f"tl.load({text.field('out_offsets')} + place)", "tl.load(out_offsets + place + 1)") as number:
        body.slot = text.let(f"tl.load({text.field('out_slots')} + {number})")
        body.edge = text.let(f"tl.load({text.field('out_edges')} + {number})")
        for name in names:
            if name in plan.pulled:
                text.line(f"{totals[name]} += {body.value(plan.pulled[name])}")
        if shared:
            text.line(f"{shared} += tl.load({text.field('edge_gradients')} + {body.edge})")
    if shared:
        weight = text.loaded(text.address("score_weight", "0"))
        text.line(f"{totals[first]} += {shared} * {weight}")
        text.line(f"tl.store({text.field('score_gradients')} + place, {shared}, mask=tl.program_id(1) == 0)")
    return totals


class _Text:
    """The text of a kernel; ``fields`` are its parameters, in the order in which they were named first."""

    def __init__(self, name: str) -> None:
        self._name, self._lines, self._depth, self._count = name, list[str](), 1, 0
        self._of_node: dict[str, str] = {}
        self.fields: dict[str, None] = {}

    def finished(self) -> str:
        like = next(name for name in self.fields if name not in INTEGERS)
        head = [
            "@triton.jit(do_not_specialize=['first'])",
            f"def {self._name}({', '.join(self.fields)}, first, hidden: tl.constexpr, tile: tl.constexpr):",
            "    place = first + tl.program_id(0)",
            "    columns = tl.program_id(1) * tile + tl.arange(0, tile)",
            "    present = columns < hidden",
            f"    zero = tl.zeros([tile], dtype={like}.dtype.element_ty)",
            *(f"    {name} = {text}" for name, text in self._of_node.items()),
        ]
        return "\n".join([*head, *self._lines, ""])

    def line(self, text: str) -> None:
        self._lines.append("    " * self._depth + text)

    def let(self, text: str) -> str:
        """A name of its own for a value."""
        self._count += 1
        self.line(f"v{self._count} = {text}")
        return f"v{self._count}"

    def field(self, name: str) -> str:
        self.fields[name] = None
        return name

    def of_node(self, name: str) -> str:
        """A number of the node, at hand everywhere."""
        for needed in (*_NEEDS.get(name, ()), name):
            if needed not in self._of_node:
                self._of_node[needed] = _OF_NODE[needed]
                for field in INTEGERS:
                    if f"({field} +" in _OF_NODE[needed]:
                        self.field(field)
        return name

    def address(self, field: str, row: str) -> str:
        """Where the columns of a row are."""
        return f"{self.field(field)} + tl.cast({row}, tl.int64) * hidden + columns"

    def loaded(self, address: str, mask: str = "present") -> str:
        return self.let(f"tl.load({address}, mask={mask}, other=0.0)")

    @contextmanager
    def nested(self, head: str) -> Iterator[None]:
        self.line(head)
        self._depth += 1
        yield
        self._depth -= 1

    @contextmanager
    def loop(self, start: str, stop: str) -> Iterator[str]:
        self._count += 1
        name = f"k{self._count}"
        with self.nested(f"for {name} in range({start}, {stop}):"):
            yield name


class _Body:
    """What a kernel does with one node; the phases are those of the passes on the CPU.

    Args:
        there: where to read what is in memory.
        known: names of values that are at hand.

    ``slot`` and ``edge`` are the names of those that it is about now, numbered among all.
    """

    def __init__(
        self, text: _Text, plan: CellPlan, there: Mapping[Expr, Place], known: Mapping[Expr, str] | None = None
    ) -> None:
        self._text, self._plan, self._there, self._known = text, plan, there, dict(known or {})
        self._places = frozenset(there.values())
        self.slot: str | None = None
        self.edge: str | None = None

    def value(self, one: Expr) -> str:
        """The name of a value, which is computed here where it is not at hand."""
        if one not in self._known:
            self._known[one] = self._read(one) or self._text.let(
                operation(one, [self.value(arg) for arg in one.args], "zero")
            )
        return self._known[one]

    def block(self, level: int, sinks: Sinks, wanted: Sequence[Expr] = ()) -> None:
        """Computes the wanted expressions, and writes the sinks of this level and below.

        In phases: a loop over the level below, whose sums the next phase computes with. Values of the level below are
        computed in each loop that needs them; the last loop writes them down. What is written here comes at the end:
        it may lie where something was that has been read before.
        """
        ends = [*wanted, *(expr for expr, _ in sinks)]
        needed = ancestors(ends, lambda one: one in self._there or one.level < level)
        phase: dict[Expr, int] = {}
        for one in needed:
            before = 0 if one in self._there else max((phase.get(arg, 0) for arg in one.args), default=0)
            phase[one] = before + (one.op in REDUCTIONS and one.level == level and one not in self._there)
        sums = [one for one in needed if one.op in REDUCTIONS and one.level == level and one not in self._there]
        below, here = ([sink for sink in sinks if (sink[1].level > level) == is_below] for is_below in (True, False))
        last = max([phase[one] - 1 for one in sums] + [phase[expr] for expr, _ in below], default=-1)
        for now in range(last + 1):
            of_loop, to_write = [one for one in sums if phase[one] == now + 1], below if now == last else []
            if of_loop or to_write:
                self._loop(level + 1, of_loop, to_write)
        values = [(self.value(expr), at) for expr, at in here]
        if any(at in self._places for _, at in values):
            self._text.line("tl.debug_barrier()")  # another thread may still read what is written over
        for value, at in values:
            self._text.line(f"tl.store({self._address(at)}, {value}, mask=present)")
        for one in wanted:
            self.value(one)

    def _loop(self, level: int, sums: Sequence[Expr], sinks: Sinks) -> None:
        text = self._text
        ends = [one.args[0] for one in sums] + [expr for expr, _ in sinks]
        for one in ancestors(ends, lambda one: one in self._there or one.level < level):
            if one.level < level:
                self.value(one)
        outside, slot = dict(self._known), self.slot
        totals = [text.let('zero - float("inf")' if one.op == "largest" else "zero") for one in sums]
        if level == SLOT:
            first = text.of_node("first_slot")
            ends_of_loop = first, f"{first} + {text.of_node('slots')}"
        else:
            ends_of_loop = self._edges()
        with text.loop(*ends_of_loop) as number:
            if level == SLOT:
                self.slot = number
            else:
                self.edge = number
            self.block(level, sinks, [one.args[0] for one in sums])
            for one, total in zip(sums, totals, strict=True):
                term = self.value(one.args[0])
                if one.op == "largest":
                    text.line(f"{total} = tl.maximum({total}, {term}, propagate_nan=tl.PropagateNan.ALL)")
                else:
                    text.line(f"{total} += {term}")
        self._known, self.slot = outside, slot
        self.edge = None
        for one, total in zip(sums, totals, strict=True):
            if one.op == "largest":  # of nothing it is 0: a slot below one in use has no edge perhaps
                self._known[one] = text.let(f"tl.where({self._count()} > 0, {total}, zero)")
            else:
                self._known[one] = total

    def _edges(self) -> tuple[str, str]:
        """The edges into the slot: the first, and the one behind the last."""
        slot, offsets = self.slot or self._text.of_node("first_slot"), self._text.field("in_offsets")
        return f"tl.load({offsets} + {slot})", f"tl.load({offsets} + {slot} + 1)"

    def _count(self) -> str:
        """How many edges go into the slot."""
        start, stop = self._edges()
        return f"({stop} - {start})"

    def _read(self, one: Expr) -> str | None:
        """The name of a value that lies in memory, or is a count; None for one that has to be computed."""
        text, at = self._text, self._there.get(one)
        if one.op == "share":  # a slot without edges has a sum of 0
            return text.let(f"zero + 1 / tl.cast(tl.maximum({self._count()}, 1), zero.dtype)")
        if at is None and one.op == "count":  # of edges into a slot, of slots of a node
            count = self._count() if one.level else text.of_node("slots")
            return text.let(f"zero + tl.cast({count}, zero.dtype)")
        if at is None:
            return None
        if at.field == "edge_weights":  # a number for all columns
            return text.let(f"zero + tl.load({text.field('edge_weights')} + {self.edge})")
        # Without operands there was no product, and the row holds anything. Not what the target left in a slot's row.
        is_product = one.op == "column" and at.level == NODE
        mask = f"columns < tl.where({text.of_node('slots')} > 0, hidden, 0)" if is_product else "present"
        return text.loaded(self._address(at), mask)

    def _address(self, at: Place) -> str:
        text, plan = self._text, self._plan
        match at.field:
            case "gates":
                row = f"{text.of_node('class_row')} * {plan.lines}"
                if plan.slot_lines:
                    row += f" + {text.of_node('operand_row')} * {plan.slot_lines}"
                more = self._local() if at.level == SLOT else text.of_node("slots") if at.after else "0"
                return text.address("gates", f"{row} + {at.number} + {more}")
            case "projected":
                return text.address("projected", f"{text.of_node('feature_row')} * {len(plan.features)} + {at.number}")
            case "grad_projected":
                return text.address("grad_projected", f"{text.of_node('node')} * {len(plan.features)} + {at.number}")
            case "bias":
                return text.address("bias", str(at.number))
            case "operands":
                row = f"({text.of_node('operand_row')} + {self._local()}) * {plan.rows['operands']}"
                return text.address("operands", f"{row} + {at.number}")
        if at.level == NODE:
            index = "place"
        elif at.level == SLOT:  # what slots have in common lies in the first one too
            index = self.slot or text.of_node("first_slot")
        elif at.field in ("y", "states", "forget_products"):
            index = f"tl.load({text.field('in_places')} + {self.edge})"
        else:
            index = str(self.edge)
        return text.address(at.field, f"{index} * {plan.rows.get(at.field, 1)} + {at.number}")

    def _local(self) -> str:
        """The slot among those of the node."""
        first = self._text.of_node("first_slot")
        return f"({self.slot or first} - {first})"
