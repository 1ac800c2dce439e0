"""C99 from a sweep over one graph: the recorded formula of a cell as loops over nodes, slots, edges and columns.

What the compiled path makes of a formula (`dagnn.kernels.sweep.cell_body`) is made by the same code here, with a writer
that prints C, and products add their terms in the same order. So from the projected features on, results round alike.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dagnn.errors import UntranslatedError
from dagnn.export.c_functions import CFunction
from dagnn.export.c_graph import CSource, Numbers, index_type
from dagnn.kernels.emit.expressions import EDGE, NODE, REDUCTIONS, SLOT, Expr
from dagnn.kernels.emit.formula import ancestors
from dagnn.kernels.emit.functions import exp
from dagnn.kernels.sweep.cell_body import Body, Sinks
from dagnn.kernels.sweep.cell_plan import CellPlan, Place
from dagnn.kernels.sweep.plan import SweepPlan


@dataclass(frozen=True, eq=False)
class SweptCell:
    """A cell with its weights, and the order in which it goes over a graph.

    Attributes:
        plan: its formula.
        hidden: width of the states.
        feature_weight, feature_bias: ``[in_features, features * hidden]`` and ``[features * hidden]``.
        weights: as in `dagnn.kernels.ProjectedCell`.
        order: the graph, in the direction of the sweep.
        operator: int64 ``[num_nodes]``; None for a cell without operators.
    """

    plan: CellPlan
    hidden: int
    feature_weight: Numbers
    feature_bias: Numbers
    weights: tuple[Numbers, ...]
    order: SweepPlan
    operator: NDArray[np.int64] | None


def write_sweep(source: CSource, label: str, cell: SweptCell, stride: int) -> tuple[str, int]:
    """The function ``label`` of (x, y, work): rows of x are nodes, and those of y begin ``stride`` numbers apart.

    It returns its name, and how many numbers of ``work`` it needs. UntranslatedError where the formula has a function
    of PyTorch that formulas lack, ConfigError where a weight is NaN or infinite.
    """
    return _Sweep(source, label, cell, stride).write()


class _Sweep:
    """A sweep as C; see `write_sweep`."""

    def __init__(self, source: CSource, label: str, cell: SweptCell, stride: int) -> None:
        self._source, self._label, self._cell, self._stride = source, label, cell, stride
        plan, order = cell.plan, cell.order
        self._values = ancestors([*plan.new.values(), *plan.aggregates])
        for one in self._values:
            if one.op == "torch":
                raise UntranslatedError(
                    f"C has no torch.{one.name.function.__name__}: {one.line}. Write it with what formulas have."
                )
        self._tables = {
            "nodes": order.nodes,
            "slots": np.append(order.first_slots, order.num_slots),
            "edges": order.in_offsets,
            "sources": order.in_sources,
        }
        self._named: dict[str, str] = {}
        rest = list(cell.weights)
        self._weight = rest.pop(0) if plan.aggregates else None
        self._each = rest.pop(0) if plan.each is not None else None
        self._score = rest.pop() if plan.has_attention else None
        self._vectors = [source.numbers(f"{label}_vector{k}", one) for k, one in enumerate(rest)]
        slots, states = max(1, order.max_slots), order.num_nodes * cell.hidden
        columns = len(plan.columns) + slots * len(plan.slot_columns)
        sizes = {
            "projected": len(plan.features) * cell.hidden,
            "operands": slots * len(plan.aggregates) * cell.hidden,
            "columns": columns * cell.hidden,
            "share": max(1, int(np.diff(order.in_offsets).max(initial=0))) if plan.has_attention else 0,
            "score": order.num_nodes if plan.has_attention else 0,
            "each": states if plan.each else 0,
            **{f"state{k}": states for k in range(1, len(plan.states))},
        }
        self._sizes = {part: size for part, size in sizes.items() if size}

    def write(self) -> tuple[str, int]:
        source, d = self._source, self._cell.hidden
        code = CFunction(source.double, source.name)
        start = 0
        for part, size in self._sizes.items():
            code.statement(f"{source.number} *const {part} = work + {start};")
            start += size
        for name, is_used in (("x", "projected" in self._sizes), ("work", bool(start))):
            if not is_used:
                code.statement(f"(void){name};")
        with code.braces(f"for (size_t i = 0; i < {self._cell.order.num_nodes}; ++i)"):
            code.statement(f"const size_t v = {self.table('nodes')}[i];")
            if self._weight is not None or any(one.op in REDUCTIONS for one in self._values):
                slots = self.table("slots")
                code.statement(f"const size_t first = {slots}[i], last = {slots}[i + 1];")
            self._project(code)
            self._aggregate(code)
            with code.braces(f"for (size_t j = 0; j < {d}; ++j)"):
                plan = self._cell.plan
                there = self._inputs() | {one: Place(SLOT, "operands", k) for k, one in enumerate(plan.aggregates)}
                sinks = [(one, Place(NODE, "new", k)) for k, one in enumerate(plan.new.values())]
                _Columns(code, self, there).block(NODE, [], sinks)
            self._after(code)

        def text(name: str) -> str:
            head = f"static void {name}(const {source.number} *x, {source.number} *y, {source.number} *work)"
            return "\n".join([head, "{", *code.lines(), "}", ""])

        return source.function(self._label, text), start

    @property
    def number(self) -> str:
        return self._source.number

    def table(self, name: str) -> str:
        """The name of an array about the graph."""
        if name not in self._named:
            self._named[name] = self._source.indices(f"{self._label}_{name}", self._tables[name])
        return self._named[name]

    def address(self, at: Place) -> str:
        """A number of memory, in the column j."""
        d, k, plan = self._cell.hidden, at.number, self._cell.plan
        match at.field:
            case "y" | "new" if k == 0:
                node = "v" if at.field == "new" else f"{self.table('sources')}[e]"
                return f"y[{node} * {self._stride} + j]"
            case "new":
                return f"state{k}[v * {d} + j]"
            case "state" | "each":
                return f"{at.field}{k or ''}[{self.table('sources')}[e] * {d} + j]"
            case "share":
                return f"share[e - {self.table('edges')}[first]]"
            case "vector":
                return f"{self._vectors[k]}[j]"
            case "operands":
                return f"operands[((s - first) * {len(plan.aggregates)} + {k}) * {d} + j]"
            case "columns" if at.level == SLOT:
                line = f"{len(plan.columns)} + (s - first) * {len(plan.slot_columns)} + {k}"
                return f"columns[({line}) * {d} + j]"
        return f"{at.field}[{k * d} + j]"

    def _inputs(self) -> dict[Expr, Place]:
        """Where the leaves of the formula lie."""
        plan = self._cell.plan
        there = {plan.sources[name]: Place(EDGE, "state" if k else "y", k) for k, name in enumerate(plan.states)}
        if plan.each is not None:
            there[plan.sources[plan.each]] = Place(EDGE, "each")
        for leaves, level, field in (
            ("features", NODE, "projected"),
            ("vectors", NODE, "vector"),
            ("columns", NODE, "columns"),
            ("slot_columns", SLOT, "columns"),
        ):
            there |= {one: Place(level, field, k) for k, one in enumerate(plan.leaves[leaves].values())}
        return there | {one: Place(EDGE, "share") for one in plan.graph.values() if one.op == "attention"}

    def _project(self, code: CFunction) -> None:
        source, cell, label = self._source, self._cell, self._label
        if "projected" not in self._sizes:
            return
        weight = source.numbers(f"{label}_features", cell.feature_weight)
        bias = source.numbers(f"{label}_bias", cell.feature_bias)
        inputs, outputs = cell.feature_weight.shape
        code.statement(f"{source.linear()}(x + v * {inputs}, {weight}, {bias}, projected, {inputs}, {outputs});")

    def _aggregate(self, code: CFunction) -> None:
        """Attention to the operands, what is aggregated over them, and the product with it."""
        plan, source, d = self._cell.plan, self._source, self._cell.hidden
        if self._weight is None and self._score is None:
            return
        with code.braces("if (first < last)"):
            if self._score is not None:
                edges = f"{self.table('edges')}[first]"
                sources, count = f"{self.table('sources')} + {edges}", f"{self.table('edges')}[last] - {edges}"
                code.statement(f"{self._softmax()}(score, {sources}, {count}, share);")
            if self._weight is not None:
                with code.braces(f"for (size_t j = 0; j < {d}; ++j)"):
                    sinks = [(one, Place(SLOT, "operands", k)) for k, one in enumerate(plan.aggregates)]
                    _Columns(code, self, self._inputs()).block(NODE, [], sinks)
                weight, rows, width = source.numbers(f"{self._label}_weight", self._weight), *self._weight.shape[-2:]
                if self._cell.operator is not None:
                    operators = source.indices(f"{self._label}_operators", self._cell.operator)
                    weight += f" + (size_t){operators}[v] * {rows * width}"
                columns = f"{len(plan.columns) * d}"
                if plan.slot_columns:
                    columns += f" + (last - first) * {len(plan.slot_columns) * d}"
                lines = f"(last - first) * {len(plan.aggregates) * d}"
                code.statement(f"{source.product()}(operands, {weight}, columns, {lines}, {width}, {columns});")
        if plan.columns:
            with code.braces("else"):
                code.statement(f"memset(columns, 0, {len(plan.columns) * d} * sizeof *columns);")

    def _after(self, code: CFunction) -> None:
        """What a node works out for those that read it."""
        source, d = self._source, self._cell.hidden
        if self._each is not None:
            weight = source.numbers(f"{self._label}_each", self._each)
            code.statement(f"{source.product()}(y + v * {self._stride}, {weight}, each + v * {d}, {d}, {d}, {d});")
        if self._score is not None:
            weight = source.numbers(f"{self._label}_score", self._score)
            code.statement(f"{source.product()}(y + v * {self._stride}, {weight}, score + v, {d}, 1, 1);")

    def _softmax(self) -> str:
        number, index = self._source.number, index_type(self._tables["sources"])
        exponential = self._source.pointwise("exp", exp)
        return self._source.function(
            f"{self._label}_softmax",
            lambda full: (
                f"""\
