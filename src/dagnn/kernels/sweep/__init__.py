"""What the formula of a cell is written with: projected features, operands with their reductions, and weights."""

from collections.abc import Sequence
from typing import Any

from dagnn.errors import ConfigError
from dagnn.kernels.emit.expressions import EDGE, NODE, SLOT, Expr, Graph, over, quoted

# What is no reduction over operands, though it belongs to a slot.
_LEAVES = frozenset({"column", "share"})


class Named:
    """Values by name, made when they are named first: ``x.i``."""

    def __init__(self, graph: Graph, op: str, level: int = NODE) -> None:
        self._graph, self._op, self._level = graph, op, level
        self._values: dict[str, Expr] = {}

    def __getattr__(self, name: str) -> Any:  # an Expr, which PyTorch's functions take for a tensor
        if name.startswith("_"):
            raise AttributeError(name)
        if name not in self._values:
            self._values[name] = self._graph.add(self._op, name=name, level=self._level)
        return self._values[name]


class Columns(Named):
    """What the product gives: ``m.i`` once for a node, ``m.by_slot.f`` for each of its slots."""

    def __init__(self, graph: Graph, by_slot: Named) -> None:
        super().__init__(graph, "column")
        self._by_slot = by_slot

    @property
    def by_slot(self) -> Named:
        """Columns that every slot has of its own."""
        return self._by_slot


class Operands:
    """The operands of a node: each state by its name, and reductions over them. Without operands a reduction is 0."""

    def __init__(self, graph: Graph, states: Sequence[str]) -> None:
        self._graph, self._states = graph, {name: graph.add("source", name=name, level=EDGE) for name in states}
        self._scores = self._weighs = False

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name not in self._states:
            raise AttributeError(f"operands have the states {', '.join(self._states)}, not {name}: {quoted()}.")
        return self._states[name]

    def sum(self, values: Any) -> Any:
        """The sum over all operands, or over all slots."""
        return over(self._of_operands(values, SLOT))

    def mean(self, values: Any) -> Any:
        """The mean over the operands of an unordered cell, over those of each slot of an ordered one, then summed."""
        return over(over(self._of_operands(values), SLOT) * self._graph.add("share", level=SLOT))

    def max(self, values: Any) -> Any:
        """The maximum over the operands of an unordered cell, over those of each slot of an ordered one, then summed.

        Equal ones share its gradient.
        """
        return over(self._graph.add("largest", self._of_operands(values)))

    def softmax(self, values: Any) -> Any:
        """``exp`` of the values over its sum over the operands, column by column: a value for each operand.

        Of an unordered cell, as `attention`: alone in its slot, every operand would weigh 1.
        """
        self._weighs = True
        highest = self._graph.add("largest", self._of_operands(values)).detach()
        share = (values - highest).exp()
        return share / over(share, SLOT)

    def by_slot(self, values: Any) -> Any:
        """The sum over the operands in each slot: a value for each slot."""
        return over(self._of_operands(values), SLOT)

    def attention(self) -> Any:
        """The softmax over the operands of ``w h``, one number for each."""
        self._scores = self._weighs = True
        return self._graph.add("attention", level=EDGE)

    def _of_operands(self, values: Any, least: int = EDGE) -> Expr:
        if not isinstance(values, Expr) or values.level < least:
            raise ConfigError(
                f"a reduction over operands needs a value that differs from operand to operand: {quoted()}."
            )
        return values


class Weights:
    """What a cell learns besides the weights of its features: a product, one for each operand, and vectors by name."""

    def __init__(self, graph: Graph) -> None:
        self._graph, self._by_slot = graph, Named(graph, "column", SLOT)
        self._columns = Columns(graph, self._by_slot)
        self._vectors = Named(graph, "vector")
        self._aggregates: list[Expr] = []
        self._each: tuple[str, Expr] | None = None

    def product(self, *aggregates: Any) -> Columns:
        """``state_weight`` times sums, means and maxima over operands: columns by name, as many as are named."""
        if self._aggregates:
            raise ConfigError(f"a cell has one product: give it all that is aggregated at once: {quoted()}.")
        for one in aggregates:
            is_sum = isinstance(one, Expr) and one.op == "over" and one.level == NODE
            slot = one.args[0] if is_sum else one
            if not isinstance(slot, Expr) or slot.level != SLOT or slot.op in _LEAVES:
                raise ConfigError(f"a product takes what operands.sum, mean, max or by_slot gave: {quoted()}.")
            self._aggregates.append(slot)
        # Compared by slot, as they are multiplied: operands.sum and by_slot of one value are the same.
        if not aggregates or len(set(self._aggregates)) < len(aggregates):
            raise ConfigError(f"a product takes one or more aggregates, each once: {quoted()}.")
        return self._columns

    def each(self, output: Any, name: str = "operand_weight") -> Any:
        """The weight ``name`` times the output of each operand: computed once with the operand, not for every edge."""
        if not isinstance(output, Expr) or output.op != "source" or self._each not in (None, (name, output)):
            raise ConfigError(f"a cell has one product for each operand, with its first state: {quoted()}.")
        self._each = name, output
        return self._graph.add("each", name=name, level=EDGE)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._vectors, name)
