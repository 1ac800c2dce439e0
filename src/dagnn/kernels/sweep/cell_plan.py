"""`CellPlan`: a cell's formula recorded and differentiated, and where each of its values lies between the two passes.

A step has two stages with a product between them: first, what the operands say is aggregated, slot by slot; then come
the gates, from the features and the product. The way back has the same two in reverse, and a third at the source of
every edge: what an edge brings back is evaluated there, from what it has in common with the other edges into its slot,
which the target leaves in rows of the slot, and what lies at the edge or the source.

What is kept of the forward pass is decided here, by one rule: of all that the way back needs, the results of functions,
what a maximum is of, and the product. What lies in memory anyway is read again, the rest computed again.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dagnn.errors import ConfigError
from dagnn.kernels.emit.expressions import BOOLEANS, EDGE, NODE, REDUCTIONS, SLOT, Expr, Graph, NoNumbers, called
from dagnn.kernels.emit.formula import ancestors, gradients, on_tensors
from dagnn.kernels.sweep import Named, Operands, Weights

_KEPT = frozenset({"sigmoid", "tanh", "exp", "log", "sqrt", "sin", "cos", "relu", "column", "largest"})


@dataclass(frozen=True)
class Place:
    """A line in memory, of a node, a slot or an edge: the ``number``-th of a ``field`` of the frame.

    Of ``gates`` there are those of the node, those of its slots, and those ``after`` the slots.
    """

    level: int
    field: str = "gates"
    number: int = 0
    after: bool = False


class Step(NamedTuple):
    """How a value is computed on tensors: by an operation of the ``level``, from the values at other places.

    ``detail`` is the name of a leaf, the function of an operation, or nothing.
    """

    place: int
    op: str
    level: int
    args: tuple[int, ...]
    arg_levels: tuple[int, ...]
    detail: Any


Formula = Callable[[Named, Operands, Weights], Any]


class CellPlan:
    """A cell.

    Args:
        formula: a function of the projected features, the operands and the weights; it returns the new states.
        states: their names, the first of them the output.

    Raises:
        ConfigError: the formula is not one; the message quotes its line.

    Attributes:
        states, features, columns, slot_columns, vectors: names, in the order in which the formula uses them.
        each: the name of the weight of each operand, or None.
        aggregates: what the product multiplies, by slot.
        reads_output, reads_features: whether the way back reads the outputs, and the projected features.
        weighs: whether it has a softmax over operands; that means nothing where each has a slot of its own.
        reached: whether the output depends on the projected features, and on each of the weights of a `ProjectedCell`,
            in any graph, so that autograd has a gradient for them.
        keeps_zero: see `_keeps_zero`.
        reason: why the formula runs level by level; None where it can be compiled.
    """

    def __init__(self, formula: Formula, states: Sequence[str]) -> None:
        for name in states:
            if not name.isidentifier() or name.startswith("_") or hasattr(Operands, name):
                raise ConfigError(f"a state cannot be called {name!r}: give it another name.")
        graph = self.graph = Graph()
        x, operands, weights = Named(graph, "feature"), Operands(graph, states), Weights(graph)
        with NoNumbers():
            result = formula(x, operands, weights)
        self.new = dict(zip(states, _checked(formula, result, states), strict=True))
        self.states, self.has_attention, self.weighs = tuple(states), operands._scores, operands._weighs
        self.leaves = {
            "features": x._values,
            "columns": weights._columns._values,
            "slot_columns": weights._by_slot._values,
            "vectors": weights._vectors._values,
        }
        self.features, self.columns, self.slot_columns, self.vectors = (tuple(of) for of in self.leaves.values())
        self.aggregates = tuple(weights._aggregates)
        self.each = None if weights._each is None else weights._each[0]
        self.sources = dict(operands._states)
        if self.each:
            if weights._each[1] is not self.sources[states[0]]:  # type: ignore[index]
                raise ConfigError(f"{called(formula)}: weights.each takes the first state, operands.{states[0]}.")
            self.sources[self.each] = graph.add("each", name=self.each, level=EDGE)
        self.key = tuple(graph), tuple(one.place for one in (*self.new.values(), *self.aggregates)), self.states
        of_product = set(ancestors(self.aggregates))
        order = ancestors([*self.new.values(), *self.aggregates])
        # Plain places and functions: torch.compile traces these, and would not see through a dict of expressions.
        self.first_steps = [_step(one) for one in order if one in of_product]
        self.second_steps = [_step(one) for one in order if one not in of_product]
        self.aggregate_places = [one.place for one in self.aggregates]
        self.new_places = [one.place for one in self.new.values()]
        self.reached = self._reached()
        self.reason = self._reason()
        self._forward_ends = len(graph)

    def complete(self) -> None:
        """Work out the way back, and where everything lies."""
        self._differentiate()
        self._lay_out()
        self.keeps_zero = self._keeps_zero()

    def check(self, hidden: int) -> None:
        """Raise ConfigError where a function that formulas lack does not take values of this width."""
        for one in self.graph.values():
            if one.op == "torch":
                one.name.check(hidden)

    def _keeps_zero(self) -> bool:
        """Whether everything that a product or a sum reads is 0 where all that goes in is.

        Rows are filled up with zeros to whole packs. Where these do not stay zero, they are set to it at every store:
        an infinite number there, times a weight of 0, would be NaN in all columns.
        """
        values: dict[Expr, Tensor] = {}
        zero = torch.zeros((), dtype=torch.float64)
        for one in self.graph.values():
            if one.op in REDUCTIONS:
                values[one] = values[one.args[0]]
            elif one.args:
                values[one] = on_tensors(one)(*(values[arg] for arg in one.args))
            else:
                values[one] = zero + (one.name if one.op == "number" else one.op in ("share", "count"))
        written = [one for one, _ in (*self.first, *self.second, *self.back, *self.last) if one.op not in _KEPT]
        return all(values[one] == 0 for one in (*written, *self.new.values(), *self.aggregates, *self.pulled.values()))

    def _reached(self) -> tuple[bool, ...]:
        # Through the operands, and through the product to what it multiplies, as long as that finds more.
        found, ends = set[Expr](), [self.new[self.states[0]]]
        while ends:
            found |= set(ancestors(ends, lambda one: one.op == "fixed" or one.op in BOOLEANS))
            next_ends = [self.new[name] for name in self.states if self.sources[name] in found]
            if any(one.op in ("each", "attention") for one in found):
                next_ends.append(self.new[self.states[0]])
            if any(one.op == "column" for one in found):
                next_ends += self.aggregates
            ends = [one for one in next_ends if one not in found]
        ops = {one.op for one in found}
        matrix = ["column" in ops] if self.aggregates else []
        each = ["each" in ops] if self.each else []
        vectors = [one in found for one in self.leaves["vectors"].values()]
        scores = ["attention" in ops] if self.has_attention else []
        return ("feature" in ops, *matrix, *each, *vectors, *scores)

    def _reason(self) -> str | None:
        for one in ancestors([*self.new.values(), *self.aggregates]):
            if one.op == "torch":
                return f"formulas have no torch.{one.name.function.__name__}: {one.line}"
        if not self.aggregates or not self.features or not self.columns:
            return "it has no weights.product, or no features"
        if len(self.slot_columns) > 1:
            return (
                f"it has {len(self.slot_columns)} columns by slot, {', '.join(self.slot_columns)}, and one is compiled"
            )
        for one in ancestors(self.aggregates):
            if one.op in ("feature", "vector"):
                return f"a feature or vector is used before the product: {one.line}"
        if self.has_attention and not self._attends():
            return (
                "attention is compiled in operands.sum(operands.attention() * operands.h) alone, as all of the product"
            )
        return None

    def _attends(self) -> bool:
        """Whether attention is used in the one way that is compiled."""
        weighed = [arg for one in self.aggregates for arg in one.args]
        if len(self.states) > 1 or self.each or len(weighed) != 1 or self.aggregates[0].op != "over":
            return False
        at_hand, (h,) = set(self.aggregates), self.sources.values()
        rest = ancestors(self.new.values(), lambda one: one in at_hand)
        return (
            {arg.op for arg in weighed[0].args} == {"attention", "source"}
            and weighed[0].op == "mul"
            and not any(one.op == "attention" or one is h for one in rest)
        )

    # ---- derivatives ----

    def _differentiate(self) -> None:
        """The gradients of everything: of the gates' stage, then of the stage that aggregates, then at the sources."""
        graph, at_hand = self.graph, set(self.aggregates)
        self.seeds = {name: graph.add("gradient", name=name) for name in self.states}
        seeds: dict[Expr, Expr] = {}
        for name, one in self.new.items():  # two states may be one expression: it gets the sum
            seeds[one] = seeds[one] + self.seeds[name] if one in seeds else self.seeds[name]
        self.gradient = gradients(seeds, lambda one: one in at_hand)
        self.slot_seeds = [graph.add("slot gradient", name=k, level=SLOT) for k in range(len(self.aggregates))]
        earlier = gradients(dict(zip(self.aggregates, self.slot_seeds, strict=True)))
        self.pulled = {
            name: parts[0] + parts[1] if len(parts) == 2 else parts[0]
            for name, one in self.sources.items()
            if (parts := [of[one] for of in (self.gradient, earlier) if one in of])
        }

    def _lay_out(self) -> None:
        fields = {name: Place(EDGE, "states", k) for k, name in enumerate(self.states[1:])}
        fields |= {self.states[0]: Place(EDGE, "y")} | (
            {self.each: Place(EDGE, "forget_products")} if self.each else {}
        )
        at_edge = {one: fields[name] for name, one in self.sources.items()}
        columns, by_slot = (self.leaves[name].values() for name in ("columns", "slot_columns"))
        at_column = {one: Place(NODE, number=k) for k, one in enumerate(columns)}
        at_column |= {one: Place(SLOT, number=len(self.columns)) for one in by_slot}
        given = {one: Place(NODE, "projected", k) for k, one in enumerate(self.leaves["features"].values())}
        given |= {one: Place(NODE, "bias", k) for k, one in enumerate(self.leaves["vectors"].values())}
        attention = {one: Place(EDGE, "edge_weights") for one in self.graph.values() if one.op == "attention"}
        self.lines, self.slot_lines, self.rows = len(self.columns), len(self.slot_columns), {
            "operands": len(self.aggregates), "slot_gradients": len(self.aggregates), "states": len(self.states) - 1,
            "slot_kept": 0, "slot_rows": 0, "edge_gates": 0, "bias": len(self.vectors),
        }  # fmt: skip

        self.there_first = at_edge | given | attention
        there = {one: Place(SLOT, "operands", k) for k, one in enumerate(self.aggregates)}
        there |= self.there_first | at_column
        of_states = [(self.new[name], Place(NODE, "states", k)) for k, name in enumerate(self.states[1:])]
        stored = dict(of_states)
        kept = self._keep(at_column, {*there, *stored} - set(at_column))
        # The first stage writes what it has computed; the product then fills the columns, so these are no place for it.
        of_first = set(ancestors(self.aggregates, lambda one: one in self.there_first))
        self.first = [*((one, at) for one, at in there.items() if at.field == "operands")]
        self.first += [(one, at) for one, at in kept.items() if one in of_first and one not in there]
        self.there = there | {one: at for one, at in kept.items() if one in of_first}
        self.there_back = there | stored | kept

        own = {one: Place(NODE, at.field, at.number) for one, at in at_edge.items()}
        far = {one: at for one, at in kept.items() if at.field in ("slot_kept", "edge_gates")} | attention
        far |= {one: at for one, at in given.items() if at.field == "bias"}
        left, self.last = self._leave(far, own)
        seeds = {one: Place(SLOT, "slot_gradients", k) for k, one in enumerate(self.slot_seeds)}
        late = {one for one, _ in self.last}
        self.there_last = self.there_back | seeds | {one: at for one, at in left.items() if one not in late}
        self.there_at_source = seeds | far | own | left
        self.second = [(self.new[self.states[0]], Place(NODE, "y"))]
        self.second += [(one, at) for one, at in kept.items() if one not in at_column and one not in of_first]
        self.second += of_states
        self._write_back(at_column, kept, left)

    def _keep(self, at_column: Mapping[Expr, Place], in_memory: set[Expr]) -> dict[Expr, Place]:
        """The places of what is kept. A column that is not needed any more gives up its place."""

        # What a maximum is of: computed again, it could be rounded otherwise, and then nothing would equal the maximum.
        compared = {one.args[0] for one in self.graph.values() if one.op == "largest"}

        def is_kept(one: Expr) -> bool:
            lasts = one.op in _KEPT or one in compared
            return lasts and one.place < self._forward_ends and one not in in_memory

        # What the passes write or pull, of all gradients: those of leaves.
        leaves = {one for of in self.leaves.values() for one in of.values()} | set(self.aggregates)
        ends = [self.gradient[one] for one in leaves if one in self.gradient] + list(self.pulled.values())
        asked = ancestors(ends, lambda one: one in in_memory or is_kept(one))
        kept = [one for one in asked if is_kept(one)]
        of_first = set(ancestors(self.aggregates))
        free = [one for one in at_column if one not in set(kept)]
        places: dict[Expr, Place] = {}
        for one in kept:
            like = [column for column in free if column.level == one.level and one not in of_first]
            if one.op == "column":
                places[one] = at_column[one]
            elif like:
                free = [column for column in free if column is not like[0]]
                places[one] = at_column[like[0]]
            elif one.level == NODE:
                places[one] = self._further()
            else:
                places[one] = self._row(one.level, "slot_kept" if one.level == SLOT else "edge_gates")
        return places

    def _leave(
        self, far: Mapping[Expr, Place], own: Mapping[Expr, Place]
    ) -> tuple[dict[Expr, Place], list[tuple[Expr, Place]]]:
        """Rows of a slot for what its edges have in common; and which of them the stage after the product writes."""
        late = {one for one in ancestors(self.pulled.values()) if set(ancestors([one])) & set(self.slot_seeds)}

        def is_common(one: Expr) -> bool:  # a condition has no place in memory: what it compares has
            return one.level < EDGE and one.op not in BOOLEANS

        at_source = ancestors(self.pulled.values(), lambda one: is_common(one) or one in far or one in own)
        common = [one for one in at_source if is_common(one) and one.op != "number" and one not in far]
        rest = [one for one in common if one in late and one not in set(self.slot_seeds)]
        # What the last stage needs of the one before, which has the gradients of the states in registers only.
        seeds = set(self.seeds.values())
        inner = ancestors(rest, lambda one: one not in late)
        early = [one for one in common if one not in late]
        early += [one for one in inner if one not in late and set(ancestors([one])) & seeds and one not in set(early)]
        left = {}
        for one in early:
            if one in set(self.aggregates):  # the forward pass has it in registers
                left[one] = self._row(SLOT, "slot_kept")
                self.first.append((one, left[one]))
            else:
                left[one] = self._row(SLOT, "slot_rows")
        # A gradient of an aggregate that no source reads as it is gives up its row.
        free = [Place(SLOT, "slot_gradients", k) for k, one in enumerate(self.slot_seeds) if one not in set(common)]
        for one in rest:
            left[one] = free.pop(0) if free else self._row(SLOT, "slot_rows")
        return left, [(one, left[one]) for one in rest]

    def _write_back(
        self, at_column: Mapping[Expr, Place], kept: Mapping[Expr, Place], left: Mapping[Expr, Place]
    ) -> None:
        zero = self.graph.number(0)
        late = {one for one, _ in self.last}
        self.back = [(self.gradient.get(one, zero), at) for one, at in at_column.items()]
        self.back += [(one, at) for one, at in left.items() if one not in late and at.field == "slot_rows"]
        self.adds_to_slots = any(one in self.gradient for one in self.aggregates)
        if self.adds_to_slots:
            places = [Place(SLOT, "slot_gradients", k) for k in range(len(self.aggregates))]
            self.back += [(self.gradient.get(one, zero), at) for one, at in zip(self.aggregates, places, strict=True)]
        written = {one: at for one, at in self.back if at.level == NODE and at.field == "gates"}
        free = [at for at in kept.values() if at.level == NODE and at not in set(at_column.values())]

        def place_of(one: Expr) -> Place:
            expr = self.gradient.get(one, zero)
            if expr not in written:
                written[expr] = free.pop() if free else self._further()
                self.back.append((expr, written[expr]))
            return written[expr]

        self.feature_places = [place_of(one) for one in self.leaves["features"].values()]
        self.vector_places = [place_of(one) for one in self.leaves["vectors"].values()]
        projected = [Place(NODE, "grad_projected", k) for k in range(len(self.features))]
        self.back += zip(
            (self.gradient.get(one, zero) for one in self.leaves["features"].values()), projected, strict=True
        )
        fields = {at.field for at in self._read_back()}
        self.reads_output, self.reads_features = self.has_attention or "y" in fields, "projected" in fields

    def _read_back(self) -> list[Place]:
        """What the way back reads."""
        found = []
        for ends, there in (
            ([one for one, _ in self.back], self.there_back),
            ([one for one, _ in self.last], self.there_last),
            (list(self.pulled.values()), self.there_at_source),
        ):
            found += [there[one] for one in ancestors(ends, there.__contains__) if one in there]
        return found

    def _further(self) -> Place:
        self.lines += 1
        return Place(NODE, number=self.lines - 1, after=self.slot_lines > 0)

    def _row(self, level: int, field: str) -> Place:
        self.rows[field] += 1
        return Place(level, field, self.rows[field] - 1)