/* The softmax of the scores of the nodes that n edges come from. */
static void {full}(const {number} *score, const {index} *from, size_t n, {number} *share)
{{
    {number} highest = -INFINITY, total = 0;
    size_t e;
    for (e = 0; e < n; ++e) {{
        highest = score[from[e]] <= highest ? highest : score[from[e]];
    }}
    for (e = 0; e < n; ++e) {{
        share[e] = {exponential}(score[from[e]] - highest);
        total = total + share[e];
    }}
    for (e = 0; e < n; ++e) {{
        share[e] = share[e] / total;
    }}
}}
"""
            ),
        )


class _Columns(Body):
    """What a node computes in its column j."""

    def __init__(self, code: CFunction, sweep: _Sweep, there: dict[Expr, Place]) -> None:
        super().__init__(code, there)
        self._sweep, self._edges = sweep, sweep.table

    @contextmanager
    def _each(self, level: int, terms: Sequence[Expr]) -> Iterator[None]:
        edges = "" if level == SLOT else self._edges("edges")
        head = "size_t s = first; s < last; ++s" if level == SLOT else f"size_t e = {edges}[s]; e < {edges}[s + 1]; ++e"
        with self._code.braces(f"for ({head})"):
            yield

    def _has_edges(self) -> Any:
        return f"{self._edges('edges')}[s] < {self._edges('edges')}[s + 1]"

    def _read(self, half: int, one: Expr) -> Any:
        code: CFunction = self._code
        if one.op == "share":
            edges, number = self._edges("edges"), self._sweep.number
            # A slot with none has a sum of 0.
            return code.made(f"1 / ({number})({self._has_edges()} ? {edges}[s + 1] - {edges}[s] : 1)")
        if one in self._there:
            return code.made(self._sweep.address(self._there[one]))
        return code.from_library(one, self._halves[half])

    def _write(self, sinks: Sinks) -> None:
        values = [(self.value(one, 0), at) for one, at in sinks]
        for value, at in values:
            self._code.store(value, self._sweep.address(at))