_plans: dict[Any, CellPlan] = {}


def plan_cell(formula: Formula, states: Sequence[str]) -> CellPlan:
    """The plan of a cell: one object for all cells of one formula, which then share their compiled code.

    Args, Raises: as of `CellPlan`.
    """
    plan = CellPlan(formula, states)
    if plan.reason is not None:  # has functions of its own, which nothing else can share
        return plan
    if plan.key not in _plans:
        plan.complete()
        _plans[plan.key] = plan
    return _plans[plan.key]


def _checked(formula: Formula, result: Any, states: Sequence[str]) -> tuple[Expr, ...]:
    new = result if isinstance(result, tuple) else (result,)
    if len(new) != len(states) or not all(isinstance(one, Expr) for one in new):
        raise ConfigError(
            f"{called(formula)} must return a value for each of the states {', '.join(states)}, got {result!r}."
        )
    for name, one in zip(states, new, strict=True):
        if one.op in BOOLEANS:
            raise ConfigError(
                f"the state {name} is a comparison: write torch.where(comparison, 1.0, 0.0) for a number: {one.line}."
            )
        if one.level != NODE:
            raise ConfigError(
                f"the state {name} differs from operand to operand; reduce it, with operands.sum: {one.line}."
            )
    return new


def _step(one: Expr) -> Step:
    is_operation = bool(one.args) and one.op not in REDUCTIONS
    levels = tuple(arg.level if arg.op != "number" else one.level for arg in one.args)
    detail = on_tensors(one) if is_operation else one.name
    return Step(one.place, one.op, one.level, tuple(arg.place for arg in one.args), levels, detail)
